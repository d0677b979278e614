//! A definition, compiled to rows: one per served version, and one for the stored version if that is not served.
//! Answers for upstream's `getOrCreateServingInfoFor`.
//!
//! Pure: in comes the tree of a CustomResourceDefinition with its accepted names, out go rows that carry what serving
//! its objects needs ([`CrdVersion`]).

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use proto::Value;
use proto::resources::{Custom, Resource, Row, Subresource};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::conversion::Conversion;
use super::jsonpath::JsonPath;
use super::merge;
use super::schema::Schema;
use super::version::{CrdVersion, Scale, Schemas};
use crate::machinery::table::Column;
use crate::machinery::tree;
use crate::rows::{storage_hash, version_rank};

/// The names on a plain path. What looks like an index is part of a name.
fn steps(path: &str) -> Vec<String> {
    let path = path.strip_prefix('.').unwrap_or(path);
    if path.is_empty() { Vec::new() } else { path.split('.').map(str::to_owned).collect() }
}

fn owned(text: &str) -> Cow<'static, str> {
    Cow::Owned(text.to_owned())
}

fn all(texts: &[Value]) -> Cow<'static, [Cow<'static, str>]> {
    Cow::Owned(texts.iter().filter_map(Value::as_str).map(owned).collect())
}

const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// Verbs of a resource whose definition is being deleted.
const LAST_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];
const OF_SUBRESOURCES: [&str; 3] = ["get", "patch", "update"];

fn borrowed(texts: &'static [&'static str]) -> Cow<'static, [Cow<'static, str>]> {
    Cow::Owned(texts.iter().map(|t| Cow::Borrowed(*t)).collect())
}

/// The definition's condition of a type is true.
pub fn is_true(definition: &Value, condition: &str) -> bool {
    tree::list(definition, "/status/conditions").iter().any(|c| c["type"] == condition && c["status"] == "True")
}

/// Compiles an established definition. Rows come best version first.
pub fn rows(definition: &Value) -> Vec<Row> {
    let versions = tree::list(definition, "/spec/versions");
    let compiled = |version| (version, Arc::new(Schema::compile(&source(version))));
    let versions: Vec<Compiled<'_>> = versions.iter().map(compiled).collect();
    let Some(stored) = versions.iter().find(|(v, _)| v["storage"] == true) else { return Vec::new() };
    let conversion = Arc::new(Conversion::of(definition));
    let named = versions.iter().map(|(v, schema)| (tree::text(v, "/name").to_owned(), schema.clone()));
    let mut shared = Shared {
        conversion,
        selectable: selectable(versions.iter().map(|(version, _)| *version)),
        schemas: Arc::new(named.collect()),
        versions: versions.iter().map(|(v, _)| tree::text(v, "/name").to_owned()).collect(),
        unserved: Arc::new([]),
    };
    let of = |shared: &Shared, is_served: bool| -> Vec<Row> {
        let storage_row = Arc::new(row(definition, stored, stored.0, shared, None));
        let made = |version: &Compiled<'_>| match std::ptr::eq(version, stored) {
            true => storage_row.clone(),
            false => Arc::new(row(definition, version, stored.0, shared, Some(storage_row.clone()))),
        };
        let chosen = versions.iter().filter(|(v, _)| (v["served"] == true) == is_served);
        chosen.map(|version| Row::from(made(version))).collect()
    };
    if versions.iter().any(|(v, _)| v["served"] != true) {
        shared.unserved = of(&shared, false).into();
    }
    let mut rows = of(&shared, true);
    rows.sort_by_key(|r| version_rank(&r.version));
    rows
}

/// A version, and what its objects may hold.
type Compiled<'v> = (&'v Value, Arc<Schema>);

/// State that all rows of a definition share.
struct Shared {
    conversion: Arc<Conversion>,
    selectable: Arc<[(String, JsonPath)]>,
    schemas: Schemas,
    versions: Arc<[String]>,
    unserved: Arc<[Row]>,
}

/// The schema a version is described by; one without allows everything.
fn source(version: &Value) -> Cow<'_, Value> {
    let anything = || Cow::Owned(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    version.pointer("/schema/openAPIV3Schema").map_or_else(anything, Cow::Borrowed)
}

fn selectable<'v>(versions: impl Iterator<Item = &'v Value>) -> Arc<[(String, JsonPath)]> {
    let mut found: Vec<(String, JsonPath)> = Vec::new();
    for field in versions.flat_map(|v| tree::list(v, "/selectableFields")) {
        let text = tree::text(field, "/jsonPath");
        let label = text.trim_start_matches('.').to_owned();
        if let Ok(path) = JsonPath::parse(text)
            && !found.iter().any(|(l, _)| *l == label)
        {
            found.push((label, path));
        }
    }
    found.into()
}

fn row(
    definition: &Value,
    (version, schema): &Compiled<'_>,
    stored: &Value,
    shared: &Shared,
    kept: Option<Arc<Resource>>,
) -> Resource {
    let (group, names) = (tree::text(definition, "/spec/group"), &definition["status"]["acceptedNames"]);
    let text = |key: &str| names[key].as_str().unwrap_or("");
    let (name, kind, plural) =
        (tree::text(version, "/name"), text("kind"), tree::text(definition, "/spec/names/plural"));
    let source = source(version);
    let item = merge::root(group, name, kind, schema);
    let list_kind =
        Some(text("listKind")).filter(|l| !l.is_empty()).map_or_else(|| format!("{kind}List"), str::to_owned);
    let list_schema = merge::list(&list_kind, &item);
    let terminating = is_true(definition, "Terminating");
    let (columns, cells) = columns(version);
    let labels = tree::list(version, "/selectableFields")
        .iter()
        .map(|f| tree::text(f, "/jsonPath").trim_start_matches('.').to_owned())
        .collect();
    let served = CrdVersion {
        definition: tree::name(definition).to_owned(),
        schema: schema.clone(),
        schemas: shared.schemas.clone(),
        versions: shared.versions.clone(),
        unserved: shared.unserved.clone(),
        text: Arc::new((*source).clone()),
        hash: Sha256::digest(format!("{names}|{}|{source}", version["subresources"])).into(),
        pieces: OnceLock::new(),
        columns,
        cells,
        scale: scale(version),
        selectable: shared.selectable.clone(),
        labels,
        conversion: shared.conversion.clone(),
        warning: warning(version, group, kind),
        terminating,
    };
    let storage_version = tree::text(stored, "/name");
    Resource {
        group: owned(group),
        version: owned(name),
        kind: owned(kind),
        list_kind: Cow::Owned(list_kind),
        plural: owned(plural),
        singular: owned(text("singular")),
        short_names: all(tree::list(names, "/shortNames")),
        categories: all(tree::list(names, "/categories")),
        namespaced: definition["spec"]["scope"] == "Namespaced",
        verbs: if terminating { borrowed(&LAST_VERBS) } else { borrowed(&VERBS) },
        subresources: Cow::Owned(subresources(version, group, name, kind)),
        storage: (owned(group), owned(storage_version)),
        storage_kind: owned(kind),
        storage_json: true,
        etcd_prefix: Cow::Owned(format!("/registry/{group}/{plural}")),
        storage_version_hash: Cow::Owned(storage_hash(group, storage_version, kind)),
        returns_deleted: false,
        kept,
        custom: Some(Custom { schema: item, list_schema, behind: Arc::new(served) }),
    }
}

fn subresources(version: &Value, group: &str, name: &str, kind: &str) -> Vec<Subresource> {
    let mut out = Vec::new();
    if version.pointer("/subresources/status").is_some_and(Value::is_object) {
        out.push(Subresource {
            name: Cow::Borrowed("status"),
            group: owned(group),
            version: owned(name),
            kind: owned(kind),
            verbs: borrowed(&OF_SUBRESOURCES),
            response_group: Cow::Borrowed(""),
            response_version: Cow::Borrowed(""),
        });
    }
    if version.pointer("/subresources/scale").is_some_and(Value::is_object) {
        out.push(Subresource {
            name: Cow::Borrowed("scale"),
            group: Cow::Borrowed("autoscaling"),
            version: Cow::Borrowed("v1"),
            kind: Cow::Borrowed("Scale"),
            verbs: borrowed(&OF_SUBRESOURCES),
            response_group: Cow::Borrowed("autoscaling"),
            response_version: Cow::Borrowed("v1"),
        });
    }
    out
}

fn scale(version: &Value) -> Option<Scale> {
    let scale = version.pointer("/subresources/scale").filter(|s| s.is_object())?;
    let path = |key: &str| steps(scale[key].as_str().unwrap_or(""));
    Some(Scale {
        spec: path("specReplicasPath"),
        status: path("statusReplicasPath"),
        selector: Some(path("labelSelectorPath")).filter(|p| !p.is_empty()),
    })
}

fn warning(version: &Value, group: &str, kind: &str) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    let own = version["deprecationWarning"].as_str().map(str::to_owned);
    Some(own.unwrap_or_else(|| format!("{group}/{} {kind} is deprecated", tree::text(version, "/name"))))
}

/// Help of a column every table has.
const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
/// Help of a column every table has.
const AGE: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

fn columns(version: &Value) -> (Vec<Column>, Vec<JsonPath>) {
    let column = |name: &str, kind: &str, format: &str, description: &str, priority: i64| Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        description: description.to_owned(),
        priority: i32::try_from(priority).unwrap_or(0),
    };
    let mut columns = vec![column("Name", "string", "name", NAME, 0)];
    let mut cells = Vec::new();
    for own in tree::list(version, "/additionalPrinterColumns") {
        let Ok(path) = JsonPath::parse(tree::text(own, "/jsonPath")) else { continue };
        let name = tree::text(own, "/name");
        let description = match tree::text(own, "/description") {
            "" => format!("Custom resource definition column (in JSONPath format): {}", tree::text(own, "/jsonPath")),
            text => text.to_owned(),
        };
        let priority = tree::int(own, "/priority").unwrap_or(0);
        columns.push(column(name, tree::text(own, "/type"), tree::text(own, "/format"), &description, priority));
        cells.push(path);
    }
    // Only a definition without columns of its own gets the age.
    if cells.is_empty()
        && let Ok(path) = JsonPath::parse(".metadata.creationTimestamp")
    {
        columns.push(column("Age", "date", "", AGE, 0));
        cells.push(path);
    }
    (columns, cells)
}

#[cfg(test)]
mod tests {
    use super::super::version::{version, version_of};
    use super::*;
    use crate::rows::Rows;

    #[test]
    fn each_served_version_has_a_row() {
        let definition = json!({"metadata": {"name": "foos.ex.com"}, "spec": {"group": "ex.com", "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": false, "deprecated": true},
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                 "additionalPrinterColumns": [{"name": "R", "type": "integer", "jsonPath": ".spec.replicas"}]},
                {"name": "v0", "served": false, "storage": false}]},
            "status": {"acceptedNames": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["fo"]}}});
        let rows = rows(&definition);
        let versions: Vec<&str> = rows.iter().map(|r| &*r.version).collect();
        assert_eq!(versions, ["v1", "v1beta1"]);
        assert!(rows[0].is_storage() && rows[1].storage().is(&rows[0]));
        assert_eq!((&*rows[0].etcd_prefix, &*rows[0].storage_version_hash), ("/registry/ex.com/foos", "AWA96Ab7FbE="));
        let subs: Vec<&str> = rows[0].subresources.iter().map(|s| &*s.name).collect();
        assert_eq!(subs, ["status", "scale"]);
        let one = version_of(&rows[0]).expect("served");
        assert_eq!(one.columns.len(), 2);
        assert_eq!(one.scale.as_ref().map(|s| s.spec.join(".")), Some("spec.replicas".to_owned()));
        assert_eq!(steps(".spec.replicas[0]"), ["spec", "replicas[0]"]);
        assert_eq!(one.versions.join(" "), "v1beta1 v1 v0", "as the definition has them");
        let nothing = Rows::default();
        let unserved = version(&nothing, &rows[0], "v0").expect("a row all the same");
        assert_eq!((&*unserved.version, unserved.storage().is(&unserved)), ("v0", false));
        assert!(version(&nothing, &rows[0], "v2").is_none());
        assert_eq!(
            version_of(&rows[1]).and_then(|s| s.warning.clone()).as_deref(),
            Some("ex.com/v1beta1 Foo is deprecated")
        );
    }
}
