//! Trees to CBOR.

use serde_json::{Map, Number, Value};

use super::half::narrowed;
use super::{SELF_DESCRIBED, tag};
use crate::json;
use crate::scalar;
use crate::schema::{Card, Field, Message, ValueKind};

/// The object in CBOR; without a schema nothing is known to be base64.
#[must_use]
pub fn encode(schema: Option<&Message>, value: &Value) -> Vec<u8> {
    let mut out = SELF_DESCRIBED.to_vec();
    match schema {
        Some(schema) if !is_open(schema) => {
            let mut canonical = value.clone();
            json::canonicalize(schema, &mut canonical);
            message(schema, &canonical, &mut out);
        }
        _ => any(value, &mut out),
    }
    out
}

/// Objects of a custom resource say everything themselves.
fn is_open(schema: &Message) -> bool {
    schema.embedded_resource || schema.preserve_unknown
}

/// An event of a watch; `object` is encoded.
#[must_use]
pub fn event(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + 24);
    out.extend_from_slice(&SELF_DESCRIBED);
    head(5, 2, &mut out);
    text("type", &mut out);
    text(kind, &mut out);
    text("object", &mut out);
    out.extend_from_slice(object);
    out
}

fn head(major: u8, number: u64, out: &mut Vec<u8>) {
    let bytes = number.to_be_bytes();
    let (info, skipped) = match number {
        0..=23 => return out.push(major << 5 | bytes[7]),
        24..=0xff => (24, 7),
        0x100..=0xffff => (25, 6),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 0),
    };
    out.push(major << 5 | info);
    out.extend_from_slice(&bytes[skipped..]);
}

fn text(content: &str, out: &mut Vec<u8>) {
    head(2, content.len() as u64, out);
    out.extend_from_slice(content.as_bytes());
}

/// The members of a map, in the order of their encoded keys: shorter ones first.
fn members<'m>(map: &'m Map<String, Value>, out: &mut Vec<u8>) -> Vec<(&'m String, &'m Value)> {
    let mut all: Vec<_> = map.iter().collect();
    all.sort_unstable_by_key(|(key, _)| (key.len(), *key));
    head(5, all.len() as u64, out);
    all
}

fn message(schema: &Message, value: &Value, out: &mut Vec<u8>) {
    let Value::Object(map) = value else { return any(value, out) };
    if is_open(schema) {
        return any(value, out);
    }
    for (key, value) in members(map, out) {
        text(key, out);
        match schema.field(key) {
            Some(known) => field(known, value, out),
            None => any(value, out),
        }
    }
}

fn field(field: &Field, value: &Value, out: &mut Vec<u8>) {
    match (field.card, value) {
        (Card::Single, value) => one(&field.kind, value, out),
        (Card::Repeated, Value::Array(list)) => {
            head(4, list.len() as u64, out);
            list.iter().for_each(|value| one(&field.kind, value, out));
        }
        (Card::Map, Value::Object(map)) => {
            for (key, value) in members(map, out) {
                text(key, out);
                one(&field.kind, value, out);
            }
        }
        (_, value) => any(value, out),
    }
}

fn one(kind: &ValueKind, value: &Value, out: &mut Vec<u8>) {
    match (kind, value) {
        (ValueKind::Message(schema), value) => message(schema, value, out),
        (ValueKind::Nested(inner), value) => field(inner, value, out),
        (ValueKind::Bytes, Value::String(content)) => match scalar::decode_base64(content) {
            Ok(bytes) => {
                head(6, tag::LATER_BASE64, out);
                head(2, bytes.len() as u64, out);
                out.extend_from_slice(&bytes);
            }
            Err(_) => text(content, out),
        },
        (_, value) => any(value, out),
    }
}

fn any(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(value) => out.push(if *value { 0xf5 } else { 0xf4 }),
        Value::Number(value) => number(value, out),
        Value::String(value) => text(value, out),
        Value::Array(list) => {
            head(4, list.len() as u64, out);
            list.iter().for_each(|value| any(value, out));
        }
        Value::Object(map) => {
            for (key, value) in members(map, out) {
                text(key, out);
                any(value, out);
            }
        }
    }
}

fn number(value: &Number, out: &mut Vec<u8>) {
    if let Some(value) = value.as_u64() {
        return head(0, value, out);
    }
    if let Some(value) = value.as_i64() {
        return head(1, (-1 - value).unsigned_abs(), out);
    }
    let wide = value.as_f64().unwrap_or_default();
    #[allow(clippy::cast_possible_truncation, reason = "only used where nothing is lost")]
    let narrow = wide as f32;
    #[allow(clippy::float_cmp, reason = "it is the same number or it is not")]
    if f64::from(narrow) != wide {
        out.push(0xfb);
        out.extend_from_slice(&wide.to_bits().to_be_bytes());
    } else if let Some(half) = narrowed(narrow) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&narrow.to_bits().to_be_bytes());
    }
}
