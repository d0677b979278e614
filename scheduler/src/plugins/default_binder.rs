//! DefaultBinder: creates the Binding. Answers for upstream's `pkg/scheduler/framework/plugins/defaultbinder`.
//!
//! When the answer is lost on the way nobody knows whether the pod is bound. Then the server is asked where the pod is: to
//! take a pod for unbound that is bound would give its room away a second time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::framework::api::{Api, ApiError};
use crate::framework::plugin::{Bind, Plugin};
use crate::framework::{CycleState, ProfileError, Status};
use crate::model::PodInfo;

/// Upstream's name.
pub const NAME: &str = "DefaultBinder";

/// Pauses before the server is asked where the pod is; a server that restarts is back by then.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
];

struct DefaultBinder;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ProfileError> {
    Ok(Plugin::new(NAME).bind(&Arc::new(DefaultBinder)))
}

#[async_trait]
impl Bind for DefaultBinder {
    async fn bind(&self, api: &dyn Api, _: &CycleState, pod: &PodInfo, node: &str) -> Status {
        match api.bind(pod, node).await {
            Ok(()) => Status::SUCCESS,
            Err(e) if uncertain(&e) && is_bound(api, pod, node).await => Status::SUCCESS,
            Err(e) => Status::error(e.to_string()),
        }
    }
}

/// Reports whether the Binding may have been made all the same: no answer, one of a server that gave up waiting, or a
/// conflict, which may be with the same request sent before.
fn uncertain(error: &ApiError) -> bool {
    matches!(error.code, 0 | 409 | 500..)
}

async fn is_bound(api: &dyn Api, pod: &PodInfo, node: &str) -> bool {
    for pause in PAUSES {
        tokio::time::sleep(pause).await;
        match api.node_of(pod).await {
            Ok(found) => return found.as_deref() == Some(node),
            Err(error) if matches!(error.code, 400..500) => return false,
            Err(_) => {}
        }
    }
    false
}
