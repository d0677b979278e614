//! Version 3 of the OpenAPI document of a server that only has version 2: what both can say, said in the other way.
//! Answers for upstream's `kube-aggregator/pkg/controllers/openapiv3`.

use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "#/definitions/";
const SCHEMAS: &str = "#/components/schemas/";
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];

/// A document of these paths and definitions, whose parameters refer to nothing else.
pub(super) fn document(paths: &Map<String, Value>, definitions: &Map<String, Value>) -> Value {
    let paths: Map<String, Value> = paths.iter().map(|(path, item)| (path.clone(), path_item(item))).collect();
    let schemas: Map<String, Value> = definitions.iter().map(|(name, s)| (name.clone(), schema(s))).collect();
    json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": ""}, "paths": paths, "components": {"schemas": schemas}})
}

fn path_item(item: &Value) -> Value {
    let mut out = Map::new();
    for (name, value) in item.as_object().into_iter().flatten() {
        let value = match name.as_str() {
            "parameters" => value.as_array().into_iter().flatten().map(parameter).collect(),
            method if METHODS.contains(&method) => operation(value),
            _ => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    Value::Object(out)
}

fn operation(old: &Value) -> Value {
    let mut out = Map::new();
    for (name, value) in old.as_object().into_iter().flatten() {
        match name.as_str() {
            "consumes" | "produces" | "schemes" | "security" => {}
            "parameters" => {
                let (bodies, others): (Vec<_>, Vec<_>) =
                    value.as_array().into_iter().flatten().partition(|p| p["in"] == "body");
                if let Some(body) = bodies.first() {
                    out.insert(
                        "requestBody".to_owned(),
                        json!({"content": content(&body["schema"], &old["consumes"])}),
                    );
                }
                if !others.is_empty() {
                    out.insert(name.clone(), others.into_iter().map(parameter).collect());
                }
            }
            "responses" => {
                let all = value.as_object().into_iter().flatten();
                let all: Map<String, Value> = all.map(|(k, v)| (k.clone(), response(v, &old["produces"]))).collect();
                out.insert(name.clone(), Value::Object(all));
            }
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

/// One schema for each media type.
fn content(of: &Value, media_types: &Value) -> Value {
    let types = media_types.as_array().into_iter().flatten().filter_map(Value::as_str);
    types.map(|media| (media.to_owned(), json!({"schema": schema(of)}))).collect::<Map<_, _>>().into()
}

fn response(old: &Value, produces: &Value) -> Value {
    let mut out = old.clone();
    if let Some(map) = out.as_object_mut()
        && let Some(of) = map.remove("schema")
    {
        map.insert("content".to_owned(), content(&of, produces));
    }
    out
}

/// Parameters say their type in a schema.
fn parameter(old: &Value) -> Value {
    let (mut out, mut of) = (Map::new(), Map::new());
    for (name, value) in old.as_object().into_iter().flatten() {
        match name.as_str() {
            "schema" => of.extend(schema(value).as_object().cloned().unwrap_or_default()),
            "type" | "format" | "uniqueItems" => {
                of.insert(name.clone(), value.clone());
            }
            "name" | "in" | "description" | "required" | "allowEmptyValue" => {
                out.insert(name.clone(), value.clone());
            }
            extension if extension.starts_with("x-") => {
                out.insert(name.clone(), value.clone());
            }
            _ => {}
        }
    }
    out.insert("schema".to_owned(), Value::Object(of));
    Value::Object(out)
}

/// References point elsewhere, and may not have neighbours.
fn schema(old: &Value) -> Value {
    let Value::Object(map) = old else {
        return match old {
            Value::Array(list) => list.iter().map(schema).collect(),
            other => other.clone(),
        };
    };
    let mut out = Map::new();
    for (name, value) in map {
        let value = match name.as_str() {
            "$ref" => {
                let named = value.as_str().and_then(|r| r.strip_prefix(DEFINITIONS));
                named.map_or_else(|| value.clone(), |named| Value::from(format!("{SCHEMAS}{named}")))
            }
            "properties" => {
                let all = value.as_object().into_iter().flatten();
                all.map(|(k, v)| (k.clone(), schema(v))).collect::<Map<_, _>>().into()
            }
            "items" | "additionalProperties" | "additionalItems" | "allOf" | "anyOf" | "oneOf" | "not" => schema(value),
            _ => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    if out.len() > 1
        && let Some(reference) = out.remove("$ref")
    {
        out.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_its_place() {
        let reference = json!({"$ref": "#/definitions/X"});
        let paths = json!({"/apis/a.io/v1/xs": {
            "parameters": [{"name": "pretty", "in": "query", "type": "string", "uniqueItems": true}],
            "post": {"operationId": "make", "consumes": ["application/json", "application/yaml"], "produces": ["application/json"],
                "schemes": ["https"], "x-kubernetes-action": "post",
                "parameters": [{"name": "body", "in": "body", "required": true, "schema": reference}],
                "responses": {"200": {"description": "OK", "schema": reference}, "401": {"description": "Unauthorized"}}}}});
        let definitions = json!({"X": {"type": "object", "properties": {"y": {"$ref": "#/definitions/Y", "default": {}},
            "$ref": {"type": "string"}, "zs": {"type": "array", "items": reference}}}});
        let of = |v: &Value| v.as_object().cloned().unwrap_or_default();
        let there = json!({"$ref": "#/components/schemas/X"});
        let want = json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": ""},
            "paths": {"/apis/a.io/v1/xs": {
                "parameters": [{"name": "pretty", "in": "query", "schema": {"type": "string", "uniqueItems": true}}],
                "post": {"operationId": "make", "x-kubernetes-action": "post",
                    "requestBody": {"content": {"application/json": {"schema": there}, "application/yaml": {"schema": there}}},
                    "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": there}}}, "401": {"description": "Unauthorized"}}}}},
            "components": {"schemas": {"X": {"type": "object", "properties": {
                "y": {"allOf": [{"$ref": "#/components/schemas/Y"}], "default": {}}, "$ref": {"type": "string"},
                "zs": {"type": "array", "items": there}}}}}});
        assert_eq!(document(&of(&paths), &of(&definitions)), want);
    }
}
