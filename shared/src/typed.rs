//! API objects as the types of `k8s-openapi`, read as leniently as Go reads them.
//!
//! In: the text or the bytes of an object. Out: the object as a type, or why it cannot be read. The derived decoders refuse
//! what Go's take (`null` for a time that is required, or the last day of the year 9999): where they do, the object is decoded by the schema, which
//! is as lenient as `sigs.k8s.io/json`, and what that decoder prints is read instead. Never: a decoder for one kind.

use proto::numbers::meta_v1::{object_meta, partial_object_metadata};
use proto::schema::{Card, Field, Message, ValueKind};
use proto::{json, protobuf};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

/// Go's zero `metav1.Time`, which is `null` in JSON, where a type has to have a time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
/// [`jiff::Timestamp::MAX`], which leaves room for every time zone; Go knows times up to the end of that year.
const LAST_TIME: &str = "9999-12-30T22:00:00Z";

/// Errors of reading an object.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The derived decoder refuses the text.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The decoder of the schema refuses the text, as Go's does.
    #[error(transparent)]
    Schema(#[from] json::DecodeError),
    /// Malformed protobuf.
    #[error(transparent)]
    Protobuf(#[from] protobuf::Error),
    /// There is no schema of the kind.
    #[error("no such kind")]
    UnknownKind,
}

/// Reads an object from JSON. `schema` is asked for only where the type's own decoder refuses; without one, that decides.
///
/// # Errors
/// Text that Go's decoder refuses as well, in its words.
pub fn from_json<T: DeserializeOwned>(
    schema: impl FnOnce() -> Option<&'static Message>,
    text: &[u8],
) -> Result<T, ReadError> {
    let strict = match serde_json::from_slice(text) {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    let Some(schema) = schema() else { return Err(strict.into()) };
    let decoded = json::decode(schema, text, json::Strictness::Ignore)?;
    from_decoded(schema, decoded.value)
}

/// Reads an object from protobuf without its envelope.
///
/// # Errors
/// Malformed bytes.
pub fn from_protobuf<T: DeserializeOwned>(schema: &Message, raw: &[u8]) -> Result<T, ReadError> {
    from_decoded(schema, protobuf::decode(schema, raw)?)
}

/// Reads an object from a tree that was decoded by its schema.
fn from_decoded<T: DeserializeOwned>(schema: &Message, mut tree: Value) -> Result<T, ReadError> {
    make_readable(schema, &mut tree);
    Ok(serde_json::from_slice(&serde_json::to_vec(&tree)?)?)
}

/// Makes members readable by derived decoders: those that are null are left out, or have their type's zero value where a
/// list, a map or the type requires one; times beyond what [`jiff`] knows are its last.
fn make_readable(schema: &Message, tree: &mut Value) {
    let Value::Object(members) = tree else { return };
    members.retain(|name, value| {
        let Some(field) = schema.field(name) else { return true };
        match (field.card, value) {
            (Card::Single, Value::Null) if !(field.required && is_time(field)) => return false,
            (Card::Repeated | Card::Map, Value::Null) => return false,
            (Card::Single, value) => make_one_readable(field, value),
            (Card::Repeated, Value::Array(elements)) => elements.iter_mut().for_each(|it| make_one_readable(field, it)),
            (Card::Map, Value::Object(entries)) => entries.values_mut().for_each(|it| make_one_readable(field, it)),
            (Card::Repeated | Card::Map, _) => {}
        }
        true
    });
}

fn make_one_readable(field: &Field, value: &mut Value) {
    match (&field.kind, value) {
        (ValueKind::Time | ValueKind::MicroTime, value @ Value::Null) => *value = ZERO_TIME.into(),
        (ValueKind::Time | ValueKind::MicroTime, Value::String(time)) if time.as_str() > LAST_TIME => {
            *time = LAST_TIME.to_owned()
        }
        (ValueKind::StringList, value @ Value::Null) => *value = Value::Array(Vec::new()),
        (ValueKind::SchemaOrStrings | ValueKind::SchemaOrArray | ValueKind::SchemaOrBool, value @ Value::Null) => {
            *value = Value::Object(serde_json::Map::new());
        }
        (_, value) => {
            if let Some(schema) = field.message() {
                make_readable(schema, value);
            }
        }
    }
}

fn is_time(field: &Field) -> bool {
    matches!(field.kind, ValueKind::Time | ValueKind::MicroTime)
}

/// Identity of an object: what can be read of it when nothing else can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Empty at cluster scope.
    pub namespace: String,
    /// Never empty.
    pub name: String,
    /// Empty where it cannot be read.
    pub uid: String,
    /// Empty where it cannot be read.
    pub resource_version: String,
}

impl Identity {
    /// Reads the metadata of an object in JSON, and nothing else of it; `None` where there is no name.
    pub fn of_json(text: &[u8]) -> Option<Self> {
        let tree: Value = serde_json::from_slice(text).ok()?;
        let text = |name: &str| tree["metadata"][name].as_str().unwrap_or_default().to_owned();
        let [name, namespace, uid, resource_version] = ["name", "namespace", "uid", "resourceVersion"].map(text);
        Some(Self { namespace, name, uid, resource_version }).filter(|identity| !identity.name.is_empty())
    }

    /// Reads the metadata of an object in protobuf without its envelope; `None` where there is no name.
    pub fn of_protobuf(raw: &[u8]) -> Option<Self> {
        let is_metadata = |number: u32| number == partial_object_metadata::METADATA;
        let (_, metadata) = protobuf::fields(raw).map_while(Result::ok).find(|(number, _)| is_metadata(*number))?;
        let mut identity = Self::default();
        for (number, value) in protobuf::fields(metadata.bytes("metadata").ok()?).map_while(Result::ok) {
            let member = match number {
                object_meta::NAME => &mut identity.name,
                object_meta::NAMESPACE => &mut identity.namespace,
                object_meta::UID => &mut identity.uid,
                object_meta::RESOURCE_VERSION => &mut identity.resource_version,
                _ => continue,
            };
            *member = String::from_utf8_lossy(value.bytes("metadata").ok()?).into_owned();
        }
        Some(identity).filter(|identity| !identity.name.is_empty())
    }
}

#[cfg(test)]
mod every_kind;
#[cfg(test)]
mod tests;
