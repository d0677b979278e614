//! Facts that a pod's status is made of.

use crate::facts::PodFacts;
use crate::probes::ProbeResult;
use crate::workers::observed::Observed;
use crate::workers::resize::Progress;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, ResourceStatus};
use std::collections::HashMap;

/// Result of a probe for a container's name and id.
pub type Lookup<'a> = &'a (dyn Fn(&str, &str) -> Option<ProbeResult> + Sync);

/// Everything the status is computed from.
pub struct Inputs<'a> {
    /// The pod, with the status the API server has.
    pub pod: &'a Pod,
    /// State of the pod in the runtime.
    pub observed: &'a Observed,
    /// Addresses of node and pod.
    pub facts: &'a PodFacts,
    /// The runtime's name, which container ids begin with.
    pub runtime_name: &'a str,
    /// The pod's runtime handler can mount read-only recursively.
    pub recursive_read_only: bool,
    /// Reason and message of containers that wait, by name.
    pub waiting: &'a HashMap<String, (String, String)>,
    /// Startup probe results.
    pub startup: Lookup<'a>,
    /// Readiness probe results.
    pub readiness: Lookup<'a>,
    /// Health of what a container has to itself.
    pub health: &'a (dyn Fn(&Container) -> Vec<ResourceStatus> + Sync),
    /// Conditions that were computed last time.
    pub previous: &'a [PodCondition],
    /// Set when the kubelet itself ended the pod: reason and message, phase `Failed`.
    pub failure: Option<&'a (String, String)>,
    /// A resize of the pod, if there is one.
    pub resize: &'a Progress,
    /// The pod is being stopped: nothing is restarted any more.
    pub terminating: bool,
    /// Everything has been stopped.
    pub terminated: bool,
    /// Time at which the kubelet first saw the pod.
    pub seen: Timestamp,
    /// The current time.
    pub now: Timestamp,
}
