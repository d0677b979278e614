//! Port for the scheduler's writes to the cluster, so that tests can stand in for the API server.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::model::PodInfo;

/// Failure of a call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status, 0 when there was no answer.
    pub code: u16,
    /// Message of the server or of the transport.
    pub message: String,
}

/// A volume claim whose binding is awaited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedClaim {
    /// Name of the claim, in the pod's namespace.
    pub name: String,
    /// Name of the volume that was set aside for it; `None` where a volume is provisioned.
    pub volume: Option<String>,
    /// Version of the claim in which its node stood already, if nothing had to be written; else 0.
    pub since: u64,
}

/// Calls to the API server.
#[async_trait]
pub trait Api: Send + Sync {
    /// Creates the Binding.
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ApiError>;
    /// The node that the server has a pod on, if any; 404 when it is not the one with that uid any more.
    async fn node_of(&self, pod: &PodInfo) -> Result<Option<String>, ApiError>;
    /// Writes an event about a pod that is being bound.
    fn event(&self, _pod: &PodInfo, _reason: &str, _note: String) {}
    /// Merges into a pod's status.
    async fn patch_status(&self, pod: &PodInfo, patch: serde_json::Value) -> Result<(), ApiError>;
    /// Deletes a pod, if it still is the one with that uid.
    async fn delete(&self, pod: &PodInfo) -> Result<(), ApiError>;
    /// Writes a claim.
    async fn update_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError>;
    /// Writes a volume.
    async fn update_volume(&self, volume: &PersistentVolume) -> Result<(), ApiError>;
    /// Waits until the claims of a pod are bound, for `timeout` at most; the error says why they are not.
    async fn claims_bound(
        &self,
        pod: &PodInfo,
        claims: &[AwaitedClaim],
        node: &str,
        timeout: Duration,
    ) -> Result<(), ApiError>;
    /// Reads a resource claim.
    async fn resource_claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, ApiError>;
    /// Writes a resource claim, or its status; what the server made of it comes back.
    async fn update_resource_claim(&self, claim: &ResourceClaim, status: bool) -> Result<ResourceClaim, ApiError>;
    /// Makes a resource claim.
    async fn create_resource_claim(&self, claim: &ResourceClaim) -> Result<ResourceClaim, ApiError>;
    /// Deletes a resource claim.
    async fn delete_resource_claim(&self, claim: &ResourceClaim) -> Result<(), ApiError>;
    /// Takes a pod out of a resource claim's `status.reservedFor`.
    async fn unreserve_resource_claim(&self, claim: &ResourceClaim, pod: &PodInfo) -> Result<ResourceClaim, ApiError>;
}
