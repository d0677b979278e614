//! Volumes of pods: what a pod's `spec.volumes` becomes on the host, and what a `volumeMount` becomes in a
//! container. Answers for upstream's `pkg/kubelet/volumemanager` and the in-tree plugins of `pkg/volume`.
//!
//! In: the pod, facts about it, API objects through [`crate::objects::ObjectSource`]. Out: host paths to bind
//! into containers. Everything lives under `<root-dir>/pods/<uid>/volumes/kubernetes.io~<plugin>/<name>`
//! (sub-paths under `<root-dir>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>`); nothing outside of the
//! root directory is written. Must not talk to the runtime and must not report events itself.

pub(crate) mod block;
mod claims;
mod content;
pub mod csi;
mod disks;
mod empty_dir;
pub(crate) mod error;
mod flex;
pub(crate) mod growth;
mod helper;
mod hostpath;
mod manager;
mod measure;
pub(crate) mod metrics;
mod mounted;
pub(crate) mod mounts;
mod nested;
mod refresh;
mod setup;
pub(crate) mod tokens;
mod trust;
mod usage;
mod writer;

pub use error::VolumeError;
pub use manager::Manager;
pub use mounted::MountedVolume;
pub use usage::{Usage, VolumeUsage};

use crate::facts::PodFacts;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod, VolumeMount};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The volume room's door; the worker driver calls it from many tasks at once.
#[async_trait]
pub trait Volumes: Send + Sync {
    /// Makes every volume of the pod ready (idempotent; cheap when they are already there) and returns them by
    /// name. The first volume that fails decides the error, after all others were tried.
    async fn mount(&self, pod: &Pod, facts: &PodFacts) -> Result<BTreeMap<String, MountedVolume>, VolumeError>;

    /// Brings contents that may have changed up to date: config maps, secrets, downward API, projected tokens
    /// near expiry; atomic `..data` symlink switch. Called about once a minute per running pod.
    async fn refresh(&self, pod: &Pod, facts: &PodFacts) -> Result<(), VolumeError>;

    /// The host path for one volume mount, `subPath`/`subPathExpr` (expanded by the caller into `sub_path`)
    /// included: safe against symlinks that leave the volume, created when missing, bound so that later swaps by
    /// the container do not matter. `index` is the mount's position in the container.
    async fn mount_path(
        &self,
        pod: &Pod,
        container: &str,
        index: usize,
        volume: &MountedVolume,
        mount: &VolumeMount,
        sub_path: &str,
    ) -> Result<PathBuf, VolumeError>;

    /// A small file of a volume, none when it is not there; links do not lead out of the volume.
    async fn read(&self, volume: &MountedVolume, path: &str) -> Result<Option<String>, VolumeError>;

    /// Takes down everything of a pod: tmpfs and sub-path mounts, then files. Never crosses a mount point while
    /// deleting. Idempotent; also for pods that the kubelet knows only from the disk.
    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError>;

    /// Volumes that must not be detached: `status.volumesInUse` of the node, sorted.
    fn in_use(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns when [`Self::in_use`] has changed.
    async fn in_use_changed(&self) {
        std::future::pending().await
    }

    /// Groups that the pod's processes have beside those that it names: its persistent volumes ask for them. Upstream's
    /// `GetExtraSupplementalGroupsForPod`.
    fn groups(&self, _pod: &Pod) -> Vec<i64> {
        Vec::new()
    }

    /// Takes in the node as the API server has it: pods may wait for volumes to be attached to it.
    fn observe_node(&self, _node: &Arc<Node>) {}

    /// Numbers of the pod's volumes, at most a minute old. Those of a driver that does not answer are left out.
    async fn usage(&self, _pod: &Pod) -> Arc<Vec<VolumeUsage>> {
        Arc::default()
    }

    /// Gives back what no pod on the disk uses: an earlier kubelet died, or a plugin failed.
    async fn sweep(&self) {}

    /// Uids of pods that still have a directory under the root directory (clean-up after a restart).
    fn pods_on_disk(&self) -> Vec<String>;
}
