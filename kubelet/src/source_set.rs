//! Sets of pods that sources deliver.

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
