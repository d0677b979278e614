//! Whether a schema is structural: every place is described once, lists and maps are what is said of them.

use proto::Value;
use shared::status::field::{Error, Path};

use super::leniency::Leniency;
use super::schema::{MAX_DEPTH, pattern};
use crate::access::tree;

/// What a schema's text may not contain at all.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("$ref", "$ref is not supported"),
    ("id", "id is not supported"),
];

fn is(text: &Value, key: &str) -> bool {
    text[key] == true
}

fn children<'t>(text: &'t Value, path: &Path) -> Vec<(&'t Value, Path)> {
    let mut found: Vec<(&Value, Path)> = Vec::new();
    if let Some(map) = text["properties"].as_object() {
        found.extend(map.iter().map(|(k, v)| (v, path.child("properties").key(k))));
    }
    if text["additionalProperties"].is_object() {
        found.push((&text["additionalProperties"], path.child("additionalProperties")));
    }
    if text["items"].is_object() {
        found.push((&text["items"], path.child("items")));
    }
    found
}

/// Where a schema stands.
#[derive(Clone, Copy, Default)]
pub(super) struct At {
    pub(super) depth: usize,
    /// In an alternative of another one.
    pub(super) nested: bool,
}

/// What is wrong with a schema's structure.
pub(super) fn structure(text: &Value, path: &Path, at: At, lenient: Leniency, out: &mut Vec<Error>) {
    let At { depth, nested } = at;
    if depth > MAX_DEPTH || !text.is_object() {
        return;
    }
    for (key, message) in UNSUPPORTED {
        if text.get(key).is_some_and(|v| !v.is_null() && v != "") {
            out.push(Error::forbidden(path.child(key), message));
        }
    }
    if is(text, "uniqueItems") {
        let message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        out.push(Error::forbidden(path.child("uniqueItems"), message));
    }
    if text["type"] == "null" {
        let message = "type cannot be set to null, use nullable as an alternative";
        out.push(Error::forbidden(path.child("type"), message));
    }
    if text["items"].is_array() {
        out.push(Error::forbidden(path.child("items"), "items must be a schema object and not an array"));
    }
    let has_properties = text["properties"].as_object().is_some_and(|p| !p.is_empty());
    match &text["additionalProperties"] {
        Value::Bool(false) => {
            out.push(Error::forbidden(
                path.child("additionalProperties"),
                "additionalProperties cannot be set to false",
            ));
        }
        Value::Null => {}
        _ if has_properties => {
            let message = "additionalProperties and properties are mutual exclusive";
            out.push(Error::forbidden(path.child("additionalProperties"), message));
        }
        _ => {}
    }
    if let Some(text) = text["pattern"].as_str()
        && let Err(error) = pattern(text)
    {
        let message = format!("must be a valid regular expression, but isn't: {error}");
        out.push(Error::invalid(path.child("pattern"), text, &message));
    }
    if !nested {
        extensions(text, path, lenient, out);
    }
    for (inner, path) in children(text, path) {
        structure(inner, &path, At { depth: depth + 1, nested }, lenient, out);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, inner) in text[key].as_array().into_iter().flatten().enumerate() {
            combined(inner, &path.child(key).index(i), depth + 1, is(text, "x-kubernetes-int-or-string"), lenient, out);
        }
    }
    if text["not"].is_object() {
        combined(&text["not"], &path.child("not"), depth + 1, false, lenient, out);
    }
}

/// Alternatives constrain values; they say nothing about structure.
fn combined(text: &Value, path: &Path, depth: usize, int_or_string: bool, lenient: Leniency, out: &mut Vec<Error>) {
    for key in ["description", "type", "default", "additionalProperties", "nullable", "title"] {
        let typed = key == "type" && int_or_string;
        if !typed && text.get(key).is_some_and(|v| !v.is_null() && v != "" && *v != false) {
            out.push(Error::forbidden(path.child(key), "must be undefined to be structural"));
        }
    }
    for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"]
    {
        if is(text, key) {
            out.push(Error::forbidden(path.child(key), "must be false to be structural"));
        }
    }
    structure(text, path, At { depth, nested: true }, lenient, out);
}

fn extensions(text: &Value, path: &Path, lenient: Leniency, out: &mut Vec<Error>) {
    let kind = text["type"].as_str().unwrap_or("");
    if kind == "array" && text["items"].is_null() {
        out.push(Error::required(path.child("items"), "must be specified"));
    }
    if is(text, "x-kubernetes-embedded-resource") {
        if kind != "object" && !kind.is_empty() {
            out.push(Error::invalid(
                path.child("type"),
                kind,
                "must be object if x-kubernetes-embedded-resource is true",
            ));
        }
        if text["properties"].is_null() && !is(text, "x-kubernetes-preserve-unknown-fields") {
            let message = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            out.push(Error::required(path.child("properties"), message));
        }
    }
    if is(text, "x-kubernetes-int-or-string") && !kind.is_empty() {
        out.push(Error::invalid(path.child("type"), kind, "must be empty if x-kubernetes-int-or-string is true"));
    }
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
    lists(text, kind, path, lenient, out);
}

/// What is said of a place is only said of places of a type.
fn of_type(kind: &str, wanted: &str, said: &str, path: &Path, out: &mut Vec<Error>) {
    let (at, message) = (path.child("type"), format!("must be {wanted} if {said} is specified"));
    match kind {
        "" => out.push(Error::required(at, &message)),
        kind if kind != wanted => out.push(Error::invalid(at, kind, &message)),
        _ => {}
    }
}

fn lists(text: &Value, kind: &str, list: &Path, lenient: Leniency, out: &mut Vec<Error>) {
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
    if kind == "array" && !lenient.sets {
        set_items(text, list, out);
    }
    if list_type == Some("map") {
        map_keys(text, &keys, list, out);
    }
    if !lenient.keys {
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
