//! Pod workers: one task per pod that turns what is desired and what the runtime has into runtime calls.
//! Answers for upstream's `pkg/kubelet/pod_workers.go` and `pkg/kubelet/kuberuntime`.
//!
//! [`plan`] decides and is pure; the driver executes one plan at a time, observes and plans again. Nothing outside
//! of this room creates, starts or stops sandboxes and containers.

pub mod admission;
mod allocation;
pub mod app_armor;
pub mod container;
pub mod context;
pub mod dns;
mod ending;
pub mod error;
pub mod kill;
pub mod mailbox;
pub mod manager;
mod masked;
pub mod observed;
pub mod plan;
pub mod preemption;
pub mod records;
mod report;
pub mod resize;
mod resizing;
pub mod restart_all;
mod restarting;
pub mod sandbox;
pub mod security;
pub mod start;
pub mod status;
mod sysctls;
pub mod termination;
mod volumes;
pub mod worker;

#[cfg(test)]
pub(crate) mod tests;
