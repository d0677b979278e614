//! Between etcd's bytes, the cache's bytes and trees. Answers for upstream's `decode`, `DecodeListItem`.
//!
//! Rows here are those in whose version objects are kept; etcd may have another one ([`versions`]). Built-in kinds are
//! stored as upstream's protobuf envelope, a few as JSON, custom resources as JSON or, behind the feature gate, as
//! CBOR; all of them are read everywhere. The revision is not part of the stored bytes: it is stamped into the copy the
//! cache keeps, without building a tree.

use std::borrow::Cow;

use bytes::Bytes;
use proto::resources::Resource;
use proto::schema::Message;
use proto::{Value, cbor, defaulting, json, protobuf};

use super::versions;
use crate::negotiate::Media;
use crate::registry::behavior;

/// An object's bytes with its `resourceVersion` stamped in.
#[derive(Clone, Debug)]
pub enum Raw {
    /// Protobuf of the storage version, without the envelope.
    Proto(Bytes),
    /// JSON, for the kinds that are stored so.
    Json(Bytes),
}

impl Raw {
    /// Size in memory.
    pub fn size(&self) -> usize {
        match self {
            Self::Proto(b) | Self::Json(b) => b.len(),
        }
    }
}

/// Errors of decoding stored bytes and of encoding objects.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// No tables for the kind.
    #[error("no kind {0:?} is known")]
    UnknownKind(String),
    /// Broken protobuf.
    #[error("protobuf: {0}")]
    Protobuf(String),
    /// Broken CBOR.
    #[error("{0}")]
    Cbor(#[from] cbor::Error),
    /// Broken JSON.
    #[error("json: {0}")]
    Json(#[from] json::DecodeError),
    /// The value is not an object, or its metadata is not.
    #[error("json: not an object with metadata")]
    NoObject,
}

const MAGIC: &[u8] = b"k8s\0";

/// The tables of the served form of a resource.
pub fn served_schema(row: &Resource) -> Result<&Message, CodecError> {
    row.schema().ok_or_else(|| CodecError::UnknownKind(row.kind.to_string()))
}

/// Encodes an object for etcd. A server that speaks CBOR stores in it what has no type, and
/// one that is told so stores all others as JSON.
pub fn encode(row: &Resource, object: &Value, media: Media) -> Result<Vec<u8>, CodecError> {
    let object = versions::to_stored(row, object);
    if row.storage_json || media.stores_json {
        let mut object = object.into_owned();
        object["apiVersion"] = Value::from(row.storage_api_version());
        object["kind"] = Value::from(&*row.storage_kind);
        if let Some(m) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            m.remove("resourceVersion");
        }
        if media.cbor && behavior(row).stores_cbor() {
            return Ok(cbor::encode(None, &object));
        }
        return Ok(stored_json(&object));
    }
    let schema = versions::stored_schema(row).map_or_else(|| served_schema(row), Ok)?;
    let body = protobuf::encode(schema, &object);
    let body = stamp(&body, "").unwrap_or(body);
    Ok(protobuf::wrap(&row.storage_api_version(), &row.storage_kind, &body))
}

/// Encodes an object for etcd, with the newline that Go's encoder ends every value with.
fn stored_json(object: &Value) -> Vec<u8> {
    let mut out = plain_json(object);
    out.push(b'\n');
    out
}

/// JSON as Go writes it, without a kind's tables.
fn plain_json(object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    json::encode_any(object, &mut out);
    out
}

/// Reads a stored value into a tree of the storage row's version, with its revision.
pub fn decode(row: &Resource, stored: &[u8], revision: i64) -> Result<Value, CodecError> {
    value(row, &raw(row, stored, revision)?)
}

/// Reads cached bytes into a tree of the storage row's served version.
pub fn value(row: &Resource, raw: &Raw) -> Result<Value, CodecError> {
    let mut v = match raw {
        Raw::Proto(bytes) => {
            protobuf::decode(served_schema(row)?, bytes).map_err(|e| CodecError::Protobuf(e.to_string()))?
        }
        Raw::Json(bytes) => json::decode_any(bytes)?,
    };
    if behavior(row).keeps_trees() {
        return Ok(v);
    }
    if let Some(map) = v.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::from(row.api_version()));
        map.insert("kind".to_owned(), Value::from(&*row.kind));
    }
    Ok(v)
}

/// Writes cached bytes as the JSON of the storage row's served version.
pub fn to_json(row: &Resource, raw: &Raw, out: &mut Vec<u8>) -> Result<(), CodecError> {
    transcode(row, raw, true, out)
}

/// Encodes an object as an item of a list: without type metadata.
pub fn to_json_item(row: &Resource, raw: &Raw, out: &mut Vec<u8>) -> Result<(), CodecError> {
    transcode(row, raw, false, out)
}

/// No tree is built for what is stored as protobuf.
fn transcode(row: &Resource, raw: &Raw, typed: bool, out: &mut Vec<u8>) -> Result<(), CodecError> {
    if let Raw::Proto(bytes) = raw {
        let api_version = if typed { row.api_version() } else { String::new() };
        let kind = if typed { &*row.kind } else { "" };
        return protobuf::to_json(served_schema(row)?, &api_version, kind, bytes, out)
            .map_err(|e| CodecError::Protobuf(e.to_string()));
    }
    if let (Raw::Json(bytes), true) = (raw, behavior(row).keeps_trees()) {
        // Normal since it was read; elements of a list say what they are, too.
        out.extend_from_slice(bytes);
        return Ok(());
    }
    let mut tree = value(row, raw)?;
    if let (false, Some(map)) = (typed, tree.as_object_mut()) {
        map.remove("apiVersion");
        map.remove("kind");
    }
    json::encode(served_schema(row)?, &tree, out);
    Ok(())
}

/// The cached form of stored bytes.
pub fn raw(row: &Resource, stored: &[u8], revision: i64) -> Result<Raw, CodecError> {
    read(row, stored, revision).map(|(raw, _)| raw)
}

/// Decodes a stored value; the flag reports that a write would store it differently: with newer defaults, or in another
/// version.
pub(crate) fn read(row: &Resource, stored: &[u8], revision: i64) -> Result<(Raw, bool), CodecError> {
    if stored.starts_with(MAGIC) {
        let envelope = protobuf::unwrap(stored).map_err(|e| CodecError::Protobuf(e.to_string()))?;
        let other = versions::from_stored(row, &envelope)?;
        let body = stamp(other.as_deref().unwrap_or(envelope.raw), &revision.to_string())
            .ok_or_else(|| CodecError::Protobuf("object without metadata".to_owned()))?;
        let completed = completed(row, &body)?;
        let stale = completed.is_some() || !versions::is(&envelope.api_version, &row.storage.0, &row.storage.1);
        return Ok((Raw::Proto(Bytes::from(completed.unwrap_or(body))), stale));
    }
    let mut v = versions::from_stored_tree(row, object(unpacked(stored)?)?);
    v["metadata"]["resourceVersion"] = Value::from(revision.to_string());
    behavior(row).complete_stored(row, &mut v);
    Ok((Raw::Json(Bytes::from(plain_json(&v))), false))
}

/// An object with today's defaults, where it lacks some.
fn completed(row: &Resource, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
    let schema = served_schema(row)?;
    if !defaulting::may_lack(schema, body) {
        return Ok(None);
    }
    let before = protobuf::decode(schema, body).map_err(|e| CodecError::Protobuf(e.to_string()))?;
    let mut object = before.clone();
    defaulting::apply(schema, &mut object);
    Ok((object != before).then(|| protobuf::encode(schema, &object)))
}

/// The tree of what is not stored as protobuf.
fn unpacked(stored: &[u8]) -> Result<Value, CodecError> {
    if stored.starts_with(&cbor::SELF_DESCRIBED) {
        return Ok(json::decode_any(&cbor::stored_to_json(stored)?)?);
    }
    Ok(json::decode_any(stored)?)
}

/// A tree that is an object with metadata, if it has any that can be stamped.
fn object(tree: Value) -> Result<Value, CodecError> {
    let fits = |v: &Value| v.is_object() || v.is_null();
    if tree.is_object() && tree.get("metadata").is_none_or(fits) { Ok(tree) } else { Err(CodecError::NoObject) }
}

/// The cached form of bytes that were just written, where they are protobuf: of others it costs more than it saves.
pub fn written(row: &Resource, stored: &[u8], revision: i64) -> Option<Raw> {
    if stored.starts_with(MAGIC) { raw(row, stored, revision).ok() } else { None }
}

/// Reports whether stored bytes are those of a cached object.
pub fn is_stored_as(row: &Resource, raw: &Raw, stored: &[u8]) -> bool {
    match raw {
        Raw::Proto(_) if versions::stored_schema(row).is_some() => {
            let own = value(row, raw).and_then(|tree| encode(row, &tree, Media::default()));
            own.is_ok_and(|own| own == stored)
        }
        Raw::Proto(body) => stamp(body, "")
            .is_some_and(|body| protobuf::wrap(&row.storage_api_version(), &row.storage_kind, &body) == stored),
        Raw::Json(bytes) => {
            let Ok(mut tree) = json::decode_any(bytes) else { return false };
            tree.get_mut("metadata").and_then(Value::as_object_mut).and_then(|m| m.remove("resourceVersion"));
            if stored.starts_with(&cbor::SELF_DESCRIBED) {
                return cbor::encode(None, &tree) == stored;
            }
            stored_json(&versions::to_stored(row, &tree)) == stored
        }
    }
}

/// Returns the object at another revision.
pub fn restamp(raw: &Raw, revision: i64) -> Raw {
    match raw {
        Raw::Proto(b) => stamp(b, &revision.to_string()).map_or_else(|| raw.clone(), |v| Raw::Proto(Bytes::from(v))),
        Raw::Json(b) => match json::decode_any(b) {
            Ok(mut v) => {
                v["metadata"]["resourceVersion"] = Value::from(revision.to_string());
                Raw::Json(Bytes::from(plain_json(&v)))
            }
            Err(_) => raw.clone(),
        },
    }
}

/// The metadata in an object's protobuf.
pub fn metadata(body: &[u8]) -> Option<&[u8]> {
    find(body, METADATA).map(|(_, start, end)| &body[start..end])
}

/// The labels in an object's protobuf.
pub(crate) fn labels(body: &[u8]) -> Option<Vec<(Cow<'_, str>, Cow<'_, str>)>> {
    let meta = metadata(body)?;
    let mut labels: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
    let mut at = 0;
    while at < meta.len() {
        let (key, content, end) = field(meta, at)?;
        if key >> 3 == LABELS && key & 7 == 2 {
            let entry = &meta[content..end];
            let text =
                |number| find(entry, number).map_or("".into(), |(_, s, e)| String::from_utf8_lossy(&entry[s..e]));
            let (name, value) = (text(1), text(2));
            // Of equal keys the last one counts.
            labels.retain(|(k, _)| *k != name);
            labels.push((name, value));
        }
        at = end;
    }
    Some(labels)
}

/// Field numbers: every root kind has its metadata in field 1, every metadata its revision in field 6 and its labels in
/// field 11.
const METADATA: u64 = 1;
const RESOURCE_VERSION: u64 = 6;
const LABELS: u64 = 11;

/// Replaces `metadata.resourceVersion` in an object's protobuf. `None` when the bytes are not an object with metadata.
fn stamp(body: &[u8], revision: &str) -> Option<Vec<u8>> {
    let (start, inner, end) = find(body, METADATA)?;
    let meta = &body[inner..end];
    let (before, after) = match find(meta, RESOURCE_VERSION) {
        Some((s, _, e)) => (&meta[..s], &meta[e..]),
        None => split_before(meta, RESOURCE_VERSION)?,
    };
    let mut field = Vec::with_capacity(revision.len() + 2);
    field.push(u8::try_from(RESOURCE_VERSION << 3 | 2).ok()?);
    put_varint(&mut field, revision.len() as u64);
    field.extend_from_slice(revision.as_bytes());
    let mut out = Vec::with_capacity(body.len() + field.len() + 4);
    out.extend_from_slice(&body[..start]);
    out.push(u8::try_from(METADATA << 3 | 2).ok()?);
    put_varint(&mut out, (before.len() + field.len() + after.len()) as u64);
    out.extend_from_slice(before);
    out.extend_from_slice(&field);
    out.extend_from_slice(after);
    out.extend_from_slice(&body[end..]);
    Some(out)
}

/// Start, content start and end of the first length-delimited field with a number.
fn find(message: &[u8], number: u64) -> Option<(usize, usize, usize)> {
    let mut at = 0;
    while at < message.len() {
        let (key, content, end) = field(message, at)?;
        if key >> 3 == number && key & 7 == 2 {
            return Some((at, content, end));
        }
        at = end;
    }
    None
}

fn split_before(message: &[u8], number: u64) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    while at < message.len() {
        let (key, _, end) = field(message, at)?;
        if key >> 3 > number {
            break;
        }
        at = end;
    }
    Some(message.split_at(at))
}

/// Key, content start and end of the field that begins at `at`.
fn field(message: &[u8], at: usize) -> Option<(u64, usize, usize)> {
    let (key, mut i) = varint(message, at)?;
    let end = match key & 7 {
        0 => varint(message, i)?.1,
        1 => i.checked_add(8)?,
        2 => {
            let (len, content) = varint(message, i)?;
            i = content;
            content.checked_add(usize::try_from(len).ok()?)?
        }
        5 => i.checked_add(4)?,
        _ => return None,
    };
    (end <= message.len()).then_some((key, i, end))
}

fn varint(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let b = *bytes.get(at)?;
        at += 1;
        value |= u64::from(b & 0x7f) << shift;
        if b < 0x80 {
            return Some((value, at));
        }
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_the_revision_in_place() {
        // metadata {name: "a", resourceVersion: "", generation: 0}, field 2: "x"
        let body = b"\x0a\x07\x0a\x01a\x32\x00\x38\x00\x12\x01x";
        assert_eq!(stamp(body, "42").as_deref(), Some(&b"\x0a\x09\x0a\x01a\x32\x0242\x38\x00\x12\x01x"[..]));
        assert_eq!(stamp(&stamp(body, "42").expect("stamped"), "").as_deref(), Some(&body[..]));
    }

    #[test]
    fn broken_bytes_are_refused() {
        for bad in [&b"\x0a\xff"[..], b"", b"\x0a\x05\x0a\x09", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(stamp(bad, "1"), None);
        }
    }
}
