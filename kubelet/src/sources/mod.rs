//! Sources of pods: the API server, a folder of manifests, a manifest URL. Each delivers its whole current set; the pod
//! map merges them.
//! Answers for upstream's `pkg/kubelet/config`.

pub mod api;
pub mod file;
pub mod manifest;
pub mod mirror;
mod references;
pub mod takeover;
pub mod url;
mod validation;

pub use crate::annotations;
pub use crate::source_set::{Source, SourceSet};
