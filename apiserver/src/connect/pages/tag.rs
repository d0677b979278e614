//! A start tag: its attributes, which of them are links, and how it is written again. Every start tag is written anew,
//! as upstream does, so that a page is the same whichever server it came through.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use entities::ENTITIES;
use shared::url::Url;

use super::links::Links;

/// Attributes of elements that are links.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Characters that numeric references between 0x80 and 0x9f mean in HTML: Windows-1252.
const WINDOWS: [char; 32] = [
    '\u{20ac}', '\u{81}', '\u{201a}', '\u{192}', '\u{201e}', '\u{2026}', '\u{2020}', '\u{2021}', '\u{2c6}', '\u{2030}',
    '\u{160}', '\u{2039}', '\u{152}', '\u{8d}', '\u{17d}', '\u{8f}', '\u{90}', '\u{2018}', '\u{2019}', '\u{201c}',
    '\u{201d}', '\u{2022}', '\u{2013}', '\u{2014}', '\u{2dc}', '\u{2122}', '\u{161}', '\u{203a}', '\u{153}', '\u{9d}',
    '\u{17e}', '\u{178}',
];

static NAMED: LazyLock<HashMap<&'static [u8], &'static str>> =
    LazyLock::new(|| ENTITIES.iter().map(|entity| (entity.entity.as_bytes(), entity.characters)).collect());

/// A key and a value, as places in a tag.
pub(super) type Attribute = (Range<usize>, Range<usize>);

/// A start tag from `<` to `>`.
pub(super) struct Tag<'t> {
    pub raw: &'t [u8],
    /// Offset at which the name ends.
    pub name_end: usize,
    pub attributes: &'t [Attribute],
}

impl Tag<'_> {
    /// In lower case.
    pub(super) fn name(&self) -> Vec<u8> {
        self.raw[1..self.name_end].to_ascii_lowercase()
    }

    /// The slash of a value without quotes belongs to the value.
    fn closes_itself(&self) -> bool {
        let last = self.raw.len() - 2;
        self.raw[last] == b'/' && self.attributes.last().is_none_or(|(_, value)| last + 1 != value.end)
    }

    /// Writes it with its links led through the proxy.
    pub(super) fn write(&self, links: &Links, out: &mut Vec<u8>) {
        let name = self.name();
        let known = LINKS.iter().find(|(element, _)| element.as_bytes() == name).map_or(&[][..], |(_, keys)| keys);
        out.push(b'<');
        out.extend_from_slice(&name);
        for (key, value) in self.attributes {
            let key = self.raw[key.clone()].to_ascii_lowercase();
            let mut value = plain(&self.raw[value.clone()]);
            // What is no URL is none of ours.
            if known.iter().any(|link| link.as_bytes() == key)
                && let Ok(url) = Url::parse(&value)
            {
                value = links.rewritten(url);
            }
            out.push(b' ');
            out.extend_from_slice(&key);
            out.extend_from_slice(b"=\"");
            escape(&value, out);
            out.push(b'"');
        }
        out.extend_from_slice(if self.closes_itself() { b"/>" } else { b">" });
    }
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&#34;"),
            b'\r' => out.extend_from_slice(b"&#13;"),
            byte => out.push(*byte),
        }
    }
}

/// Decodes an attribute's value: line ends become one character, and character references their characters.
fn plain(value: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(value.len());
    for (i, byte) in value.iter().enumerate() {
        match byte {
            b'\r' => lines.push(b'\n'),
            b'\n' if i > 0 && value[i - 1] == b'\r' => {}
            byte => lines.push(*byte),
        }
    }
    let (mut out, mut rest) = (Vec::with_capacity(lines.len()), lines.as_slice());
    while let Some(at) = rest.iter().position(|byte| *byte == b'&') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let (length, meaning) = match rest.get(1) {
            Some(b'#') => numbered(rest),
            _ => named(rest),
        };
        match meaning {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => out.extend_from_slice(&rest[..length]),
        }
        rest = &rest[length..];
    }
    out.extend_from_slice(rest);
    out
}

/// Length and meaning of a named reference, if it is one. In links `&copy=1` is not a copyright sign.
fn named(text: &[u8]) -> (usize, Option<String>) {
    let letters = text[1..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    let end = 1 + letters;
    if text.get(end) == Some(&b';') {
        return (end + 1, NAMED.get(&text[..=end]).map(|meaning| (*meaning).to_owned()));
    }
    let meaning = NAMED.get(&text[..end]).filter(|_| text.get(end) != Some(&b'='));
    (end, meaning.map(|meaning| (*meaning).to_owned()))
}

/// Length and meaning of a numeric reference. Numbers overflow as in Go, and are then no characters.
fn numbered(text: &[u8]) -> (usize, Option<String>) {
    let nothing = (1, None);
    // Go asks for as much.
    if text.len() <= 3 {
        return nothing;
    }
    let (begins, radix) = if matches!(text[2], b'x' | b'X') { (3, 16) } else { (2, 10) };
    let digits = text[begins..].iter().map_while(|byte| char::from(*byte).to_digit(radix));
    let (mut number, mut end) = (0_i32, begins);
    for digit in digits {
        let digit = i32::try_from(digit).unwrap_or_default();
        number = number.wrapping_mul(if radix == 16 { 16 } else { 10 }).wrapping_add(digit);
        end += 1;
    }
    end += usize::from(text.get(end) == Some(&b';'));
    if end <= 3 {
        return nothing;
    }
    let meaning = match u32::try_from(number) {
        Ok(0) => char::REPLACEMENT_CHARACTER,
        Ok(number @ 0x80..=0x9f) => WINDOWS[number as usize - 0x80],
        Ok(number) => char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER),
        Err(_) => char::REPLACEMENT_CHARACTER,
    };
    (end, Some(meaning.to_string()))
}
