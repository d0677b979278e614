//! Tokenizer of start tags in HTML, byte by byte; everything else passes unchanged.
//!
//! Tokens are those of golang.org/x/net/html, in its oddities too: text of some elements is no
//! markup, and a tag that the page ends in is lost.

use super::links::Links;
use super::tag::{Attribute, Tag};

/// Elements whose text holds no markup.
const RAW: [&str; 10] =
    ["iframe", "noembed", "noframes", "noscript", "plaintext", "script", "style", "textarea", "title", "xmp"];
/// The longest tag that is understood; others pass as they are.
const LONGEST: usize = 1 << 20;

/// State of the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// After `<`.
    Open,
    /// After `</`.
    EndOpen,
    /// After `<!` and so many dashes.
    Declaration(u8),
    /// Up to the next `>`.
    Ignored,
    /// `begun`: something other than dashes was said.
    Comment {
        dashes: u8,
        begun: bool,
    },
    /// After `--!`.
    CommentBang,
    Tag(InTag),
    /// Text of an element of which nothing is markup, up to the end.
    Plain,
    Raw(InRaw),
}

/// Within a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InTag {
    Name,
    Between,
    Key,
    AfterKey,
    BeforeValue,
    Quoted(u8),
    Bare,
}

/// Within text that is no markup. In a script a comment hides its end, unless another script is in the comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InRaw {
    Data {
        hidden: Hidden,
        dashes: u8,
    },
    /// After `<`.
    Less(Hidden),
    /// After `<!` and so many dashes.
    Hides(u8),
    /// After `<` and so many letters of `script`, in a comment.
    Nests(usize),
    /// After `</` and so many letters of the element's name.
    End(Hidden, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hidden {
    No,
    Commented,
    Nested,
}

/// Reads a page and writes it with other links.
pub(super) struct Markup {
    links: Links,
    state: State,
    /// Undecided bytes: the start of a tag.
    held: Vec<u8>,
    name_end: usize,
    attributes: Vec<Attribute>,
    pending: Attribute,
    /// The element whose text is read.
    raw: &'static [u8],
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b'\x0c')
}

fn ends_name(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b'/' | b'>')
}

impl Markup {
    pub(super) fn new(links: Links) -> Self {
        Self {
            links,
            state: State::Text,
            held: Vec::new(),
            name_end: 0,
            attributes: Vec::new(),
            pending: Attribute::default(),
            raw: b"",
        }
    }

    /// The next part of the page; what is sure of it is written.
    pub(super) fn push(&mut self, mut part: &[u8], out: &mut Vec<u8>) {
        while !part.is_empty() {
            // Most of a page is text.
            if self.state == State::Text && self.held.is_empty() {
                let text = part.iter().position(|byte| *byte == b'<').unwrap_or(part.len());
                out.extend_from_slice(&part[..text]);
                part = &part[text..];
            }
            let Some((byte, rest)) = part.split_first() else { return };
            self.held.push(*byte);
            // A byte that ends something is read once more, as the beginning of what follows.
            while !self.step(*byte, out) {}
            part = rest;
        }
    }

    /// The page is over.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !matches!(self.state, State::Tag(_)) {
            self.pass(out);
        }
    }

    fn pass(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }

    /// Passes what is held before this byte, which is read again.
    fn again(&mut self, state: State, byte: u8, out: &mut Vec<u8>) -> bool {
        self.held.pop();
        self.pass(out);
        self.held.push(byte);
        self.state = state;
        false
    }

    /// Passes what is held.
    fn on(&mut self, state: State, out: &mut Vec<u8>) -> bool {
        self.pass(out);
        self.state = state;
        true
    }

    fn hold(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    /// Reads the last byte that is held; `false`: it is to be read again.
    fn step(&mut self, byte: u8, out: &mut Vec<u8>) -> bool {
        match self.state {
            State::Text if byte == b'<' => self.hold(State::Open),
            State::Text | State::Plain => {
                self.pass(out);
                true
            }
            State::Open => match byte {
                b'/' => self.hold(State::EndOpen),
                b'!' => self.on(State::Declaration(0), out),
                b'?' => self.on(State::Ignored, out),
                byte if byte.is_ascii_alphabetic() => self.begin_tag(),
                byte => self.again(State::Text, byte, out),
            },
            State::EndOpen => match byte {
                b'>' => self.on(State::Text, out),
                byte if byte.is_ascii_alphabetic() => self.begin_tag(),
                byte => self.again(State::Ignored, byte, out),
            },
            State::Declaration(dashes) => match (byte, dashes) {
                (b'-', 0) => self.on(State::Declaration(1), out),
                (b'-', _) => self.on(State::Comment { dashes: 0, begun: false }, out),
                (byte, _) => self.again(State::Ignored, byte, out),
            },
            State::Ignored => self.on(if byte == b'>' { State::Text } else { State::Ignored }, out),
            State::Comment { dashes, begun } => {
                let next = match byte {
                    b'-' => State::Comment { dashes: 2.min(dashes + 1), begun },
                    b'>' if dashes >= 2 || !begun => State::Text,
                    b'!' if dashes >= 2 => State::CommentBang,
                    _ => State::Comment { dashes: 0, begun: true },
                };
                self.on(next, out)
            }
            State::CommentBang => {
                let next = match byte {
                    b'>' => State::Text,
                    byte => State::Comment { dashes: u8::from(byte == b'-'), begun: true },
                };
                self.on(next, out)
            }
            State::Tag(_) if self.held.len() > LONGEST => self.on(State::Text, out),
            State::Tag(at) => self.tag(at, byte, out),
            State::Raw(at) => self.raw(at, byte, out),
        }
    }

    fn begin_tag(&mut self) -> bool {
        self.attributes.clear();
        self.hold(State::Tag(InTag::Name))
    }

    fn tag(&mut self, at: InTag, byte: u8, out: &mut Vec<u8>) -> bool {
        let here = self.held.len() - 1;
        let (next, read) = match at {
            InTag::Name | InTag::Key | InTag::Quoted(_) | InTag::Bare if !self.ends(at, byte, here) => return true,
            InTag::Name => {
                self.name_end = here;
                (InTag::Between, is_space(byte))
            }
            InTag::Between if is_space(byte) => return true,
            InTag::Between if byte == b'>' => return self.end_tag(out),
            InTag::Between => {
                self.pending = (here..here, here..here);
                (InTag::Key, false)
            }
            InTag::Key => {
                self.pending = (self.pending.0.start..here, here..here);
                (InTag::AfterKey, false)
            }
            InTag::AfterKey | InTag::BeforeValue if is_space(byte) => return true,
            InTag::AfterKey if byte == b'=' => (InTag::BeforeValue, true),
            InTag::AfterKey => (self.save(), byte == b'/'),
            InTag::BeforeValue => match byte {
                b'>' => (self.save(), false),
                b'"' | b'\'' => {
                    self.pending.1 = here + 1..here + 1;
                    (InTag::Quoted(byte), true)
                }
                _ => {
                    self.pending.1 = here..here;
                    (InTag::Bare, true)
                }
            },
            InTag::Quoted(_) | InTag::Bare => {
                self.pending.1.end = here;
                (self.save(), byte != b'>' || matches!(at, InTag::Quoted(_)))
            }
        };
        self.state = State::Tag(next);
        read
    }

    /// Reports whether a byte ends a name, a key or a value.
    fn ends(&self, at: InTag, byte: u8, here: usize) -> bool {
        match at {
            InTag::Name => ends_name(byte),
            // An equals sign that nothing stands before is part of the key.
            InTag::Key => ends_name(byte) || (byte == b'=' && here > self.pending.0.start),
            InTag::Quoted(quote) => byte == quote,
            _ => is_space(byte) || byte == b'>',
        }
    }

    /// Keeps an attribute, if it has a name.
    fn save(&mut self) -> InTag {
        if !self.pending.0.is_empty() {
            self.attributes.push(self.pending.clone());
        }
        InTag::Between
    }

    /// At the `>` of a tag.
    fn end_tag(&mut self, out: &mut Vec<u8>) -> bool {
        if self.held[1] == b'/' {
            return self.on(State::Text, out);
        }
        let tag = Tag { raw: &self.held, name_end: self.name_end, attributes: &self.attributes };
        tag.write(&self.links, out);
        let name = tag.name();
        self.state = match RAW.iter().find(|raw| raw.as_bytes() == name) {
            None => State::Text,
            Some(&"plaintext") => State::Plain,
            Some(raw) => {
                self.raw = raw.as_bytes();
                State::Raw(InRaw::Data { hidden: Hidden::No, dashes: 0 })
            }
        };
        self.held.clear();
        true
    }

    fn raw(&mut self, at: InRaw, byte: u8, out: &mut Vec<u8>) -> bool {
        let data = |hidden| State::Raw(InRaw::Data { hidden, dashes: 0 });
        match at {
            InRaw::Data { hidden, .. } if byte == b'<' => self.hold(State::Raw(InRaw::Less(hidden))),
            InRaw::Data { hidden: Hidden::No, .. } => self.on(data(Hidden::No), out),
            InRaw::Data { hidden, dashes } => {
                let next = match byte {
                    b'-' => State::Raw(InRaw::Data { hidden, dashes: 2.min(dashes + 1) }),
                    b'>' if dashes == 2 => data(Hidden::No),
                    _ => data(hidden),
                };
                self.on(next, out)
            }
            InRaw::Less(hidden) => match (byte, hidden) {
                (b'/', _) => self.hold(State::Raw(InRaw::End(hidden, 0))),
                (b'!', Hidden::No) if self.raw == b"script" => self.on(State::Raw(InRaw::Hides(0)), out),
                (byte, Hidden::Commented) if byte.is_ascii_alphabetic() => {
                    self.again(State::Raw(InRaw::Nests(0)), byte, out)
                }
                (byte, Hidden::Nested) => self.again(data(Hidden::Nested), byte, out),
                // Here a comment is forgotten, which no standard asks for.
                (byte, _) => self.again(data(Hidden::No), byte, out),
            },
            InRaw::Hides(0) if byte == b'-' => self.on(State::Raw(InRaw::Hides(1)), out),
            InRaw::Hides(_) if byte == b'-' => {
                self.on(State::Raw(InRaw::Data { hidden: Hidden::Commented, dashes: 2 }), out)
            }
            InRaw::Hides(_) => self.again(data(Hidden::No), byte, out),
            InRaw::Nests(read) => match b"script".get(read) {
                Some(letter) if byte.eq_ignore_ascii_case(letter) => self.on(State::Raw(InRaw::Nests(read + 1)), out),
                None if ends_name(byte) => self.on(data(Hidden::Nested), out),
                _ => self.again(data(Hidden::Commented), byte, out),
            },
            InRaw::End(hidden, read) => match self.raw.get(read) {
                Some(letter) if byte.eq_ignore_ascii_case(letter) => {
                    self.hold(State::Raw(InRaw::End(hidden, read + 1)))
                }
                None if ends_name(byte) && hidden == Hidden::Nested => self.on(data(Hidden::Commented), out),
                None if ends_name(byte) => {
                    self.begin_tag();
                    false
                }
                _ => self.again(data(hidden), byte, out),
            },
        }
    }
}
