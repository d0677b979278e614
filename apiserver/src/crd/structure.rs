//! Structure of schemas: unknown keywords, and keywords that belong to lists and maps.
//!
//! Answers for the part of upstream's `apiextensions/validation` that looks at every schema, however it is nested.

use proto::Value;
use shared::status::field::{Error, Path};

use super::schema::MAX_DEPTH;
use super::schema_options::{SchemaOptions, TYPES};
use crate::machinery::tree;

/// Unsupported keywords, with the error text.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("id", "id is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("$ref", "$ref is not supported"),
];

fn is(text: &Value, key: &str) -> bool {
    text[key] == true
}

/// Position of a schema.
#[derive(Clone, Copy, Default)]
pub(super) struct At<'w> {
    pub(super) depth: usize,
    /// In the metadata of an object.
    meta: bool,
    /// Reason for which defaults are not allowed here.
    bare: Option<&'w str>,
}

/// Validates the keywords of a schema, except for rules and structural constraints.
pub(super) fn structure(text: &Value, path: &Path, at: At<'_>, options: SchemaOptions, out: &mut Vec<Error>) {
    if at.depth > MAX_DEPTH || !text.is_object() {
        return;
    }
    standard(text, path, at, options, out);
    if is(text, "uniqueItems") {
        let message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        out.push(Error::forbidden(path.child("uniqueItems"), message));
    }
    let has_properties = text["properties"].as_object().is_some_and(|p| !p.is_empty());
    if has_properties && !matches!(text["additionalProperties"], Value::Null | Value::Bool(true)) {
        let message = "additionalProperties and properties are mutual exclusive";
        out.push(Error::forbidden(path.child("additionalProperties"), message));
    }
    below(text, path, at, options, out);
    extensions(text, path, options, out);
}

/// Validates the keywords of every schema.
fn standard(text: &Value, path: &Path, at: At<'_>, options: SchemaOptions, out: &mut Vec<Error>) {
    let kind = text["type"].as_str().unwrap_or("");
    if !kind.is_empty() && !options.types && !TYPES.contains(&kind) {
        out.push(Error::not_supported(path.child("type"), kind, &TYPES));
    }
    if let Some(why) = at.bare.filter(|_| !text["default"].is_null()) {
        out.push(Error::forbidden(path.child("default"), &format!("must not be set {why}")));
    }
    for (key, message) in UNSUPPORTED {
        let said = |value: &Value| match key {
            "id" => *value != "",
            "patternProperties" | "definitions" => value.as_object().is_none_or(|map| !map.is_empty()),
            _ => true,
        };
        if text.get(key).is_some_and(|value| !value.is_null() && said(value)) {
            out.push(Error::forbidden(path.child(key), message));
        }
    }
    if kind == "null" {
        let message = "type cannot be set to null, use nullable as an alternative";
        out.push(Error::forbidden(path.child("type"), message));
    }
    if text["items"].is_array() {
        out.push(Error::forbidden(path.child("items"), "items must be a schema object and not an array"));
    }
    if at.meta && is(text, "x-kubernetes-embedded-resource") {
        let message = "must not be used inside of resource meta";
        out.push(Error::forbidden(path.child("x-kubernetes-embedded-resource"), message));
    }
}

/// The schemas that another one has.
fn below(text: &Value, path: &Path, at: At<'_>, options: SchemaOptions, out: &mut Vec<Error>) {
    let deeper = At { depth: at.depth + 1, ..at };
    let mut judge = |inner: &Value, path: &Path, at: At<'_>| structure(inner, path, at, options, out);
    let of_meta = At { bare: Some("inside additionalProperties applying to object metadata"), ..deeper };
    let additional = if at.meta { of_meta } else { deeper };
    judge(&text["additionalProperties"], &path.child("additionalProperties"), additional);
    let (root, embedded) = (at.depth == 0, is(text, "x-kubernetes-embedded-resource"));
    for (key, inner) in text["properties"].as_object().into_iter().flatten() {
        let path = path.child("properties").key(key);
        if (root || embedded) && matches!(key.as_str(), "metadata" | "kind" | "apiVersion") {
            let why = format!("in top-level {key}");
            judge(inner, &path, At { meta: true, bare: if root { Some(&why) } else { at.bare }, ..deeper });
        } else {
            judge(inner, &path, deeper);
        }
    }
    judge(&text["not"], &path.child("not"), deeper);
    for key in ["allOf", "oneOf", "anyOf"] {
        for (i, inner) in text[key].as_array().into_iter().flatten().enumerate() {
            judge(inner, &path.child(key).index(i), deeper);
        }
    }
    judge(&text["items"], &path.child("items"), deeper);
}

fn extensions(text: &Value, path: &Path, options: SchemaOptions, out: &mut Vec<Error>) {
    let kind = text["type"].as_str().unwrap_or("");
    if text["x-kubernetes-preserve-unknown-fields"] == false {
        let at = path.child("x-kubernetes-preserve-unknown-fields");
        out.push(Error::invalid(at, false, "must be true or undefined"));
    }
    if let Some(map_type) = text["x-kubernetes-map-type"].as_str() {
        of_type(kind, "object", "x-kubernetes-map-type", path, out);
        if !matches!(map_type, "granular" | "atomic") {
            let at = path.child("x-kubernetes-map-type");
            out.push(Error::not_supported(at, map_type, &["atomic", "granular"]));
        }
    }
    lists(text, kind, path, options, out);
}

/// Requires the type that a keyword belongs to.
fn of_type(kind: &str, wanted: &str, said: &str, path: &Path, out: &mut Vec<Error>) {
    let (at, message) = (path.child("type"), format!("must be {wanted} if {said} is specified"));
    match kind {
        "" => out.push(Error::required(at, &message)),
        kind if kind != wanted => out.push(Error::invalid(at, kind, &message)),
        _ => {}
    }
}

fn lists(text: &Value, kind: &str, list: &Path, options: SchemaOptions, out: &mut Vec<Error>) {
    let list_type = text["x-kubernetes-list-type"].as_str();
    let at = list.child("x-kubernetes-list-type");
    if let Some(list_type) = list_type {
        of_type(kind, "array", "x-kubernetes-list-type", list, out);
        if !matches!(list_type, "atomic" | "set" | "map") {
            out.push(Error::not_supported(&at, list_type, &["atomic", "set", "map"]));
        }
    }
    let keys = tree::strings(text, "/x-kubernetes-list-map-keys");
    let message = "must be map if x-kubernetes-list-map-keys is non-empty";
    match list_type {
        None if !keys.is_empty() => out.push(Error::required(at, message)),
        Some(other) if other != "map" && !keys.is_empty() => out.push(Error::invalid(at, other, message)),
        _ => {}
    }
    if kind == "array" && !options.sets {
        set_items(text, list, out);
    }
    if list_type == Some("map") {
        map_keys(text, &keys, list, out);
    }
    if !options.keys {
        key_fields(text, list, out);
    }
}

/// Elements of a set change as a whole.
pub(super) fn set_items(text: &Value, list: &Path, out: &mut Vec<Error>) {
    if text["x-kubernetes-list-type"] != "set" {
        return;
    }
    let items = &text["items"];
    let key = match items["type"].as_str() {
        Some("object") if items["x-kubernetes-map-type"] != "atomic" => "x-kubernetes-map-type",
        Some("array") if !matches!(items["x-kubernetes-list-type"].as_str(), None | Some("atomic")) => {
            "x-kubernetes-list-type"
        }
        _ => return,
    };
    let message = "must be atomic as item of a list with x-kubernetes-list-type=set";
    out.push(Error::invalid(list.child("items").child(key), items["x-kubernetes-list-type"].clone(), message));
}

/// Keys of a map's elements are there and are single values.
fn map_keys(text: &Value, keys: &[String], list: &Path, out: &mut Vec<Error>) {
    let (items, at, path) = (&text["items"], list.child("x-kubernetes-list-map-keys"), list.child("items"));
    if keys.is_empty() {
        out.push(Error::required(&at, "must not be empty if x-kubernetes-list-type is map"));
    }
    if items.is_null() {
        out.push(Error::required(&path, "must have a schema if x-kubernetes-list-type is map"));
    }
    if !items.is_object() {
        return;
    }
    let kind = items["type"].as_str().unwrap_or("");
    if kind != "object" {
        let message = "must be object if parent array's x-kubernetes-list-type is map";
        out.push(Error::invalid(path.child("type"), kind, message));
        return;
    }
    for (i, key) in keys.iter().enumerate() {
        let all = || Value::from(keys);
        match items["properties"].get(key) {
            None => out.push(Error::invalid(&at, all(), "entries must all be names of item properties")),
            Some(property) if matches!(property["type"].as_str(), Some("object" | "array")) => {
                let message = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                out.push(Error::invalid(path.child("properties").key(key).child("type"), kind, message));
            }
            Some(_) => {}
        }
        if keys[..i].contains(key) {
            out.push(Error::invalid(&at, all(), "must not contain duplicate entries"));
        }
    }
}

/// Elements that are known by something are never null, and what they are known by is there.
pub(super) fn key_fields(text: &Value, list: &Path, out: &mut Vec<Error>) {
    let (items, path) = (&text["items"], list.child("items"));
    let Some(list_type @ ("set" | "map")) = text["x-kubernetes-list-type"].as_str() else { return };
    if is(items, "nullable") {
        let message = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        out.push(Error::forbidden(path.child("nullable"), &message));
    }
    if list_type != "map" {
        return;
    }
    let required = tree::strings(items, "/required");
    for key in tree::strings(text, "/x-kubernetes-list-map-keys") {
        let Some(property) = items["properties"].get(&key) else { continue };
        let path = path.child("properties").key(&key);
        if property["default"].is_null() && !required.contains(&key) {
            let message =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            out.push(Error::required(path.child("default"), message));
        }
        if is(property, "nullable") {
            let message = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            out.push(Error::forbidden(path.child("nullable"), message));
        }
    }
}
