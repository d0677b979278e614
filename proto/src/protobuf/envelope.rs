//! The `k8s\0` envelope around an object (`runtime.Unknown`). Answers for upstream's
//! `runtime/serializer/protobuf`.

use serde_json::Value;

use super::error::Error;
use super::{decode, encode, wire};
use crate::schema::{self, Message};

/// First bytes of an enveloped object.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// The outer message around an object (`runtime.Unknown`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope<'a> {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// The object's own bytes.
    pub raw: &'a [u8],
    /// Compression, empty for none.
    pub content_encoding: String,
    /// Media type of `raw`, empty for protobuf.
    pub content_type: String,
}

/// Puts an object's bytes into the envelope.
#[must_use]
pub fn wrap(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::with_capacity(api_version.len() + kind.len() + 4);
    wire::bytes(1, api_version.as_bytes(), &mut type_meta);
    wire::bytes(2, kind.as_bytes(), &mut type_meta);
    let mut out = Vec::with_capacity(raw.len() + type_meta.len() + 20);
    out.extend_from_slice(&MAGIC);
    wire::bytes(1, &type_meta, &mut out);
    wire::bytes(2, raw, &mut out);
    wire::bytes(3, b"", &mut out);
    wire::bytes(4, b"", &mut out);
    out
}

/// Envelope around an object's bytes of a length: [`wrap`] for bytes that are not contiguous yet.
#[must_use]
pub fn wrap_around(api_version: &str, kind: &str, length: usize) -> (Vec<u8>, &'static [u8]) {
    // Both of its last fields are empty.
    const TAIL: usize = 4;
    let mut head = wrap(api_version, kind, b"");
    head.truncate(head.len() - TAIL - 1);
    wire::varint(length as u64, &mut head);
    (head, &[0x1a, 0, 0x22, 0])
}

/// Opens the envelope.
///
/// # Errors
/// [`Error::Prefix`] without the magic bytes, others for malformed bytes.
pub fn unwrap(data: &[u8]) -> Result<Envelope<'_>, Error> {
    let data = data.strip_prefix(&MAGIC).ok_or(Error::Prefix)?;
    let mut envelope = Envelope::default();
    let mut reader = wire::Reader::new(data);
    while let Some((number, value)) = reader.next()? {
        match number {
            1 => {
                let mut inner = wire::Reader::new(value.bytes("TypeMeta")?);
                while let Some((number, value)) = inner.next()? {
                    match number {
                        1 => envelope.api_version = value.text("APIVersion")?,
                        2 => envelope.kind = value.text("Kind")?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = value.bytes("Raw")?,
            3 => envelope.content_encoding = value.text("ContentEncoding")?,
            4 => envelope.content_type = value.text("ContentType")?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Encodes an object with its envelope; `apiVersion` and `kind` are the tree's, else the schema's.
#[must_use]
pub fn encode_envelope(schema: &Message, value: &Value) -> Vec<u8> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).filter(|t| !t.is_empty()).map(str::to_owned);
    let own = schema.gvk.as_ref();
    let api_version = text("apiVersion").or_else(|| own.map(schema::Gvk::api_version)).unwrap_or_default();
    let kind = text("kind").or_else(|| own.map(|g| g.kind.to_string())).unwrap_or_default();
    wrap(&api_version, &kind, &encode::encode(schema, value))
}

/// Decodes an enveloped object of a built-in kind, with `apiVersion` and `kind`.
///
/// # Errors
/// [`Error`] for malformed bytes or an unknown kind.
pub fn decode_envelope(data: &[u8]) -> Result<Value, Error> {
    let envelope = unwrap(data)?;
    decode_unwrapped(&envelope)
}

/// Decodes the object in an open envelope.
///
/// # Errors
/// [`Error`] for malformed bytes or an unknown kind.
pub fn decode_unwrapped(envelope: &Envelope<'_>) -> Result<Value, Error> {
    decode_unwrapped_at(envelope, 0)
}

/// Decodes an envelope at a depth inside another object.
pub(super) fn decode_unwrapped_at(envelope: &Envelope<'_>, depth: usize) -> Result<Value, Error> {
    let schema = schema::kind_of(&envelope.api_version, &envelope.kind)
        .filter(|m| m.has_protobuf)
        .ok_or_else(|| Error::UnknownKind { api_version: envelope.api_version.clone(), kind: envelope.kind.clone() })?;
    let mut value = decode::decode_at(schema, envelope.raw, depth)?;
    if let Value::Object(map) = &mut value {
        map.insert("apiVersion".to_owned(), Value::String(envelope.api_version.clone()));
        map.insert("kind".to_owned(), Value::String(envelope.kind.clone()));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn around_is_what_wrap_puts_around() {
        for length in [0, 1, 200, 70_000] {
            let raw = vec![7; length];
            let (mut whole, tail) = wrap_around("apps/v1", "DeploymentList", length);
            whole.extend_from_slice(&raw);
            whole.extend_from_slice(tail);
            assert!(whole == wrap("apps/v1", "DeploymentList", &raw));
        }
    }
}
