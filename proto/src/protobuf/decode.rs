//! Bytes to canonical tree.

use serde_json::{Map, Value};

use super::envelope::{self, MAGIC};
use super::error::Error;
use super::wire::{Reader, Wire};
use crate::json::{self, MAX_TREE_DEPTH, decode_any_at, schema_props, time_value};
use crate::schema::zero;
use crate::schema::{Card, Field, Message, Target, ValueKind};
use crate::{quantity, scalar};

/// An object in an envelope in another object counts as so many levels: nobody needs many of them, and each takes much
/// of the stack.
const ENVELOPE: usize = 32;

/// Decodes an object without an envelope; `apiVersion` and `kind` are not part of the bytes.
///
/// # Errors
/// [`Error`] for malformed bytes.
pub fn decode(schema: &Message, data: &[u8]) -> Result<Value, Error> {
    decode_at(schema, data, 0)
}

pub(super) fn decode_at(schema: &Message, data: &[u8], depth: usize) -> Result<Value, Error> {
    let mut map = Map::new();
    message(schema, data, &mut map, depth)?;
    Ok(Value::Object(map))
}

fn message(schema: &Message, data: &[u8], map: &mut Map<String, Value>, depth: usize) -> Result<(), Error> {
    fields(schema, data, map, depth)?;
    zero::fill(schema, map);
    Ok(())
}

pub(super) fn target(schema: &Message, number: u32) -> Option<&Target> {
    let at = schema.wire.binary_search_by_key(&number, |w| w.number).ok()?;
    schema.wire.get(at).map(|w| &w.target)
}

fn fields(schema: &Message, data: &[u8], map: &mut Map<String, Value>, depth: usize) -> Result<(), Error> {
    if depth >= MAX_TREE_DEPTH {
        return Err(Error::Depth);
    }
    let mut reader = Reader::new(data);
    while let Some((number, wire)) = reader.next()? {
        match target(schema, number) {
            Some(Target::Inline(inner)) => fields(inner, wire.bytes(inner.go_name())?, map, depth + 1)?,
            Some(Target::Field(index)) => {
                if let Some(field) = schema.fields.get(*index) {
                    read_field(field, wire, map, depth + 1)?;
                }
            }
            None => {}
        }
    }
    Ok(())
}

/// The value at a JSON pointer, of an object without an envelope. Everything else is skipped, so this is cheap. None when
/// it is absent or the bytes on the way are broken; unset fields that Go prints are absent here.
#[must_use]
pub fn lookup(schema: &Message, data: &[u8], pointer: &str) -> Option<Value> {
    let mut path = pointer.split('/').skip(1);
    follow(schema, data, path.next()?, path)
}

fn follow<'p>(schema: &Message, data: &[u8], name: &str, mut path: impl Iterator<Item = &'p str>) -> Option<Value> {
    let (field, found) = occurrences(schema, data, name)?;
    let wire = match field.card {
        Card::Single => *found.last()?,
        Card::Repeated => *found.get(path.next()?.parse::<usize>().ok()?)?,
        Card::Map => return None,
    };
    match (&field.kind, path.next()) {
        (ValueKind::Message(inner), Some(next)) => {
            // A small enough depth: that of the pointer.
            let rest: Vec<&str> = path.collect();
            let rest: Box<dyn Iterator<Item = &str>> = Box::new(rest.into_iter());
            follow(inner, wire.bytes(name).ok()?, next, rest)
        }
        (kind, None) => one(kind, name, wire, None, 0).ok(),
        (_, Some(_)) => None,
    }
}

/// A field by its JSON name, and what the bytes hold of it.
pub(super) fn occurrences<'m, 'd>(
    schema: &'m Message,
    data: &'d [u8],
    name: &str,
) -> Option<(&'m Field, Vec<Wire<'d>>)> {
    let (mut found, mut field) = (Vec::new(), None);
    let mut reader = Reader::new(data);
    while let Some((number, wire)) = reader.next().ok()? {
        match target(schema, number) {
            Some(Target::Field(index)) => {
                let here = schema.fields.get(*index)?;
                if here.json == name {
                    field = Some(here);
                    found.push(wire);
                }
            }
            Some(Target::Inline(inner)) => {
                if let Some((inner, more)) = occurrences(inner, wire.bytes(name).ok()?, name) {
                    field = Some(inner);
                    found.extend(more);
                }
            }
            None => {}
        }
    }
    field.map(|field| (field, found))
}

fn read_field(field: &Field, wire: Wire<'_>, map: &mut Map<String, Value>, depth: usize) -> Result<(), Error> {
    let name = field.json.as_ref();
    match field.card {
        Card::Single => {
            // Only structs are made of all their occurrences.
            let old = if field.message().is_some() { map.remove(name) } else { None };
            let value = one(&field.kind, name, wire, old, depth)?;
            if zero::looks_unset(&value) && zero::is_omitted(field, &value) {
                map.remove(name);
            } else {
                map.insert(name.to_owned(), value);
            }
        }
        Card::Repeated => {
            let slot = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(list) = slot else { return Ok(()) };
            match (&field.kind, wire) {
                (
                    kind @ (ValueKind::Int32 | ValueKind::Int64 | ValueKind::Bool | ValueKind::Double),
                    Wire::Bytes(packed),
                ) => {
                    let mut reader = Reader::new(packed);
                    while !reader.is_empty() {
                        let item = match kind {
                            ValueKind::Double => Wire::Fixed64(reader.fixed64()?),
                            _ => Wire::Varint(reader.varint()?),
                        };
                        list.push(one(kind, name, item, None, depth)?);
                    }
                }
                (kind, wire) => {
                    let mut item = one(kind, name, wire, None, depth)?;
                    if let (Some((api_version, kind)), Value::Object(item)) = (embedded_kind(field), &mut item) {
                        item.insert("apiVersion".to_owned(), Value::String(api_version));
                        item.insert("kind".to_owned(), Value::String(kind.to_owned()));
                    }
                    list.push(item);
                }
            }
        }
        Card::Map => {
            let (mut key, mut item) = (String::new(), None);
            let mut reader = Reader::new(wire.bytes(name)?);
            while let Some((number, wire)) = reader.next()? {
                match number {
                    1 => key = wire.text("mapkey")?,
                    2 => item = Some(one(&field.kind, name, wire, None, depth)?),
                    _ => {}
                }
            }
            let slot = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(entries) = slot {
                entries.insert(key, item.unwrap_or_else(|| zero::element(&field.kind)));
            }
        }
    }
    Ok(())
}

/// Upstream names the kind of claims inside stateful sets, although the wire does not have it.
pub(super) fn embedded_kind(field: &Field) -> Option<(String, &str)> {
    if field.json != "volumeClaimTemplates" {
        return None;
    }
    let gvk = field.message()?.gvk.as_ref()?;
    Some((gvk.api_version(), &gvk.kind))
}

fn one(kind: &ValueKind, name: &str, wire: Wire<'_>, old: Option<Value>, depth: usize) -> Result<Value, Error> {
    Ok(match kind {
        ValueKind::Bool => Value::Bool(wire.int(name)? != 0),
        #[expect(clippy::cast_possible_truncation, reason = "32 bits of the wire, as Go reads them")]
        ValueKind::Int32 => Value::from(wire.int(name)? as i32),
        ValueKind::Int64 => Value::from(wire.int(name)?),
        ValueKind::Double => match wire {
            Wire::Fixed64(bits) => double(f64::from_bits(bits)),
            other => return other.wrong(name),
        },
        ValueKind::String => Value::String(wire.text(name)?),
        ValueKind::Bytes => Value::String(scalar::encode_base64(wire.bytes(name)?)),
        ValueKind::Message(inner) => {
            let mut map = match old {
                Some(Value::Object(map)) => map,
                _ => Map::new(),
            };
            message(inner, wire.bytes(name)?, &mut map, depth)?;
            Value::Object(map)
        }
        ValueKind::Nested(_) | ValueKind::Any => Value::Null,
        special => read_special(special, wire.bytes(name)?, depth)?,
    })
}

/// Whole numbers have one tree form, whatever they came from.
pub(super) fn double(value: f64) -> Value {
    json::number(value).map_or(Value::Null, Value::Number)
}

/// Types with a JSON form of their own.
pub(super) fn read_special(kind: &ValueKind, data: &[u8], depth: usize) -> Result<Value, Error> {
    if depth >= MAX_TREE_DEPTH {
        return Err(Error::Depth);
    }
    let mut reader = Reader::new(data);
    match kind {
        ValueKind::Quantity => {
            let mut text = None;
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    text = Some(wire.text("string")?);
                }
            }
            let text = text.unwrap_or_else(|| "0".to_owned());
            let canonical = quantity::canonicalize(&text).map_err(|e| Error::Value(e.to_string()))?;
            Ok(Value::String(canonical.into_owned()))
        }
        ValueKind::IntOrString => {
            let (mut is_text, mut number_value, mut text) = (false, 0, String::new());
            while let Some((number, wire)) = reader.next()? {
                match number {
                    1 => is_text = wire.int("type")? == 1,
                    #[expect(clippy::cast_possible_truncation, reason = "32 bits of the wire, as Go reads them")]
                    2 => number_value = wire.int("intVal")? as i32,
                    3 => text = wire.text("strVal")?,
                    _ => {}
                }
            }
            Ok(if is_text { Value::String(text) } else { Value::from(number_value) })
        }
        ValueKind::Time | ValueKind::MicroTime => {
            if data.is_empty() {
                return Ok(Value::Null);
            }
            let (mut seconds, mut nanos) = (0, 0);
            while let Some((number, wire)) = reader.next()? {
                match number {
                    1 => seconds = wire.int("seconds")?,
                    2 => nanos = wire.int("nanos")?,
                    _ => {}
                }
            }
            let micro = matches!(kind, ValueKind::MicroTime);
            let nanos = if micro { i32::try_from(nanos.clamp(0, 999_999_999)).unwrap_or(0) } else { 0 };
            Ok(time_value(seconds, nanos, micro))
        }
        ValueKind::RawExtension | ValueKind::FieldsV1 | ValueKind::Json => {
            let mut raw: &[u8] = &[];
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    raw = wire.bytes("raw")?;
                }
            }
            raw_value(raw, depth + 1)
        }
        ValueKind::StringList => {
            let mut list = Vec::new();
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    list.push(Value::String(wire.text("items")?));
                }
            }
            Ok(Value::Array(list))
        }
        _ => schema_or(kind, reader, depth),
    }
}

/// The value in raw bytes: JSON, or an enveloped object.
fn raw_value(raw: &[u8], depth: usize) -> Result<Value, Error> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    if raw.starts_with(&MAGIC) {
        let envelope = envelope::unwrap(raw)?;
        // What is in an envelope is an object and no other envelope; an object may hold more of them.
        if !envelope.raw.starts_with(&MAGIC) {
            return envelope::decode_unwrapped_at(&envelope, depth + ENVELOPE);
        }
    }
    decode_any_at(raw, depth).map_err(|e| Error::Value(e.to_string()))
}

fn schema_or(kind: &ValueKind, mut reader: Reader<'_>, depth: usize) -> Result<Value, Error> {
    let schema_number = if matches!(kind, ValueKind::SchemaOrBool) { 2 } else { 1 };
    let mut schema = None;
    let mut list = Vec::new();
    let mut allows = false;
    while let Some((number, wire)) = reader.next()? {
        if number == schema_number {
            let mut map = Map::new();
            message(schema_props(), wire.bytes("schema")?, &mut map, depth + 1)?;
            schema = Some(Value::Object(map));
            continue;
        }
        match (kind, number) {
            (ValueKind::SchemaOrBool, 1) => allows = wire.int("allows")? != 0,
            (ValueKind::SchemaOrArray, 2) => {
                let mut map = Map::new();
                message(schema_props(), wire.bytes("jSONSchemas")?, &mut map, depth + 1)?;
                list.push(Value::Object(map));
            }
            (ValueKind::SchemaOrStrings, 2) => list.push(Value::String(wire.text("property")?)),
            _ => {}
        }
    }
    Ok(match (kind, schema) {
        (ValueKind::SchemaOrBool, None) => Value::Bool(allows),
        (_, Some(schema)) if list.is_empty() => schema,
        (_, None) if list.is_empty() => Value::Null,
        _ => Value::Array(list),
    })
}
