//! The version 2 document: everything in one.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::Content;
use super::operations::{self, ApiOperation, Body, In, Parameter, Path};
use super::types::{self, Dialect};
use crate::discovery;
use crate::resources::Resource;

/// Names of shared parameters. A name that stands for several has the kinds it belongs to.
const SHARED: &[(&str, &str)] = &[
    ("allowWatchBookmarks-HC2hJt-J", "boolean"),
    ("command-Py3eQybp", "string"),
    ("container-1GeXxFDC", "string"),
    ("container-_Q-EJ3nR", "string"),
    ("container-i5dOmRiM", "string"),
    ("continue-QfD61s0i", "string"),
    ("fieldManager-7c6nTn1T", "string"),
    ("fieldManager-Qy4HdaTW", "string"),
    ("fieldSelector-xIcQKXFG", "string"),
    ("follow-9OIXh_2R", "boolean"),
    ("force-tOGGb0Yi", "boolean"),
    ("gracePeriodSeconds--K5HaBOS", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential-QbNkfIqj", "boolean"),
    ("insecureSkipTLSVerifyBackend-gM00jVbe", "boolean"),
    ("labelSelector-5Zw57w4C", "string"),
    ("limit-1NfNmdNH", "integer"),
    ("limitBytes-zwd1RXuc", "integer"),
    ("namespace-vgWSWtn3", "string"),
    ("orphanDependents-uRB25kX5", "boolean"),
    ("path-QCf0eosM", "string"),
    ("path-oPbzgLUj", "string"),
    ("path-rFDtV0x9", "string"),
    ("path-z6Ciiujn", "string"),
    ("ports-91KROJmm", "integer"),
    ("pretty-tJGM1-ng", "string"),
    ("previous-1jxDPu3y", "boolean"),
    ("propagationPolicy-6jk3prlO", "string"),
    ("resourceVersion-5WAnf1kx", "string"),
    ("resourceVersionMatch-t8XhRHeC", "string"),
    ("sendInitialEvents-rLXlEK_k", "boolean"),
    ("sinceSeconds-vE2NLdnP", "integer"),
    ("stderr-26jJhFUR", "boolean"),
    ("stderr-W_1TNlWc", "boolean"),
    ("stdin-PSzNhyUC", "boolean"),
    ("stdin-sEFnN3IS", "boolean"),
    ("stdout--EZLRwV1", "boolean"),
    ("stdout-005YMKE6", "boolean"),
    ("stream-l-48cgXv", "string"),
    ("tailLines-9xQLWHMV", "integer"),
    ("timeoutSeconds-yvYezaOC", "integer"),
    ("timestamps-c17fW1w_", "boolean"),
    ("tty-g7MlET_l", "boolean"),
    ("tty-s0flW37O", "boolean"),
    ("watch-XNNPZGbK", "boolean"),
];
const DELETE_BODY: &str = "body-2Y1dVQaQ";
const PATCH_BODY: &str = "body-78PwaGsr";

/// Suffix of a shared parameter's name, by the operations of the path.
fn suffix(parameter: &Parameter, path: &str, operations: &[ApiOperation]) -> Option<&'static str> {
    let exec = path.ends_with("/exec");
    let log = path.ends_with("/log");
    let patch = operations.iter().all(|o| o.method == "patch");
    let wanted = match (parameter.name, parameter.place) {
        ("container", _) if log => "container-1GeXxFDC",
        ("container", _) if exec => "container-i5dOmRiM",
        ("container", _) => "container-_Q-EJ3nR",
        ("stderr", _) if exec => "stderr-W_1TNlWc",
        ("stderr", _) => "stderr-26jJhFUR",
        ("stdin", _) if exec => "stdin-PSzNhyUC",
        ("stdin", _) => "stdin-sEFnN3IS",
        ("stdout", _) if exec => "stdout--EZLRwV1",
        ("stdout", _) => "stdout-005YMKE6",
        ("tty", _) if exec => "tty-s0flW37O",
        ("tty", _) => "tty-g7MlET_l",
        ("fieldManager", _) if patch => "fieldManager-7c6nTn1T",
        ("fieldManager", _) => "fieldManager-Qy4HdaTW",
        ("path", In::Path) => "path-z6Ciiujn",
        ("path", _) if path.contains("/pods/") => "path-oPbzgLUj",
        ("path", _) if path.contains("/services/") => "path-QCf0eosM",
        ("path", _) => "path-rFDtV0x9",
        (name, _) => {
            return SHARED.iter().map(|(full, _)| *full).find(|full| bare(full) == name);
        }
    };
    Some(wanted)
}

/// The parameter's own name: all but the hash of eight characters and its dash.
fn bare(full: &str) -> &str {
    &full[..full.len().saturating_sub(9)]
}

fn plain(name: &str, place: In, kind: &str) -> Value {
    match place {
        In::Path => json!({"name": name, "in": "path", "required": true, "type": kind, "uniqueItems": true}),
        In::Query => json!({"name": name, "in": "query", "type": kind, "uniqueItems": true}),
    }
}

fn parameter(parameter: &Parameter, path: &str, operations: &[ApiOperation]) -> Value {
    match suffix(parameter, path, operations) {
        Some(full) => json!({"$ref": format!("#/parameters/{full}")}),
        None => plain(parameter.name, parameter.place, parameter.kind),
    }
}

fn all_paths(rows: &[&Resource]) -> Vec<Path> {
    let groups = discovery::groups(rows.iter().copied());
    let mut paths: Vec<Path> = ["api", "apis", "version", "openid/v1/jwks", ".well-known/openid-configuration"]
        .into_iter()
        .filter_map(operations::fixed)
        .collect();
    for group in &groups {
        if !group.name.is_empty() {
            paths.push(operations::group(group));
        }
        for version in &group.versions {
            paths.extend(operations::version(group, version));
        }
    }
    paths.sort_by(|a, b| a.path.cmp(&b.path));
    paths
}

fn head() -> Map<String, Value> {
    let value = json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": format!("v{}", env!("CARGO_PKG_VERSION"))},
        "security": [{"BearerToken": []}],
        "securityDefinitions": {
            "BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"},
        },
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The document in pieces, so that it never stands in memory as one tree.
pub(super) struct Parts {
    /// Members that are small.
    pub head: Map<String, Value>,
    /// Shared parameters.
    pub parameters: Map<String, Value>,
    paths: Vec<Path>,
    names: BTreeSet<String>,
    enums: bool,
}

impl Parts {
    pub(super) fn new(content: Content<'_>) -> Self {
        let paths = all_paths(content.rows);
        let names = operations::mentioned(&paths);
        let mut parameters: Map<String, Value> = SHARED
            .iter()
            .map(|(full, kind)| {
                let place = if matches!(*full, "namespace-vgWSWtn3" | "path-z6Ciiujn") { In::Path } else { In::Query };
                ((*full).to_owned(), plain(bare(full), place, kind))
            })
            .collect();
        for (name, kind, required) in [(DELETE_BODY, "DeleteOptions", false), (PATCH_BODY, "Patch", true)] {
            let body = Body::Named(format!("{}{kind}", types::META));
            parameters.insert(name.to_owned(), body_parameter(&body, required));
        }
        Self { head: head(), parameters, paths, names, enums: content.enums }
    }

    pub(super) fn into_names(self) -> BTreeSet<String> {
        self.names
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, Value)> {
        self.paths.iter().map(|path| (path.path.as_str(), item(path.clone())))
    }

    pub(super) fn definitions(&self) -> impl Iterator<Item = (&str, Value)> {
        self.names.iter().map(|name| (name.as_str(), types::schema(name, Dialect::V2, self.enums)))
    }
}

/// The document as JSON.
#[must_use]
pub fn document<'a>(content: impl Into<Content<'a>>) -> Vec<u8> {
    split(content).concat()
}

/// The document as JSON, in three parts: more paths may follow the first, more definitions the second.
#[must_use]
pub fn split<'a>(content: impl Into<Content<'a>>) -> [Vec<u8>; 3] {
    let parts = Parts::new(content.into());
    let mut first = Vec::with_capacity(1024 * 1024);
    first.push(b'{');
    for (name, value) in &parts.head {
        super::member(name, value, &mut first);
    }
    super::member("parameters", &Value::Object(parts.parameters.clone()), &mut first);
    super::members("paths", parts.paths(), &mut first);
    first.pop();
    let mut second = b"}".to_vec();
    super::members("definitions", parts.definitions(), &mut second);
    second.pop();
    [first, second, b"}}".to_vec()]
}

fn item(mut path: Path) -> Value {
    let shared = path.hoist();
    let mut item = Map::new();
    for operation in &path.operations {
        item.insert(operation.method.to_owned(), render(operation, &path.path));
    }
    if !shared.is_empty() {
        let list = shared.iter().map(|p| parameter(p, &path.path, &path.operations)).collect();
        item.insert("parameters".to_owned(), list);
    }
    Value::Object(item)
}

fn schema(body: &Body) -> Value {
    match body {
        Body::Named(name) => json!({"$ref": types::reference(name, Dialect::V2)}),
        Body::Text => json!({"type": "string"}),
    }
}

fn body_parameter(body: &Body, required: bool) -> Value {
    let mut value = json!({"name": "body", "in": "body", "schema": schema(body)});
    if required {
        value["required"] = json!(true);
    }
    value
}

fn request(operation: &ApiOperation) -> Option<Value> {
    let (body, required) = operation.request.as_ref()?;
    Some(match operation.method {
        "delete" => json!({"$ref": format!("#/parameters/{DELETE_BODY}")}),
        "patch" => json!({"$ref": format!("#/parameters/{PATCH_BODY}")}),
        _ => body_parameter(body, *required),
    })
}

fn render(operation: &ApiOperation, path: &str) -> Value {
    let mut out = Map::new();
    out.insert("operationId".to_owned(), json!(operation.id));
    out.insert("tags".to_owned(), json!([operation.tag]));
    out.insert("schemes".to_owned(), json!(["https"]));
    let consumes = operation.accepts.types();
    if !consumes.is_empty() {
        out.insert("consumes".to_owned(), json!(consumes));
    }
    out.insert("produces".to_owned(), json!(operation.media.types()));
    let mut parameters: Vec<Value> = request(operation).into_iter().collect();
    let this = std::slice::from_ref(operation);
    parameters.extend(operation.parameters.iter().map(|p| parameter(p, path, this)));
    if !parameters.is_empty() {
        out.insert("parameters".to_owned(), Value::Array(parameters));
    }
    let mut responses = Map::new();
    for (code, body) in &operation.responses {
        responses.insert((*code).to_owned(), json!({"description": operations::reason(code), "schema": schema(body)}));
    }
    responses.insert("401".to_owned(), json!({"description": operations::reason("401")}));
    out.insert("responses".to_owned(), Value::Object(responses));
    if let Some((action, gvk)) = &operation.action {
        out.insert("x-kubernetes-action".to_owned(), json!(action));
        out.insert("x-kubernetes-group-version-kind".to_owned(), operations::kind_value(gvk));
    }
    Value::Object(out)
}
