//! NodeName: a pod that names its node goes there or nowhere. Answers for upstream's
//! `pkg/scheduler/framework/plugins/nodename`.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Context, Filter, Plugin, Requeue};
use crate::framework::{ClusterEvent, CycleState, Hint, ProfileError, Status};
use crate::model::{NodeInfo, PodInfo};

/// Upstream's name.
pub const NAME: &str = "NodeName";

struct NodeName;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(NodeName);
    Ok(Plugin::new(NAME).filter(&it).requeue(&it).node_only())
}

impl Filter for NodeName {
    fn filter(&self, _: Context<'_>, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if pod.node_name.as_ref().is_some_and(|n| n != node.name()) {
            return Status::unresolvable("node(s) didn't match the requested node name");
        }
        Status::SUCCESS
    }
}

impl Requeue for NodeName {
    fn hint(&self, pod: &PodInfo, event: &ClusterEvent) -> Hint {
        event.node_if(|_, _| false).is_some_and(|n| pod.node_name.as_ref().is_none_or(|name| *name == n.name)).into()
    }
}
