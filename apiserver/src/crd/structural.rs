//! Structural schemas: every field is specified once, outside of `allOf`, `anyOf`, `oneOf` and `not`.
//!
//! Answers for upstream's `structural-schema` package: conversion, invariants and completeness. Pure.

use proto::Value;
use shared::status::field::{Error, Path};

use super::schema::MAX_DEPTH;
use crate::rules::tree::{flag, list};

const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

/// Keywords forbidden in nested schemas of alternatives, with the error text.
const NOT_NESTED: [(&str, &str); 12] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    (PRESERVE, "must be false to be structural"),
    (EMBEDDED, "must be false to be structural"),
    (INT_OR_STRING, "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
];

fn properties(text: &Value) -> impl Iterator<Item = (&String, &Value)> {
    text["properties"].as_object().into_iter().flatten()
}

/// Reports whether a keyword is set to something other than its default.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(said) => *said,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Number(_) => true,
    }
}

/// Explains why a schema cannot be read as a structural one; `None` when it can.
pub(super) fn unreadable(text: &Value, depth: usize) -> Option<String> {
    const UNSUPPORTED: [&str; 7] =
        ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];
    if depth > MAX_DEPTH || !text.is_object() {
        return None;
    }
    let set = |key: &&&str| match **key {
        "additionalItems" => !text[**key].is_null(),
        key => is_set(&text[key]),
    };
    if let Some(key) = UNSUPPORTED.iter().find(set) {
        let key = if *key == "$schema" { "schema" } else { *key };
        return Some(format!("OpenAPIV3Schema '{key}' is not supported"));
    }
    let below = |inner: &Value| unreadable(inner, depth + 1);
    let alternatives = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| list(text, key));
    let found = std::iter::once(&text["not"]).chain(alternatives).find_map(below);
    if found.is_some() {
        return found;
    }
    if text[PRESERVE] == false {
        return Some(format!("internal error: '{PRESERVE}' must be true or undefined"));
    }
    if !list(text, "items").is_empty() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let values = properties(text).map(|(_, inner)| inner);
    std::iter::once(&text["items"]).chain(values).chain([&text["additionalProperties"]]).find_map(below)
}

/// Lists the violations that keep a schema from being structural, in upstream's order.
pub(super) fn invariants(text: &Value, path: &Path) -> Vec<Error> {
    let mut out = Vec::new();
    place(text, ParentKind::Root, path, 0, &mut out);
    complete(text, text, (path, path), 0, &mut out);
    out.sort_by_cached_key(ToString::to_string);
    out
}

/// Parent of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParentKind {
    Root,
    Item,
    Field,
}

impl ParentKind {
    fn words(self) -> &'static str {
        match self {
            Self::Root => "must not be empty at the root",
            Self::Item => "must not be empty for specified array items",
            Self::Field => "must not be empty for specified object fields",
        }
    }
}

fn place(text: &Value, at: ParentKind, path: &Path, depth: usize, out: &mut Vec<Error>) {
    if depth > MAX_DEPTH || !text.is_object() {
        return;
    }
    let kind = text["type"].as_str().unwrap_or("");
    if kind == "array" && text["items"].is_null() {
        out.push(Error::required(path.child("items"), "must be specified"));
    }
    place(&text["items"], ParentKind::Item, &path.child("items"), depth + 1, out);
    for (key, inner) in properties(text) {
        place(inner, ParentKind::Field, &path.child("properties").key(key), depth + 1, out);
    }
    let additional = path.child("additionalProperties");
    place(&text["additionalProperties"], ParentKind::Field, &additional, depth + 1, out);
    let (limitless, embedded) = (!text["additionalProperties"].is_null(), flag(text, EMBEDDED));
    if limitless && at == ParentKind::Root {
        out.push(Error::forbidden(&additional, "must not be used at the root"));
    }
    if limitless && embedded {
        out.push(Error::forbidden(&additional, "must not be used if x-kubernetes-embedded-resource is set"));
    }
    for key in [PRESERVE, EMBEDDED].into_iter().filter(|key| flag(text, INT_OR_STRING) && flag(text, key)) {
        out.push(Error::invalid(path.child(key), true, "must be false if x-kubernetes-int-or-string is true"));
    }
    let all_of = list(text, "allOf").first().is_some_and(|first| either(list(first, "anyOf")));
    limits(text, (either(list(text, "anyOf")), all_of), path, depth, out);
    typed(text, at, path, out);
    if let Some(metadata) = text["properties"].get("metadata") {
        let path = path.child("properties").key("metadata");
        if at == ParentKind::Root && restricts(metadata) {
            let message =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            out.push(Error::forbidden(path, message));
        }
    }
    if embedded && !flag(text, PRESERVE) && properties(text).next().is_none() {
        let message =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        out.push(Error::required(path.child("properties"), message));
    }
}

/// Every place has a type, and objects are objects.
fn typed(text: &Value, at: ParentKind, path: &Path, out: &mut Vec<Error>) {
    let (kind, embedded) = (text["type"].as_str().unwrap_or(""), flag(text, EMBEDDED));
    let own = path.child("type");
    match kind {
        "object" => {}
        "" if embedded => {
            out.push(Error::required(&own, "must be object if x-kubernetes-embedded-resource is true"));
        }
        "" if flag(text, INT_OR_STRING) || flag(text, PRESERVE) => {}
        "" => out.push(Error::required(&own, at.words())),
        other if embedded => {
            out.push(Error::invalid(&own, other, "must be object if x-kubernetes-embedded-resource is true"));
        }
        _ => {}
    }
    if at == ParentKind::Root && !matches!(kind, "" | "object") {
        out.push(Error::invalid(&own, kind, "must be object at the root"));
    }
    if at != ParentKind::Root && !embedded {
        return;
    }
    for (key, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(property) = text["properties"].get(key) else { continue };
        let kind = property["type"].as_str().unwrap_or("");
        if kind != wanted {
            let at = path.child("properties").key(key).child("type");
            out.push(Error::invalid(at, kind, &format!("must be {wanted}")));
        }
    }
}

/// Reports whether a schema of metadata restricts more than names.
fn restricts(metadata: &Value) -> bool {
    let named = |key: &String| matches!(key.as_str(), "name" | "generateName");
    metadata.as_object().into_iter().flatten().any(|(key, value)| match key.as_str() {
        "type" | "default" | "externalDocs" | "example" => false,
        "properties" => !properties(metadata).all(|(key, _)| named(key)),
        // That they are there says something already.
        "additionalProperties" | "not" | "items" | "required" | "x-kubernetes-list-map-keys" => !value.is_null(),
        _ => is_set(value),
    })
}

/// Reports whether alternatives are those of int-or-string.
fn either(alternatives: &[Value]) -> bool {
    let only = |text: &Value, kind: &str| {
        text["type"] == kind && text.as_object().is_some_and(|map| map.values().filter(|v| is_set(v)).count() == 1)
    };
    matches!(alternatives, [a, b] if only(a, "integer") && only(b, "string"))
}

/// Validates the value validations of a schema. `known`: the alternatives of int-or-string are allowed, in `anyOf` and
/// in the first of `allOf`.
fn limits(text: &Value, known: (bool, bool), path: &Path, depth: usize, out: &mut Vec<Error>) {
    for key in ["anyOf", "allOf", "oneOf"] {
        for (i, inner) in list(text, key).iter().enumerate() {
            match key {
                "anyOf" if known.0 => {}
                _ => nested(inner, key == "allOf" && i == 0 && known.1, &path.child(key).index(i), depth + 1, out),
            }
        }
    }
    nested(&text["not"], false, &path.child("not"), depth + 1, out);
    if let Some(text) = text["pattern"].as_str().filter(|text| !text.is_empty())
        && let Err(why) = shared::patterns::compile(text)
    {
        let message = format!("must be a valid regular expression, but isn't: {why}");
        out.push(Error::invalid(path.child("pattern"), text, &message));
    }
}

/// Alternatives limit values; they say nothing about structure.
fn nested(text: &Value, known: bool, path: &Path, depth: usize, out: &mut Vec<Error>) {
    if depth > MAX_DEPTH || !text.is_object() {
        return;
    }
    limits(text, (known, false), path, depth, out);
    nested(&text["items"], false, &path.child("items"), depth + 1, out);
    for (key, inner) in properties(text) {
        nested(inner, false, &path.child("properties").key(key), depth + 1, out);
    }
    for (key, message) in NOT_NESTED {
        let value = &text[key];
        let forbidden = match key {
            "additionalProperties" => value.is_object() || *value == true,
            "default" => !value.is_null(),
            "x-kubernetes-list-type" | "x-kubernetes-map-type" => value.is_string(),
            _ => is_set(value),
        };
        if forbidden {
            out.push(Error::forbidden(path.child(key), message));
        }
    }
    if !list(text, "x-kubernetes-validations").is_empty() {
        out.push(Error::forbidden(path.child("x-kubernetes-validations"), "must be empty to be structural"));
    }
    if text["properties"].get("metadata").is_some() {
        let at = path.child("properties").key("metadata");
        out.push(Error::forbidden(at, "must not be specified in a nested context"));
    }
}

/// Checks that fields named in alternatives are specified outside of them. `at` is the path of the schema, `from` that
/// of the alternative.
fn complete(text: &Value, place: &Value, (at, from): (&Path, &Path), depth: usize, out: &mut Vec<Error>) {
    let mut each = |inner: &Value, from: Path| {
        if inner.is_object() {
            complete_nested(inner, place, (at, &from), depth + 1, out);
        }
    };
    each(&text["not"], from.child("not"));
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, inner) in list(text, key).iter().enumerate() {
            each(inner, from.child(key).index(i));
        }
    }
}

fn complete_nested(text: &Value, place: &Value, (at, from): (&Path, &Path), depth: usize, out: &mut Vec<Error>) {
    if depth > MAX_DEPTH {
        return;
    }
    complete(text, place, (at, from), depth, out);
    let mut below = |inner: &Value, place: &Value, at: &Path, from: &Path| {
        if place.is_object() {
            complete_nested(inner, place, (at, from), depth + 1, out);
        } else {
            out.push(Error::required(at, &format!("because it is defined in {from}")));
        }
    };
    if text["items"].is_object() {
        below(&text["items"], &place["items"], &at.child("items"), &from.child("items"));
    }
    let (at, from) = (at.child("properties"), from.child("properties"));
    for (key, inner) in properties(text) {
        below(inner, &place["properties"][key], &at.key(key), &from.key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema_options::SchemaOptions;
    use super::super::validate;
    use super::*;
    use serde_json::json;

    fn run(text: &Value) -> Vec<String> {
        let mut out = Vec::new();
        validate::schema(text, &Path::new("s"), SchemaOptions::default(), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn structural_errors_of_fields() {
        let without =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        let object = "must be object if x-kubernetes-embedded-resource is true";
        for (text, want) in [
            (json!({"type": "integer", "x-kubernetes-int-or-string": true}), &[][..]),
            (json!({"type": "object", "additionalProperties": false}), &[]),
            (
                json!({"allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}], "x-kubernetes-int-or-string": true}),
                &[],
            ),
            (
                json!({"anyOf": [{"type": "integer"}], "x-kubernetes-int-or-string": true}),
                &["anyOf[0].type: Forbidden: must be empty to be structural".to_owned()],
            ),
            (
                json!({"type": "string", "x-kubernetes-embedded-resource": true}),
                &[
                    format!("properties: Required value: {without}"),
                    format!("type: Invalid value: \"string\": {object}"),
                ],
            ),
            (
                json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"kind": {"type": "integer"}}}),
                &["properties[kind].type: Invalid value: \"integer\": must be string".to_owned()],
            ),
            (
                json!({"type": "object", "not": {"properties": {"x": {"default": 1}}}, "properties": {"x": {"type": "string"}}}),
                &["not.properties[x].default: Forbidden: must be undefined to be structural".to_owned()],
            ),
            (
                json!({"type": "object", "properties": {"y": {"$ref": "#/z"}}}),
                &["properties[y].$ref: Forbidden: $ref is not supported".to_owned()],
            ),
        ] {
            let want: Vec<String> = want.iter().map(|want| format!("s.properties[a].{want}")).collect();
            assert_eq!(run(&json!({"type": "object", "properties": {"a": text}})), want, "{text}");
        }
    }

    #[test]
    fn structural_errors_of_objects() {
        let metadata = "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
        for (text, want) in [
            (
                json!({"properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}}}),
                &[][..],
            ),
            (json!({"properties": {"metadata": {"type": "object", "required": ["name"]}}}), &[metadata]),
            (
                json!({"additionalProperties": {"type": "string"}}),
                &["s.additionalProperties: Forbidden: must not be used at the root"],
            ),
            (
                json!({"properties": {"kind": {"type": "string", "default": "x"}}}),
                &["s.properties[kind].default: Forbidden: must not be set in top-level kind"],
            ),
            (json!({"default": {}}), &["s.default.apiVersion: Required value", "s.default.kind: Required value"]),
            (
                json!({"oneOf": [{"properties": {"y": {}}, "items": {}}]}),
                &[
                    "s.items: Required value: because it is defined in s.oneOf[0].items",
                    "s.properties[y]: Required value: because it is defined in s.oneOf[0].properties[y]",
                ],
            ),
            (json!({"$schema": "x"}), &["s: Invalid value: \"\": OpenAPIV3Schema 'schema' is not supported"]),
        ] {
            let mut text = text;
            text["type"] = "object".into();
            assert_eq!(run(&text), want, "{text}");
        }
    }

    #[test]
    fn defaults_fit() {
        let run = |text: Value| run(&json!({"type": "object", "properties": {"a": text}}));
        assert!(run(json!({"x-kubernetes-int-or-string": true, "default": 1.5})).is_empty());
        let rule = json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 1"}]});
        assert_eq!(run(rule), ["s.properties[a].default: Invalid value: 1: failed rule: self > 1"]);
        let object = json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true, "default": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": ".."}}});
        assert_eq!(run(object), ["s.properties[a].default.metadata.name: Invalid value: \"..\": may not be '..'"]);
    }
}
