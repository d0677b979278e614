//! Tree to bytes, in the order of the Go struct and with Go's escapes.

use std::io::Write as _;

use serde_json::{Map, Number, Value};

use super::plain::until_escape;
use super::text::schema_props;
use super::tree::{MAX_TREE_DEPTH, NAMES};
use crate::schema::zero::{self, Zero};
use crate::schema::{Card, Field, Message, ValueKind};

/// Deepest nesting that is written.
const DEEPEST: usize = MAX_TREE_DEPTH + NAMES;

/// Appends the object as upstream's encoder writes it, without the newline that ends a response body.
pub fn encode(schema: &Message, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => object(schema, map, 0, out),
        other => any(other, 0, out),
    }
}

/// Like [`encode`], indented by two spaces.
pub fn encode_pretty(schema: &Message, value: &Value, out: &mut Vec<u8>) {
    let mut compact = Vec::new();
    encode(schema, value, &mut compact);
    indent(&compact, out);
}

/// Appends any value: keys sorted, Go's number forms and escapes.
pub fn encode_any(value: &Value, out: &mut Vec<u8>) {
    any(value, 0, out);
}

/// Appends the value of a field, or with `whole` unset one of its elements, as it stands inside an object.
pub fn encode_field(field: &Field, whole: bool, value: &Value, out: &mut Vec<u8>) {
    if whole { field_value(field, value, 0, out) } else { element(&field.kind, value, 0, out) }
}

fn separator(first: &mut bool, out: &mut Vec<u8>) {
    if *first {
        *first = false;
    } else {
        out.push(b',');
    }
}

fn key(name: &str, first: &mut bool, out: &mut Vec<u8>) {
    separator(first, out);
    text(name, out);
    out.push(b':');
}

fn object(schema: &Message, map: &Map<String, Value>, depth: usize, out: &mut Vec<u8>) {
    if depth >= DEEPEST {
        out.extend_from_slice(b"null");
        return;
    }
    if schema.embedded_resource || schema.preserve_unknown {
        return members(map, depth, out);
    }
    out.push(b'{');
    let mut first = true;
    for field in schema.fields.iter() {
        match map.get(field.json.as_ref()) {
            Some(value) if !value.is_null() => {
                if !zero::is_omitted(field, value) {
                    separator(&mut first, out);
                    name(&field.json, out);
                    field_value(field, value, depth + 1, out);
                }
            }
            _ => match zero::of(field) {
                Zero::Omitted => {}
                unset => {
                    separator(&mut first, out);
                    name(&field.json, out);
                    zero_value(&unset, depth + 1, out);
                }
            },
        }
    }
    out.push(b'}');
}

pub(crate) fn zero_value(unset: &Zero<'_>, depth: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(match unset {
        Zero::Struct(message) => return object(message, &Map::new(), depth, out),
        Zero::Omitted | Zero::Null => b"null",
        Zero::Text => b"\"\"",
        Zero::Number => b"0",
        Zero::False => b"false",
        Zero::Quantity => b"\"0\"",
    });
}

fn field_value(field: &Field, value: &Value, depth: usize, out: &mut Vec<u8>) {
    match (field.card, value) {
        (Card::Repeated, Value::Array(list)) => {
            out.push(b'[');
            let mut first = true;
            for item in list {
                separator(&mut first, out);
                element(&field.kind, item, depth, out);
            }
            out.push(b']');
        }
        (Card::Map, Value::Object(map)) => {
            out.push(b'{');
            let mut first = true;
            for (name, item) in map {
                key(name, &mut first, out);
                element(&field.kind, item, depth, out);
            }
            out.push(b'}');
        }
        (Card::Single, value) => one(&field.kind, value, depth, out),
        (_, value) => any(value, depth, out),
    }
}

fn element(kind: &ValueKind, value: &Value, depth: usize, out: &mut Vec<u8>) {
    if value.is_null() {
        match kind {
            ValueKind::Message(message) => object(message, &Map::new(), depth, out),
            kind => any(&zero::element(kind), depth, out),
        }
    } else {
        one(kind, value, depth, out);
    }
}

/// Encodes the zero value of an element that was not sent.
pub(crate) fn empty_element(kind: &ValueKind, depth: usize, out: &mut Vec<u8>) {
    element(kind, &Value::Null, depth, out);
}

pub(crate) fn one(kind: &ValueKind, value: &Value, depth: usize, out: &mut Vec<u8>) {
    match (kind, value) {
        (ValueKind::Message(message), Value::Object(map)) => object(message, map, depth, out),
        (ValueKind::SchemaOrBool | ValueKind::SchemaOrArray | ValueKind::SchemaOrStrings, Value::Object(map)) => {
            object(schema_props(), map, depth, out);
        }
        (ValueKind::SchemaOrArray, Value::Array(list)) => {
            out.push(b'[');
            let mut first = true;
            for item in list {
                separator(&mut first, out);
                match item {
                    Value::Object(map) => object(schema_props(), map, depth + 1, out),
                    other => any(other, depth + 1, out),
                }
            }
            out.push(b']');
        }
        (ValueKind::Nested(field), value) => field_value(field, value, depth, out),
        (_, value) => any(value, depth, out),
    }
}

fn members(map: &Map<String, Value>, depth: usize, out: &mut Vec<u8>) {
    out.push(b'{');
    let mut first = true;
    for (name, item) in map {
        key(name, &mut first, out);
        any(item, depth + 1, out);
    }
    out.push(b'}');
}

fn any(value: &Value, depth: usize, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) if depth < DEEPEST => members(map, depth, out),
        Value::Array(list) if depth < DEEPEST => {
            out.push(b'[');
            let mut first = true;
            for item in list {
                separator(&mut first, out);
                any(item, depth + 1, out);
            }
            out.push(b']');
        }
        other => scalar(other, out),
    }
}

/// A value without children (deeper ones print as null).
pub(crate) fn scalar(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(n) => number(n, out),
        Value::String(s) => text(s, out),
        _ => out.extend_from_slice(b"null"),
    }
}

/// A whole number.
pub(crate) fn int(value: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Copies JSON text as Go's encoder copies what a marshaller gave it: without blanks, with HTML characters escaped.
/// False, with nothing written, when it is not JSON.
pub fn raw(json: &[u8], out: &mut Vec<u8>) -> bool {
    if serde_json::from_slice::<serde::de::IgnoredAny>(json).is_err() {
        return false;
    }
    let (mut quoted, mut start, mut i) = (false, 0, 0);
    while i < json.len() {
        if quoted {
            i += until_escape(&json[i..]);
        }
        let Some(&b) = json.get(i) else { break };
        match b {
            b'"' => quoted = !quoted,
            // What follows a backslash is no end.
            b'\\' if quoted => i += 1,
            b' ' | b'\t' | b'\r' | b'\n' if !quoted => {
                out.extend_from_slice(&json[start..i]);
                start = i + 1;
            }
            b'<' | b'>' | b'&' => {
                out.extend_from_slice(&json[start..i]);
                let _ = write!(out, "\\u{b:04x}");
                start = i + 1;
            }
            0xe2 if is_line_break(&json[i..]) => {
                out.extend_from_slice(&json[start..i]);
                let _ = write!(out, "\\u202{:x}", json[i + 2] & 0xf);
                i += 2;
                start = i + 1;
            }
            _ => {}
        }
        i += 1;
    }
    out.extend_from_slice(&json[start..]);
    true
}

/// U+2028 or U+2029.
fn is_line_break(bytes: &[u8]) -> bool {
    matches!(bytes, [0xe2, 0x80, 0xa8 | 0xa9, ..])
}

fn number(n: &Number, out: &mut Vec<u8>) {
    if let Some(i) = n.as_i64() {
        int(i, out);
    } else if let Some(u) = n.as_u64() {
        let _ = write!(out, "{u}");
    } else {
        float(n.as_f64().unwrap_or_default(), out);
    }
}

/// Go's form of a float: plain, with an exponent when very small or large.
pub(crate) fn float(value: f64, out: &mut Vec<u8>) {
    let abs = value.abs();
    if abs != 0.0 && !(1e-6..1e21).contains(&abs) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let sign = if exponent.starts_with('-') { "-" } else { "+" };
        let _ = write!(out, "{digits}e{sign}{}", exponent.trim_start_matches('-'));
    } else {
        let _ = write!(out, "{value}");
    }
}

/// The name of a schema field, which never needs an escape.
pub(crate) fn name(name: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// A string with Go's escapes (HTML characters included).
pub(crate) fn text(value: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = value.as_bytes();
    let mut start = 0;
    let mut from = 0;
    loop {
        let i = from + until_escape(bytes.get(from..).unwrap_or_default());
        let Some(&b) = bytes.get(i) else { break };
        from = i + 1;
        if b == 0xe2 && !is_line_break(&bytes[i..]) {
            continue;
        }
        out.extend_from_slice(&bytes[start..i]);
        start = i + 1;
        match b {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            0xe2 => {
                let _ = write!(out, "\\u202{:x}", bytes[i + 2] & 0xf);
                start = i + 3;
            }
            b => {
                let _ = write!(out, "\\u{b:04x}");
            }
        }
    }
    out.extend_from_slice(&bytes[start..]);
    out.push(b'"');
}

/// Indents a compact text by two spaces, as upstream's `?pretty=1` does.
pub fn indent(compact: &[u8], out: &mut Vec<u8>) {
    Indenter::default().indent(compact, out);
}

/// Indents a compact text that comes in parts. Line ends between its values are left out.
#[derive(Debug, Default)]
pub struct Indenter {
    level: usize,
    /// Within a string.
    quoted: bool,
    escaped: bool,
    /// The last byte began an object or a list; nothing is known of what is in it.
    begun: bool,
}

impl Indenter {
    /// Appends the next part, indented.
    pub fn indent(&mut self, compact: &[u8], out: &mut Vec<u8>) {
        for &byte in compact {
            if self.quoted {
                out.push(byte);
                self.quoted = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                continue;
            }
            let closes = matches!(byte, b'}' | b']');
            let is_empty = closes && self.begun;
            if std::mem::take(&mut self.begun) && !closes {
                self.line(out);
            }
            match byte {
                b'{' | b'[' => {
                    out.push(byte);
                    self.level += 1;
                    self.begun = true;
                }
                b'}' | b']' => {
                    self.level = self.level.saturating_sub(1);
                    if !is_empty {
                        self.line(out);
                    }
                    out.push(byte);
                }
                b',' => {
                    out.push(byte);
                    self.line(out);
                }
                b':' => out.extend_from_slice(b": "),
                b'\n' => {}
                byte => {
                    self.quoted = byte == b'"';
                    out.push(byte);
                }
            }
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.level, b' ');
    }
}
