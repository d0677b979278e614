//! DynamicResources: pods that use resource claims.
//!
//! Pods without claims pass untouched. Devices are not allocated yet, so pods with claims are told so, in their
//! condition and events, instead of being placed where their devices may not be.

use std::sync::Arc;

use serde_json::Value;

use crate::framework::plugin::{Context, Plugin, PostFilter, PreFilter, PreFiltered, Requeue, Rescue};
use crate::framework::{ClusterEvent, ConfigError, CycleState, Hint, Profile, Status};
use crate::model::PodInfo;

/// Upstream's name.
pub const NAME: &str = "DynamicResources";

struct DynamicResources;

/// Builds the plugin.
///
/// # Errors
/// None.
pub fn build(_: &Value) -> Result<Plugin, ConfigError> {
    let it = Arc::new(DynamicResources);
    Ok(Plugin::new(NAME).pre_filter(&it).post_filter(&it).requeue(&it))
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, _: Context<'_>, _: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.resource_claims {
            return Err(Status::unresolvable("this scheduler does not allocate resource claims"));
        }
        Err(Status::SKIP)
    }
}

impl PostFilter for DynamicResources {
    fn post_filter(
        &self,
        _: Context<'_>,
        _: &Profile,
        _: &CycleState,
        _: &PodInfo,
        _: &[(usize, Status)],
    ) -> (Option<Rescue>, Status) {
        (None, Status::unschedulable("no new claims to deallocate"))
    }
}

impl Requeue for DynamicResources {
    fn hint(&self, _: &PodInfo, event: &ClusterEvent) -> Hint {
        matches!(event, ClusterEvent::Target { .. }).into()
    }
}
