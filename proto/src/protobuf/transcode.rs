//! Bytes to JSON text without a tree between them. Hot: lists and watches go through here.

use std::borrow::Cow;
use std::io::Write as _;

use serde_json::Value;

use super::Error;
use super::decode::{double, embedded_kind, read_special, target};
use super::wire::{Reader, Wire};
use crate::json::{MAX_TREE_DEPTH, encode_any, encode_name, encode_scalar, encode_text, encode_zero};
use crate::schema::{Card, Field, Kind, Message, Target};
use crate::zero::{self, Zero};
use crate::{json, scalar};

/// Appends the JSON text of an object without an envelope. `api_version` and `kind` are written when not empty.
///
/// # Errors
/// [`Error`] for malformed bytes; `out` then holds a part of the text.
pub fn to_json(schema: &Message, api_version: &str, kind: &str, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    object(schema, Some((api_version, kind)), data, 0, out)
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

fn object(
    schema: &Message,
    type_meta: Option<(&str, &str)>,
    data: &[u8],
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut found = Found::new();
    collect(schema, None, data, depth, &mut found)?;
    found.sort_by_key(|(at, _)| *at);
    let mut rest = found.as_slice();
    let mut first = true;
    for (index, field) in schema.fields.iter().enumerate() {
        let count = rest.iter().take_while(|(at, _)| *at == index).count();
        let (own, after) = rest.split_at(count);
        rest = after;
        if let (Some((api_version, kind)), 0) = (type_meta, field.number) {
            let text = match field.json.as_ref() {
                "kind" => kind,
                "apiVersion" => api_version,
                _ => "",
            };
            if !text.is_empty() {
                begin(&field.json, &mut first, out);
                encode_text(text, out);
                continue;
            }
        }
        write_field(field, own, depth + 1, &mut first, out)?;
    }
    out.extend_from_slice(if first { b"{}" } else { b"}" });
    Ok(())
}

fn write_field(
    field: &Field,
    own: &[(usize, Wire<'_>)],
    depth: usize,
    first: &mut bool,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let Some((_, last)) = own.last() else {
        let unset = zero::of(field);
        if !matches!(unset, Zero::Omitted) {
            begin(&field.json, first, out);
            encode_zero(&unset, depth, out);
        }
        return Ok(());
    };
    match field.card {
        Card::Single => single(field, own, *last, depth, first, out),
        Card::Repeated => {
            let start = out.len();
            let before = *first;
            begin(&field.json, first, out);
            out.push(b'[');
            let empty = out.len();
            for (_, wire) in own {
                items(field, *wire, depth, out)?;
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
        Card::Map => map(field, own, depth, first, out),
    }
}

/// Elements of one occurrence, each followed by a comma.
fn items(field: &Field, wire: Wire<'_>, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    match (&field.kind, wire) {
        (kind @ (Kind::Int32 | Kind::Int64 | Kind::Bool | Kind::Double), Wire::Bytes(packed)) => {
            let mut reader = Reader::new(packed);
            while !reader.is_empty() {
                let item = match kind {
                    Kind::Double => Wire::Fixed64(reader.fixed64()?),
                    _ => Wire::Varint(reader.varint()?),
                };
                one(kind, &field.json, item, depth, out)?;
                out.push(b',');
            }
        }
        (Kind::Message(inner), wire) => {
            let embedded = embedded_kind(field);
            let type_meta = embedded.as_ref().map(|(api_version, kind)| (api_version.as_str(), *kind));
            object(inner, type_meta, wire.bytes(&field.json)?, depth, out)?;
            out.push(b',');
        }
        (kind, wire) => {
            one(kind, &field.json, wire, depth, out)?;
            out.push(b',');
        }
    }
    Ok(())
}

fn single(
    field: &Field,
    own: &[(usize, Wire<'_>)],
    last: Wire<'_>,
    depth: usize,
    first: &mut bool,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let name = field.json.as_ref();
    // Occurrences of one message are merged; joined bytes decode to just that.
    let joined;
    let wire = if own.len() > 1 && matches!(field.kind, Kind::Message(_)) {
        let mut all = Vec::new();
        for (_, wire) in own {
            all.extend_from_slice(wire.bytes(name)?);
        }
        joined = all;
        Wire::Bytes(&joined)
    } else {
        last
    };
    if !field.pointer && (field.omit_empty || field.omit_zero) {
        let unset = match (&field.kind, wire) {
            (Kind::String | Kind::Bytes | Kind::StringList | Kind::Time | Kind::MicroTime, Wire::Bytes(b)) => {
                b.is_empty() && (field.omit_zero || !matches!(field.kind, Kind::Time | Kind::MicroTime))
            }
            (Kind::Bool | Kind::Int64, Wire::Varint(v)) => v == 0,
            #[allow(clippy::cast_possible_truncation)]
            (Kind::Int32, Wire::Varint(v)) => v as u32 == 0,
            (Kind::Double, Wire::Fixed64(bits)) => f64::from_bits(bits) == 0.0,
            _ => false,
        };
        if unset {
            return Ok(());
        }
    }
    let special = !matches!(
        field.kind,
        Kind::Bool | Kind::Int32 | Kind::Int64 | Kind::Double | Kind::String | Kind::Bytes | Kind::Message(_)
    );
    if special {
        let value = read_special(&field.kind, wire.bytes(name)?, depth)?;
        if zero::is_omitted(field, &value) {
            return Ok(());
        }
        begin(name, first, out);
        special_value(&field.kind, &value, depth, out);
        return Ok(());
    }
    begin(name, first, out);
    one(&field.kind, name, wire, depth, out)
}

fn map(
    field: &Field,
    own: &[(usize, Wire<'_>)],
    depth: usize,
    first: &mut bool,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut entries: Vec<(Cow<'_, str>, Option<Wire<'_>>)> = Vec::with_capacity(own.len());
    for (_, wire) in own {
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
            Some(wire) => one(&field.kind, &field.json, wire, depth, out)?,
            None => json::encode_element(&field.kind, depth, out),
        }
    }
    out.push(b'}');
    Ok(())
}

fn special_value(kind: &Kind, value: &Value, depth: usize, out: &mut Vec<u8>) {
    match kind {
        Kind::SchemaOrBool | Kind::SchemaOrArray | Kind::SchemaOrStrings => {
            json::encode_special(kind, value, depth, out);
        }
        _ => encode_any(value, out),
    }
}

fn one(kind: &Kind, name: &str, wire: Wire<'_>, depth: usize, out: &mut Vec<u8>) -> Result<(), Error> {
    match kind {
        Kind::Bool => out.extend_from_slice(if wire.int(name)? == 0 { b"false" } else { b"true" }),
        #[allow(clippy::cast_possible_truncation)]
        Kind::Int32 => {
            let _ = write!(out, "{}", wire.int(name)? as i32);
        }
        Kind::Int64 => {
            let _ = write!(out, "{}", wire.int(name)?);
        }
        Kind::Double => match wire {
            Wire::Fixed64(bits) => encode_scalar(&double(f64::from_bits(bits)), out),
            other => return other.wrong(name),
        },
        Kind::String => encode_text(&String::from_utf8_lossy(wire.bytes(name)?), out),
        Kind::Bytes => {
            out.push(b'"');
            out.extend_from_slice(scalar::encode_base64(wire.bytes(name)?).as_bytes());
            out.push(b'"');
        }
        Kind::Message(inner) => object(inner, None, wire.bytes(name)?, depth, out)?,
        Kind::Nested(_) | Kind::Any => out.extend_from_slice(b"null"),
        special => {
            let value = read_special(special, wire.bytes(name)?, depth)?;
            special_value(special, &value, depth, out);
        }
    }
    Ok(())
}
