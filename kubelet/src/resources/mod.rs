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
mod model;
mod name;
mod no_cgroups;
mod system;
pub mod systemd;
#[cfg(test)]
mod tests;
mod tree;

pub use cgroups::{Driver, FsCgroups};
pub use limits::{
    Amounts, at_peak, container_resources, pod_limits, pod_requests, qos_class, sandbox_resources, swaps,
};
pub use machine::{allocatable, capacity, cgroup_version, enforced, kept_memory, machine_info, page_size, reservation};
pub use memory_qos::parse_qos_reserved;
pub use model::{MachineInfo, QosClass, ResourceConfig};
pub use no_cgroups::NoCgroups;
pub use system::SystemCgroups;
pub use tree::{CgroupError, CgroupVersion, Cgroups, Usage};
