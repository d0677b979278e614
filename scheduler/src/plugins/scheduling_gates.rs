//! SchedulingGates: pods with closed gates stay out of the queue. Answers for upstream's
//! `pkg/scheduler/framework/plugins/schedulinggates`.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Plugin, PreEnqueue, Requeue};
use crate::framework::{ClusterEvent, Hint, Listers, ProfileError, Status};
use crate::model::PodInfo;

/// Upstream's name.
pub const NAME: &str = "SchedulingGates";

struct SchedulingGates;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    let it = Arc::new(SchedulingGates);
    Ok(Plugin::new(NAME).pre_enqueue(&it).requeue(&it))
}

impl PreEnqueue for SchedulingGates {
    fn pre_enqueue(&self, _: Option<&dyn Listers>, pod: &PodInfo) -> Status {
        if pod.gates.is_empty() {
            return Status::SUCCESS;
        }
        Status::unresolvable(format!("waiting for scheduling gates: [{}]", pod.gates.join(" ")))
    }
}

impl Requeue for SchedulingGates {
    fn hint(&self, _pod: &PodInfo, event: &ClusterEvent) -> Hint {
        matches!(event, ClusterEvent::Target { new, .. } if new.gates.is_empty()).into()
    }
}
