//! Node resources and cgroups: QoS classes, cgroup names and limits for pods and QoS tiers on cgroup v1 and v2, the
//! CRI resource settings of containers, capacity and allocatable of the node. Answers for upstream's
//! `pkg/kubelet/cm`, `pkg/kubelet/qos`, `kuberuntime_container_linux.go`.
//!
//! Touches only cgroups below the configured root. Everything but [`Cgroups`] implementations and
//! [`machine_info`] is pure.

mod cgroups;
mod control;
pub mod driver;
mod limits;
mod machine;
mod memory_qos;
mod name;
mod system;
pub mod systemd;
#[cfg(test)]
mod tests;

pub use cgroups::{Driver, FsCgroups, NoCgroups};
pub use limits::{Amounts, at_peak, container_resources, pod_limits, qos_class, sandbox_resources};
pub use machine::{allocatable, capacity, cgroup_version, enforced, kept_memory, machine_info, page_size, reservation};
pub use memory_qos::parse_qos_reserved;
pub use system::SystemCgroups;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Quality of service tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QosClass {
    /// Every container has cpu and memory limits equal to its requests.
    Guaranteed,
    /// Something is requested.
    Burstable,
    /// Nothing is requested.
    BestEffort,
}

impl QosClass {
    /// As in `status.qosClass`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// Capacity of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineInfo {
    /// Logical CPUs, in thousandths.
    pub cpu_millis: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of swap.
    pub swap: u64,
    /// The swap of cgroups can be limited.
    pub swap_is_limited: bool,
    /// Tasks that the kernel can number at once.
    pub max_pids: u64,
    /// Page size in bytes → number of pages configured.
    pub hugepages: BTreeMap<u64, u64>,
    /// Bytes of the file system that holds the root directory.
    pub ephemeral_storage: u64,
    /// `/etc/machine-id`, DMI product UUID, boot id, kernel release, operating-system pretty name.
    pub machine_id: String,
    /// DMI product uuid.
    pub system_uuid: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// `PRETTY_NAME` of os-release.
    pub os_image: String,
}

/// Settings that decide about allocatable and container resources.
#[derive(Clone, Debug)]
pub struct ResourceConfig {
    /// `--kube-reserved`.
    pub kube_reserved: BTreeMap<String, String>,
    /// `--system-reserved`.
    pub system_reserved: BTreeMap<String, String>,
    /// Hard eviction thresholds (`memory.available` → `100Mi` or `5%`).
    pub eviction_hard: BTreeMap<String, String>,
    /// `--max-pods`.
    pub max_pods: i64,
    /// `--pods-per-core` (0: unlimited).
    pub pods_per_core: i64,
    /// `--cpu-cfs-quota`.
    pub cpu_cfs_quota: bool,
    /// `--cpu-cfs-quota-period` in microseconds.
    pub cpu_cfs_quota_period_us: i64,
    /// `singleProcessOOMKill` (cgroup v2: false sets `memory.oom.group`).
    pub single_process_oom_kill: bool,
    /// `podPidsLimit`, -1 for none.
    pub pod_pids_limit: i64,
    /// `localStorageCapacityIsolation`.
    pub local_storage: bool,
    /// `memorySwap.swapBehavior` is `LimitedSwap`.
    pub limited_swap: bool,
    /// `memoryThrottlingFactor`; none with `MemoryQoS` off.
    pub memory_qos: Option<f64>,
    /// Share of their memory, in hundredths, that pods of better tiers are kept (`qosReserved`); none with `QOSReserved`
    /// off.
    pub qos_reserved: Option<i64>,
}

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
/// Implementations: the real one ([`FsCgroups`]) and a no-op for
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
