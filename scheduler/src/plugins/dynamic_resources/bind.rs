//! Writing allocations and reservations into claims before the pod is bound, and taking reservations back. Answers for
//! upstream's `bindClaim`.

use std::time::Duration;

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};

use super::claims::{allocation, full_name, name};
use crate::framework::api::{Api, ApiError};
use crate::model::PodInfo;

const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
const CONFLICT: u16 = 409;
/// Attempts of a write that conflicts with others.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// Writes the allocation, if there is one to write, and reserves the claim for the pod. With `stamp` the time is written
/// that its devices have from then on to get ready.
///
/// # Errors
/// Upstream's words.
pub(super) async fn reserve(
    api: &dyn Api,
    claim: &ResourceClaim,
    allocate: Option<&AllocationResult>,
    pod: &PodInfo,
    stamp: bool,
) -> Result<ResourceClaim, WriteError> {
    let mut claim = claim.clone();
    for attempt in 1.. {
        match attempt_once(api, &mut claim, allocate, pod, stamp).await {
            Ok(written) => return Ok(written),
            Err(Refused::Conflict(_)) if attempt < TRIES => {
                tokio::time::sleep(PAUSE).await;
                let namespace = claim.metadata.namespace.clone().unwrap_or_default();
                claim = api
                    .resource_claim(&namespace, name(&claim))
                    .await
                    .map_err(|source| WriteError::GetUpdated { claim: full_name(&claim), source })?;
            }
            Err(Refused::Conflict(why) | Refused::Final(why)) => return Err(why),
        }
    }
    Err(WriteError::Tries)
}

/// Errors of writing a claim, or a pod's status that names one, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("get updated claim {claim} after conflict: {source}")]
    GetUpdated { claim: String, source: ApiError },
    #[error("claim {0} got deleted in the meantime")]
    Deleted(String),
    #[error("claim {0} got allocated elsewhere in the meantime")]
    Allocated(String),
    #[error("{action} {claim}: {source}")]
    Update { action: &'static str, claim: String, source: ApiError },
    #[error("create claim for extended resources {claim}: {source}")]
    Create { claim: String, source: ApiError },
    #[error("update pod {pod} ExtendedResourceClaimStatus: {source}")]
    Pod { pod: String, source: ApiError },
    #[error("get resourceclaim {claim}: {source}")]
    Get { claim: String, source: ApiError },
    #[error("update resourceclaim {claim}: {source}")]
    RemoveFinalizer { claim: String, source: ApiError },
    #[error(transparent)]
    Delete(#[from] ApiError),
    /// Others write it again and again.
    #[error("the claim is written again and again by others")]
    Tries,
}

enum Refused {
    Conflict(WriteError),
    Final(WriteError),
}

async fn attempt_once(
    api: &dyn Api,
    claim: &mut ResourceClaim,
    allocate: Option<&AllocationResult>,
    pod: &PodInfo,
    stamp: bool,
) -> Result<ResourceClaim, Refused> {
    let who = full_name(claim);
    let refused = |action: &'static str, source: ApiError| {
        let conflict = source.code == CONFLICT;
        let error = WriteError::Update { action, claim: who.clone(), source };
        if conflict { Refused::Conflict(error) } else { Refused::Final(error) }
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(Refused::Final(WriteError::Deleted(who)));
    }
    if let Some(wanted) = allocate {
        if allocation(claim).is_some() {
            return Err(Refused::Final(WriteError::Allocated(who)));
        }
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            let with = api.update_resource_claim(claim, false).await;
            *claim = with.map_err(|e| refused("add finalizer to claim", e))?;
        }
        claim.status.get_or_insert_default().allocation = Some(wanted.clone());
    }
    if stamp && let Some(allocation) = claim.status.as_mut().and_then(|status| status.allocation.as_mut()) {
        allocation.allocation_timestamp.get_or_insert_with(shared::types::now);
    }
    let consumer = ResourceClaimConsumerReference {
        resource: "pods".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        ..ResourceClaimConsumerReference::default()
    };
    // Whether there is still room for one more is the API server's to say.
    claim.status.get_or_insert_default().reserved_for.get_or_insert_default().push(consumer);
    let what = if allocate.is_some() { "add allocation and reservation to claim" } else { "add reservation to claim" };
    api.update_resource_claim(claim, true).await.map_err(|e| refused(what, e))
}

/// Deletes a claim that the scheduler made: its finalizer goes first.
///
/// # Errors
/// Upstream's words.
pub(super) async fn delete(api: &dyn Api, claim: &ResourceClaim) -> Result<(), WriteError> {
    let mut claim = claim.clone();
    for attempt in 1.. {
        claim.metadata.finalizers.get_or_insert_default().retain(|f| f != FINALIZER);
        match api.update_resource_claim(&claim, false).await {
            Ok(_) => break,
            Err(e) if e.code == CONFLICT && attempt < TRIES => {
                tokio::time::sleep(PAUSE).await;
                let namespace = claim.metadata.namespace.clone().unwrap_or_default();
                let who = full_name(&claim);
                claim = api
                    .resource_claim(&namespace, name(&claim))
                    .await
                    .map_err(|source| WriteError::Get { claim: who, source })?;
            }
            Err(source) => return Err(WriteError::RemoveFinalizer { claim: full_name(&claim), source }),
        }
    }
    Ok(api.delete_resource_claim(&claim).await?)
}

/// The claim without its allocation.
pub(super) fn deallocated(claim: &ResourceClaim) -> ResourceClaim {
    let mut claim = claim.clone();
    if let Some(status) = &mut claim.status {
        status.reserved_for = None;
        status.allocation = None;
        status.devices = None;
    }
    claim
}
