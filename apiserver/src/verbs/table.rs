//! Answers in the form the client accepts: the object itself, its metadata, or a table.

use proto::resources::{Resource, Row};
use proto::{Value, protobuf};
use serde_json::json;
use shared::status::Status;

use super::engine::Engine;
use super::query::Query;
use super::{Reply, Request};
use crate::cache::Raw;
use crate::negotiate::{self, Accepted, Format, Shape};
use crate::storage::codec;
use crate::{printers, registry};

/// What a table row carries of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Its metadata.
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

/// Encodes cached bytes without a tree where format and version allow it.
pub fn direct(row: &Row, accepted: &Accepted, raw: &Raw) -> Result<Option<Vec<u8>>, Status> {
    if accepted.shape != Shape::Object || accepted.pretty || !row.is_storage() {
        return Ok(None);
    }
    match (accepted.format, raw) {
        (Format::Json, _) => {
            let mut out = Vec::with_capacity(raw.size() * 2);
            codec::to_json(row, raw, &mut out).map_err(|e| internal(&e))?;
            out.push(b'\n');
            Ok(Some(out))
        }
        (Format::Protobuf, Raw::Proto(bytes)) => Ok(Some(protobuf::wrap(&row.api_version(), &row.kind, bytes))),
        _ => Ok(None),
    }
}

/// One object, in the request's version, with type metadata.
pub fn object_reply(
    _engine: &Engine,
    r: &Request,
    row: &Row,
    accepted: &Accepted,
    code: u16,
    object: &Value,
) -> Result<Reply, Status> {
    let tree;
    let (schema, value) = match accepted.shape {
        Shape::Object => {
            let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or("");
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or("");
            (
                row.custom.as_ref().map_or_else(|| proto::schema::kind_of(api_version, kind), |c| Some(&*c.schema)),
                object,
            )
        }
        Shape::Metadata(version) => {
            tree = negotiate::metadata_of(object, version);
            (proto::schema::kind("meta.k8s.io", "v1", "PartialObjectMetadata"), &tree)
        }
        Shape::Table(version) => {
            tree = tabulate(row, version, std::iter::once(object), Include::read(&r.query)?, meta_of(object), true);
            (negotiate::table_kind("v1"), &tree)
        }
    };
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema, value);
    Ok(Reply::new(code, accepted.format.content_type(), body))
}

fn meta_of(object: &Value) -> Value {
    json!({"resourceVersion": registry::meta::text(object, "resourceVersion")})
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
    let rows: Vec<Value> = objects
        .map(|o| {
            let object = match include {
                Include::None => Value::Null,
                Include::Metadata => negotiate::metadata_of(o, version),
                Include::Object => o.clone(),
            };
            json!({"cells": printers::row(row, o), "object": object})
        })
        .collect();
    let columns: Value = if headers {
        printers::columns(row)
            .iter()
            .map(|c| json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority}))
            .collect()
    } else {
        Value::Null
    };
    json!({"kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": meta, "columnDefinitions": columns, "rows": rows})
}
