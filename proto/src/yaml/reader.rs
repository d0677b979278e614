//! The characters of a YAML stream: how they are encoded, which are allowed, and where a scanner stands among them.
//!
//! Upstream's reader takes its input in pieces, and a bad character is found out when its piece is taken: what was wrong
//! before it may be said or not. Hence [`Fault::from`].

use std::borrow::Cow;

use super::error::Broken;

/// Bytes that upstream's reader takes at a time.
const PIECE: usize = 512;

/// A stream's text as far as it is readable.
pub(super) struct StreamText<'t> {
    text: Cow<'t, str>,
    fault: Option<Fault>,
}

/// Error at the end of the readable text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    /// From here on nothing can be read.
    from: usize,
    why: &'static str,
}

impl<'t> StreamText<'t> {
    /// Decodes what says that it is UTF-16, and takes everything else for UTF-8.
    pub(super) fn of(bytes: &'t [u8]) -> Self {
        match bytes {
            [0xff, 0xfe, ..] => decode(bytes, 2, &|left| utf16(left, u16::from_le_bytes)),
            [0xfe, 0xff, ..] => decode(bytes, 2, &|left| utf16(left, u16::from_be_bytes)),
            _ => {
                let skip = if bytes.starts_with(&[0xef, 0xbb, 0xbf]) { 3 } else { 0 };
                match std::str::from_utf8(&bytes[skip..]) {
                    Ok(text) if text.chars().all(is_allowed) => Self { text: Cow::Borrowed(text), fault: None },
                    _ => decode(bytes, skip, &utf8),
                }
            }
        }
    }

    /// Returns a cursor at the beginning.
    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor { text: &self.text, fault: self.fault, at: 0, index: 0, line: 0, column: 0 }
    }
}

/// The first character and its bytes; `None` where there may be more of it.
type Decoder<'d> = &'d dyn Fn(&[u8]) -> Result<Option<(char, usize)>, &'static str>;

/// Decodes piece by piece up to the first bad character.
fn decode(bytes: &[u8], skip: usize, decoder: Decoder<'_>) -> StreamText<'static> {
    let mut text = String::with_capacity(bytes.len());
    let (mut at, mut end) = (skip, PIECE.min(bytes.len()));
    loop {
        let from = text.len();
        let fault = |why| Some(Fault { from, why });
        while at < end {
            match decoder(&bytes[at..end]) {
                Err(why) => return StreamText { text: Cow::Owned(text), fault: fault(why) },
                Ok(Some((c, _))) if !is_allowed(c) => {
                    return StreamText { text: Cow::Owned(text), fault: fault("control characters are not allowed") };
                }
                Ok(Some((c, width))) => {
                    text.push(c);
                    at += width;
                }
                Ok(None) if end == bytes.len() => {
                    let why = if skip == 2 { "incomplete UTF-16 character" } else { "incomplete UTF-8 octet sequence" };
                    let fault = Some(Fault { from: text.len(), why });
                    return StreamText { text: Cow::Owned(text), fault };
                }
                Ok(None) => break,
            }
        }
        if at == bytes.len() {
            return StreamText { text: Cow::Owned(text), fault: None };
        }
        end = (at + PIECE).min(bytes.len());
    }
}

fn utf8(left: &[u8]) -> Result<Option<(char, usize)>, &'static str> {
    let first = left[0];
    let (width, bits) = match first {
        0..=0x7f => return Ok(Some((char::from(first), 1))),
        0xc0..=0xdf => (2, first & 0x1f),
        0xe0..=0xef => (3, first & 0x0f),
        0xf0..=0xf7 => (4, first & 0x07),
        _ => return Err("invalid leading UTF-8 octet"),
    };
    let Some(rest) = left.get(1..width) else { return Ok(None) };
    if rest.iter().any(|octet| octet & 0xc0 != 0x80) {
        return Err("invalid trailing UTF-8 octet");
    }
    let code = rest.iter().fold(u32::from(bits), |code, octet| code << 6 | u32::from(octet & 0x3f));
    if code < [0, 0, 0x80, 0x800, 0x1_0000][width] {
        return Err("invalid length of a UTF-8 sequence");
    }
    char::from_u32(code).map(|c| Some((c, width))).ok_or("invalid Unicode character")
}

fn utf16(left: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Option<(char, usize)>, &'static str> {
    let units = |at: usize| left.get(at..at + 2).map(|two| unit([two[0], two[1]]));
    let Some(first) = units(0) else { return Ok(None) };
    match first & 0xfc00 {
        0xdc00 => Err("unexpected low surrogate area"),
        0xd800 => {
            let Some(second) = units(2) else { return Ok(None) };
            let both = char::decode_utf16([first, second]).next();
            both.and_then(Result::ok).map(|c| Some((c, 4))).ok_or("expected low surrogate area")
        }
        _ => Ok(char::from_u32(u32::from(first)).map(|c| (c, 2))),
    }
}

fn is_allowed(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
}

/// A place in the text. Behind its end there are zeros.
pub(super) struct Cursor<'t> {
    text: &'t str,
    fault: Option<Fault>,
    at: usize,
    /// Characters before this one.
    pub(super) index: usize,
    /// Lines before this one.
    pub(super) line: usize,
    /// Characters before this one in its line.
    pub(super) column: usize,
}

impl<'t> Cursor<'t> {
    /// Asks for `count` characters from here on.
    pub(super) fn need(&self, count: usize) -> Result<(), Broken> {
        let Some(fault) = self.fault else { return Ok(()) };
        let left = self.text.get(self.at..fault.from).unwrap_or_default();
        if left.chars().take(count).count() < count { Err(Broken::at(0, fault.why)) } else { Ok(()) }
    }

    /// The byte that stands `ahead` bytes from here.
    pub(super) fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    pub(super) fn is(&self, byte: u8) -> bool {
        self.byte(0) == byte
    }

    /// Offset in the text.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The text between two places.
    pub(super) fn between(&self, from: usize, to: usize) -> &'t str {
        self.text.get(from..to).unwrap_or_default()
    }

    pub(super) fn is_end(&self, ahead: usize) -> bool {
        self.byte(ahead) == 0
    }

    pub(super) fn is_blank(&self, ahead: usize) -> bool {
        matches!(self.byte(ahead), b' ' | b'\t')
    }

    pub(super) fn is_break(&self, ahead: usize) -> bool {
        match self.byte(ahead) {
            b'\r' | b'\n' => true,
            0xc2 => self.byte(ahead + 1) == 0x85,
            0xe2 => self.byte(ahead + 1) == 0x80 && matches!(self.byte(ahead + 2), 0xa8 | 0xa9),
            _ => false,
        }
    }

    pub(super) fn ends_line(&self, ahead: usize) -> bool {
        self.is_end(ahead) || self.is_break(ahead)
    }

    pub(super) fn ends_word(&self, ahead: usize) -> bool {
        self.is_blank(ahead) || self.ends_line(ahead)
    }

    /// A letter of a name.
    pub(super) fn is_alpha(&self) -> bool {
        matches!(self.byte(0), b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'-')
    }

    /// `---` or `...` alone at the beginning of a line.
    pub(super) fn is_mark(&self, of: u8) -> bool {
        self.column == 0 && (0..3).all(|ahead| self.byte(ahead) == of) && self.ends_word(3)
    }

    /// Passes a character.
    pub(super) fn skip(&mut self) {
        let width = match self.byte(0) {
            0..=0xbf => 1,
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xff => 4,
        };
        self.at = (self.at + width).min(self.text.len());
        self.index += 1;
        self.column += 1;
    }

    /// Passes a character, and what it says is kept.
    pub(super) fn read(&mut self, into: &mut String) {
        let from = self.at;
        self.skip();
        into.push_str(self.between(from, self.at));
    }

    /// Passes the end of a line, which counts as `\n` unless it is one of Unicode's separators.
    pub(super) fn read_line(&mut self, into: &mut String) {
        into.push_str(self.line_end());
    }

    /// Passes the end of a line.
    pub(super) fn skip_line(&mut self) {
        self.line_end();
    }

    /// Passes the end of a line and returns what it counts as; nothing where there is none.
    fn line_end(&mut self) -> &'t str {
        if !self.is_break(0) {
            return "";
        }
        if self.is(b'\r') && self.byte(1) == b'\n' {
            self.skip();
        }
        let from = self.at;
        self.skip();
        self.column = 0;
        self.line += 1;
        if self.at - from == 3 { self.between(from, self.at) } else { "\n" }
    }

    /// Passes blanks.
    pub(super) fn skip_blanks(&mut self) -> Result<(), Broken> {
        self.need(1)?;
        while self.is_blank(0) {
            self.skip();
            self.need(1)?;
        }
        Ok(())
    }

    /// Passes a comment up to the end of its line.
    pub(super) fn skip_comment(&mut self) -> Result<(), Broken> {
        if !self.is(b'#') {
            return Ok(());
        }
        while !self.ends_line(0) {
            self.skip();
            self.need(1)?;
        }
        Ok(())
    }

    /// Passes letters of a name.
    pub(super) fn name(&mut self) -> Result<&'t str, Broken> {
        let from = self.at;
        self.need(1)?;
        while self.is_alpha() {
            self.skip();
            self.need(1)?;
        }
        Ok(self.between(from, self.at))
    }
}
