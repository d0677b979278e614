//! OpenAPI of aggregated servers: fetched on demand, and cached for a while. Answers for upstream's
//! `kube-aggregator/pkg/controllers/openapi`.
//!
//! Of a version 2 document only the part of the API service's group version is kept ([`Schemas`]). Version 3 documents
//! are passed on as they are, and made of version 2 for servers that have no other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::backend::{Backend, FetchedDocument};
use super::{Aggregator, GroupVersion, Remote};
use crate::machinery::hex::hex;
use crate::openapi::{Document, Schemas};

/// A document is asked for again after this time.
const AGAIN: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest document read.
const LIMIT: usize = 32 << 20;

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
        let schemas = Arc::new(Schemas::of_group_version(document, &remote.service.path()));
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
            let schemas = self.schemas_of(remote).await.filter(|schemas| !schemas.is_empty())?;
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
            return Some(self.schemas_of(remote).await.filter(|schemas| !schemas.is_empty())?.document());
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
                tracing::debug!(path, why = why.to_string(), "Failed to fetch OpenAPI document");
                None
            }
            Err(_) => None,
        }
    }
}
