//! The machine, the settings that decide about its resources, and the tiers of pods.

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
    /// Returns the value of `status.qosClass`.
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
