//! Tokens to the nodes of one document. A node's parts follow it, so that a document is one list; depth is a stack here
//! and no recursion.

use std::borrow::Cow;
use std::collections::HashMap;

use super::error::Broken;
use super::scanner::{Scanner, Token, TokenKind};

/// Prefix of the tags of YAML's own types.
pub(super) const LONG: &str = "tag:yaml.org,2002:";

/// A value as it is written.
#[derive(Debug, PartialEq)]
pub(super) struct Node<'t> {
    /// Tag of the node, in full; empty without one.
    pub(super) tag: Cow<'static, str>,
    /// Lines before it.
    pub(super) line: usize,
    pub(super) what: What<'t>,
}

#[derive(Debug, PartialEq)]
pub(super) enum What<'t> {
    Scalar {
        value: Cow<'t, str>,
        /// The type follows from the text.
        implicit: bool,
    },
    /// Up to a place in the list.
    Sequence(usize),
    /// Keys and values in turns, up to a place in the list.
    Mapping(usize),
    /// The node at a place in the list, under a name.
    Alias(usize, &'t str),
}

/// The nodes of a document: the first is its root.
pub(super) type Document<'t> = Vec<Node<'t>>;

#[derive(Clone, Copy)]
enum State {
    /// A node, and whether it may be a block, and one whose dashes stand below the key.
    Node {
        block: bool,
        indentless: bool,
    },
    BlockSequence,
    IndentlessSequence,
    BlockMappingKey,
    BlockMappingValue,
    FlowSequence {
        first: bool,
    },
    FlowPairKey,
    FlowPairValue,
    FlowPairEnd,
    FlowMappingKey {
        first: bool,
    },
    FlowMappingValue,
    FlowMappingEmptyValue,
}

const BLOCK: State = State::Node { block: true, indentless: false };
const BLOCK_OR_DASHES: State = State::Node { block: true, indentless: true };
const FLOW: State = State::Node { block: false, indentless: false };

/// Reads documents one after another.
pub(super) struct Parser<'t> {
    scanner: Scanner<'t>,
    states: Vec<State>,
    /// Handles and prefixes of this document.
    tags: Vec<(String, String)>,
    nodes: Document<'t>,
    /// Collections that have no end yet.
    open: Vec<usize>,
    anchors: HashMap<&'t str, usize>,
    /// A document has started.
    begun: bool,
}

impl<'t> Parser<'t> {
    pub(super) fn new(scanner: Scanner<'t>) -> Self {
        Self {
            scanner,
            states: Vec::new(),
            tags: Vec::new(),
            nodes: Vec::new(),
            open: Vec::new(),
            anchors: HashMap::new(),
            begun: false,
        }
    }

    /// The next document, if there is one.
    pub(super) fn document(&mut self) -> Result<Option<Document<'t>>, Broken> {
        while self.begun && self.next_is(&TokenKind::DocumentEnd)? {
            self.scanner.take()?;
        }
        if self.next_is(&TokenKind::StreamEnd)? {
            return Ok(None);
        }
        self.begin()?;
        self.begun = true;
        while let Some(state) = self.states.pop() {
            self.step(state)?;
        }
        // What follows has to be readable.
        if self.next_is(&TokenKind::DocumentEnd)? {
            self.scanner.take()?;
        }
        Ok(Some(std::mem::take(&mut self.nodes)))
    }

    fn peek(&mut self) -> Result<&Token<'t>, Broken> {
        self.scanner.peek()
    }

    fn next_is(&mut self, kind: &TokenKind<'_>) -> Result<bool, Broken> {
        Ok(self.peek()?.kind == *kind)
    }

    fn next_line(&mut self) -> Result<usize, Broken> {
        Ok(self.peek()?.line)
    }

    /// Takes the next token if it is this one, and says where it was.
    fn takes(&mut self, kind: &TokenKind<'_>) -> Result<Option<usize>, Broken> {
        if self.next_is(kind)? { self.scanner.take().map(|token| Some(token.line)) } else { Ok(None) }
    }

    fn fails<T>(&mut self, problem: &'static str) -> Result<T, Broken> {
        Err(Broken::at(self.next_line()?, problem))
    }

    /// Directives and the mark of a document.
    fn begin(&mut self) -> Result<(), Broken> {
        self.tags.clear();
        self.anchors.clear();
        let marked = matches!(
            self.peek()?.kind,
            TokenKind::Version(..) | TokenKind::TagDirective(..) | TokenKind::DocumentStart
        );
        self.directives()?;
        if !marked && !self.begun {
            self.states.push(BLOCK);
            return Ok(());
        }
        if self.takes(&TokenKind::DocumentStart)?.is_none() {
            return self.fails("did not find expected <document start>");
        }
        let next = self.peek()?;
        match next.kind {
            TokenKind::Version(..)
            | TokenKind::TagDirective(..)
            | TokenKind::DocumentStart
            | TokenKind::DocumentEnd
            | TokenKind::StreamEnd => {
                let line = next.line;
                self.empty(line);
            }
            _ => self.states.push(BLOCK),
        }
        Ok(())
    }

    fn directives(&mut self) -> Result<(), Broken> {
        let mut versioned = false;
        while matches!(self.peek()?.kind, TokenKind::Version(..) | TokenKind::TagDirective(..)) {
            let Token { kind, line } = self.scanner.take()?;
            match kind {
                TokenKind::Version(..) if versioned => return Err(Broken::at(line, "found duplicate %YAML directive")),
                TokenKind::TagDirective(handle, _) if self.tags.iter().any(|(known, _)| *known == handle) => {
                    return Err(Broken::at(line, "found duplicate %TAG directive"));
                }
                TokenKind::TagDirective(handle, prefix) => self.tags.push((handle, prefix)),
                TokenKind::Version(1, 1) => versioned = true,
                _ => return Err(Broken::at(line, "found incompatible YAML document")),
            }
        }
        // What a document says itself comes first.
        self.tags.push(("!".to_owned(), "!".to_owned()));
        self.tags.push(("!!".to_owned(), LONG.to_owned()));
        Ok(())
    }

    fn step(&mut self, state: State) -> Result<(), Broken> {
        match state {
            State::Node { block, indentless } => self.node(block, indentless),
            State::BlockSequence => self.block_sequence(),
            State::IndentlessSequence => self.indentless_sequence(),
            State::BlockMappingKey => self.block_mapping_key(),
            State::BlockMappingValue => self.block_mapping_value(),
            State::FlowSequence { first } => self.flow_sequence(first),
            State::FlowPairKey => self.flow_pair_key(),
            State::FlowPairValue => self.flow_pair_value(),
            State::FlowPairEnd => {
                self.close();
                Ok(())
            }
            State::FlowMappingKey { first } => self.flow_mapping_key(first),
            State::FlowMappingValue => self.flow_mapping_value(),
            State::FlowMappingEmptyValue => {
                let line = self.next_line()?;
                self.empty(line);
                Ok(())
            }
        }
    }

    /// First one state, then another.
    fn go(&mut self, first: State, then: State) -> Result<(), Broken> {
        self.states.push(then);
        self.states.push(first);
        Ok(())
    }

    /// A value of which nothing is written, then a state.
    fn go_empty(&mut self, line: usize, then: State) -> Result<(), Broken> {
        self.states.push(then);
        self.empty(line);
        Ok(())
    }

    fn empty(&mut self, line: usize) {
        let what = What::Scalar { value: Cow::Borrowed(""), implicit: true };
        self.nodes.push(Node { tag: Cow::Borrowed(""), line, what });
    }

    /// A collection begins.
    fn open(&mut self, node: Node<'t>, then: State) {
        self.open.push(self.nodes.len());
        self.nodes.push(node);
        self.states.push(then);
    }

    /// A collection ends.
    fn close(&mut self) {
        let end = self.nodes.len();
        let Some(open) = self.open.pop() else { return };
        if let What::Sequence(to) | What::Mapping(to) = &mut self.nodes[open].what {
            *to = end;
        }
    }

    fn node(&mut self, block: bool, indentless: bool) -> Result<(), Broken> {
        let line = self.next_line()?;
        if let TokenKind::Alias(name) = self.peek()?.kind {
            self.scanner.take()?;
            let Some(at) = self.anchors.get(name).copied() else {
                return Err(Broken(format!("yaml: unknown anchor '{name}' referenced")));
            };
            self.nodes.push(Node { tag: Cow::Borrowed(""), line, what: What::Alias(at, name) });
            return Ok(());
        }
        let (anchor, tag) = self.properties()?;
        if let Some(name) = anchor {
            self.anchors.insert(name, self.nodes.len());
        }
        let node = |what| Node { tag: tag.clone().map_or(Cow::Borrowed(""), Cow::Owned), line, what };
        match &self.peek()?.kind {
            TokenKind::BlockEntry if indentless => {
                self.open(node(What::Sequence(0)), State::IndentlessSequence);
                return Ok(());
            }
            TokenKind::Scalar { .. } => {
                if let TokenKind::Scalar { value, plain } = self.scanner.take()?.kind {
                    let implicit = tag.as_ref().map_or(plain, |tag| tag == "!");
                    self.nodes.push(node(What::Scalar { value, implicit }));
                }
                return Ok(());
            }
            TokenKind::FlowSequence => self.open(node(What::Sequence(0)), State::FlowSequence { first: true }),
            TokenKind::FlowMapping => self.open(node(What::Mapping(0)), State::FlowMappingKey { first: true }),
            TokenKind::BlockSequence if block => self.open(node(What::Sequence(0)), State::BlockSequence),
            TokenKind::BlockMapping if block => self.open(node(What::Mapping(0)), State::BlockMappingKey),
            _ if anchor.is_some() || tag.is_some() => {
                let implicit = tag.is_none();
                self.nodes.push(node(What::Scalar { value: Cow::Borrowed(""), implicit }));
                return Ok(());
            }
            _ => return self.fails("did not find expected node content"),
        }
        self.scanner.take()?;
        Ok(())
    }

    /// An anchor and a tag, in any order.
    fn properties(&mut self) -> Result<(Option<&'t str>, Option<String>), Broken> {
        let (mut anchor, mut tag) = (None, None);
        let mut tagged = 0;
        loop {
            match &self.peek()?.kind {
                TokenKind::Anchor(name) if anchor.is_none() => anchor = Some(*name),
                TokenKind::Tag(handle, suffix) if tag.is_none() => {
                    tag = Some((handle.clone(), suffix.clone()));
                    tagged = self.next_line()?;
                }
                _ => break,
            }
            self.scanner.take()?;
        }
        let Some((handle, suffix)) = tag else { return Ok((anchor, None)) };
        if handle.is_empty() {
            return Ok((anchor, Some(suffix).filter(|tag| !tag.is_empty())));
        }
        match self.tags.iter().find(|(known, _)| *known == handle) {
            Some((_, prefix)) => Ok((anchor, Some(format!("{prefix}{suffix}")))),
            None => Err(Broken::at(tagged, "found undefined tag handle")),
        }
    }

    fn block_sequence(&mut self) -> Result<(), Broken> {
        if let Some(line) = self.takes(&TokenKind::BlockEntry)? {
            return match self.peek()?.kind {
                TokenKind::BlockEntry | TokenKind::BlockEnd => self.go_empty(line, State::BlockSequence),
                _ => self.go(BLOCK, State::BlockSequence),
            };
        }
        self.end_block("did not find expected '-' indicator")
    }

    fn end_block(&mut self, wanted: &'static str) -> Result<(), Broken> {
        if self.takes(&TokenKind::BlockEnd)?.is_none() {
            return self.fails(wanted);
        }
        self.close();
        Ok(())
    }

    fn indentless_sequence(&mut self) -> Result<(), Broken> {
        if let Some(line) = self.takes(&TokenKind::BlockEntry)? {
            return match self.peek()?.kind {
                TokenKind::BlockEntry | TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => {
                    self.go_empty(line, State::IndentlessSequence)
                }
                _ => self.go(BLOCK, State::IndentlessSequence),
            };
        }
        self.close();
        Ok(())
    }

    fn block_mapping_key(&mut self) -> Result<(), Broken> {
        if let Some(line) = self.takes(&TokenKind::Key)? {
            return self.block_part(line, State::BlockMappingValue);
        }
        self.end_block("did not find expected key")
    }

    fn block_mapping_value(&mut self) -> Result<(), Broken> {
        if let Some(line) = self.takes(&TokenKind::Value)? {
            return self.block_part(line, State::BlockMappingKey);
        }
        let line = self.next_line()?;
        self.go_empty(line, State::BlockMappingKey)
    }

    /// A key or a value, of which nothing may be written.
    fn block_part(&mut self, line: usize, then: State) -> Result<(), Broken> {
        match self.peek()?.kind {
            TokenKind::Key | TokenKind::Value | TokenKind::BlockEnd => self.go_empty(line, then),
            _ => self.go(BLOCK_OR_DASHES, then),
        }
    }

    fn flow_sequence(&mut self, first: bool) -> Result<(), Broken> {
        if !self.next_is(&TokenKind::FlowSequenceEnd)? {
            if !first && self.takes(&TokenKind::FlowEntry)?.is_none() {
                return self.fails("did not find expected ',' or ']'");
            }
            if let Some(line) = self.takes(&TokenKind::Key)? {
                self.states.push(State::FlowSequence { first: false });
                self.open(Node { tag: Cow::Borrowed(""), line, what: What::Mapping(0) }, State::FlowPairKey);
                return Ok(());
            }
            if !self.next_is(&TokenKind::FlowSequenceEnd)? {
                return self.go(FLOW, State::FlowSequence { first: false });
            }
        }
        self.scanner.take()?;
        self.close();
        Ok(())
    }

    /// The key of a pair that stands in a list.
    fn flow_pair_key(&mut self) -> Result<(), Broken> {
        if matches!(self.peek()?.kind, TokenKind::Value | TokenKind::FlowEntry | TokenKind::FlowSequenceEnd) {
            // As upstream's parser has it, what ends the pair is passed by.
            let line = self.scanner.take()?.line;
            return self.go_empty(line, State::FlowPairValue);
        }
        self.go(FLOW, State::FlowPairValue)
    }

    fn flow_pair_value(&mut self) -> Result<(), Broken> {
        let mut line = self.next_line()?;
        if let Some(colon) = self.takes(&TokenKind::Value)? {
            line = colon;
            if !matches!(self.peek()?.kind, TokenKind::FlowEntry | TokenKind::FlowSequenceEnd) {
                return self.go(FLOW, State::FlowPairEnd);
            }
        }
        self.go_empty(line, State::FlowPairEnd)
    }

    fn flow_mapping_key(&mut self, first: bool) -> Result<(), Broken> {
        if !self.next_is(&TokenKind::FlowMappingEnd)? {
            if !first && self.takes(&TokenKind::FlowEntry)?.is_none() {
                return self.fails("did not find expected ',' or '}'");
            }
            if self.takes(&TokenKind::Key)?.is_some() {
                let next = self.peek()?;
                let line = next.line;
                return match next.kind {
                    TokenKind::Value | TokenKind::FlowEntry | TokenKind::FlowMappingEnd => {
                        self.go_empty(line, State::FlowMappingValue)
                    }
                    _ => self.go(FLOW, State::FlowMappingValue),
                };
            }
            if !self.next_is(&TokenKind::FlowMappingEnd)? {
                self.states.push(State::FlowMappingKey { first: false });
                return self.go(FLOW, State::FlowMappingEmptyValue);
            }
        }
        self.scanner.take()?;
        self.close();
        Ok(())
    }

    fn flow_mapping_value(&mut self) -> Result<(), Broken> {
        let then = State::FlowMappingKey { first: false };
        let valued = self.takes(&TokenKind::Value)?.is_some();
        let next = self.peek()?;
        let line = next.line;
        if valued && !matches!(next.kind, TokenKind::FlowEntry | TokenKind::FlowMappingEnd) {
            return self.go(FLOW, then);
        }
        self.go_empty(line, then)
    }
}
