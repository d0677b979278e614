//! Binding conditions of devices (DRADeviceBindingConditions): a pod is bound when the drivers of its devices say that they
//! are ready for it.
//!
//! A claim whose devices failed, or did not get ready in time, is given back by PostFilter, so that others are tried.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::claims::{allocation, name};
use crate::framework::api::{Api, ApiError};

/// Progress of a claim's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    Waiting,
    Failed(String),
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let devices = allocation(claim).and_then(|a| a.devices.as_ref());
    devices.and_then(|d| d.results.as_ref()).into_iter().flatten()
}

fn conditions(result: &DeviceRequestAllocationResult) -> &[String] {
    result.binding_conditions.as_deref().unwrap_or_default()
}

/// Reports whether a claim has devices that have to get ready.
pub(super) fn awaits(claim: &ResourceClaim) -> bool {
    results(claim).any(|result| !conditions(result).is_empty())
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let all = claim.status.as_ref().and_then(|status| status.devices.as_ref());
    all.into_iter().flatten().find(|d| d.device == result.device && d.driver == result.driver && d.pool == result.pool)
}

fn is_true(condition: &&Condition) -> bool {
    condition.status == "True"
}

/// Progress of a claim, by what its drivers say. Answers for upstream's `isClaimReadyForBinding`.
pub(super) fn readiness(claim: &ResourceClaim) -> Readiness {
    if allocation(claim).is_none() {
        return Readiness::Waiting;
    }
    for result in results(claim).filter(|result| !conditions(result).is_empty()) {
        let Some(status) = status_of(claim, result) else { return Readiness::Waiting };
        let said = |kind: &String| status.conditions.iter().flatten().find(|c| c.type_ == *kind).filter(is_true);
        if let Some(failed) = result.binding_failure_conditions.iter().flatten().find_map(said) {
            let text = format!("reason={}, message={:?}", failed.reason, failed.message);
            return Readiness::Failed(format!("claim {} binding failed: {text}", name(claim)));
        }
        if !conditions(result).iter().all(|kind| said(kind).is_some()) {
            return Readiness::Waiting;
        }
    }
    Readiness::Ready
}

/// Reports whether the devices of a claim should have been ready by now.
pub(super) fn is_overdue(claim: &ResourceClaim, timeout: Duration, now: Timestamp) -> bool {
    let Some(since) = allocation(claim).and_then(|a| a.allocation_timestamp.as_ref()) else { return false };
    awaits(claim) && since.0.checked_add(timeout).is_ok_and(|until| until < now)
}

/// Reports whether a claim has to be given back so that other devices can be tried.
pub(super) fn is_stuck(claim: &ResourceClaim, timeout: Duration, now: Timestamp) -> bool {
    allocation(claim).is_some()
        && match readiness(claim) {
            Readiness::Ready => false,
            Readiness::Waiting => is_overdue(claim, timeout, now),
            Readiness::Failed(_) => true,
        }
}

/// Errors of waiting for devices, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindingError {
    /// The claim cannot be read.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A device failed; this says which condition did.
    #[error("{0}")]
    Failed(String),
    /// The devices of a claim take too long.
    #[error("claim {0} binding timeout")]
    Overdue(String),
    /// All of it takes too long.
    #[error("device binding timeout")]
    Timeout,
}

/// Waits until all claims are ready, looking once in every `pause`.
///
/// # Errors
/// Upstream's words for devices that failed or took too long.
pub(super) async fn wait(
    api: &dyn Api,
    claims: &[ResourceClaim],
    timeout: Duration,
    pause: Duration,
) -> Result<(), BindingError> {
    let until = Instant::now() + timeout;
    loop {
        let mut all_ready = true;
        for claim in claims {
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            let claim = api.resource_claim(namespace, name(claim)).await?;
            match readiness(&claim) {
                Readiness::Ready => {}
                Readiness::Failed(why) => return Err(BindingError::Failed(why)),
                Readiness::Waiting if is_overdue(&claim, timeout, Timestamp::now()) => {
                    return Err(BindingError::Overdue(name(&claim).to_owned()));
                }
                Readiness::Waiting => all_ready = false,
            }
        }
        if all_ready {
            return Ok(());
        }
        if Instant::now() + pause > until {
            return Err(BindingError::Timeout);
        }
        tokio::time::sleep(pause).await;
    }
}
