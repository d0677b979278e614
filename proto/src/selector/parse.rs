//! The text form of label selectors: tokens and grammar.

use std::collections::BTreeSet;
use std::iter::once;

use super::error::Error;
use super::format::{label_key, quote};
use super::label::{Operator, Requirement, joined};

/// Reads all requirements, in the order of the text.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, Error> {
    Parser { tokens: scan(text), at: 0 }.parse()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_symbol(b: u8) -> bool {
    b"=!(),><".contains(&b)
}

fn is_space(b: u8) -> bool {
    b" \t\r\n".contains(&b)
}

struct Parser<'a> {
    tokens: Vec<(Token, &'a str)>,
    at: usize,
}

/// Splits into tokens. A NUL byte ends the text, as upstream's scanner has it.
fn scan(text: &str) -> Vec<(Token, &str)> {
    let text = text.split('\0').next().unwrap_or_default();
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut i = 0;
    loop {
        while i < bytes.len() && is_space(bytes[i]) {
            i += 1;
        }
        let start = i;
        if i == bytes.len() {
            tokens.push((Token::End, ""));
            return tokens;
        }
        if !is_symbol(bytes[i]) {
            while i < bytes.len() && !is_symbol(bytes[i]) && !is_space(bytes[i]) {
                i += 1;
            }
            let word = &text[start..i];
            let token = match word {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Word,
            };
            tokens.push((token, word));
            continue;
        }
        // The longest run of symbol bytes of which every prefix is a symbol; all symbols start with one.
        let mut found = (Token::Error, start);
        while i < bytes.len() && is_symbol(bytes[i]) {
            match symbol(&text[start..=i]) {
                Some(token) => found = (token, i + 1),
                None => break,
            }
            i += 1;
        }
        i = found.1.max(start + 1);
        tokens.push((found.0, &text[start..i]));
    }
}

impl<'a> Parser<'a> {
    /// The next token; keywords count as words unless an operator is expected.
    fn peek(&self) -> (Token, &'a str) {
        match self.tokens.get(self.at).copied().unwrap_or((Token::End, "")) {
            (Token::In | Token::NotIn, text) => (Token::Word, text),
            other => other,
        }
    }

    fn next(&mut self) -> (Token, &'a str) {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn parse(mut self) -> Result<Vec<Requirement>, Error> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::Word | Token::Not, _) => {
                    let requirement = self.requirement();
                    requirements
                        .push(requirement.map_err(|e| Error::new(format!("unable to parse requirement: {e}")))?);
                    match self.next() {
                        (Token::End, _) => return Ok(requirements),
                        (Token::Comma, _) => {
                            let (token, text) = self.peek();
                            if !matches!(token, Token::Word | Token::Not) {
                                return Err(Error::new(format!("found '{text}', expected: identifier after ','")));
                            }
                        }
                        (_, text) => {
                            return Err(Error::new(format!("found '{text}', expected: ',' or 'end of string'")));
                        }
                    }
                }
                (Token::End, _) => return Ok(requirements),
                (_, text) => {
                    return Err(Error::new(format!("found '{text}', expected: !, identifier, or 'end of string'")));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, Error> {
        let mut exists = Operator::Exists;
        let (mut token, mut key) = self.next();
        if token == Token::Not {
            exists = Operator::DoesNotExist;
            (token, key) = self.next();
        }
        if token != Token::Word {
            return Err(Error::new(format!("found '{key}', expected: identifier")));
        }
        if let Some(complaint) = joined(label_key(key)) {
            return Err(Error::new(format!("<nil>: Invalid value: {}: {complaint}", quote(key))));
        }
        if exists == Operator::DoesNotExist || matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, exists, BTreeSet::new());
        }
        let (token, text) = self.tokens.get(self.at).copied().unwrap_or((Token::End, ""));
        self.at += 1;
        let operator = match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return Err(Error::new(format!("found '{text}', expected: in, notin, =, ==, !=, gt, lt"))),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => self.value()?,
        };
        Requirement::new(key, operator, values)
    }

    fn value(&mut self) -> Result<BTreeSet<String>, Error> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(once(String::new()).collect());
        }
        match self.next() {
            (Token::Word, text) => Ok(once(text.to_owned()).collect()),
            (_, text) => Err(Error::new(format!("found '{text}', expected: identifier"))),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, Error> {
        let (token, text) = self.next();
        if token != Token::Open {
            return Err(Error::new(format!("found '{text}' expected: '('")));
        }
        match self.peek() {
            (Token::Word | Token::Comma, text) => {
                let values = self.list()?;
                match self.next() {
                    (Token::Close, _) => Ok(values),
                    _ => Err(Error::new(format!("found '{text}', expected: ')'"))),
                }
            }
            (Token::Close, _) => {
                self.next();
                // None means one, and that is empty.
                Ok(BTreeSet::from([String::new()]))
            }
            (_, text) => Err(Error::new(format!("found '{text}', expected: ',', ')' or identifier"))),
        }
    }

    fn list(&mut self) -> Result<BTreeSet<String>, Error> {
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                (Token::Word, text) => {
                    values.insert(text.to_owned());
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, text) => return Err(Error::new(format!("found '{text}', expected: ',' or ')'"))),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    match self.peek().0 {
                        Token::Close => {
                            values.insert(String::new());
                            return Ok(values);
                        }
                        Token::Comma => {
                            self.next();
                            values.insert(String::new());
                        }
                        _ => {}
                    }
                }
                (_, text) => return Err(Error::new(format!("found '{text}', expected: ',', or identifier"))),
            }
        }
    }
}
