//! The version 2 document in protobuf (`openapi.v2.Document`), written from its tree.

use serde_json::{Map, Value};

use super::v2::Parts;
use crate::protobuf::wire::{bytes, nested, number, tag};

pub(super) type Out = Vec<u8>;

/// The members of an object, none for anything else.
pub(super) fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

pub(super) fn text(field: u32, value: Option<&Value>, out: &mut Out) {
    if let Some(text) = value.and_then(Value::as_str).filter(|t| !t.is_empty()) {
        bytes(field, text.as_bytes(), out);
    }
}

pub(super) fn texts(field: u32, value: Option<&Value>, out: &mut Out) {
    for item in value.and_then(Value::as_array).into_iter().flatten() {
        bytes(field, item.as_str().unwrap_or_default().as_bytes(), out);
    }
}

pub(super) fn flag(field: u32, value: Option<&Value>, out: &mut Out) {
    if value.and_then(Value::as_bool).unwrap_or_default() {
        number(field, 1, out);
    }
}

pub(super) fn integer(field: u32, value: Option<&Value>, out: &mut Out) {
    if let Some(value) = value.and_then(Value::as_i64).filter(|n| *n != 0) {
        number(field, value, out);
    }
}

pub(super) fn double(field: u32, value: Option<&Value>, out: &mut Out) {
    if let Some(value) = value.and_then(Value::as_f64).filter(|n| *n != 0.0) {
        fixed(field, value, out);
    }
}

/// A number, also when it is zero.
pub(super) fn fixed(field: u32, value: f64, out: &mut Out) {
    tag(field, 1, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// A map as a message of ordered pairs.
fn pairs(field: u32, value: Option<&Value>, out: &mut Out, write: impl Fn(&Value, &mut Out)) {
    let Some(value) = value else { return };
    nested(field, out, |out| {
        for (name, item) in members(value) {
            pair(1, name, out, |out| write(item, out));
        }
    });
}

pub(super) fn pair(field: u32, name: &str, out: &mut Out, write: impl FnOnce(&mut Out)) {
    nested(field, out, |out| {
        bytes(1, name.as_bytes(), out);
        nested(2, out, write);
    });
}

/// A free value travels as YAML text, of which JSON is a part.
pub(super) fn any(value: &Value, out: &mut Out) {
    let mut json = Vec::new();
    crate::json::encode_any(value, &mut json);
    json.push(b'\n');
    bytes(2, &json, out);
}

fn extensions(field: u32, value: &Value, out: &mut Out) {
    for (name, item) in members(value).filter(|(name, _)| name.starts_with("x-")) {
        pair(field, name, out, |out| any(item, out));
    }
}

/// The whole document.
pub(super) fn document(parts: &Parts) -> Vec<u8> {
    let head = &parts.head;
    let mut out = Vec::with_capacity(1024 * 1024);
    text(1, head.get("swagger"), &mut out);
    if let Some(info) = head.get("info") {
        nested(2, &mut out, |out| {
            text(1, info.get("title"), out);
            text(2, info.get("version"), out);
        });
    }
    nested(8, &mut out, |out| {
        for (path, item) in parts.paths() {
            pair(2, path, out, |out| path_item(&item, out));
        }
    });
    nested(9, &mut out, |out| {
        for (name, definition) in parts.definitions() {
            pair(1, name, out, |out| schema(&definition, out));
        }
    });
    nested(10, &mut out, |out| {
        for (name, item) in &parts.parameters {
            pair(1, name, out, |out| parameter(item, out));
        }
    });
    for requirement in head.get("security").and_then(Value::as_array).into_iter().flatten() {
        nested(12, &mut out, |out| {
            for (name, scopes) in members(requirement) {
                pair(1, name, out, |out| texts(1, Some(scopes), out));
            }
        });
    }
    pairs(13, head.get("securityDefinitions"), &mut out, |item, out| {
        nested(2, out, |out| {
            text(1, item.get("type"), out);
            text(2, item.get("name"), out);
            text(3, item.get("in"), out);
        });
    });
    out
}

/// Paths and definitions alone: a document's fields merge with those before them.
pub(super) fn members_of<'m>(
    paths: impl Iterator<Item = (&'m str, &'m Value)>,
    definitions: impl Iterator<Item = (&'m str, &'m Value)>,
) -> Vec<u8> {
    let mut out = Vec::new();
    nested(8, &mut out, |out| {
        for (path, item) in paths {
            pair(2, path, out, |out| path_item(item, out));
        }
    });
    nested(9, &mut out, |out| {
        for (name, definition) in definitions {
            pair(1, name, out, |out| schema(definition, out));
        }
    });
    out
}

fn path_item(item: &Value, out: &mut Out) {
    for (field, method) in
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")]
    {
        if let Some(operation) = item.get(method) {
            nested(field, out, |out| write_operation(operation, out));
        }
    }
    parameters(9, item, out);
}

fn parameters(field: u32, owner: &Value, out: &mut Out) {
    for item in owner.get("parameters").and_then(Value::as_array).into_iter().flatten() {
        nested(field, out, |out| match item.get("$ref") {
            Some(target) => nested(2, out, |out| text(1, Some(target), out)),
            None => nested(1, out, |out| parameter(item, out)),
        });
    }
}

fn parameter(item: &Value, out: &mut Out) {
    match item.get("in").and_then(Value::as_str) {
        Some("body") => nested(1, out, |out| {
            text(2, item.get("name"), out);
            text(3, item.get("in"), out);
            flag(4, item.get("required"), out);
            if let Some(body) = item.get("schema") {
                nested(5, out, |out| schema(body, out));
            }
        }),
        Some(place) => nested(2, out, |out| {
            // Query parameters have one more member before the type than path parameters.
            let (field, shift) = if place == "path" { (4, 0) } else { (3, 1) };
            nested(field, out, |out| {
                flag(1, item.get("required"), out);
                text(2, item.get("in"), out);
                text(4, item.get("name"), out);
                text(5 + shift, item.get("type"), out);
                flag(19 + shift, item.get("uniqueItems"), out);
            });
        }),
        None => {}
    }
}

fn write_operation(operation: &Value, out: &mut Out) {
    texts(1, operation.get("tags"), out);
    text(5, operation.get("operationId"), out);
    texts(6, operation.get("produces"), out);
    texts(7, operation.get("consumes"), out);
    parameters(8, operation, out);
    if let Some(responses) = operation.get("responses") {
        nested(9, out, |out| {
            for (code, response) in members(responses) {
                pair(1, code, out, |out| {
                    nested(1, out, |out| {
                        text(1, response.get("description"), out);
                        if let Some(body) = response.get("schema") {
                            nested(2, out, |out| nested(1, out, |out| schema(body, out)));
                        }
                    });
                });
            }
        });
    }
    texts(10, operation.get("schemes"), out);
    extensions(13, operation, out);
}

fn schema(value: &Value, out: &mut Out) {
    let empty = Map::new();
    let map = value.as_object().unwrap_or(&empty);
    text(1, map.get("$ref"), out);
    text(2, map.get("format"), out);
    text(3, map.get("title"), out);
    text(4, map.get("description"), out);
    if let Some(default) = map.get("default") {
        nested(5, out, |out| any(default, out));
    }
    double(6, map.get("multipleOf"), out);
    double(7, map.get("maximum"), out);
    flag(8, map.get("exclusiveMaximum"), out);
    double(9, map.get("minimum"), out);
    flag(10, map.get("exclusiveMinimum"), out);
    integer(11, map.get("maxLength"), out);
    integer(12, map.get("minLength"), out);
    text(13, map.get("pattern"), out);
    integer(14, map.get("maxItems"), out);
    integer(15, map.get("minItems"), out);
    flag(16, map.get("uniqueItems"), out);
    integer(17, map.get("maxProperties"), out);
    integer(18, map.get("minProperties"), out);
    texts(19, map.get("required"), out);
    for item in map.get("enum").and_then(Value::as_array).into_iter().flatten() {
        nested(20, out, |out| any(item, out));
    }
    if let Some(inner) = map.get("additionalProperties") {
        nested(21, out, |out| match inner {
            Value::Bool(allowed) => flag(2, Some(&Value::Bool(*allowed)), out),
            inner => nested(1, out, |out| schema(inner, out)),
        });
    }
    if let Some(kind) = map.get("type") {
        nested(22, out, |out| text(1, Some(kind), out));
    }
    if let Some(inner) = map.get("items") {
        nested(23, out, |out| nested(1, out, |out| schema(inner, out)));
    }
    pairs(25, map.get("properties"), out, schema);
    extensions(31, value, out);
}
