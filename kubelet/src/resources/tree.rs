//! The cgroup tree as the kubelet asks it.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Versions of the cgroup file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Separate hierarchies.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Failure of a cgroup operation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CgroupError(pub String);

/// Usage of a cgroup, for stats and metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Cumulative CPU nanoseconds.
    pub cpu_ns: u64,
    /// Bytes charged.
    pub memory_usage: u64,
    /// Usage without inactive file pages.
    pub working_set: u64,
    /// Anonymous bytes.
    pub rss: u64,
    /// Minor page faults.
    pub page_faults: u64,
    /// Major page faults.
    pub major_page_faults: u64,
    /// Processes.
    pub processes: u64,
    /// Bytes of swap.
    pub swap: Option<u64>,
    /// The most swap, where it is limited.
    pub swap_limit: Option<u64>,
    /// The most memory, where it is limited.
    pub memory_limit: Option<u64>,
}

/// The cgroup tree of the kubelet. Blocking file operations; call from `spawn_blocking`.
/// Implementations: the real one ([`super::FsCgroups`]) and a no-op for
/// `--cgroups-per-qos=false`.
pub trait Cgroups: Send + Sync {
    /// Creates the node (`kubepods`) and tier cgroups and holds them to `enforced`, where it names anything.
    fn ensure_tree(&self, enforced: &BTreeMap<String, Quantity>) -> Result<(), CgroupError>;
    /// Holds a cgroup of the machine's that is there already to the amounts reserved for it; `path` is as the driver
    /// writes it. Answers for upstream's `enforceExistingCgroup`.
    fn enforce(&self, path: &str, reserved: &BTreeMap<String, Quantity>) -> Result<(), CgroupError>;
    /// Memory of all pods: the limit in bytes, where there is one, and the working set.
    fn pods_memory(&self) -> Option<(u64, u64)>;
    /// Recomputes the tiers' cpu shares, and what memory they are kept and may have, from the pods that run.
    fn update_tiers(&self, active: &[&Pod]) -> Result<(), CgroupError>;
    /// Creates the pod's cgroup with its limits; idempotent.
    fn ensure_pod(&self, pod: &Pod) -> Result<(), CgroupError>;
    /// Raises those limits of the pod's cgroup that are lower than what the pod has now: its containers, which are
    /// still to be resized, must stay below it all the time.
    fn grow_pod(&self, pod: &Pod) -> Result<(), CgroupError>;
    /// The value for the CRI's `cgroup_parent`: `/kubepods/burstable/pod<uid>` (cgroupfs driver),
    /// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice` (systemd driver), empty when pods
    /// have no cgroup of their own.
    fn pod_parent(&self, pod: &Pod) -> String;
    /// Kills what is left in the pod's cgroup and removes it from every hierarchy; idempotent.
    fn remove_pod(&self, pod_uid: &str) -> Result<(), CgroupError>;
    /// Paths of the cgroups that all pods and those of each tier are in.
    fn tree(&self) -> Vec<String>;
    /// Uids of pods that have a cgroup.
    fn pods(&self) -> Vec<String>;
    /// Usage of one cgroup path below the mount (`/`, `/kubepods`, a pod's parent).
    fn usage(&self, path: &str) -> Option<Usage>;
}
