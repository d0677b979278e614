//! OpenAPI v3 of groups of custom resources: one document per group version, made when it is asked for. Answers for
//! upstream's `apiextensions-apiserver/pkg/controller/openapi/builder`.
//!
//! A document's hash comes from what its definitions say, so that the index costs nothing to keep.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use proto::Value;
use proto::resources::{Resource, Row};
use serde_json::{Map, json};
use sha2::{Digest as _, Sha256};

use super::version::{CrdVersion, version_of};
use crate::machinery::hex::hex;
use crate::rows::Rows;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Documents whose parts are kept: a client that makes a definition reads that of its group again and again.
const RECENT: usize = 4;

/// Changes whenever the document of these rows would.
fn hash<'r>(rows: impl Iterator<Item = &'r Row>) -> String {
    let mut hash = Sha256::new();
    rows.filter_map(|row| version_of(row)).for_each(|served| hash.update(served.hash));
    hex(&hash.finalize())
}

/// Group versions and the hashes of their documents, for the index.
pub fn index(rows: &Rows) -> Vec<(String, String)> {
    let of_document = |a: &Row, b: &Row| a.group == b.group && a.version == b.version;
    let custom = rows.defined();
    let documents = custom.chunk_by(of_document);
    documents.map(|rows| (format!("apis/{}", rows[0].api_version()), hash(rows.iter()))).collect()
}

/// OpenAPI v3 pieces of a row.
struct Pieces {
    /// Members of `paths`, a comma before each.
    paths: Vec<u8>,
    /// Members of `components.schemas`, likewise.
    schemas: Vec<u8>,
}

impl Pieces {
    fn of(row: &Row, served: &CrdVersion) -> Self {
        let (mut paths, mut schemas) = (Map::new(), Map::new());
        let [name, list] = [&row.kind, &row.list_kind].map(|kind| type_name(row, kind));
        operations(row, [&name, &list], &mut paths);
        schemas.insert(list, list_schema(row, &name));
        schemas.insert(name, object_schema(row, served));
        Self { paths: members(&paths), schemas: members(&schemas) }
    }
}

fn members(map: &Map<String, Value>) -> Vec<u8> {
    proto::openapi::members_after_others(map.iter().map(|(name, value)| (name.as_str(), value)))
}

/// A group version of which somebody read the document, and what its rows add to it.
struct Read {
    path: String,
    pieces: Vec<(Row, Arc<Pieces>)>,
}

/// The documents, made of kept parts as far as these are of the same rows.
#[derive(Default)]
pub struct Documents(Mutex<VecDeque<Read>>);

impl Documents {
    /// The document of `apis/<group>/<version>` and its hash; `None` when no custom resource is served there.
    pub fn of(&self, rows: &Rows, path: &str) -> Option<(String, Vec<u8>)> {
        let (group, version) = path.strip_prefix("apis/")?.split_once('/')?;
        let mut own: Vec<Row> = rows.custom_group(group).into_iter().filter(|r| r.version == version).collect();
        if own.is_empty() {
            return None;
        }
        own.sort_by(|a, b| a.plural.cmp(&b.plural));
        let pieces = self.pieces(path, &own);
        let (paths, schemas): (Vec<&[u8]>, Vec<&[u8]>) = pieces.iter().map(|p| (&p.paths[..], &p.schemas[..])).unzip();
        let (paths, schemas) = (paths.concat(), schemas.concat());
        let parts: [&[u8]; 6] = [
            br#"{"openapi":"3.0.0","info":{"title":"Kubernetes CRD Swagger","version":"v0.1.0"},"paths":{"#,
            paths.get(1..).unwrap_or_default(),
            br#"},"components":{"schemas":{"#,
            &shared_schemas()[1..],
            &schemas,
            b"}}}",
        ];
        Some((hash(own.iter()), parts.concat()))
    }

    fn pieces(&self, path: &str, own: &[Row]) -> Vec<Arc<Pieces>> {
        let before = {
            let mut recent = self.0.lock();
            let at = recent.iter().position(|read| read.path == path);
            at.and_then(|at| recent.remove(at)).map(|read| read.pieces).unwrap_or_default()
        };
        let piece = |row: &Row| {
            let known = before.iter().find(|(other, _)| other.is(row)).map(|(_, pieces)| pieces.clone());
            known.or_else(|| version_of(row).map(|served| Arc::new(Pieces::of(row, served))))
        };
        let pieces: Vec<_> = own.iter().filter_map(|row| Some((row.clone(), piece(row)?))).collect();
        let found = pieces.iter().map(|(_, pieces)| pieces.clone()).collect();
        let mut recent = self.0.lock();
        recent.truncate(RECENT - 1);
        recent.push_front(Read { path: path.to_owned(), pieces });
        found
    }
}

/// `com.example.v1.Foo` of `example.com/v1` `Foo`.
pub(super) fn type_name(row: &Resource, kind: &str) -> String {
    let mut parts: Vec<&str> = row.group.split('.').collect();
    parts.reverse();
    format!("{}.{}.{kind}", parts.join("."), row.version)
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn kind(row: &Resource, kind: &str) -> Value {
    json!({"group": row.group, "version": row.version, "kind": kind})
}

/// Schemas shared by all objects, as in the documents of built-in groups: members, each with a comma in front.
fn shared_schemas() -> &'static [u8] {
    static SHARED: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let document = proto::openapi::v3_group_version("coordination.k8s.io", "v1");
        let mut document = document.and_then(|d| serde_json::from_slice::<Value>(&d).ok()).unwrap_or_default();
        let all = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut).map(std::mem::take);
        members(&all.unwrap_or_default().into_iter().filter(|(name, _)| name.starts_with(META)).collect())
    });
    &SHARED
}

fn describe(schema: &mut Map<String, Value>, name: &str, value: Value) {
    schema.insert(name.to_owned(), value);
}

fn object_schema(row: &Resource, served: &CrdVersion) -> Value {
    let mut schema = served.text.as_object().cloned().unwrap_or_default();
    add_object_fields(&mut schema);
    schema.insert("x-kubernetes-group-version-kind".to_owned(), json!([kind(row, &row.kind)]));
    Value::Object(schema)
}

/// Adds the fields that every object has.
pub(super) fn add_object_fields(schema: &mut Map<String, Value>) {
    let mut properties = schema.remove("properties").and_then(|p| p.as_object().cloned()).unwrap_or_default();
    describe(
        &mut properties,
        "apiVersion",
        json!({"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"}),
    );
    describe(
        &mut properties,
        "kind",
        json!({"type": "string", "description": "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"}),
    );
    describe(
        &mut properties,
        "metadata",
        json!({"allOf": [reference(&format!("{META}ObjectMeta"))], "description": "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"}),
    );
    schema.insert("properties".to_owned(), Value::Object(properties));
}

pub(super) fn list_schema(row: &Resource, item: &str) -> Value {
    json!({
        "type": "object",
        "description": format!("{} is a list of {}", row.list_kind, row.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "items": {"type": "array", "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", row.plural), "items": reference(item)},
            "metadata": {"allOf": [reference(&format!("{META}ListMeta"))]},
        },
        "x-kubernetes-group-version-kind": [kind(row, &row.list_kind)],
    })
}

fn parameter(name: &str, place: &str, kind: &str) -> Value {
    let mut out = json!({"name": name, "in": place, "schema": {"type": kind, "uniqueItems": true}});
    if place == "path" {
        out["required"] = json!(true);
    }
    out
}

/// Names of what is done in operation ids and actions.
const COLLECTION: [(&str, &str, &str); 3] =
    [("get", "list", "list"), ("post", "post", "create"), ("delete", "deletecollection", "deleteCollection")];
const ITEM: [(&str, &str, &str); 4] =
    [("get", "get", "read"), ("put", "put", "replace"), ("patch", "patch", "patch"), ("delete", "delete", "delete")];

/// The paths of a row; `name` and `list` are what its object and its list are called.
pub(super) fn operations(row: &Resource, [name, list]: [&str; 2], paths: &mut Map<String, Value>) {
    let prefix = format!("/apis/{}", row.api_version());
    let scope = if row.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{prefix}{scope}/{}", row.plural);
    paths.insert(collection.clone(), item(row, name, list, &COLLECTION, &[], ""));
    if row.namespaced {
        paths.insert(
            format!("{prefix}/{}", row.plural),
            item(row, name, list, &COLLECTION[..1], &[], "ForAllNamespaces"),
        );
    }
    let one = format!("{collection}/{{name}}");
    paths.insert(one.clone(), item(row, name, name, &ITEM, &["name"], ""));
    for sub in row.subresources.iter() {
        let suffix = if sub.name == "scale" { "Scale" } else { "Status" };
        paths.insert(format!("{one}/{}", sub.name), item(row, name, name, &ITEM[..3], &["name"], suffix));
    }
}

fn item(row: &Resource, body: &str, answer: &str, verbs: &[(&str, &str, &str)], names: &[&str], suffix: &str) -> Value {
    let everywhere = suffix == "ForAllNamespaces";
    let mut out = Map::new();
    let mut common: Vec<Value> = names.iter().map(|n| parameter(n, "path", "string")).collect();
    if row.namespaced && !everywhere {
        common.push(parameter("namespace", "path", "string"));
    }
    common.push(parameter("pretty", "query", "string"));
    out.insert("parameters".to_owned(), Value::Array(common));
    for (method, action, word) in verbs {
        let scope = if row.namespaced && !everywhere { "Namespaced" } else { "" };
        let group: String = row.group.split('.').map(capital).collect();
        let id = format!("{word}{group}{}{scope}{}{suffix}", capital(&row.version), row.kind);
        let shown = if *method == "delete" { format!("{META}Status") } else { answer.to_owned() };
        let mut operation = json!({
            "operationId": id,
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference(&shown)}}}, "401": {"description": "Unauthorized"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind(row, &row.kind),
        });
        let writes = ["dryRun", "fieldManager", "fieldValidation"];
        let mut parameters: Vec<Value> = match *method {
            "post" | "put" | "patch" => writes.iter().map(|p| parameter(p, "query", "string")).collect(),
            "delete" => vec![parameter("dryRun", "query", "string")],
            _ if *action == "list" => ["continue", "fieldSelector", "labelSelector", "resourceVersion"]
                .iter()
                .map(|p| parameter(p, "query", "string"))
                .collect(),
            _ => vec![parameter("resourceVersion", "query", "string")],
        };
        if *method == "patch" {
            parameters.push(parameter("force", "query", "boolean"));
        }
        operation["parameters"] = Value::Array(parameters);
        match *method {
            "post" | "put" => {
                operation["requestBody"] = json!({"content": {"*/*": {"schema": reference(body)}}, "required": true});
            }
            "patch" => {
                let patch = json!({"schema": reference(&format!("{META}Patch"))});
                operation["requestBody"] = json!({"content": {"application/apply-patch+yaml": patch, "application/json-patch+json": patch, "application/merge-patch+json": patch}, "required": true});
            }
            _ => {}
        }
        out.insert((*method).to_owned(), operation);
    }
    Value::Object(out)
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::definition::rows as compiled;

    fn define(rows: &Rows, plural: &str, properties: Value) {
        let kind = capital(plural);
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": properties}});
        let definition = json!({"metadata": {"name": format!("{plural}.ex.com")}, "spec": {"group": "ex.com",
            "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]},
            "status": {"acceptedNames": {"plural": plural, "kind": kind}}});
        rows.set("ex.com", plural, &compiled(&definition));
    }

    #[test]
    fn documents_follow_their_definitions() {
        let (rows, documents) = (Rows::default(), Documents::default());
        assert!(documents.of(&rows, "apis/ex.com/v1").is_none());
        let read = || {
            let (hash, body) = documents.of(&rows, "apis/ex.com/v1").expect("served");
            assert_eq!(index(&rows), [("apis/ex.com/v1".to_owned(), hash.clone())]);
            (hash, serde_json::from_slice::<Value>(&body).expect("JSON"))
        };
        define(&rows, "foos", json!({"a": {"type": "string"}}));
        let (first, document) = read();
        assert!(document["paths"]["/apis/ex.com/v1/namespaces/{namespace}/foos/{name}"]["patch"].is_object());
        assert_eq!(document["components"]["schemas"]["com.ex.v1.Foos"]["properties"]["a"]["type"], "string");
        assert!(document["components"]["schemas"][format!("{META}ObjectMeta")].is_object());
        define(&rows, "bars", json!({}));
        define(&rows, "foos", json!({"b": {"type": "string"}}));
        let (second, document) = read();
        assert_ne!(first, second);
        let properties = &document["components"]["schemas"]["com.ex.v1.Foos"]["properties"];
        assert!(properties["a"].is_null() && properties["b"].is_object());
        assert!(document["components"]["schemas"]["com.ex.v1.Bars"].is_object());
        for other in 0..2 * RECENT {
            documents.pieces(&other.to_string(), &[]);
        }
        assert_eq!(documents.0.lock().len(), RECENT);
        assert_eq!(read(), (second, document));
    }
}
