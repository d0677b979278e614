//! Scanning of scalars: plain, quoted, block.

use std::borrow::Cow;

use super::error::Broken;
use super::scanner::Scanner;

/// Ends of lines and blanks that were passed and may count.
#[derive(Default)]
struct Gap {
    /// A line has ended.
    broken: bool,
    first: String,
    more: String,
    blanks: String,
}

impl Gap {
    /// Folds blanks and line breaks: one break becomes a space, of several all but the first are kept.
    fn fold(&mut self, into: &mut String) {
        if !self.broken {
            into.push_str(&self.blanks);
        } else if self.first.starts_with('\n') && self.more.is_empty() {
            into.push(' ');
        } else {
            into.push_str(if self.first.starts_with('\n') { "" } else { &self.first });
            into.push_str(&self.more);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.broken = false;
        self.first.clear();
        self.more.clear();
        self.blanks.clear();
    }
}

impl<'t> Scanner<'t> {
    /// Passes a blank or the end of a line.
    fn pass(&mut self, gap: &mut Gap) -> Result<(), Broken> {
        if self.cursor.is_blank(0) {
            if gap.broken {
                self.cursor.skip();
            } else {
                self.cursor.read(&mut gap.blanks);
            }
        } else {
            self.cursor.need(2)?;
            if gap.broken {
                self.cursor.read_line(&mut gap.more);
            } else {
                gap.blanks.clear();
                self.cursor.read_line(&mut gap.first);
                gap.broken = true;
            }
        }
        self.cursor.need(1)
    }

    fn is_gap(&self) -> bool {
        self.cursor.is_blank(0) || self.cursor.is_break(0)
    }

    /// A text without quotes.
    pub(super) fn scan_plain(&mut self) -> Result<Cow<'t, str>, Broken> {
        let indent = self.indent.map_or(0, |indent| indent + 1);
        let from = self.cursor.at();
        let mut end = from;
        // Only a text on several lines is not what it looks like.
        let mut folded: Option<String> = None;
        let mut gap = Gap::default();
        loop {
            self.cursor.need(4)?;
            if self.cursor.is_mark(b'-') || self.cursor.is_mark(b'.') || self.cursor.is(b'#') {
                break;
            }
            while !self.cursor.ends_word(0) && !self.ends_plain() {
                if gap.broken {
                    let text = folded.get_or_insert_with(|| self.cursor.between(from, end).to_owned());
                    gap.fold(text);
                } else if let Some(text) = &mut folded {
                    gap.fold(text);
                }
                gap.clear();
                match &mut folded {
                    Some(text) => self.cursor.read(text),
                    None => self.cursor.skip(),
                }
                end = self.cursor.at();
                self.cursor.need(2)?;
            }
            if !self.is_gap() {
                break;
            }
            self.cursor.need(1)?;
            while self.is_gap() {
                if gap.broken && self.cursor.column < indent && self.cursor.is(b'\t') {
                    return self.broken("found a tab character that violates indentation");
                }
                self.pass(&mut gap)?;
            }
            if self.flow == 0 && self.cursor.column < indent {
                break;
            }
        }
        self.key_allowed |= gap.broken;
        Ok(folded.map_or_else(|| Cow::Borrowed(self.cursor.between(from, end)), Cow::Owned))
    }

    /// A character that is not of the text.
    fn ends_plain(&self) -> bool {
        match self.cursor.byte(0) {
            b':' => self.cursor.ends_word(1),
            b',' | b'?' | b'[' | b']' | b'{' | b'}' => self.flow > 0,
            _ => false,
        }
    }

    /// A text in quotes.
    pub(super) fn scan_quoted(&mut self, single: bool) -> Result<String, Broken> {
        let quote = if single { b'\'' } else { b'"' };
        self.cursor.skip();
        let mut text = String::new();
        let mut gap = Gap::default();
        loop {
            self.cursor.need(4)?;
            if self.cursor.is_mark(b'-') || self.cursor.is_mark(b'.') {
                return self.broken("found unexpected document indicator");
            }
            if self.cursor.is_end(0) {
                return self.broken("found unexpected end of stream");
            }
            while !self.cursor.ends_word(0) {
                if single && self.cursor.is(b'\'') && self.cursor.byte(1) == b'\'' {
                    text.push('\'');
                    self.cursor.skip();
                    self.cursor.skip();
                } else if self.cursor.is(quote) {
                    break;
                } else if !single && self.cursor.is(b'\\') && self.cursor.is_break(1) {
                    self.cursor.need(3)?;
                    self.cursor.skip();
                    self.cursor.skip_line();
                    gap.broken = true;
                    break;
                } else if !single && self.cursor.is(b'\\') {
                    let c = self.scan_escape()?;
                    text.push(c);
                } else {
                    self.cursor.read(&mut text);
                }
                self.cursor.need(2)?;
            }
            self.cursor.need(1)?;
            if self.cursor.is(quote) {
                self.cursor.skip();
                return Ok(text);
            }
            // The end of a line behind a backslash is nothing.
            let escaped = gap.broken;
            while self.is_gap() {
                self.pass(&mut gap)?;
            }
            if escaped {
                text.push_str(&gap.more);
                gap.clear();
            } else {
                gap.fold(&mut text);
            }
        }
    }

    fn scan_escape(&mut self) -> Result<char, Broken> {
        let digits = match self.cursor.byte(1) {
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            other => {
                let Some(c) = escaped(other) else { return self.broken("found unknown escape character") };
                self.cursor.skip();
                self.cursor.skip();
                return Ok(c);
            }
        };
        self.cursor.skip();
        self.cursor.skip();
        self.cursor.need(digits)?;
        let mut code = 0u32;
        for ahead in 0..digits {
            let Some(digit) = char::from(self.cursor.byte(ahead)).to_digit(16) else {
                return self.broken("did not find expected hexdecimal number");
            };
            code = code.wrapping_shl(4) | digit;
        }
        let Some(c) = char::from_u32(code) else {
            return self.broken("found invalid Unicode character escape code");
        };
        (0..digits).for_each(|_| self.cursor.skip());
        Ok(c)
    }

    /// A text that is a block.
    pub(super) fn scan_block_scalar(&mut self, literal: bool) -> Result<String, Broken> {
        self.cursor.skip();
        let (chomping, increment) = self.scan_block_header()?;
        self.cursor.skip_blanks()?;
        self.cursor.skip_comment()?;
        if !self.cursor.ends_line(0) {
            return self.broken("did not find expected comment or line break");
        }
        self.cursor.need(2)?;
        self.cursor.skip_line();
        let mut indent = increment.map(|increment| self.indent.unwrap_or(0) + increment);
        let (mut text, mut first, mut more) = (String::new(), String::new(), String::new());
        let mut column = self.scan_block_breaks(&mut indent, &mut more)?;
        let mut led = false;
        while self.cursor.column == column && !self.cursor.is_end(0) {
            let blank = self.cursor.is_blank(0);
            if !literal && !led && !blank && first.starts_with('\n') {
                if more.is_empty() {
                    text.push(' ');
                }
            } else {
                text.push_str(&first);
            }
            first.clear();
            text.push_str(&more);
            more.clear();
            led = blank;
            while !self.cursor.ends_line(0) {
                self.cursor.read(&mut text);
                self.cursor.need(1)?;
            }
            self.cursor.need(2)?;
            self.cursor.read_line(&mut first);
            column = self.scan_block_breaks(&mut indent, &mut more)?;
        }
        if chomping != Some(b'-') {
            text.push_str(&first);
        }
        if chomping == Some(b'+') {
            text.push_str(&more);
        }
        Ok(text)
    }

    /// Scans the chomping and indentation indicators, in any order.
    fn scan_block_header(&mut self) -> Result<(Option<u8>, Option<usize>), Broken> {
        let (mut chomping, mut increment) = (None, None);
        for _ in 0..2 {
            self.cursor.need(1)?;
            match self.cursor.byte(0) {
                sign @ (b'+' | b'-') if chomping.is_none() => chomping = Some(sign),
                b'0' if increment.is_none() => return self.broken("found an indentation indicator equal to 0"),
                digit @ b'1'..=b'9' if increment.is_none() => increment = Some(usize::from(digit - b'0')),
                _ => break,
            }
            self.cursor.skip();
        }
        Ok((chomping, increment))
    }

    /// Passes empty lines and the indentation of the next one. Answers with the block's column, which its first line
    /// decides.
    fn scan_block_breaks(&mut self, indent: &mut Option<usize>, breaks: &mut String) -> Result<usize, Broken> {
        let mut deepest = 0;
        loop {
            self.cursor.need(1)?;
            let within = |column: usize| indent.is_none_or(|indent| column < indent);
            while within(self.cursor.column) && self.cursor.is(b' ') {
                self.cursor.skip();
                self.cursor.need(1)?;
            }
            deepest = deepest.max(self.cursor.column);
            if within(self.cursor.column) && self.cursor.is(b'\t') {
                return self.broken("found a tab character where an indentation space is expected");
            }
            if !self.cursor.is_break(0) {
                break;
            }
            self.cursor.need(2)?;
            self.cursor.read_line(breaks);
        }
        let least = self.indent.map_or(0, |indent| indent + 1).max(1);
        Ok(*indent.get_or_insert(deepest.max(least)))
    }
}

/// Character of an escape.
fn escaped(letter: u8) -> Option<char> {
    Some(match letter {
        b'0' => '\0',
        b'a' => '\u{7}',
        b'b' => '\u{8}',
        b't' | b'\t' => '\t',
        b'n' => '\n',
        b'v' => '\u{b}',
        b'f' => '\u{c}',
        b'r' => '\r',
        b'e' => '\u{1b}',
        b' ' | b'"' | b'\'' | b'\\' => char::from(letter),
        b'N' => '\u{85}',
        b'_' => '\u{a0}',
        b'L' => '\u{2028}',
        b'P' => '\u{2029}',
        _ => return None,
    })
}
