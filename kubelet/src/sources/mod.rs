//! Sources of pods: the API server, a folder of manifests, a manifest URL. Each delivers its whole current set; the pod
//! map merges them.
//! Answers for upstream's `pkg/kubelet/config`.

pub mod api;
pub mod file;
pub mod manifest;
pub mod mirror;
mod references;
pub mod url;

/// Annotations that tell where a pod comes from.
pub mod annotations {
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
}

use k8s_openapi::api::core::v1::Pod;

/// The sources of static pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// `--pod-manifest-path`, `staticPodPath`.
    File,
    /// `--manifest-url`, `staticPodURL`.
    Url,
}

/// The whole current set of one source.
#[derive(Clone, Debug)]
pub struct SourceSet {
    /// Source of the pods.
    pub source: Source,
    /// All its pods.
    pub pods: Vec<Pod>,
}
