//! Run-time facts about a pod and the node that the pure parts need next to the pod object itself.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Facts about a pod that are known only at run time, and about the node it runs on.
#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    /// Name of the node object.
    pub node_name: String,
    /// The node's internal IPs, primary first (`status.hostIP`, `status.hostIPs`).
    pub host_ips: Vec<String>,
    /// The pod's IPs, primary first; empty before the sandbox has one.
    pub pod_ips: Vec<String>,
    /// The node's allocatable resources: limits that a container does not set fall back to them.
    pub allocatable: BTreeMap<String, Quantity>,
}
