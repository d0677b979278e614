//! The types of API objects, as they follow from the schemas that the server publishes as OpenAPI: those of built-in kinds
//! and of custom resources in the same form.

use std::sync::Arc;

use serde_json::{Value, json};
use shared::cel::{Shape, Type};

const REFERENCE: &str = "#/components/schemas/";
const OBJECT_META: &str = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// An object's schema, and the document that it refers into. Fields are typed when they are asked for.
#[derive(Debug)]
struct Schema {
    name: String,
    schema: Value,
    document: Document,
}

impl Shape for Schema {
    fn name(&self) -> &str {
        &self.name
    }

    /// Kind, version and metadata of an embedded object are there whether its schema names them or not.
    fn field(&self, name: &str) -> Option<Type> {
        if let Some(property) = self.schema["properties"].get(name) {
            return Some(of_schema(&format!("{}.{name}", self.name), property, &self.document));
        }
        match name {
            _ if self.schema["x-kubernetes-embedded-resource"] != true => None,
            "apiVersion" | "kind" => Some(Type::String),
            "metadata" => Some(of_schema(name, &json!({"$ref": OBJECT_META}), &self.document)),
            _ => None,
        }
    }
}

/// The OpenAPI v3 document of a group and version.
#[derive(Clone, Debug, Default)]
pub struct Document(Arc<Value>);

impl Document {
    /// Of what the server answers.
    #[must_use]
    pub fn new(document: Value) -> Self {
        Self(Arc::new(document))
    }

    /// The type of a root kind.
    #[must_use]
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<Type> {
        let wanted = json!({"group": group, "version": version, "kind": kind});
        let is = |schema: &Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.contains(&wanted))
        };
        let schemas = self.0["components"]["schemas"].as_object()?;
        let (name, schema) = schemas.iter().find(|(_, schema)| is(schema))?;
        Some(of_schema(name, schema, self))
    }

    /// The name and the schema behind a `$ref`.
    fn behind<'a>(&'a self, reference: &'a str) -> Option<(&'a str, &'a Value)> {
        let name = reference.strip_prefix(REFERENCE)?;
        Some((name, self.0["components"]["schemas"].get(name)?))
    }
}

/// Most references, lists and maps within one another that are followed: an aggregated API server may publish a schema that
/// leads to itself.
const MAX_DEPTH: usize = 64;

/// The type that a schema describes; `name` is what it is called when it is an object.
fn of_schema(name: &str, schema: &Value, document: &Document) -> Type {
    within(name, schema, document, MAX_DEPTH)
}

fn within(name: &str, schema: &Value, document: &Document, depth: usize) -> Type {
    let Some(depth) = depth.checked_sub(1) else { return Type::Dyn };
    // A reference with a description or a default beside it is wrapped in allOf.
    if let Some(reference) = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str()) {
        let found = document.behind(reference);
        return found.map_or(Type::Dyn, |(name, schema)| within(name, schema, document, depth));
    }
    let flag = |key: &str| schema[key] == true;
    if flag("x-kubernetes-int-or-string") || flag("x-kubernetes-preserve-unknown-fields") {
        return Type::Dyn;
    }
    match schema["type"].as_str().unwrap_or_default() {
        "boolean" => Type::Bool,
        "integer" => Type::Int,
        "number" => Type::Double,
        "string" => match schema["format"].as_str().unwrap_or_default() {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Timestamp,
            "int-or-string" => Type::Dyn,
            _ => Type::String,
        },
        "array" => Type::list(within(&format!("{name}.@idx"), &schema["items"], document, depth)),
        "object" if schema["additionalProperties"].is_object() => {
            Type::map(Type::String, within(&format!("{name}.@elem"), &schema["additionalProperties"], document, depth))
        }
        "object" if schema["properties"].is_object() || flag("x-kubernetes-embedded-resource") => {
            Type::Object(Arc::new(Schema { name: name.into(), schema: schema.clone(), document: document.clone() }))
        }
        _ => Type::Dyn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::cel::{Declared, Program, admission};

    #[test]
    fn a_schema_that_leads_to_itself_has_an_end() {
        let kinds = json!([{"group": "g", "version": "v1", "kind": "K"}]);
        for schema in [
            json!({"type": "array", "items": {"$ref": "#/components/schemas/A"}}),
            json!({"type": "object", "additionalProperties": {"$ref": "#/components/schemas/A"}}),
            json!({"$ref": "#/components/schemas/A"}),
        ] {
            let mut schema = schema;
            schema["x-kubernetes-group-version-kind"] = kinds.clone();
            let document = Document::new(json!({"components": {"schemas": {"A": schema}}}));
            assert!(document.kind("g", "v1", "K").is_some());
        }
    }

    fn variables() -> Declared {
        let document = proto::openapi::v3_group_version("apps", "v1").expect("a document");
        let document = Document::new(serde_json::from_slice(&document).expect("JSON"));
        let object = document.kind("apps", "v1", "Deployment").expect("kind");
        let metadata = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let schema = json!({"type": "object", "properties": {"metadata": {"$ref": metadata}, "spec": {"type": "object", "properties": {
            "size": {"type": "integer"}, "names": {"type": "array", "items": {"type": "string"}},
            "free": {"x-kubernetes-preserve-unknown-fields": true, "type": "object"}}}}});
        let mut all = admission::variables(&object, Some(&Type::Dyn));
        all.insert("custom".to_owned(), of_schema("Foo", &schema, &document));
        all.insert("variables".to_owned(), Type::Dyn);
        all
    }

    fn check(source: &str, variables: &Declared) -> Result<(), String> {
        Program::check(source, variables).map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_right() {
        let v = variables();
        for e in [
            "object.spec.replicas > 1",
            "object.spec.replicas <= 5.5",
            "has(object.metadata.labels) && object.metadata.labels['app'] == 'x'",
            "object.metadata.labels.app == 'x'",
            "object.spec.template.spec.containers.all(c, c.image.startsWith('r/') && c.name != '')",
            "object.spec.template.spec.containers.exists(c, size(c.args) > 2)",
            "object.spec.template.spec.containers.map(c, c.name).exists(n, n == 'a')",
            "object.spec.template.spec.containers.filter(c, has(c.resources)).size() == 1",
            "oldObject == null || object.spec.replicas == oldObject.spec.replicas",
            "request.userInfo.username == 'admin' && 'g' in request.userInfo.groups",
            "params.max >= object.spec.replicas",
            "variables.anything.goes",
            "object.metadata.creationTimestamp < timestamp('2026-01-01T00:00:00Z')",
            "custom.spec.size + 1 > 2 && custom.metadata.name == 'x' && custom.spec.free.any.thing == 1",
            "custom.spec.names.all(n, n.matches('^a'))",
            "object.spec.strategy.rollingUpdate.maxSurge == 1",
            "object.spec.?replicas.orValue(1) > 2",
            "string(object.spec.replicas) + ' replicas'",
        ] {
            assert!(check(e, &v).is_ok(), "{e}: {}", check(e, &v).unwrap_err());
        }
    }

    #[test]
    fn what_is_wrong() {
        let v = variables();
        for (e, want) in [
            ("object.spec.replicas > '1'", "found no matching overload for '_>_' applied to '(int, string)'"),
            ("object.spec.replicas == '1'", "found no matching overload for '_==_' applied to '(int, string)'"),
            ("object.spec.nope > 1", "undefined field 'nope'"),
            ("has(object.spec.nope)", "undefined field 'nope'"),
            ("unknown.spec", "undeclared reference to 'unknown' (in container '')"),
            ("object.spec.replicas.deep == 1", "type 'int' does not support field selection"),
            ("object.spec.template.spec.containers.all(c, c.imag != '')", "undefined field 'imag'"),
            ("object.spec.replicas.all(c, c == 1)", "cannot be range of a comprehension"),
            (
                "custom.spec.size == custom.spec.names",
                "found no matching overload for '_==_' applied to '(int, list(string))'",
            ),
            ("request.user == 'x'", "undefined field 'user'"),
            ("object.spec.replicas && true", "expected type 'bool' but found 'int'"),
        ] {
            let got = check(e, &v).expect_err(e);
            assert!(got.contains(want), "{e}: {got}");
        }
    }

    #[test]
    fn where_it_is_wrong() {
        assert_eq!(
            check("object.spec.replicas > '1'", &variables()).unwrap_err(),
            "ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^"
        );
    }
}
