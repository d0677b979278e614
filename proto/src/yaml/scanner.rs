//! Characters to tokens, as libyaml and its port that upstream reads YAML with divide them: which text is a key comes out
//! when its colon is found, on the same line and within [`KEY`] characters.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::error::Broken;
use super::reader::Cursor;

/// The longest key that needs no mark of its own, in characters.
const KEY: usize = 1024;
/// Most collections within one another, of each style.
const MAX_DEPTH: usize = 10_000;
/// Error text of a deeper document.
const TOO_DEEP: &str = "exceeded max depth of 10000";

/// A piece of the stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind<'t> {
    StreamEnd,
    /// `%YAML 1.1`
    Version(u8, u8),
    /// `%TAG ! prefix`
    TagDirective(String, String),
    DocumentStart,
    DocumentEnd,
    BlockSequence,
    BlockMapping,
    BlockEnd,
    FlowSequence,
    FlowSequenceEnd,
    FlowMapping,
    FlowMappingEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(&'t str),
    Anchor(&'t str),
    /// Handle and suffix.
    Tag(String, String),
    Scalar {
        value: Cow<'t, str>,
        plain: bool,
    },
}

/// A piece of the stream, and on which line it begins.
#[derive(Debug, Clone)]
pub(super) struct Token<'t> {
    pub(super) kind: TokenKind<'t>,
    pub(super) line: usize,
}

/// Possible start of a key without indicator.
#[derive(Clone, Copy)]
struct SimpleKey {
    possible: bool,
    /// The key's first token waits for the colon.
    awaited: bool,
    /// Only a key is allowed there.
    required: bool,
    /// The number of its first token.
    token: usize,
    index: usize,
    line: usize,
    column: usize,
}

impl SimpleKey {
    /// None yet, before a token.
    fn none(token: usize) -> Self {
        Self { possible: false, awaited: false, required: false, token, index: 0, line: 0, column: 0 }
    }
}

/// Makes tokens when they are asked for.
pub(super) struct Scanner<'t> {
    pub(super) cursor: Cursor<'t>,
    tokens: VecDeque<Token<'t>>,
    /// Tokens that were taken.
    taken: usize,
    started: bool,
    /// The column of the block collection; none outside of any.
    pub(super) indent: Option<usize>,
    indents: Vec<Option<usize>>,
    pub(super) flow: usize,
    pub(super) key_allowed: bool,
    /// One for each flow collection, and one for the block around. Their tokens' numbers ascend.
    keys: Vec<SimpleKey>,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(cursor: Cursor<'t>) -> Self {
        let none = SimpleKey::none(0);
        Self {
            cursor,
            tokens: VecDeque::new(),
            taken: 0,
            started: false,
            indent: None,
            indents: Vec::new(),
            flow: 0,
            key_allowed: true,
            keys: vec![none],
        }
    }

    /// The next token.
    pub(super) fn peek(&mut self) -> Result<&Token<'t>, Broken> {
        while self.tokens.is_empty() || self.may_be_key()? {
            self.fetch()?;
        }
        // The loop has seen to that.
        self.tokens.front().ok_or_else(|| Broken::at(0, "unknown problem parsing YAML content"))
    }

    /// Takes the next token.
    pub(super) fn take(&mut self) -> Result<Token<'t>, Broken> {
        self.peek()?;
        self.taken += 1;
        self.tokens.pop_front().ok_or_else(|| Broken::at(0, "unknown problem parsing YAML content"))
    }

    /// A problem where the scanner stands.
    pub(super) fn broken<T>(&self, problem: &'static str) -> Result<T, Broken> {
        // Lines are counted from one, but the first is not named.
        let line = if self.cursor.line == 0 { 0 } else { self.cursor.line + 1 };
        Err(Broken::at(line, problem))
    }

    /// Reports whether the next token may turn out to be a key.
    fn may_be_key(&mut self) -> Result<bool, Broken> {
        let from = self.keys.partition_point(|key| key.token < self.taken);
        for at in from..self.keys.len() {
            if self.keys[at].token > self.taken {
                break;
            }
            if self.keys[at].awaited && self.is_valid(at)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_valid(&mut self, at: usize) -> Result<bool, Broken> {
        let key = self.keys[at];
        if !key.possible {
            return Ok(false);
        }
        if key.line == self.cursor.line && key.index + KEY >= self.cursor.index {
            return Ok(true);
        }
        if key.required {
            return self.broken("could not find expected ':'");
        }
        self.keys[at].possible = false;
        Ok(false)
    }

    fn number(&self) -> usize {
        self.taken + self.tokens.len()
    }

    /// A key may begin here.
    fn save_key(&mut self) -> Result<(), Broken> {
        if !self.key_allowed {
            return Ok(());
        }
        self.remove_key()?;
        let Cursor { index, line, column, .. } = self.cursor;
        let required = self.flow == 0 && self.indent == Some(column);
        let key = SimpleKey { possible: true, awaited: true, required, token: self.number(), index, line, column };
        self.keys.pop();
        self.keys.push(key);
        Ok(())
    }

    /// Drops the possible key; an error when a key is required.
    fn remove_key(&mut self) -> Result<(), Broken> {
        if self.keys.last().is_some_and(|key| key.possible && key.required) {
            return self.broken("could not find expected ':'");
        }
        if let Some(key) = self.keys.last_mut() {
            key.possible = false;
        }
        Ok(())
    }

    fn push(&mut self, kind: TokenKind<'t>, line: usize) {
        self.tokens.push_back(Token { kind, line });
    }

    /// Begins a block collection if `column` is further right.
    fn roll(&mut self, column: usize, before: Option<usize>, kind: TokenKind<'t>, line: usize) -> Result<(), Broken> {
        if self.flow > 0 || self.indent >= Some(column) {
            return Ok(());
        }
        self.indents.push(self.indent);
        self.indent = Some(column);
        if self.indents.len() > MAX_DEPTH {
            return self.broken(TOO_DEEP);
        }
        self.insert(before, Token { kind, line });
        Ok(())
    }

    /// Puts a token before another, unless that was taken.
    fn insert(&mut self, before: Option<usize>, token: Token<'t>) {
        let at = before.and_then(|number| number.checked_sub(self.taken)).unwrap_or(self.tokens.len());
        self.tokens.insert(at, token);
    }

    /// Ends the block collections that are further right.
    fn unroll(&mut self, column: Option<usize>) {
        if self.flow > 0 {
            return;
        }
        while self.indent > column {
            self.push(TokenKind::BlockEnd, self.cursor.line);
            self.indent = self.indents.pop().flatten();
        }
    }

    /// Ends all block collections; no key goes over this place.
    fn unroll_all(&mut self) -> Result<(), Broken> {
        self.unroll(None);
        self.remove_key()?;
        self.key_allowed = false;
        Ok(())
    }

    fn skip_to_token(&mut self) -> Result<(), Broken> {
        let cursor = &mut self.cursor;
        loop {
            cursor.need(1)?;
            let tabs = self.flow > 0 || !self.key_allowed;
            while cursor.is(b' ') || tabs && cursor.is(b'\t') {
                cursor.skip();
                cursor.need(1)?;
            }
            cursor.skip_comment()?;
            if !cursor.is_break(0) {
                return Ok(());
            }
            cursor.need(2)?;
            cursor.skip_line();
            self.key_allowed |= self.flow == 0;
        }
    }

    /// Makes at least one token.
    fn fetch(&mut self) -> Result<(), Broken> {
        if !self.started {
            self.cursor.need(1)?;
            self.started = true;
        }
        self.skip_to_token()?;
        self.unroll(Some(self.cursor.column));
        self.cursor.need(4)?;
        let (in_flow, line) = (self.flow > 0, self.cursor.line);
        let first = self.cursor.byte(0);
        match first {
            0 => self.fetch_end(),
            b'%' if self.cursor.column == 0 => {
                self.unroll_all()?;
                let kind = self.scan_directive()?;
                self.push(kind, line);
                Ok(())
            }
            b'-' if self.cursor.is_mark(b'-') => self.fetch_mark(TokenKind::DocumentStart),
            b'.' if self.cursor.is_mark(b'.') => self.fetch_mark(TokenKind::DocumentEnd),
            b'[' => self.fetch_flow(TokenKind::FlowSequence),
            b'{' => self.fetch_flow(TokenKind::FlowMapping),
            b']' => self.fetch_flow_end(TokenKind::FlowSequenceEnd),
            b'}' => self.fetch_flow_end(TokenKind::FlowMappingEnd),
            b',' => {
                self.remove_key()?;
                self.key_allowed = true;
                self.one(TokenKind::FlowEntry);
                Ok(())
            }
            b'-' if self.cursor.ends_word(1) => self.fetch_entry(),
            b'?' if in_flow || self.cursor.ends_word(1) => self.fetch_key(),
            b':' if in_flow || self.cursor.ends_word(1) => self.fetch_value(),
            b'*' | b'&' => {
                self.begin()?;
                let name = self.scan_anchor()?;
                self.push(if first == b'*' { TokenKind::Alias(name) } else { TokenKind::Anchor(name) }, line);
                Ok(())
            }
            b'!' => {
                self.begin()?;
                let kind = self.scan_tag()?;
                self.push(kind, line);
                Ok(())
            }
            b'|' | b'>' if !in_flow => {
                self.remove_key()?;
                self.key_allowed = true;
                let value = self.scan_block_scalar(first == b'|')?;
                self.push(TokenKind::Scalar { value: Cow::Owned(value), plain: false }, line);
                Ok(())
            }
            b'\'' | b'"' => {
                self.begin()?;
                let value = self.scan_quoted(first == b'\'')?;
                self.push(TokenKind::Scalar { value: Cow::Owned(value), plain: false }, line);
                Ok(())
            }
            _ if self.begins_plain(first) => {
                self.begin()?;
                let value = self.scan_plain()?;
                self.push(TokenKind::Scalar { value, plain: true }, line);
                Ok(())
            }
            _ => self.broken("found character that cannot start any token"),
        }
    }

    /// Something that may be a key, behind which none begins.
    fn begin(&mut self) -> Result<(), Broken> {
        self.save_key()?;
        self.key_allowed = false;
        Ok(())
    }

    fn begins_plain(&self, first: u8) -> bool {
        match first {
            b'-' => !self.cursor.is_blank(1),
            b'?' | b':' => self.flow == 0 && !self.cursor.ends_word(1),
            b',' | b'[' | b']' | b'{' | b'}' | b'#' | b'&' | b'*' | b'!' | b'|' | b'>' | b'\'' | b'"' | b'%' | b'@'
            | b'`' => false,
            _ => !self.cursor.ends_word(0),
        }
    }

    /// A token of one character.
    fn one(&mut self, kind: TokenKind<'t>) {
        let line = self.cursor.line;
        self.cursor.skip();
        self.push(kind, line);
    }

    fn fetch_end(&mut self) -> Result<(), Broken> {
        if self.cursor.column != 0 {
            self.cursor.column = 0;
            self.cursor.line += 1;
        }
        self.unroll_all()?;
        self.push(TokenKind::StreamEnd, self.cursor.line);
        Ok(())
    }

    fn fetch_mark(&mut self, kind: TokenKind<'t>) -> Result<(), Broken> {
        self.unroll_all()?;
        self.cursor.skip();
        self.cursor.skip();
        self.one(kind);
        Ok(())
    }

    fn fetch_flow(&mut self, kind: TokenKind<'t>) -> Result<(), Broken> {
        self.save_key()?;
        self.keys.push(SimpleKey::none(self.number()));
        self.flow += 1;
        if self.flow > MAX_DEPTH {
            return self.broken(TOO_DEEP);
        }
        self.key_allowed = true;
        self.one(kind);
        Ok(())
    }

    fn fetch_flow_end(&mut self, kind: TokenKind<'t>) -> Result<(), Broken> {
        self.remove_key()?;
        if self.flow > 0 {
            self.flow -= 1;
            // Upstream's scanner remembers keys by their tokens and forgets the collection's own with what is in it: for an
            // empty one nobody waits.
            if let (Some(inner), Some(outer)) = (self.keys.pop(), self.keys.last_mut()) {
                outer.awaited &= outer.token != inner.token;
            }
        }
        self.key_allowed = false;
        self.one(kind);
        Ok(())
    }

    /// Opens a block collection at this column, unless it is open.
    fn within(&mut self, block: TokenKind<'t>, refusal: &'static str) -> Result<(), Broken> {
        if self.flow > 0 {
            return Ok(());
        }
        if !self.key_allowed {
            return self.broken(refusal);
        }
        self.roll(self.cursor.column, None, block, self.cursor.line)
    }

    fn fetch_entry(&mut self) -> Result<(), Broken> {
        self.within(TokenKind::BlockSequence, "block sequence entries are not allowed in this context")?;
        self.remove_key()?;
        self.key_allowed = true;
        self.one(TokenKind::BlockEntry);
        Ok(())
    }

    fn fetch_key(&mut self) -> Result<(), Broken> {
        self.within(TokenKind::BlockMapping, "mapping keys are not allowed in this context")?;
        self.remove_key()?;
        self.key_allowed = self.flow == 0;
        self.one(TokenKind::Key);
        Ok(())
    }

    fn fetch_value(&mut self) -> Result<(), Broken> {
        let last = self.keys.len() - 1;
        if self.is_valid(last)? {
            let SimpleKey { token, line, column, .. } = self.keys[last];
            self.insert(Some(token), Token { kind: TokenKind::Key, line });
            self.roll(column, Some(token), TokenKind::BlockMapping, line)?;
            self.keys[last].possible = false;
            self.key_allowed = false;
        } else {
            self.within(TokenKind::BlockMapping, "mapping values are not allowed in this context")?;
            self.key_allowed = self.flow == 0;
        }
        self.one(TokenKind::Value);
        Ok(())
    }
}
