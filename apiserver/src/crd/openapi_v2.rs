//! OpenAPI v2 of a custom resource: its paths, and its schema without keywords that version 2 lacks. Answers for
//! upstream's `ToStructuralOpenAPIV2`.
//!
//! Made from what [`super::openapi`] says in version 3, once per row, when somebody asks for the document.

use proto::Value;
use proto::resources::Resource;
use serde_json::{Map, json};

use super::openapi::{add_object_fields, kind, list_schema, operations, type_name};
use super::version::{CrdVersion, Pieces, version_of};

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

impl Pieces {
    /// The pieces of a row and the hash that changes with them, made on first use; `None` for built-in rows. `own` finds
    /// the kind of our own at the same path.
    pub fn of_row<'r>(
        row: &'r Resource,
        own: impl FnOnce() -> Option<&'r Resource>,
    ) -> Option<(&'r [u8; 32], &'r Self)> {
        let served = version_of(row)?;
        Some((&served.hash, served.pieces.get_or_init(|| Self::of(row, served, own()))))
    }

    /// Of a row. Paths that a kind of our own has are not replaced; of another scope it has others, and these are
    /// shown.
    pub fn of(row: &Resource, served: &CrdVersion, own: Option<&Resource>) -> Self {
        let [name, list_name] = [&row.kind, &row.list_kind].map(|kind| free(type_name(row, kind)));
        let mut list = list_schema(row, &name);
        rename(&mut list);
        let mut paths = Map::new();
        operations(row, [&name, &list_name], &mut paths);
        let mut definitions: Map<String, Value> =
            [(name, object(row, served)), (list_name, list)].into_iter().collect();
        if let Some(own) = own {
            let mut taken = Map::new();
            operations(own, ["", ""], &mut taken);
            paths.retain(|path, _| !taken.contains_key(path));
            definitions = needed(&paths, &definitions);
        }
        for item in paths.values_mut() {
            *item = path(item);
        }
        Self::new(&paths, &definitions)
    }

    /// Of paths and definitions as they are.
    pub fn new(paths: &Map<String, Value>, definitions: &Map<String, Value>) -> Self {
        fn each(map: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
            map.iter().map(|(name, value)| (name.as_str(), value))
        }
        Self {
            paths: proto::openapi::members_after_others(each(paths)),
            definitions: proto::openapi::members_after_others(each(definitions)),
            protobuf: proto::openapi::v2_protobuf_members(each(paths), each(definitions)),
        }
    }
}

/// The definitions that paths speak of, and those that these speak of.
fn needed(paths: &Map<String, Value>, all: &Map<String, Value>) -> Map<String, Value> {
    let speaks = |texts: &[String], name: &str| texts.iter().any(|text| text.contains(&format!("/{name}\"")));
    let mut texts = vec![json!(paths).to_string()];
    let mut found = Map::new();
    // A list speaks of its items, and they of nothing else.
    for _ in 0..2 {
        let more: Vec<_> = all.iter().filter(|(name, _)| !found.contains_key(*name) && speaks(&texts, name)).collect();
        texts.extend(more.iter().map(|(_, schema)| schema.to_string()));
        found.extend(more.into_iter().map(|(name, schema)| (name.clone(), schema.clone())));
    }
    found
}

/// A definition's name that none of the compiled-in kinds has.
fn free(name: String) -> String {
    let taken = name.starts_with("io.k8s.") && proto::openapi::v2_definitions().contains(&name);
    if taken { format!("{name}_v2") } else { name }
}

fn object(row: &Resource, served: &CrdVersion) -> Value {
    let preserves = served.text[PRESERVE] == true;
    // With any property named, kubectl would take all others for mistakes.
    let mut schema = if preserves { json!({"type": "object"}) } else { simple(&served.text) };
    if let Some(map) = schema.as_object_mut() {
        if !preserves {
            add_object_fields(map);
        }
        map.insert("x-kubernetes-group-version-kind".to_owned(), json!([kind(row, &row.kind)]));
    }
    rename(&mut schema);
    schema
}

/// Drops what version 2 does not know, and what its readers stumble over.
fn simple(schema: &Value) -> Value {
    let mut map = schema.as_object().cloned().unwrap_or_default();
    for word in ["allOf", "anyOf", "oneOf", "not", "example", "externalDocs", "id", "$schema"] {
        map.remove(word);
    }
    let nullable = map.remove("nullable") == Some(Value::Bool(true));
    let preserves = map.get(PRESERVE) == Some(&Value::Bool(true));
    if nullable {
        map.remove("type");
    }
    if nullable || preserves {
        map.remove("items");
        map.remove("properties");
    }
    let untyped = match map.get("type").and_then(Value::as_str) {
        Some("array") => !map.contains_key("items"),
        Some("object") => preserves,
        _ => false,
    };
    if untyped {
        map.remove("type");
    }
    requirements(&mut map);
    for word in ["items", "additionalProperties"] {
        if let Some(inner) = map.get(word).filter(|inner| inner.is_object()) {
            map.insert(word.to_owned(), simple(inner));
        }
    }
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        let simple: Map<String, Value> = properties.iter().map(|(n, s)| (n.clone(), simple(s))).collect();
        map.insert("properties".to_owned(), Value::Object(simple));
    }
    if map.get(EMBEDDED) == Some(&Value::Bool(true)) && !preserves {
        embed(&mut map);
    }
    Value::Object(map)
}

/// Removes nullable fields from `required`.
fn requirements(map: &mut Map<String, Value>) {
    let is_nullable = |schema: Option<&Value>| schema.is_some_and(|s| s["nullable"] == true);
    let Some(required) = map.get("required").and_then(Value::as_array) else { return };
    let properties = map.get("properties").and_then(Value::as_object);
    let kept: Vec<Value> = required
        .iter()
        .filter(|name| !is_nullable(properties.and_then(|p| p.get(name.as_str().unwrap_or("")))))
        .cloned()
        .collect();
    if kept.is_empty() || is_nullable(map.get("additionalProperties")) {
        map.remove("required");
    } else {
        map.insert("required".to_owned(), Value::Array(kept));
    }
}

/// An object within an object has its fields, too.
fn embed(map: &mut Map<String, Value>) {
    add_object_fields(map);
    let required = map.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|r| r == name) {
                required.push(json!(name));
            }
        }
    }
}

/// References as version 2 writes them; `allOf` around one was only needed to say more about it.
fn rename(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Array(all)) = map.get_mut("allOf")
                && let Some(reference) = all.first().and_then(|one| one.get("$ref")).cloned()
            {
                map.remove("allOf");
                map.insert("$ref".to_owned(), reference);
            }
            if let Some(Value::String(reference)) = map.get_mut("$ref") {
                *reference = reference.replace("#/components/schemas/", "#/definitions/");
            }
            map.values_mut().for_each(rename);
        }
        Value::Array(list) => list.iter_mut().for_each(rename),
        _ => {}
    }
}

fn parameter(of: &Value) -> Value {
    let mut out = of.as_object().cloned().unwrap_or_default();
    if let Some(schema) = out.remove("schema") {
        for word in ["type", "uniqueItems"] {
            if let Some(value) = schema.get(word) {
                out.insert(word.to_owned(), value.clone());
            }
        }
    }
    Value::Object(out)
}

fn parameters(of: &Value) -> Vec<Value> {
    of["parameters"].as_array().into_iter().flatten().map(parameter).collect()
}

/// The schema a body has, whatever its media type.
fn content(body: &Value) -> Option<&Value> {
    body["content"].as_object()?.values().next()?.get("schema")
}

fn path(item: &Value) -> Value {
    let mut out = Map::new();
    for (method, operation) in item.as_object().into_iter().flatten() {
        if method == "parameters" {
            out.insert(method.clone(), Value::Array(parameters(item)));
            continue;
        }
        let mut new = operation.as_object().cloned().unwrap_or_default();
        let mut list: Vec<Value> = Vec::new();
        if let Some(body) = new.remove("requestBody") {
            let types: Vec<&String> = body["content"].as_object().into_iter().flatten().map(|(t, _)| t).collect();
            let consumes =
                if method == "patch" { json!(types) } else { json!(["application/json", "application/yaml"]) };
            list.push(json!({"name": "body", "in": "body", "required": true, "schema": content(&body)}));
            new.insert("consumes".to_owned(), consumes);
        }
        list.extend(parameters(operation));
        let mut responses = Map::new();
        for (code, response) in operation["responses"].as_object().into_iter().flatten() {
            let mut said = json!({"description": response["description"]});
            if let Some(schema) = content(response) {
                said["schema"] = schema.clone();
            }
            responses.insert(code.clone(), said);
        }
        new.insert("parameters".to_owned(), Value::Array(list));
        new.insert("responses".to_owned(), Value::Object(responses));
        new.insert("produces".to_owned(), json!(["application/json", "application/yaml"]));
        new.insert("schemes".to_owned(), json!(["https"]));
        out.insert(method.clone(), Value::Object(new));
    }
    let mut out = Value::Object(out);
    rename(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_outside_openapi_v2_are_dropped() {
        for (schema, wanted) in [
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {
                    "a": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}},
                    "b": {"type": "string", "pattern": "^x", "anyOf": [{"minLength": 1}], "description": "B"}}}),
                json!({"type": "object", "required": ["b"], "properties": {
                    "a": {}, "b": {"type": "string", "pattern": "^x", "description": "B"}}}),
            ),
            (
                json!({"type": "object", PRESERVE: true, "properties": {"x": {"type": "string"}}}),
                json!({PRESERVE: true}),
            ),
            (json!({"type": "array", "nullable": true, "items": {"type": "string"}}), json!({})),
            (
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
                json!({"x-kubernetes-int-or-string": true}),
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "object", "not": {}}}}),
                json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "object"}}}),
            ),
        ] {
            assert_eq!(simple(&schema), wanted, "{schema}");
        }
    }
}
