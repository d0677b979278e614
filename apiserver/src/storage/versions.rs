//! Stored versions that differ from the one in memory: values of an older release, and values that an older one must be
//! able to read. Most objects pass after comparing two short texts.

use std::borrow::Cow;

use proto::protobuf::Envelope;
use proto::resources::Resource;
use proto::schema::{self, Message};
use proto::{Value, defaulting, protobuf};

use super::codec::{CodecError, served_schema};
use crate::registry::{behavior, conversion};

/// Reports whether an `apiVersion` is this group and version.
pub(super) fn is(api_version: &str, group: &str, version: &str) -> bool {
    api_version.rsplit_once('/').unwrap_or(("", api_version)) == (group, version)
}

/// The tables of the version that etcd gets, where the server keeps objects in another one that it knows.
pub(super) fn stored_schema(row: &Resource) -> Option<&'static Message> {
    let (group, version) = &row.storage;
    let own = !behavior(row).converts_stored() || (*version == row.version && *group == row.group);
    if own { None } else { schema::kind(group, version, &row.storage_kind) }
}

/// An object that is kept, in the version that etcd gets.
pub(super) fn to_stored<'o>(row: &Resource, object: &'o Value) -> Cow<'o, Value> {
    let (group, version) = &row.storage;
    if stored_schema(row).is_none() && !conversion::is_stored_only(group, &row.kind, version) {
        return Cow::Borrowed(object);
    }
    Cow::Owned(conversion::convert(object.clone(), &row.group, &row.kind, group, version))
}

/// The bytes of an object that etcd has in another version, as it is kept. `None`: they are those.
pub(super) fn from_stored(row: &Resource, envelope: &Envelope<'_>) -> Result<Option<Vec<u8>>, CodecError> {
    let told = &*envelope.api_version;
    if is(told, &row.group, &row.version) {
        return Ok(None);
    }
    // What is not known was alike when it was stored.
    let Some(schema) = schema::kind_of(told, &row.kind) else { return Ok(None) };
    let mut object = protobuf::decode(schema, envelope.raw).map_err(|e| CodecError::Protobuf(e.to_string()))?;
    object["apiVersion"] = Value::from(told);
    defaulting::apply(schema, &mut object);
    let object = converted(row, told, object);
    Ok(Some(protobuf::encode(served_schema(row)?, &object)))
}

/// Converts an object stored as JSON or CBOR to the version in memory.
pub(super) fn from_stored_tree(row: &Resource, object: Value) -> Value {
    let told = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let (group, version) = told.rsplit_once('/').unwrap_or(("", &told));
    let known = || schema::kind_of(&told, &row.kind).is_some() || conversion::is_stored_only(group, &row.kind, version);
    if !behavior(row).converts_stored() || is(&told, &row.group, &row.version) || !known() {
        return object;
    }
    converted(row, &told, object)
}

fn converted(row: &Resource, told: &str, object: Value) -> Value {
    let (group, _) = told.rsplit_once('/').unwrap_or(("", told));
    conversion::convert(object, group, &row.kind, &row.group, &row.version)
}
