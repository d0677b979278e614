//! From the kind that a spec names to the resource that is served, and its scale. Answers for upstream's
//! `scaleForResourceMappings`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use shared::client::path;
use tokio::sync::Mutex;

use super::error::TargetError;
use super::plan::Scale;
use crate::engine::clock;
use crate::engine::discovery::{Catalogue, Served, discover};
use crate::engine::rest::{Rest, RestError};

/// Age up to which knowledge of what is served is used.
const FRESH: Duration = Duration::from_secs(30);

/// Served resources, asked for when they are needed.
#[derive(Default)]
pub struct Targets {
    known: Mutex<Option<(Instant, Arc<Catalogue>)>>,
}

/// A scale and where it is written back to.
pub struct FoundScale {
    /// The numbers that matter.
    pub scale: Scale,
    /// Path of the target.
    pub path: String,
    /// The object as it was read.
    pub body: Value,
}

impl Targets {
    async fn catalogue(&self, rest: &Rest) -> Result<Arc<Catalogue>, RestError> {
        let mut known = self.known.lock().await;
        if let Some((at, catalogue)) = known.as_ref()
            && clock::instant().saturating_duration_since(*at) < FRESH
        {
            return Ok(Arc::clone(catalogue));
        }
        let catalogue = Arc::new(discover(rest).await?);
        *known = Some((clock::instant(), Arc::clone(&catalogue)));
        Ok(catalogue)
    }

    /// The resource of a kind as the custom metrics API names it.
    pub async fn resource(&self, rest: &Rest, api_version: &str, kind: &str) -> Result<String, TargetError> {
        let catalogue = self.catalogue(rest).await?;
        mappings(&catalogue, api_version, kind)
            .first()
            .map(|s| s.group_resource())
            .ok_or_else(|| no_match(api_version, kind))
    }

    /// The version of the custom metrics API to speak.
    pub async fn custom_metrics(&self, rest: &Rest) -> Result<&'static str, TargetError> {
        let catalogue = self.catalogue(rest).await?;
        let serves = |v: &str| catalogue.all.iter().any(|s| s.group == "custom.metrics.k8s.io" && s.version == v);
        match ["v1beta2", "v1beta1"].into_iter().find(|v| serves(v)) {
            Some(version) => Ok(version),
            None => Err(TargetError::NoCustomMetrics),
        }
    }

    /// The scale of the object a spec names.
    pub async fn scale(
        &self,
        rest: &Rest,
        namespace: &str,
        api_version: &str,
        kind: &str,
        name: &str,
    ) -> Result<FoundScale, TargetError> {
        if malformed(api_version) {
            return Err(TargetError::GroupVersion(api_version.to_owned()));
        }
        let catalogue = self.catalogue(rest).await?;
        let candidates = mappings(&catalogue, api_version, kind);
        if candidates.is_empty() {
            return Err(no_match(api_version, kind));
        }
        let mut first = None;
        for served in candidates {
            let path = path::object(&served.path(Some(namespace)), name)? + "/scale";
            match rest.get(&path).await {
                Ok(body) => return Ok(FoundScale { scale: read(&body), path, body }),
                Err(e) => drop(first.get_or_insert(e)),
            }
        }
        Err(first.map_or(TargetError::NoScale, TargetError::Server))
    }
}

/// The resources of a kind in a group, whatever version the spec names: each once, in its preferred version.
fn mappings<'a>(catalogue: &'a Catalogue, api_version: &str, kind: &str) -> Vec<&'a Served> {
    let group = group(api_version);
    catalogue.preferred.iter().filter(|s| s.group == group && s.kind == kind).collect()
}

/// Reports whether this is no version of a group at all.
pub fn malformed(api_version: &str) -> bool {
    api_version.matches('/').count() > 1
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn no_match(api_version: &str, kind: &str) -> TargetError {
    TargetError::NoMatch { kind: kind.to_owned(), group: group(api_version).to_owned() }
}

fn read(body: &Value) -> Scale {
    let number = |v: &Value| v.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    Scale {
        wanted: number(&body["spec"]["replicas"]),
        observed: number(&body["status"]["replicas"]),
        selector: body["status"]["selector"].as_str().unwrap_or_default().to_owned(),
    }
}
