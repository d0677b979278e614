//! Reading of JSON text that has passed the syntax check.

use std::borrow::Cow;

use super::plain::until_special;
use crate::scalar;

/// A place in a well-formed text, always at a token or at the end.
pub(super) struct Cursor<'a> {
    data: &'a [u8],
    pub(super) pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        let mut cursor = Self { data, pos: 0 };
        cursor.blank();
        cursor
    }

    fn blank(&mut self) {
        while matches!(self.data.get(self.pos), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.pos += 1;
        }
    }

    pub(super) fn peek(&self) -> u8 {
        self.data.get(self.pos).copied().unwrap_or(0)
    }

    /// Enters an array or object; false when it is empty.
    pub(super) fn open(&mut self, end: u8) -> bool {
        self.pos += 1;
        self.blank();
        if self.peek() == end {
            self.pos += 1;
            return false;
        }
        self.pos < self.data.len()
    }

    /// After an element; false at the end of the array or object.
    pub(super) fn next(&mut self, end: u8) -> bool {
        self.blank();
        let more = self.peek() != end && self.pos < self.data.len();
        self.pos += 1;
        self.blank();
        more
    }

    pub(super) fn key(&mut self) -> Cow<'a, str> {
        let key = self.string();
        self.blank();
        self.pos += 1;
        self.blank();
        key
    }

    /// Kind of the value that comes, as Go names it.
    pub(super) fn what(&self) -> &'static str {
        match self.peek() {
            b'{' => "object",
            b'[' => "array",
            b'"' => "string",
            b't' | b'f' => "bool",
            b'n' => "null",
            _ => "number",
        }
    }

    fn string_end(&self, mut at: usize) -> usize {
        while let Some(rest) = self.data.get(at..) {
            at += until_special(rest);
            match self.data.get(at) {
                Some(b'\\') => at += 2,
                Some(b'"') | None => break,
                Some(_) => at += 1,
            }
        }
        at.min(self.data.len())
    }

    pub(super) fn string(&mut self) -> Cow<'a, str> {
        let start = self.pos + 1;
        let end = self.string_end(start);
        self.pos = end + 1;
        let raw = self.data.get(start..end).unwrap_or_default();
        if raw.contains(&b'\\') { Cow::Owned(unescape(raw)) } else { scalar::text(raw) }
    }

    pub(super) fn token(&mut self) -> &'a str {
        let start = self.pos;
        while !matches!(self.data.get(self.pos), None | Some(b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n')) {
            self.pos += 1;
        }
        std::str::from_utf8(&self.data[start..self.pos]).unwrap_or_default()
    }

    pub(super) fn skip(&mut self) {
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                b'"' => self.pos = self.string_end(self.pos + 1) + 1,
                b'{' | b'[' => {
                    depth += 1;
                    self.pos += 1;
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    self.pos += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => self.pos += 1,
                _ => {
                    while !matches!(
                        self.data.get(self.pos),
                        None | Some(b',' | b':' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n')
                    ) {
                        self.pos += 1;
                    }
                }
            }
            if depth == 0 || self.pos >= self.data.len() {
                return;
            }
        }
    }

    pub(super) fn raw(&mut self) -> &'a [u8] {
        let start = self.pos;
        self.skip();
        self.data.get(start..self.pos.min(self.data.len())).unwrap_or_default()
    }
}

fn unescape(raw: &[u8]) -> String {
    let hex = |at: usize| -> Option<u32> {
        let digits = raw.get(at..at + 4)?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut out: Vec<u8> = Vec::with_capacity(raw.len());
    let mut i = 0;
    while let Some(&b) = raw.get(i) {
        if b != b'\\' {
            out.push(b);
            i += 1;
            continue;
        }
        let escape = raw.get(i + 1).copied().unwrap_or(b'\\');
        i += 2;
        let byte = match escape {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut code = hex(i).unwrap_or(0xfffd);
                i += 4;
                if (0xd800..0xdc00).contains(&code)
                    && raw.get(i..i + 2) == Some(b"\\u")
                    && let Some(low) = hex(i + 2).filter(|low| (0xdc00..0xe000).contains(low))
                {
                    code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    i += 6;
                }
                let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            other => other,
        };
        out.push(byte);
    }
    String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}
