//! NodeUnschedulable: cordoned nodes take no pods but those that tolerate it. Answers for upstream's
//! `pkg/scheduler/framework/plugins/nodeunschedulable`.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Context, Filter, Plugin, Requeue};
use crate::framework::{ClusterEvent, CycleState, Hint, ProfileError, Status};
use crate::model::selector::{Effect, Taint};
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "NodeUnschedulable";

struct NodeUnschedulable {
    taint: Taint,
}

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let key = "node.kubernetes.io/unschedulable".to_owned();
    let it = Arc::new(NodeUnschedulable { taint: Taint { key, value: String::new(), effect: Effect::NoSchedule } });
    Ok(Plugin::new(NAME).filter(&it).requeue(&it).node_only())
}

impl NodeUnschedulable {
    /// The taint has no value that could be compared.
    fn tolerated(&self, pod: &PodInfo) -> bool {
        pod.tolerations.iter().any(|t| t.tolerates(&self.taint, false))
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if node.base.unschedulable && !self.tolerated(pod) {
            return Status::unresolvable("node(s) were unschedulable");
        }
        Status::SUCCESS
    }
}

impl Requeue for NodeUnschedulable {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        match event {
            ClusterEvent::Target { new, .. } => self.tolerated(new).into(),
            _ => event
                .node_if(|old, new| old.unschedulable != new.unschedulable)
                .is_some_and(|n| !n.unschedulable || self.tolerated(pod))
                .into(),
        }
    }
}
