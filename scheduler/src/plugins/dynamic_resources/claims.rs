//! From a pod's entries to its claims.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use crate::framework::Listers;
use crate::model::PodInfo;
use crate::model::claim::{ClaimSource, PodClaim};

/// Namespace and name.
pub(super) fn full_name(claim: &ResourceClaim) -> String {
    let meta = &claim.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), name(claim))
}

/// Name.
pub(super) fn name(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

/// Uid.
pub(super) fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

/// Returns the allocation of a claim.
pub(super) fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// Reports whether the pod is among those the claim is reserved for.
pub(super) fn reserved_for(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let list = claim.status.as_ref().and_then(|s| s.reserved_for.as_ref());
    list.into_iter().flatten().any(|r| r.uid == *pod.uid)
}

/// Errors of a pod's claims, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    /// A claim that is made for the pod is not there yet.
    #[error("pod \"{0}\": ResourceClaim not created yet")]
    NotCreated(String),
    /// An entry names neither a claim nor a template.
    #[error("pod \"{pod}\", spec.resourceClaim \"{entry}\": none of the supported fields are set")]
    NoSource { pod: String, entry: String },
    /// A claim is not there.
    #[error("could not find resource claim \"{0}\"")]
    NotFound(String),
    /// A claim is going.
    #[error("resourceclaim {0:?} is being deleted")]
    Deleting(String),
    /// A claim of the name of the pod's belongs to another.
    #[error("ResourceClaim {claim} was not created for pod {pod} (pod is not owner)")]
    Foreign { claim: String, pod: String },
}

/// The name of an entry's claim, if it has one, and whether the claim must belong to the pod.
///
/// # Errors
/// Upstream's words when it is not known yet.
pub(super) fn named<'a>(pod: &PodInfo, entry: &'a PodClaim) -> Result<Option<(&'a str, bool)>, ClaimError> {
    match &entry.source {
        ClaimSource::Named(name) => Ok(Some((name, false))),
        ClaimSource::Generated(Some(name)) => Ok(name.as_deref().map(|n| (n, true))),
        ClaimSource::Generated(None) => Err(ClaimError::NotCreated(pod.to_string())),
        ClaimSource::Unknown => Err(ClaimError::NoSource { pod: pod.to_string(), entry: entry.entry.to_string() }),
    }
}

/// Fails when the claim of an entry is not known yet, in upstream's words.
pub(super) fn all_named(pod: &PodInfo) -> Result<(), ClaimError> {
    let mut entries = pod.resource_claims.iter().flat_map(|all| all.iter());
    entries.try_for_each(|entry| named(pod, entry).map(drop))
}

/// Names of the pod's claims, as far as they are known.
pub(super) fn names(pod: &PodInfo) -> impl Iterator<Item = &str> {
    pod.resource_claims.iter().flat_map(|all| all.iter()).filter_map(|e| match &e.source {
        ClaimSource::Named(name) | ClaimSource::Generated(Some(Some(name))) => Some(name.as_str()),
        _ => None,
    })
}

/// The pod's claims, each once.
///
/// # Errors
/// Upstream's words when one is missing, going, or somebody else's.
pub(super) fn of(listers: &dyn Listers, pod: &PodInfo) -> Result<Vec<Arc<ResourceClaim>>, ClaimError> {
    let (mut out, mut known) = (Vec::new(), HashSet::new());
    for entry in pod.resource_claims.iter().flat_map(|all| all.iter()) {
        let Some((name, own)) = named(pod, entry)? else { continue };
        let claim = listers
            .resource_claim(&pod.namespace, name)
            .ok_or_else(|| ClaimError::NotFound(format!("{}/{name}", pod.namespace)))?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(ClaimError::Deleting(name.to_owned()));
        }
        if own && !belongs(&claim, pod) {
            return Err(ClaimError::Foreign { claim: full_name(&claim), pod: pod.to_string() });
        }
        if known.insert(name) {
            out.push(claim);
        }
    }
    Ok(out)
}

fn belongs(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    shared::types::controller_of(&claim.metadata).is_some_and(|owner| owner.uid == *pod.uid)
}
