//! NodePorts: a host port can be had once per node. Answers for upstream's `pkg/scheduler/framework/plugins/nodeports`.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Context, Filter, Plugin, PreFilter, PreFiltered, Requeue};
use crate::framework::{ClusterEvent, CycleState, Hint, ProfileError, Status};
use crate::model::{HostPort, NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "NodePorts";

struct NodePorts;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(NodePorts);
    Ok(Plugin::new(NAME).pre_filter(&it).filter(&it).requeue(&it).node_only())
}

fn conflict(wanted: &[HostPort], used: &[HostPort]) -> bool {
    wanted.iter().any(|w| used.iter().any(|u| w.conflicts(u)))
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, _: Context<'_>, _: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.ports.is_empty() { Err(Status::SKIP) } else { Ok(PreFiltered::All) }
    }
}

impl Filter for NodePorts {
    fn filter(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if conflict(&pod.ports, &node.ports) {
            return Status::unschedulable("node(s) didn't have free ports for the requested pod ports");
        }
        Status::SUCCESS
    }
}

impl Requeue for NodePorts {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Node { old: None, .. } => Hint::Queue,
            ClusterEvent::AssignedPod { old: Some(old), new: None } => conflict(&pod.ports, &old.ports).into(),
            _ => Hint::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{check::Check, node, pod};
    use serde_json::json;

    #[test]
    fn filter() {
        let with = |name: &str, port: i32| {
            pod(name).set("/spec/containers/0", "ports", json!([{"containerPort": 80, "hostPort": port}])).info()
        };
        let n = node("n").with(&[with("a", 8080)]);
        let check = Check::of(super::build, json!(null));
        assert_eq!(check.filter(&with("b", 8080), &n), "node(s) didn't have free ports for the requested pod ports");
        assert_eq!(check.filter(&with("b", 8081), &n), "");
        assert_eq!(check.filter(&pod("c").info(), &n), "");
    }
}
