//! What the scheduler does to the cluster: a port, so that tests can stand in for the API server.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::model::PodInfo;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status, 0 when there was no answer.
    pub code: u16,
    /// What the server (or the transport) said.
    pub message: String,
}

/// Calls to the API server.
#[async_trait]
pub trait Api: Send + Sync {
    /// Creates the Binding.
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ApiError>;
    /// Merges into a pod's status.
    async fn patch_status(&self, pod: &PodInfo, patch: serde_json::Value) -> Result<(), ApiError>;
    /// Deletes a pod, if it still is the one with that uid.
    async fn delete(&self, pod: &PodInfo) -> Result<(), ApiError>;
    /// Writes a claim.
    async fn update_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError>;
    /// Writes a volume.
    async fn update_volume(&self, volume: &PersistentVolume) -> Result<(), ApiError>;
    /// Waits until the claims are bound, each within `timeout`; tells why not.
    async fn claims_bound(
        &self,
        pod: &PodInfo,
        claims: &[String],
        node: &str,
        timeout: Duration,
    ) -> Result<(), ApiError>;
}
