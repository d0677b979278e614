//! Source of API objects that pods refer to: config maps, secrets, claims and their volumes, runtime classes,
//! service-account tokens.
//!
//! The driver answers from the API server; a standalone kubelet answers [`ObjectError::NoApiServer`]; tests
//! answer from maps.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Upstream's text where there are no bundles: without an API server, without the feature gate, or without the API.
pub const NO_TRUST_BUNDLES: &str = "ClusterTrustBundle projection is not supported in static kubelet mode";

/// Reasons why an object could not be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectError {
    /// The API server says that there is no such object: `configmap "x" not found`.
    #[error("{kind} \"{name}\" not found")]
    NotFound {
        /// `configmap`, `secret`, `persistentvolumeclaims` and the like.
        kind: &'static str,
        /// The object's name.
        name: String,
    },
    /// The kubelet runs without an API server.
    #[error("object references are not available in standalone kubelet mode")]
    NoApiServer,
    /// Anything else: the text goes into events.
    #[error("{0}")]
    Other(String),
}

/// Reasons why a pod has no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The kubelet asks for none: the gate is off, or there is no API server.
    #[error("unimplemented")]
    Unsupported,
    /// Asked for, and not issued yet.
    #[error("credential bundle is not issued yet")]
    NotIssued,
    /// The request was refused; upstream's text.
    #[error("{0}")]
    Refused(String),
}

/// Getter for objects that pods refer to. Cached by the implementation, which answers with what it read last while the API
/// server cannot be asked; calls may block on the network. Without an API server there is nothing.
#[async_trait]
pub trait ObjectSource: Send + Sync {
    /// The config map `namespace/name`.
    async fn config_map(&self, _namespace: &str, _name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The secret `namespace/name`.
    async fn secret(&self, _namespace: &str, _name: &str) -> Result<Arc<Secret>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The claim `namespace/name`.
    async fn claim(&self, _namespace: &str, _name: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// Changes the status of a claim by a JSON merge patch: the claim as it is then.
    async fn patch_claim_status(
        &self,
        _namespace: &str,
        _name: &str,
        _patch: &Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The persistent volume of this name.
    async fn persistent_volume(&self, _name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The description of a CSI driver, if there is one.
    async fn csi_driver(&self, _name: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The volume attachment of this name, as it is now.
    async fn volume_attachment(&self, _name: &str) -> Result<Arc<VolumeAttachment>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// All bundles of trust anchors.
    async fn trust_bundles(&self) -> Result<Arc<Vec<ClusterTrustBundle>>, ObjectError> {
        Err(ObjectError::Other(NO_TRUST_BUNDLES.to_owned()))
    }
    /// Private key and chain of certificates, in PEM, of a source of a pod's projected volume.
    fn pod_certificate(&self, _pod: &Pod, _volume: &str, _source: usize) -> Result<(String, String), CertificateError> {
        Err(CertificateError::Unsupported)
    }
    /// Numbers of such sources of pods, by signer and state.
    fn pod_certificates(&self, _pods: &[Arc<Pod>]) -> BTreeMap<(String, &'static str), usize> {
        BTreeMap::new()
    }
    /// The resource claim `namespace/name`, as it is now.
    async fn resource_claim(&self, _namespace: &str, _name: &str) -> Result<Arc<ResourceClaim>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The runtime class of this name.
    async fn runtime_class(&self, _name: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// The service account `namespace/name`, as it is now.
    async fn service_account(&self, _namespace: &str, _name: &str) -> Result<Arc<ServiceAccount>, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
    /// Forgets the objects that none of these pods, all of the node's, refers to.
    fn retain(&self, _pods: &[Arc<Pod>]) {}
    /// Asks for a token of the pod's service account. Not cached: the volume manager decides when to renew
    /// (at 80 % of the lifetime or after 24 h). `spec.boundObjectRef` is filled in by the caller.
    async fn token(&self, _pod: &Pod, _spec: TokenRequestSpec) -> Result<TokenRequestStatus, ObjectError> {
        Err(ObjectError::NoApiServer)
    }
}

/// For a kubelet without an API server.
#[derive(Debug, Default)]
pub struct Standalone;

impl ObjectSource for Standalone {}
