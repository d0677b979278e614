//! Version 3 documents: one per group and version.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Content;
use super::media::Accepts;
use super::operations::{self, ApiOperation, Body, In, Parameter, Path};
use super::types::{self, Dialect};
use crate::discovery;
use crate::resources::Resource;

fn paths(rows: &[&Resource], path: &str) -> Option<Vec<Path>> {
    if let Some(fixed) = operations::fixed(path) {
        return Some(vec![fixed]);
    }
    let groups = discovery::groups(rows.iter().copied());
    let parts: Vec<&str> = path.split('/').collect();
    let (name, version) = match parts.as_slice() {
        ["api", version] => ("", *version),
        ["apis", group] => {
            return groups.iter().find(|g| g.name == *group && !group.is_empty()).map(|g| vec![operations::group(g)]);
        }
        ["apis", group, version] if !group.is_empty() => (*group, *version),
        _ => return None,
    };
    let group = groups.iter().find(|g| g.name == name)?;
    let version = group.versions.iter().find(|v| v.name == version)?;
    Some(operations::version(group, version))
}

/// The document at a path.
pub(super) fn document(content: Content<'_>, path: &str) -> Option<Vec<u8>> {
    Some(write(&paths(content.rows, path)?, content.enums))
}

/// Writes a document piece by piece.
fn write(paths: &[Path], enums: bool) -> Vec<u8> {
    let names: BTreeSet<String> = operations::mentioned(paths);
    let mut out = Vec::with_capacity(64 * 1024);
    let info = json!({"title": "Kubernetes", "version": format!("v{}", env!("CARGO_PKG_VERSION"))});
    out.push(b'{');
    super::member("openapi", &json!("3.0.0"), &mut out);
    super::member("info", &info, &mut out);
    super::members("paths", paths.iter().map(|path| (path.path.as_str(), item(path.clone()))), &mut out);
    out.extend_from_slice(b",\"components\":{");
    let security = json!({"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}});
    super::member("securitySchemes", &security, &mut out);
    if !names.is_empty() {
        let schemas = names.iter().map(|name| (name.as_str(), types::schema(name, Dialect::V3, enums)));
        super::members("schemas", schemas, &mut out);
    }
    out.extend_from_slice(b"}}");
    out
}

fn item(mut path: Path) -> Value {
    let shared = path.hoist();
    let mut item: Map<String, Value> = path.operations.iter().map(|o| (o.method.to_owned(), operation(o))).collect();
    if !shared.is_empty() {
        item.insert("parameters".to_owned(), shared.iter().map(parameter).collect());
    }
    Value::Object(item)
}

fn parameter(parameter: &Parameter) -> Value {
    let schema = json!({"type": parameter.kind, "uniqueItems": true});
    match parameter.place {
        In::Path => json!({"name": parameter.name, "in": "path", "required": true, "schema": schema}),
        In::Query => json!({"name": parameter.name, "in": "query", "schema": schema}),
    }
}

fn schema(body: &Body) -> Value {
    match body {
        Body::Named(name) => json!({"$ref": types::reference(name, Dialect::V3)}),
        Body::Text => json!({"type": "string"}),
    }
}

fn content(media: &[&str], body: &Body) -> Value {
    let map: Map<String, Value> = media.iter().map(|m| ((*m).to_owned(), json!({"schema": schema(body)}))).collect();
    Value::Object(map)
}

fn operation(operation: &ApiOperation) -> Value {
    let mut out = Map::new();
    out.insert("operationId".to_owned(), json!(operation.id));
    out.insert("tags".to_owned(), json!([operation.tag]));
    if !operation.parameters.is_empty() {
        out.insert("parameters".to_owned(), operation.parameters.iter().map(parameter).collect());
    }
    if let Some((body, required)) = &operation.request {
        let patches = operation.accepts == Accepts::Patches;
        let media = if patches { operation.accepts.types() } else { &["*/*"] };
        let mut request = Map::new();
        request.insert("content".to_owned(), content(media, body));
        if *required {
            request.insert("required".to_owned(), json!(true));
        }
        out.insert("requestBody".to_owned(), Value::Object(request));
    }
    let mut responses = Map::new();
    for (code, body) in &operation.responses {
        let answer =
            json!({"description": operations::reason(code), "content": content(operation.media.types(), body)});
        responses.insert((*code).to_owned(), answer);
    }
    responses.insert("401".to_owned(), json!({"description": operations::reason("401")}));
    out.insert("responses".to_owned(), Value::Object(responses));
    if let Some((action, gvk)) = &operation.action {
        out.insert("x-kubernetes-action".to_owned(), json!(action));
        out.insert("x-kubernetes-group-version-kind".to_owned(), operations::kind_value(gvk));
    }
    Value::Object(out)
}
