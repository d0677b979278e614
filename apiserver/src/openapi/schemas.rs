//! OpenAPI of other servers' group versions, cut out of their version 2 documents.
//!
//! Only the paths of the group version and the definitions these need are taken; definitions this server has itself stay
//! its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{Document, v3_of_v2};
use crate::crd::Pieces;
use crate::machinery::hex::hex;

/// A group version's part of a version 2 document.
#[derive(Debug, Default, PartialEq)]
pub struct Schemas {
    /// Differs when the content does.
    pub etag: Vec<u8>,
    paths: Map<String, Value>,
    definitions: Map<String, Value>,
}

/// All of them in one.
pub(super) fn merged(all: &[Arc<Schemas>]) -> Pieces {
    let own = proto::openapi::v2_definitions();
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for schemas in all {
        paths.extend(schemas.paths.clone());
        definitions.extend(schemas.definitions.clone().into_iter().filter(|(name, _)| !own.contains(name)));
    }
    Pieces::new(&paths, &definitions)
}

impl Schemas {
    /// Extracts the part of a document that belongs to the group version below a path.
    pub fn of_group_version(document: Value, path: &str) -> Self {
        part(document, path)
    }

    /// True when there are no paths of the group version.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The hash that is part of the document's address.
    pub fn hash(&self) -> String {
        hex(&self.etag)
    }

    /// Builds the version 3 document.
    pub fn document(&self) -> Document {
        let body = v3_of_v2::document(&self.paths, &self.definitions);
        let body = serde_json::to_vec(&body).unwrap_or_default();
        Document { content_type: "application/json", etag: format!("\"{}\"", self.hash()), body }
    }
}

/// Extracts the part of a document that belongs to a group version.
fn part(mut document: Value, prefix: &str) -> Schemas {
    let take = |document: &mut Value, field: &str| match document.get_mut(field).map(Value::take) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (shared, mut all) = (take(&mut document, "parameters"), take(&mut document, "definitions"));
    let mut paths = take(&mut document, "paths");
    paths.retain(|path, _| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
    let mut wanted = BTreeSet::new();
    for item in paths.values_mut() {
        put_in(item, &shared);
        mentioned(item, &mut wanted);
    }
    let mut definitions = Map::new();
    while let Some(name) = wanted.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        if let Some(definition) = all.remove(&name) {
            mentioned(&definition, &mut wanted);
            definitions.insert(name, definition);
        }
    }
    let text = serde_json::to_vec(&(&paths, &definitions)).unwrap_or_default();
    Schemas { etag: Sha256::digest(text).to_vec(), paths, definitions }
}

/// Shared parameters, where they are referred to.
fn put_in(value: &mut Value, shared: &Map<String, Value>) {
    let named = value.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/parameters/"));
    if let Some(parameter) = named.and_then(|name| shared.get(name)) {
        *value = parameter.clone();
        return;
    }
    match value {
        Value::Object(map) => map.values_mut().for_each(|v| put_in(v, shared)),
        Value::Array(list) => list.iter_mut().for_each(|v| put_in(v, shared)),
        _ => {}
    }
}

fn mentioned(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let reference = map.get("$ref").and_then(Value::as_str);
            names.extend(reference.and_then(|r| r.strip_prefix("#/definitions/")).map(str::to_owned));
            map.values().for_each(|v| mentioned(v, names));
        }
        Value::Array(list) => list.iter().for_each(|v| mentioned(v, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_definitions_of_the_group_are_kept() {
        let reference = |kind: &str| json!({"schema": {"$ref": format!("#/definitions/{kind}")}});
        let document = json!({
            "paths": {"/apis/a.io/v1/xs": {"get": {"responses": {"200": reference("X")}, "parameters": [{"$ref": "#/parameters/p"}]}},
                "/apis/a.io/v1beta1/xs": {}, "/apis/a.io/v1": {}},
            "parameters": {"p": {"name": "pretty", "in": "query"}},
            "definitions": {"X": {"properties": {"metadata": {"$ref": "#/definitions/Meta"}, "y": {"$ref": "#/definitions/Y"}}},
                "Y": {"properties": {"again": {"$ref": "#/definitions/X"}}}, "Meta": {}, "Z": {}}});
        let found = part(document, "/apis/a.io/v1");
        assert_eq!(found.paths.keys().collect::<Vec<_>>(), ["/apis/a.io/v1", "/apis/a.io/v1/xs"]);
        assert_eq!(found.definitions.keys().collect::<Vec<_>>(), ["Meta", "X", "Y"]);
        let parameter = &found.paths["/apis/a.io/v1/xs"]["get"]["parameters"][0];
        assert_eq!(parameter, &json!({"name": "pretty", "in": "query"}));
    }
}
