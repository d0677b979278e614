//! Annotations that tell where a pod comes from.

/// `api`, `file` or `http`.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// The hash that identifies one version of a static pod.
pub const HASH: &str = "kubernetes.io/config.hash";
/// Annotation with the time at which the kubelet first saw the pod.
pub const SEEN: &str = "kubernetes.io/config.seen";
/// On mirror pods: the hash of their static pod.
pub use shared::types::MIRROR;
/// Value of [`SOURCE`] for pods of the API server.
pub const SOURCE_API: &str = "api";
