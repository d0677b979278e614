//! Bytes to JSON text without a tree between them. Hot: lists and watches go through here.
//!
//! One pass finds the fields of a message, one writes them in the order of the schema; what was found waits on a stack
//! that all messages of an object share. Only what the bytes hold and what Go writes when unset is looked at.

use std::borrow::Cow;

use serde_json::Value;

use super::decode::{double, embedded_kind, read_special, target};
use super::error::Error;
use super::wire::{Reader, Wire};
use crate::json::{
    MAX_TREE_DEPTH, encode_any, encode_int, encode_name, encode_raw, encode_scalar, encode_text, encode_zero,
};
use crate::schema::zero::{self, Zero};
use crate::schema::{Card, Field, Message, Target, ValueKind};
use crate::{json, quantity, scalar};

/// Appends the JSON text of an object without an envelope. `api_version` and `kind` are written when not empty.
///
/// # Errors
/// [`Error`] for malformed bytes; `out` then holds a part of the text.
pub fn to_json(schema: &Message, api_version: &str, kind: &str, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    object(schema, Some((api_version, kind)), data, 0, &mut Found::new(), out)
}

/// Occurrences of fields, by their place in the schema.
type Found<'a> = Vec<(usize, Wire<'a>)>;

fn collect<'a>(
    schema: &Message,
    outer: Option<&Message>,
    data: &'a [u8],
    depth: usize,
    found: &mut Found<'a>,
) -> Result<(), Error> {
    if depth >= MAX_TREE_DEPTH {
        return Err(Error::Depth);
    }
    let mut reader = Reader::new(data);
    while let Some((number, wire)) = reader.next()? {
        match target(schema, number) {
            Some(Target::Inline(inner)) => {
                collect(inner, Some(outer.unwrap_or(schema)), wire.bytes(inner.go_name())?, depth + 1, found)?;
            }
            Some(Target::Field(index)) => {
                let at = match (outer, schema.fields.get(*index)) {
                    (Some(outer), Some(field)) => outer.field_index(&field.json),
                    _ => Some(*index),
                };
                found.extend(at.map(|at| (at, wire)));
            }
            None => {}
        }
    }
    Ok(())
}

fn key(name: &str, first: &mut bool, out: &mut Vec<u8>) {
    out.push(if *first { b'{' } else { b',' });
    *first = false;
    encode_text(name, out);
    out.push(b':');
}

/// Begins a member whose name the schema gives.
fn begin(name: &str, first: &mut bool, out: &mut Vec<u8>) {
    out.push(if *first { b'{' } else { b',' });
    *first = false;
    encode_name(name, out);
}

fn object<'a>(
    schema: &Message,
    type_meta: Option<(&str, &str)>,
    data: &'a [u8],
    depth: usize,
    found: &mut Found<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let base = found.len();
    collect(schema, None, data, depth, found)?;
    if !found[base..].is_sorted_by_key(|(at, _)| *at) {
        found[base..].sort_by_key(|(at, _)| *at);
    }
    let mut first = true;
    if let Some((api_version, kind)) = type_meta {
        write_type_meta(schema, api_version, kind, &mut first, out);
    }
    let end = found.len();
    let mut at = base;
    let mut shown = schema.shown_unset().iter().map(|i| usize::from(*i)).peekable();
    loop {
        let present = found[at..end].first().map(|(index, _)| *index);
        let unset = shown.peek().copied();
        match (present, unset) {
            (None, None) => break,
            (present, Some(unset)) if present.is_none_or(|p| unset < p) => {
                shown.next();
                write_unset(&schema.fields[unset], depth + 1, &mut first, out);
            }
            (Some(present), unset) => {
                if unset == Some(present) {
                    shown.next();
                }
                let count = found[at..end].iter().take_while(|(index, _)| *index == present).count();
                let Some(field) = schema.fields.get(present) else { return Err(Error::UnexpectedEof) };
                write_field(field, at..at + count, depth + 1, &mut first, found, out)?;
                at += count;
            }
            (None, Some(_)) => break,
        }
    }
    found.truncate(base);
    out.extend_from_slice(if first { b"{}" } else { b"}" });
    Ok(())
}

/// `kind` and `apiVersion` are no part of the bytes and come first.
fn write_type_meta(schema: &Message, api_version: &str, kind: &str, first: &mut bool, out: &mut Vec<u8>) {
    for field in schema.fields.iter().take_while(|f| f.number == 0) {
        let text = match field.json.as_ref() {
            "kind" => kind,
            "apiVersion" => api_version,
            _ => "",
        };
        if !text.is_empty() {
            begin(&field.json, first, out);
            encode_text(text, out);
        }
    }
}

fn write_unset(field: &Field, depth: usize, first: &mut bool, out: &mut Vec<u8>) {
    let unset = zero::of(field);
    if !matches!(unset, Zero::Omitted) {
        begin(&field.json, first, out);
        encode_zero(&unset, depth, out);
    }
}

fn write_field<'a>(
    field: &Field,
    own: std::ops::Range<usize>,
    depth: usize,
    first: &mut bool,
    found: &mut Found<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match field.card {
        Card::Single => single(field, own, depth, first, found, out),
        Card::Repeated => {
            let start = out.len();
            let before = *first;
            begin(&field.json, first, out);
            out.push(b'[');
            let empty = out.len();
            for i in own {
                let wire = found[i].1;
                items(field, wire, depth, found, out)?;
            }
            if out.len() == empty && field.omit_empty {
                out.truncate(start);
                *first = before;
                return Ok(());
            }
            if out.len() > empty {
                out.pop();
            }
            out.push(b']');
            Ok(())
        }
        Card::Map => map(field, own, depth, first, found, out),
    }
}

/// Elements of one occurrence, each followed by a comma.
fn items<'a>(
    field: &Field,
    wire: Wire<'a>,
    depth: usize,
    found: &mut Found<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match (&field.kind, wire) {
        (kind @ (ValueKind::Int32 | ValueKind::Int64 | ValueKind::Bool | ValueKind::Double), Wire::Bytes(packed)) => {
            let mut reader = Reader::new(packed);
            while !reader.is_empty() {
                let item = match kind {
                    ValueKind::Double => Wire::Fixed64(reader.fixed64()?),
                    _ => Wire::Varint(reader.varint()?),
                };
                one(kind, &field.json, item, depth, found, out)?;
                out.push(b',');
            }
        }
        (ValueKind::Message(inner), wire) => {
            let embedded = embedded_kind(field);
            let type_meta = embedded.as_ref().map(|(api_version, kind)| (api_version.as_str(), *kind));
            object(inner, type_meta, wire.bytes(&field.json)?, depth, found, out)?;
            out.push(b',');
        }
        (kind, wire) => {
            one(kind, &field.json, wire, depth, found, out)?;
            out.push(b',');
        }
    }
    Ok(())
}

fn single<'a>(
    field: &Field,
    own: std::ops::Range<usize>,
    depth: usize,
    first: &mut bool,
    found: &mut Found<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let name = field.json.as_ref();
    let Some((_, last)) = found[own.clone()].last().copied() else { return Ok(()) };
    if own.len() > 1
        && let ValueKind::Message(inner) = &field.kind
    {
        // Occurrences of one message are merged; joined bytes decode to just that.
        let mut joined = Vec::new();
        for (_, wire) in &found[own] {
            joined.extend_from_slice(wire.bytes(name)?);
        }
        begin(name, first, out);
        return object(inner, None, &joined, depth, &mut Found::new(), out);
    }
    if !field.pointer && (field.omit_empty || field.omit_zero) {
        let unset = match (&field.kind, last) {
            (
                ValueKind::String | ValueKind::Bytes | ValueKind::StringList | ValueKind::Time | ValueKind::MicroTime,
                Wire::Bytes(b),
            ) => b.is_empty() && (field.omit_zero || !matches!(field.kind, ValueKind::Time | ValueKind::MicroTime)),
            (ValueKind::Bool | ValueKind::Int64, Wire::Varint(v)) => v == 0,
            #[expect(clippy::cast_possible_truncation, reason = "32 bits of the wire, as Go reads them")]
            (ValueKind::Int32, Wire::Varint(v)) => v as u32 == 0,
            (ValueKind::Double, Wire::Fixed64(bits)) => f64::from_bits(bits) == 0.0,
            _ => false,
        };
        if unset {
            return Ok(());
        }
    }
    let special = !matches!(
        field.kind,
        ValueKind::Bool
            | ValueKind::Int32
            | ValueKind::Int64
            | ValueKind::Double
            | ValueKind::String
            | ValueKind::Bytes
            | ValueKind::Message(_)
    );
    if special {
        let bytes = last.bytes(name)?;
        let start = (out.len(), *first);
        begin(name, first, out);
        if written_directly(&field.kind, bytes, out)? {
            return Ok(());
        }
        out.truncate(start.0);
        *first = start.1;
        let value = read_special(&field.kind, bytes, depth)?;
        if zero::is_omitted(field, &value) {
            return Ok(());
        }
        begin(name, first, out);
        special_value(&field.kind, &value, depth, out);
        return Ok(());
    }
    begin(name, first, out);
    one(&field.kind, name, last, depth, found, out)
}

/// The frequent special forms without a value in between. False, with nothing written, for all others.
fn written_directly(kind: &ValueKind, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Error> {
    let mut reader = Reader::new(bytes);
    match kind {
        ValueKind::Quantity => {
            let mut text = Cow::Borrowed("0");
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    text = String::from_utf8_lossy(wire.bytes("string")?);
                }
            }
            let canonical = quantity::canonicalize(&text).map_err(|e| Error::Value(e.to_string()))?;
            encode_text(&canonical, out);
            Ok(true)
        }
        ValueKind::RawExtension | ValueKind::FieldsV1 | ValueKind::Json => {
            let mut raw: &[u8] = &[];
            while let Some((number, wire)) = reader.next()? {
                if number == 1 {
                    raw = wire.bytes("raw")?;
                }
            }
            // Objects and lists; null and enveloped objects are looked at.
            Ok(matches!(raw.first(), Some(b'{' | b'[')) && encode_raw(raw, out))
        }
        _ => Ok(false),
    }
}

fn map<'a>(
    field: &Field,
    own: std::ops::Range<usize>,
    depth: usize,
    first: &mut bool,
    found: &mut Found<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut entries: Vec<(Cow<'a, str>, Option<Wire<'a>>)> = Vec::with_capacity(own.len());
    for (_, wire) in &found[own] {
        let mut reader = Reader::new(wire.bytes(&field.json)?);
        let (mut name, mut item) = (Cow::Borrowed(""), None);
        while let Some((number, wire)) = reader.next()? {
            match number {
                1 => name = String::from_utf8_lossy(wire.bytes("mapkey")?),
                2 => item = Some(wire),
                _ => {}
            }
        }
        entries.push((name, item));
    }
    if !entries.is_sorted_by(|a, b| a.0 < b.0) {
        // Of equal keys the last one counts.
        entries.reverse();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|a, b| a.0 == b.0);
    }
    begin(&field.json, first, out);
    let mut first_entry = true;
    for (name, item) in entries {
        key(&name, &mut first_entry, out);
        match item {
            Some(wire) => one(&field.kind, &field.json, wire, depth, found, out)?,
            None => json::encode_element(&field.kind, depth, out),
        }
    }
    out.push(b'}');
    Ok(())
}

fn special_value(kind: &ValueKind, value: &Value, depth: usize, out: &mut Vec<u8>) {
    match kind {
        ValueKind::SchemaOrBool | ValueKind::SchemaOrArray | ValueKind::SchemaOrStrings => {
            json::encode_special(kind, value, depth, out);
        }
        _ => encode_any(value, out),
    }
}

fn one<'a>(
    kind: &ValueKind,
    name: &str,
    wire: Wire<'a>,
    depth: usize,
    found: &mut Found<'a>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match kind {
        ValueKind::Bool => out.extend_from_slice(if wire.int(name)? == 0 { b"false" } else { b"true" }),
        #[expect(clippy::cast_possible_truncation, reason = "32 bits of the wire, as Go reads them")]
        ValueKind::Int32 => encode_int(i64::from(wire.int(name)? as i32), out),
        ValueKind::Int64 => encode_int(wire.int(name)?, out),
        ValueKind::Double => match wire {
            Wire::Fixed64(bits) => encode_scalar(&double(f64::from_bits(bits)), out),
            other => return other.wrong(name),
        },
        ValueKind::String => encode_text(&String::from_utf8_lossy(wire.bytes(name)?), out),
        ValueKind::Bytes => {
            out.push(b'"');
            out.extend_from_slice(scalar::encode_base64(wire.bytes(name)?).as_bytes());
            out.push(b'"');
        }
        ValueKind::Message(inner) => object(inner, None, wire.bytes(name)?, depth, found, out)?,
        ValueKind::Nested(_) | ValueKind::Any => out.extend_from_slice(b"null"),
        special => {
            let bytes = wire.bytes(name)?;
            if !written_directly(special, bytes, out)? {
                let value = read_special(special, bytes, depth)?;
                special_value(special, &value, depth, out);
            }
        }
    }
    Ok(())
}
