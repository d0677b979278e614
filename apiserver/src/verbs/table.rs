//! Answers in the form the client accepts: the object itself, its metadata, or a table. Answers for upstream's
//! `asTable`, `asPartialObjectMetadata`.

use proto::resources::{Resource, Row};
use proto::{Value, protobuf};
use serde_json::json;
use shared::status::Status;

use super::engine::Engine;
use super::outcome::WriteOutcome;
use super::{Reply, VerbRequest, accepted};
use crate::cache::{Entry, Raw};
use crate::machinery::meta;
use crate::machinery::query::Query;
use crate::machinery::table::Column;
use crate::negotiate::{self, Accepted, Format, ObjectForm};
use crate::registry::{behavior, tables};
use crate::storage::codec;

/// Object part of a table row (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// No object.
    None,
    /// The object's metadata.
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// Reads `includeObject`.
    pub fn read(query: &Query) -> Result<Self, Status> {
        match query.get("includeObject").unwrap_or("") {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(Status::bad_request(&format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

fn internal(e: &codec::CodecError) -> Status {
    Status::internal(&e.to_string())
}

/// Encodes a cached object without a tree where format and version allow it.
pub fn direct(engine: &Engine, row: &Row, accepted: &Accepted, entry: &Entry) -> Result<Option<Vec<u8>>, Status> {
    if accepted.shape != ObjectForm::Object || accepted.pretty || !behavior(row).is_served_as_kept(row) {
        return Ok(None);
    }
    match (accepted.format, &entry.raw) {
        (Format::Json, raw) => {
            keep_json(engine, row, entry);
            let mut out = Vec::with_capacity(raw.size() * 2);
            typed_json(row, entry, &mut out).map_err(|e| internal(&e))?;
            out.push(b'\n');
            Ok(Some(out))
        }
        (Format::Protobuf, Raw::Proto(bytes)) => Ok(Some(protobuf::wrap(&row.api_version(), &row.kind, bytes))),
        _ => Ok(None),
    }
}

/// Encodes what was just stored, without a tree, where it was stored as protobuf in the version it is served in.
pub fn stored(row: &Row, accepted: &Accepted, raw: &Raw) -> Result<Option<Vec<u8>>, Status> {
    let Raw::Proto(bytes) = raw else { return Ok(None) };
    if accepted.shape != ObjectForm::Object || accepted.pretty || !row.is_storage() {
        return Ok(None);
    }
    match accepted.format {
        Format::Json => {
            let mut out = Vec::with_capacity(raw.size() * 2);
            codec::to_json(row, raw, &mut out).map_err(|e| internal(&e))?;
            out.push(b'\n');
            Ok(Some(out))
        }
        Format::Protobuf => Ok(Some(protobuf::wrap(&row.api_version(), &row.kind, bytes))),
        Format::Yaml | Format::Cbor => Ok(None),
    }
}

/// Appends the JSON of an object of a row that is stored as it is served, with type metadata.
pub fn typed_json(row: &Row, entry: &Entry, out: &mut Vec<u8>) -> Result<(), codec::CodecError> {
    match entry.encoded.json.get() {
        // As an element of a list it says nothing about its type.
        Some(json) if json.len() > 2 => {
            let api_version = row.api_version();
            for part in [r#"{"kind":""#, &row.kind, r#"","apiVersion":""#, &api_version, r#"","#] {
                out.extend_from_slice(part.as_bytes());
            }
            out.extend_from_slice(&json[1..]);
            Ok(())
        }
        _ => codec::to_json(row, &entry.raw, out),
    }
}

/// Appends an element of a JSON list; false when it cannot be encoded. What is made here is kept for the next list.
pub fn json_item(engine: &Engine, row: &Row, entry: &Entry, out: &mut Vec<u8>) -> bool {
    if !behavior(row).is_served_as_kept(row) {
        let Ok(mut tree) = engine.served(row, &entry.raw) else { return false };
        if let Some(map) = tree.as_object_mut() {
            map.remove("kind");
            map.remove("apiVersion");
        }
        return codec::served_schema(row).map(|schema| proto::json::encode(schema, &tree, out)).is_ok();
    }
    if let Some(json) = entry.encoded.json.get() {
        out.extend_from_slice(json);
        return true;
    }
    let start = out.len();
    let made = codec::to_json_item(row, &entry.raw, out).is_ok();
    if made && behavior(row).encodes_alike() {
        entry.encoded.json.fill(engine.caches.budget(), &out[start..]);
    }
    made
}

/// Encodes a whole object to keep it, where nothing is kept yet and there is room: who reads, reads again.
fn keep_json(engine: &Engine, row: &Row, entry: &Entry) {
    if behavior(row).encodes_alike()
        && entry.encoded.json.get().is_none()
        && matches!(entry.raw, Raw::Proto(_))
        && engine.caches.budget().has_room()
    {
        json_item(engine, row, entry, &mut Vec::with_capacity(entry.raw.size() * 2));
    }
}

/// The JSON of an object's metadata out of what is kept of it.
fn kept_metadata<'e>(engine: &Engine, row: &Row, entry: &'e Entry) -> Option<&'e [u8]> {
    if !behavior(row).encodes_alike() || !row.is_storage() {
        return None;
    }
    keep_json(engine, row, entry);
    entry.encoded.json.metadata()
}

/// Appends an element of a JSON list of metadata.
pub fn metadata_item(engine: &Engine, row: &Row, version: &str, entry: &Entry, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/"#);
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(br#"","metadata":"#);
    if let Some(metadata) = kept_metadata(engine, row, entry) {
        out.extend_from_slice(metadata);
        out.push(b'}');
        return true;
    }
    let Some(schema) = proto::schema::message("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta") else { return false };
    let written = match &entry.raw {
        // Conversions leave metadata alone.
        Raw::Proto(bytes) => codec::metadata(bytes).is_some_and(|m| protobuf::to_json(schema, "", "", m, out).is_ok()),
        Raw::Json(_) => engine.served(row, &entry.raw).is_ok_and(|tree| {
            proto::json::encode(schema, &tree["metadata"], out);
            true
        }),
    };
    out.push(b'}');
    written
}

/// Appends a row of a table: its cells are made once per revision, with the ages in them left open.
pub fn row_item(engine: &Engine, row: &Row, version: &str, include: Include, entry: &Entry, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(br#"{"cells":"#);
    if let Some(open) = entry.encoded.cells.get().filter(|_| row.is_storage()) {
        tables::write_row(open, out);
    } else {
        let Ok(tree) = engine.served(row, &entry.raw) else { return false };
        let open = tables::open_row(row, &tree);
        tables::write_row(&open, out);
        if row.is_storage() && behavior(row).encodes_alike() {
            entry.encoded.cells.fill(engine.caches.cells(), &open);
        }
    }
    out.extend_from_slice(br#","object":"#);
    let written = match include {
        Include::None => {
            out.extend_from_slice(b"null");
            true
        }
        Include::Metadata => metadata_item(engine, row, version, entry, out),
        Include::Object if behavior(row).is_served_as_kept(row) => typed_json(row, entry, out).is_ok(),
        Include::Object => engine
            .served(row, &entry.raw)
            .is_ok_and(|tree| codec::served_schema(row).map(|schema| proto::json::encode(schema, &tree, out)).is_ok()),
    };
    out.push(b'}');
    written
}

/// One object, in the request's version, with type metadata.
pub fn object_reply(
    _engine: &Engine,
    r: &VerbRequest,
    row: &Row,
    accepted: &Accepted,
    code: u16,
    object: &Value,
) -> Result<Reply, Status> {
    let tree;
    let (schema, value) = match accepted.shape {
        ObjectForm::Object => (behavior(row).response_schema(row, object), object),
        ObjectForm::Metadata(version) | ObjectForm::MetadataList(version) => {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or("");
            if let Some(refused) = negotiate::not_of_that_form(accepted.shape, row, kind) {
                return Err(refused);
            }
            tree = negotiate::metadata_of(object, version);
            (proto::schema::kind("meta.k8s.io", "v1", "PartialObjectMetadata"), &tree)
        }
        ObjectForm::Table(version) => {
            let include = Include::read(&r.query)?;
            let table = tabulate(row, version, std::iter::once(object), include, meta_of(object), true);
            return Ok(Reply::new(code, accepted.format.content_type(), of_one(accepted, accepted.pretty, table)?));
        }
    };
    let body = negotiate::written(accepted.format, accepted.pretty, schema, value)?;
    Ok(Reply::new(code, accepted.format.content_type(), body))
}

/// A table of one object, which has the order of its own type in JSON.
pub fn of_one(accepted: &Accepted, pretty: bool, mut table: Value) -> Result<Vec<u8>, Status> {
    const REST: &[u8] = b"null}]}\n";
    let schema = negotiate::table_kind("v1");
    if accepted.format != Format::Json {
        return negotiate::written(accepted.format, pretty, schema, &table);
    }
    let object = table.pointer_mut("/rows/0/object").map(Value::take).unwrap_or_default();
    let mut out = negotiate::envelope(Format::Json, false, schema, &table);
    out.truncate(out.len() - REST.len());
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or("");
    let kind = match text("kind") {
        kind @ "PartialObjectMetadata" => proto::schema::kind("meta.k8s.io", "v1", kind),
        kind => proto::schema::kind_of(text("apiVersion"), kind),
    };
    match kind {
        Some(schema) => proto::json::encode(schema, &object, &mut out),
        None => proto::json::encode_any(&object, &mut out),
    }
    out.extend_from_slice(&REST[b"null".len()..]);
    if !pretty {
        return Ok(out);
    }
    let mut indented = Vec::with_capacity(out.len() * 2);
    proto::json::indent(out.trim_ascii_end(), &mut indented);
    Ok(indented)
}

fn meta_of(object: &Value) -> Value {
    json!({"resourceVersion": meta::text(object, "resourceVersion")})
}

/// Encodes an object answer in the form the client accepts.
pub fn reply_object(engine: &Engine, r: &VerbRequest, row: &Row, code: u16, object: &Value) -> Result<Reply, Status> {
    let accepted = accepted(r, false)?;
    object_reply(engine, r, row, &accepted, code, object)
}

impl WriteOutcome {
    /// The answer in the form the client accepts; what is stored needs less work than its tree.
    pub fn reply(self, engine: &Engine, r: &VerbRequest, row: &Row, code: u16) -> Result<Reply, Status> {
        let accepted = accepted(r, false)?;
        if let Self::Stored(raw) = &self
            && let Some(body) = stored(row, &accepted, raw)?
        {
            return Ok(Reply::new(code, accepted.format.content_type(), body));
        }
        object_reply(engine, r, row, &accepted, code, &self.tree(engine, row)?)
    }
}

/// A table of objects. Definitions of the columns are left out of all frames of a watch but the first.
pub fn tabulate<'a>(
    row: &Resource,
    version: &str,
    objects: impl Iterator<Item = &'a Value>,
    include: Include,
    meta: Value,
    headers: bool,
) -> Value {
    let rows = objects.map(|o| row_of(tables::cells(row, o), o, include, version)).collect();
    let columns: Value = if headers { definitions(tables::columns(row)) } else { Value::Null };
    framed(version, meta, &columns, rows)
}

/// A table of a single object, whose cells are at hand.
pub fn single(
    columns: &[Column],
    cells: Vec<Value>,
    r: &VerbRequest,
    version: &str,
    object: &Value,
) -> Result<Value, Status> {
    let row = row_of(cells, object, Include::read(&r.query)?, version);
    Ok(framed(version, meta_of(object), &definitions(columns), vec![row]))
}

fn definitions(columns: &[Column]) -> Value {
    let definition = |c: &Column| json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority});
    columns.iter().map(definition).collect()
}

fn row_of(cells: Vec<Value>, object: &Value, include: Include, version: &str) -> Value {
    let object = match include {
        Include::None => Value::Null,
        Include::Metadata => negotiate::metadata_of(object, version),
        Include::Object => object.clone(),
    };
    json!({"cells": cells, "object": object})
}

fn framed(version: &str, meta: Value, columns: &Value, rows: Vec<Value>) -> Value {
    json!({"kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta, "columnDefinitions": columns, "rows": rows})
}
