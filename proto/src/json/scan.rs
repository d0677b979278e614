//! Syntax check of a JSON text, with the messages that Go's scanner gives. It allocates nothing but the stack of
//! open brackets, and it comes before decoding, so that the decoder may rely on a well-formed text.

use std::borrow::Cow;

use thiserror::Error;

use super::plain::until_special;

/// Go's limit of nested arrays and objects.
const MAX_DEPTH: usize = 10_000;

const BEGIN: &str = "looking for beginning of value";

fn quote(c: u8) -> String {
    match c {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        7 => r"'\a'".to_owned(),
        8 => r"'\b'".to_owned(),
        11 => r"'\v'".to_owned(),
        12 => r"'\f'".to_owned(),
        c if c < 0x20 || c == 0x7f => format!("'\\x{c:02x}'"),
        c if c < 0x7f => format!("'{}'", char::from(c)),
        c if c < 0xa0 || c == 0xad => format!("'\\u{c:04x}'"),
        c => format!("'{}'", char::from(c)),
    }
}

/// Error of a text that is not JSON, in the words of Go's scanner.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SyntaxError {
    /// The text ends inside of a value.
    #[error("unexpected end of JSON input")]
    UnexpectedEnd,
    /// A character that cannot stand where it does.
    #[error("invalid character {} {context}", quoted(.character))]
    InvalidCharacter {
        /// First byte that is wrong.
        character: u8,
        /// Part of the text that the scanner was in: `after object key`.
        context: Cow<'static, str>,
    },
}

fn quoted(character: &u8) -> String {
    quote(*character)
}

struct Scanner<'a> {
    data: &'a [u8],
    pos: usize,
}

type Checked = Result<(), SyntaxError>;

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.data.get(self.pos).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.pos += 1;
        }
    }

    fn fail<T>(&self, context: impl Into<Cow<'static, str>>) -> Result<T, SyntaxError> {
        Err(match self.peek() {
            None => SyntaxError::UnexpectedEnd,
            Some(character) => SyntaxError::InvalidCharacter { character, context: context.into() },
        })
    }

    fn literal(&mut self, word: &str) -> Checked {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                return self.fail(format!("in literal {word} (expecting {})", quote(expected)));
            }
            self.pos += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Checked {
        self.pos += 1;
        loop {
            self.pos += until_special(self.data.get(self.pos..).unwrap_or_default());
            match self.peek() {
                Some(b'"') => {
                    self.pos += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    self.pos += 1;
                    match self.peek() {
                        Some(b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"') => self.pos += 1,
                        Some(b'u') => {
                            self.pos += 1;
                            for _ in 0..4 {
                                if !self.peek().is_some_and(|c| c.is_ascii_hexdigit()) {
                                    return self.fail("in \\u hexadecimal character escape");
                                }
                                self.pos += 1;
                            }
                        }
                        _ => return self.fail("in string escape code"),
                    }
                }
                _ => return self.fail("in string literal"),
            }
        }
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.pos += 1;
        }
    }

    fn digit(&mut self, context: &'static str) -> Checked {
        if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
            return self.fail(context);
        }
        self.digits();
        Ok(())
    }

    fn number(&mut self) -> Checked {
        if self.peek() == Some(b'-') {
            self.pos += 1;
        }
        if self.peek() == Some(b'0') {
            self.pos += 1;
        } else {
            self.digit("in numeric literal")?;
        }
        if self.peek() == Some(b'.') {
            self.pos += 1;
            self.digit("after decimal point in numeric literal")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            self.digit("in exponent of numeric literal")?;
        }
        Ok(())
    }

    /// A key with its colon.
    fn key(&mut self) -> Checked {
        if self.peek() != Some(b'"') {
            return self.fail("looking for beginning of object key string");
        }
        self.string()?;
        self.blank();
        if self.peek() != Some(b':') {
            return self.fail("after object key");
        }
        self.pos += 1;
        Ok(())
    }

    fn document(&mut self) -> Checked {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.blank();
            match self.peek() {
                Some(bracket @ (b'{' | b'[')) => {
                    if open.len() >= MAX_DEPTH {
                        return self.fail("exceeded max depth");
                    }
                    self.pos += 1;
                    self.blank();
                    match (bracket, self.peek()) {
                        (b'{', Some(b'}')) | (b'[', Some(b']')) => self.pos += 1,
                        (b'{', _) => {
                            open.push(bracket);
                            self.key()?;
                            continue;
                        }
                        _ => {
                            open.push(bracket);
                            continue;
                        }
                    }
                }
                Some(b'"') => self.string()?,
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return self.fail(BEGIN),
            }
            if !self.close(&mut open)? {
                return Ok(());
            }
        }
    }

    /// After a value: closes brackets up to the next value; false at the end of the document.
    fn close(&mut self, open: &mut Vec<u8>) -> Result<bool, SyntaxError> {
        loop {
            self.blank();
            match (open.last(), self.peek()) {
                (None, None) => return Ok(false),
                (None, _) => return self.fail("after top-level value"),
                (Some(b'{'), Some(b',')) => {
                    self.pos += 1;
                    self.blank();
                    self.key()?;
                    return Ok(true);
                }
                (Some(b'['), Some(b',')) => {
                    self.pos += 1;
                    return Ok(true);
                }
                (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) => {
                    self.pos += 1;
                    open.pop();
                }
                (Some(b'{'), _) => return self.fail("after object key:value pair"),
                _ => return self.fail("after array element"),
            }
        }
    }
}

/// Checks a whole document.
pub(super) fn check(data: &[u8]) -> Checked {
    Scanner { data, pos: 0 }.document()
}

#[cfg(test)]
mod tests {
    use super::check;

    fn told(data: &[u8]) -> Result<(), String> {
        check(data).map_err(|error| error.to_string())
    }

    #[test]
    fn syntax_errors_read_as_in_go() {
        let cases = [
            ("", "unexpected end of JSON input"),
            ("{\"a\":1,", "unexpected end of JSON input"),
            ("nope", "invalid character 'o' in literal null (expecting 'u')"),
            ("{a}", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            ("\"\\q\"", "invalid character 'q' in string escape code"),
            ("01", "invalid character '1' after top-level value"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.", "unexpected end of JSON input"),
        ];
        for (text, message) in cases {
            assert_eq!(told(text.as_bytes()), Err(message.to_owned()), "{text}");
        }
        assert_eq!(told(&[b'['; 10_001]), Err("invalid character '[' exceeded max depth".to_owned()));
        for text in ["{}", " [ ] ", "{\"a\":[1,-0.5e+3,{\"b\":null}],\"c\":\"\\u00e9\"}", "1"] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }
}
