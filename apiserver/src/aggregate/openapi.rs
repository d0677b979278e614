//! OpenAPI of aggregated servers: fetched on demand, and cached for a while. Answers for upstream's
//! `kube-aggregator/pkg/controllers/openapi`.
//!
//! Of a version 2 document only the paths of the API service's group version and the definitions these need are taken;
//! definitions this server has itself stay its own. Version 3 documents are passed on as they are, and made of version
//! 2 for servers that have no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::backend::{Backend, FetchedDocument};
use super::{Aggregator, GroupVersion, Remote, openapi_v3};
use crate::crd::openapi_v2::Pieces;
use crate::openapi::{Document, hex};

/// A document is asked for again after this time.
const AGAIN: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest document read.
const LIMIT: usize = 32 << 20;

/// A group version's part of a version 2 document.
#[derive(Debug, Default, PartialEq)]
pub struct Schemas {
    /// Differs when the content does.
    pub etag: Vec<u8>,
    paths: Map<String, Value>,
    definitions: Map<String, Value>,
}

#[derive(Default)]
struct CachedDocument {
    asked: Option<Instant>,
    etag: String,
    schemas: Option<Arc<Schemas>>,
    addresses_asked: Option<Instant>,
    address: Option<String>,
}

/// Cached documents, by group version.
#[derive(Default)]
pub struct OpenApiCache(Mutex<BTreeMap<GroupVersion, CachedDocument>>);

/// All of them in one.
pub fn merged(all: &[Arc<Schemas>]) -> Pieces {
    let own = proto::openapi::v2_definitions();
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for schemas in all {
        paths.extend(schemas.paths.clone());
        definitions.extend(schemas.definitions.clone().into_iter().filter(|(name, _)| !own.contains(name)));
    }
    Pieces::new(&paths, &definitions)
}

impl Aggregator {
    fn usable(&self) -> Vec<Arc<Remote>> {
        self.directory().remotes().filter(|r| r.service.is_available()).cloned().collect()
    }

    /// Version 2 of all servers that can be used.
    pub async fn schemas(&self) -> Vec<Arc<Schemas>> {
        let remotes = self.usable();
        self.schemas.0.lock().retain(|key, _| self.directory.load().remotes.contains_key(key));
        let all = join_all(remotes.iter().map(|remote| self.schemas_of(remote))).await;
        all.into_iter().flatten().collect()
    }

    async fn schemas_of(&self, remote: &Remote) -> Option<Arc<Schemas>> {
        let backend = remote.backend.as_ref().ok()?;
        let key = remote.service.key();
        let (etag, last) = {
            let mut kept = self.schemas.0.lock();
            let known = kept.entry(key.clone()).or_default();
            if known.asked.is_some_and(|asked| asked.elapsed() < AGAIN) {
                return known.schemas.clone();
            }
            // Those who ask meanwhile get what there was.
            known.asked = Some(Instant::now());
            (known.etag.clone(), known.schemas.clone())
        };
        let started = Instant::now();
        let headers = [("accept", "application/json"), ("if-none-match", etag.as_str())];
        let headers = if etag.is_empty() { &headers[..1] } else { &headers[..] };
        let answer = self.fetch(backend, "/openapi/v2", headers).await?;
        if answer.code != 200 {
            return last;
        }
        let document: Value = serde_json::from_slice(&answer.body).ok()?;
        let schemas = Arc::new(part(document, &remote.service.path()));
        let reason = if last.is_some() { "update" } else { "add" };
        self.meters.regenerated.with_label_values(&[remote.service.name.as_str(), reason]).inc();
        self.meters.regeneration.with_label_values(&[reason]).set(started.elapsed().as_secs_f64());
        let mut kept = self.schemas.0.lock();
        let known = kept.entry(key).or_default();
        (known.etag, known.schemas) = (answer.etag, Some(schemas.clone()));
        Some(schemas)
    }

    /// Paths and addresses of the version 3 documents of servers that can be used.
    pub async fn schema_addresses(&self) -> Vec<(String, String)> {
        let remotes = self.usable();
        let all = join_all(remotes.iter().map(|remote| async {
            let address = self.address_of(remote).await?;
            Some((remote.service.path().trim_start_matches('/').to_owned(), address))
        }));
        all.await.into_iter().flatten().collect()
    }

    async fn address_of(&self, remote: &Remote) -> Option<String> {
        let backend = remote.backend.as_ref().ok()?;
        let key = remote.service.key();
        {
            let mut kept = self.schemas.0.lock();
            let known = kept.entry(key.clone()).or_default();
            if known.addresses_asked.is_some_and(|asked| asked.elapsed() < AGAIN) {
                return known.address.clone();
            }
            known.addresses_asked = Some(Instant::now());
        }
        let answer = self.fetch(backend, "/openapi/v3", &[("accept", "application/json")]).await?;
        let path = remote.service.path();
        let address = if answer.code == 404 {
            // This server has no version 3.
            let schemas = self.schemas_of(remote).await.filter(|schemas| !schemas.paths.is_empty())?;
            format!("/openapi/v3{path}?hash={}", schemas.hash())
        } else {
            let index: Value = serde_json::from_slice(&answer.body).ok().filter(|_| answer.code == 200)?;
            index["paths"].get(path.trim_start_matches('/'))?["serverRelativeURL"].as_str()?.to_owned()
        };
        self.schemas.0.lock().entry(key).or_default().address = Some(address.clone());
        Some(address)
    }

    /// The version 3 document of another server's group version.
    pub async fn schema(&self, remote: &Remote, hash: Option<&str>) -> Option<Document> {
        let backend = remote.backend.as_ref().ok()?;
        let hash = hash.filter(|h| h.bytes().all(|b| b.is_ascii_alphanumeric()));
        let query = hash.map(|h| format!("?hash={h}")).unwrap_or_default();
        let path = format!("/openapi/v3{}{query}", remote.service.path());
        let answer = self.fetch(backend, &path, &[("accept", "application/json")]).await?;
        if answer.code == 404 {
            return Some(self.schemas_of(remote).await.filter(|schemas| !schemas.paths.is_empty())?.document());
        }
        let etag = match answer.etag.as_str() {
            "" => {
                format!("\"{}\"", hex(&Sha256::digest(&answer.body)))
            }
            etag => etag.to_owned(),
        };
        let body = answer.body.to_vec();
        (answer.code == 200).then_some(Document { content_type: "application/json", etag, body })
    }

    async fn fetch(&self, backend: &Backend, path: &str, headers: &[(&str, &str)]) -> Option<FetchedDocument> {
        let fetched = backend.fetch(self.reader.as_ref(), path, headers, LIMIT);
        match tokio::time::timeout(PATIENCE, fetched).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(why)) => {
                tracing::debug!(path, why, "Failed to fetch OpenAPI document");
                None
            }
            Err(_) => None,
        }
    }
}

impl Schemas {
    fn hash(&self) -> String {
        hex(&self.etag)
    }

    /// Builds the version 3 document.
    fn document(&self) -> Document {
        let body = openapi_v3::document(&self.paths, &self.definitions);
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
