//! Tree to bytes.

use serde_json::{Map, Value};

use super::wire;
use crate::json::{MAX_TREE_DEPTH, encode_any, schema_props};
use crate::schema::{Card, Field, Message, Target, ValueKind};
use crate::{quantity, scalar};

static NULL: Value = Value::Null;

/// Encodes an object without an envelope. `apiVersion` and `kind` are not part of the bytes.
#[must_use]
pub fn encode(schema: &Message, value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    match value {
        Value::Object(map) => message(schema, map, 0, &mut out),
        _ => message(schema, &Map::new(), 0, &mut out),
    }
    out
}

fn message(schema: &Message, map: &Map<String, Value>, depth: usize, out: &mut Vec<u8>) {
    if depth >= MAX_TREE_DEPTH {
        return;
    }
    let members = Members::of(schema, map);
    for entry in schema.wire.iter() {
        match &entry.target {
            Target::Inline(inner) => wire::nested(entry.number, out, |out| message(inner, map, depth + 1, out)),
            Target::Field(index) => {
                if let Some(field) = schema.fields.get(*index) {
                    write_field(entry.number, field, members.get(*index, field), depth + 1, out);
                }
            }
        }
    }
}

/// Fields of a struct that are not looked up one by one.
const INDEXED: usize = 64;

/// The members of an object by the index of their field: most fields of a struct are unset, so members look for their
/// fields and not the other way round.
#[allow(clippy::large_enum_variant, reason = "on the stack of one call")]
enum Members<'v> {
    Indexed([Option<&'v Value>; INDEXED]),
    Named(&'v Map<String, Value>),
}

impl<'v> Members<'v> {
    fn of(schema: &Message, map: &'v Map<String, Value>) -> Self {
        if schema.fields.len() > INDEXED {
            return Self::Named(map);
        }
        let mut indexed = [None; INDEXED];
        for (name, value) in map {
            if let Some(slot) = schema.field_index(name).and_then(|index| indexed.get_mut(index)) {
                *slot = Some(value);
            }
        }
        Self::Indexed(indexed)
    }

    fn get(&self, index: usize, field: &Field) -> &'v Value {
        let found = match self {
            Self::Indexed(indexed) => indexed.get(index).copied().flatten(),
            Self::Named(map) => map.get(field.json.as_ref()),
        };
        found.unwrap_or(&NULL)
    }
}

fn write_field(number: u32, field: &Field, value: &Value, depth: usize, out: &mut Vec<u8>) {
    match (field.card, value) {
        (Card::Single, Value::Null)
            if field.pointer || matches!(field.kind, ValueKind::Bytes | ValueKind::StringList) => {}
        (Card::Single, value) => one(number, &field.kind, value, depth, out),
        (Card::Repeated, Value::Array(list)) => {
            for item in list {
                one(number, &field.kind, item, depth, out);
            }
        }
        (Card::Map, Value::Object(map)) => {
            for (key, item) in map {
                wire::nested(number, out, |out| {
                    wire::bytes(1, key.as_bytes(), out);
                    one(2, &field.kind, item, depth, out);
                });
            }
        }
        _ => {}
    }
}

fn one(number: u32, kind: &ValueKind, value: &Value, depth: usize, out: &mut Vec<u8>) {
    let text = value.as_str();
    match kind {
        ValueKind::Bool => wire::number(number, i64::from(value.as_bool().unwrap_or_default()), out),
        ValueKind::Int32 | ValueKind::Int64 => wire::number(number, integer(value), out),
        ValueKind::Double => {
            wire::tag(number, wire::FIXED64, out);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes());
        }
        ValueKind::String => wire::bytes(number, text.unwrap_or_default().as_bytes(), out),
        ValueKind::Bytes => {
            wire::bytes(number, &scalar::decode_base64(text.unwrap_or_default()).unwrap_or_default(), out);
        }
        ValueKind::Message(inner) => wire::nested(number, out, |out| match value {
            Value::Object(map) => message(inner, map, depth, out),
            _ => message(inner, &Map::new(), depth, out),
        }),
        ValueKind::Nested(_) | ValueKind::Any => {}
        special => wire::nested(number, out, |out| write_special(special, value, depth, out)),
    }
}

fn integer(value: &Value) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
    value.as_i64().or_else(|| value.as_f64().map(|f| f as i64)).unwrap_or_default()
}

fn write_special(kind: &ValueKind, value: &Value, depth: usize, out: &mut Vec<u8>) {
    let text = value.as_str();
    match kind {
        ValueKind::Quantity => {
            let number;
            let text = match value {
                Value::Number(n) => {
                    number = n.to_string();
                    &number
                }
                _ => text.unwrap_or("0"),
            };
            match quantity::canonicalize(text) {
                Ok(canonical) => wire::bytes(1, canonical.as_bytes(), out),
                Err(_) => wire::bytes(1, text.as_bytes(), out),
            }
        }
        ValueKind::IntOrString => {
            wire::number(1, i64::from(text.is_some()), out);
            wire::number(2, if text.is_some() { 0 } else { integer(value) }, out);
            wire::bytes(3, text.unwrap_or_default().as_bytes(), out);
        }
        ValueKind::Time | ValueKind::MicroTime => {
            let micro = matches!(kind, ValueKind::MicroTime);
            let Some(Ok((seconds, nanos))) = text.map(|t| scalar::parse_time(t, micro)) else { return };
            if crate::json::time_value(seconds, nanos, micro).is_null() {
                return;
            }
            wire::number(1, seconds, out);
            wire::number(2, if micro { i64::from(nanos) } else { 0 }, out);
        }
        ValueKind::RawExtension | ValueKind::FieldsV1 | ValueKind::Json if value.is_null() => {}
        ValueKind::RawExtension | ValueKind::FieldsV1 | ValueKind::Json => {
            wire::nested(1, out, |out| encode_any(value, out))
        }
        ValueKind::StringList => {
            for item in value.as_array().into_iter().flatten() {
                wire::bytes(1, item.as_str().unwrap_or_default().as_bytes(), out);
            }
        }
        ValueKind::SchemaOrBool => {
            wire::number(1, i64::from(!matches!(value, Value::Bool(false) | Value::Null)), out);
            write_schema(2, value, depth, out);
        }
        ValueKind::SchemaOrArray => {
            write_schema(1, value, depth, out);
            for item in value.as_array().into_iter().flatten() {
                one_schema(2, item, depth, out);
            }
        }
        ValueKind::SchemaOrStrings => {
            write_schema(1, value, depth, out);
            for item in value.as_array().into_iter().flatten() {
                wire::bytes(2, item.as_str().unwrap_or_default().as_bytes(), out);
            }
        }
        _ => {}
    }
}

fn write_schema(number: u32, value: &Value, depth: usize, out: &mut Vec<u8>) {
    if value.is_object() {
        one_schema(number, value, depth, out);
    }
}

fn one_schema(number: u32, value: &Value, depth: usize, out: &mut Vec<u8>) {
    wire::nested(number, out, |out| match value {
        Value::Object(map) => message(schema_props(), map, depth + 1, out),
        _ => message(schema_props(), &Map::new(), depth + 1, out),
    });
}
