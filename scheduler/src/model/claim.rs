//! The resource claims of a pod: named in its spec, or made for it and named in its status.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

/// One entry of `spec.resourceClaims`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodClaim {
    /// Name of the entry.
    pub entry: String,
    /// Source of the claim.
    pub source: ClaimSource,
}

/// Sources of a claim: an object's name, or a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClaimSource {
    /// A claim of this name.
    Named(String),
    /// Made from a template. `None`: not yet; `Some(None)`: none is needed.
    Generated(Option<Option<String>>),
    /// The entry says neither.
    Unknown,
}

/// Reads a pod's claims; `None` when it has none.
pub fn of(pod: &Pod) -> Option<Arc<[PodClaim]>> {
    let entries = pod.spec.as_ref()?.resource_claims.as_deref().filter(|c| !c.is_empty())?;
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref()).unwrap_or_default();
    let source = |entry: &k8s_openapi::api::core::v1::PodResourceClaim| match entry {
        e if e.resource_claim_name.is_some() => ClaimSource::Named(e.resource_claim_name.clone().unwrap_or_default()),
        e if e.resource_claim_template_name.is_some() => {
            let status = statuses.iter().find(|s| s.name == e.name);
            ClaimSource::Generated(status.map(|s| s.resource_claim_name.clone()))
        }
        _ => ClaimSource::Unknown,
    };
    Some(entries.iter().map(|e| PodClaim { entry: e.name.clone(), source: source(e) }).collect())
}
