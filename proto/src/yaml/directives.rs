//! Scanning of anchors, tags and directives.

use super::error::Broken;
use super::scanner::{Scanner, TokenKind};

impl<'t> Scanner<'t> {
    pub(super) fn scan_directive(&mut self) -> Result<TokenKind<'t>, Broken> {
        self.cursor.skip();
        let name = self.cursor.name()?;
        if name.is_empty() {
            return self.broken("could not find expected directive name");
        }
        if !self.cursor.ends_word(0) {
            return self.broken("found unexpected non-alphabetical character");
        }
        let kind = match name {
            "YAML" => self.scan_version()?,
            "TAG" => self.scan_tag_directive()?,
            _ => return self.broken("found unknown directive name"),
        };
        self.cursor.skip_blanks()?;
        self.cursor.skip_comment()?;
        if !self.cursor.ends_line(0) {
            return self.broken("did not find expected comment or line break");
        }
        if self.cursor.is_break(0) {
            self.cursor.need(2)?;
            self.cursor.skip_line();
        }
        Ok(kind)
    }

    fn scan_version(&mut self) -> Result<TokenKind<'t>, Broken> {
        self.cursor.skip_blanks()?;
        let major = self.scan_version_number()?;
        if !self.cursor.is(b'.') {
            return self.broken("did not find expected digit or '.' character");
        }
        self.cursor.skip();
        Ok(TokenKind::Version(major, self.scan_version_number()?))
    }

    fn scan_version_number(&mut self) -> Result<u8, Broken> {
        self.cursor.need(1)?;
        let (mut value, mut length) = (0, 0);
        while let digit @ b'0'..=b'9' = self.cursor.byte(0) {
            length += 1;
            if length > 2 {
                return self.broken("found extremely long version number");
            }
            value = value * 10 + (digit - b'0');
            self.cursor.skip();
            self.cursor.need(1)?;
        }
        if length == 0 { self.broken("did not find expected version number") } else { Ok(value) }
    }

    fn scan_tag_directive(&mut self) -> Result<TokenKind<'t>, Broken> {
        self.cursor.skip_blanks()?;
        let handle = self.scan_tag_handle(true)?;
        self.cursor.need(1)?;
        if !self.cursor.is_blank(0) {
            return self.broken("did not find expected whitespace");
        }
        self.cursor.skip_blanks()?;
        let prefix = self.scan_tag_uri("")?;
        self.cursor.need(1)?;
        if !self.cursor.ends_word(0) {
            return self.broken("did not find expected whitespace or line break");
        }
        Ok(TokenKind::TagDirective(handle, prefix))
    }

    /// The name behind `&` or `*`.
    pub(super) fn scan_anchor(&mut self) -> Result<&'t str, Broken> {
        self.cursor.skip();
        let name = self.cursor.name()?;
        let followed = matches!(self.cursor.byte(0), b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`');
        if name.is_empty() || !followed && !self.cursor.ends_word(0) {
            return self.broken("did not find expected alphabetic or numeric character");
        }
        Ok(name)
    }

    pub(super) fn scan_tag(&mut self) -> Result<TokenKind<'t>, Broken> {
        self.cursor.need(2)?;
        let (mut handle, mut suffix);
        if self.cursor.byte(1) == b'<' {
            self.cursor.skip();
            self.cursor.skip();
            handle = String::new();
            suffix = self.scan_tag_uri("")?;
            if !self.cursor.is(b'>') {
                return self.broken("did not find the expected '>'");
            }
            self.cursor.skip();
        } else {
            handle = self.scan_tag_handle(false)?;
            if handle.len() > 1 && handle.ends_with('!') {
                suffix = self.scan_tag_uri("")?;
            } else {
                suffix = self.scan_tag_uri(&handle)?;
                handle = "!".to_owned();
                if suffix.is_empty() {
                    std::mem::swap(&mut handle, &mut suffix);
                }
            }
        }
        self.cursor.need(1)?;
        if !self.cursor.ends_word(0) {
            return self.broken("did not find expected whitespace or line break");
        }
        Ok(TokenKind::Tag(handle, suffix))
    }

    fn scan_tag_handle(&mut self, directive: bool) -> Result<String, Broken> {
        self.cursor.need(1)?;
        if !self.cursor.is(b'!') {
            return self.broken("did not find expected '!'");
        }
        self.cursor.skip();
        let mut handle = format!("!{}", self.cursor.name()?);
        if self.cursor.is(b'!') {
            self.cursor.read(&mut handle);
        } else if directive && handle != "!" {
            return self.broken("did not find expected '!'");
        }
        Ok(handle)
    }

    /// The rest of a tag of which `head` was read.
    fn scan_tag_uri(&mut self, head: &str) -> Result<String, Broken> {
        let mut uri = head.get(1..).unwrap_or_default().to_owned();
        let mut found = !head.is_empty();
        self.cursor.need(1)?;
        loop {
            match self.cursor.byte(0) {
                b'%' => {
                    let c = self.scan_uri_escapes()?;
                    uri.push_str(&c);
                }
                b';' | b'/' | b'?' | b':' | b'@' | b'&' | b'=' | b'+' | b'$' | b',' | b'.' | b'!' | b'~' | b'*'
                | b'\'' | b'(' | b')' | b'[' | b']' => self.cursor.read(&mut uri),
                _ if self.cursor.is_alpha() => self.cursor.read(&mut uri),
                _ => break,
            }
            self.cursor.need(1)?;
            found = true;
        }
        if found { Ok(uri) } else { self.broken("did not find expected tag URI") }
    }

    /// A character whose bytes are written as `%C3%A9`.
    fn scan_uri_escapes(&mut self) -> Result<String, Broken> {
        let mut octets = Vec::new();
        let mut width = 1;
        while octets.len() < width {
            self.cursor.need(3)?;
            let digit = |ahead| char::from(self.cursor.byte(ahead)).to_digit(16);
            let (true, Some(high), Some(low)) = (self.cursor.is(b'%'), digit(1), digit(2)) else {
                return self.broken("did not find URI escaped octet");
            };
            let octet = u8::try_from(high << 4 | low).unwrap_or_default();
            match (octets.is_empty(), octet) {
                (true, 0x80..=0xbf | 0xf8..) => return self.broken("found an incorrect leading UTF-8 octet"),
                (true, _) => width = [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4][usize::from(octet >> 4)],
                (false, 0x80..=0xbf) => {}
                (false, _) => return self.broken("found an incorrect trailing UTF-8 octet"),
            }
            octets.push(octet);
            (0..3).for_each(|_| self.cursor.skip());
        }
        Ok(String::from_utf8_lossy(&octets).into_owned())
    }
}
