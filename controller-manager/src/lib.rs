//! kube-controller-manager: the control loops of Kubernetes v1.35, one folder each.
//!
//! `controllers` lists them, `manager` runs them, `engine` is what they share. A controller's `mod.rs` wires informers
//! and a queue, its `plan.rs` is a pure function from what was observed to the writes that follow.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(
    test,
    allow(clippy::panic, clippy::unwrap_used, clippy::type_complexity, reason = "tests fail by panicking")
)]

pub mod configz;
pub mod controllers;
pub mod engine;
pub mod manager;
pub mod migration;
pub mod options;

pub mod admission_policy_status;
pub mod attach_detach;
pub mod bootstrap;
pub mod cloud;
pub mod clusterrole_aggregation;
pub mod cronjob;
pub mod csr;
pub mod daemonset;
pub mod deployment;
pub mod device_taint_eviction;
pub mod disruption;
pub mod endpoints;
pub mod endpointslice;
pub mod endpointslice_mirroring;
pub mod ephemeral_volume;
pub mod garbage_collector;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod legacy_token_cleaner;
pub mod namespace;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod pod_certificate_cleaner;
pub mod pod_gc;
pub mod protection;
pub mod replicaset;
pub mod resource_claim;
pub mod resource_quota;
pub mod root_ca;
pub mod selinux_warning;
pub mod service_account;
pub mod service_account_token;
pub mod service_cidr;
pub mod statefulset;
pub mod storage_version_gc;
pub mod storage_version_migrator;
pub mod taint_eviction;
pub mod trust_bundle_publisher;
pub mod ttl;
pub mod ttl_after_finished;
pub mod volume_attributes_class_protection;
pub mod volume_binder;
pub mod volume_expander;

#[cfg(test)]
mod sim;

pub use manager::{run, run_in};
