//! DefaultBinder: creates the Binding.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::framework::api::Api;
use crate::framework::plugin::{Bind, Plugin};
use crate::framework::{ConfigError, CycleState, Status};
use crate::model::PodInfo;

/// Upstream's name.
pub const NAME: &str = "DefaultBinder";

struct DefaultBinder;

/// Builds the plugin.
///
/// # Errors
/// None; takes no arguments.
pub fn build(_: &Value) -> Result<Plugin, ConfigError> {
    Ok(Plugin::new(NAME).bind(&Arc::new(DefaultBinder)))
}

#[async_trait]
impl Bind for DefaultBinder {
    async fn bind(&self, api: &dyn Api, _: &CycleState, pod: &PodInfo, node: &str) -> Status {
        match api.bind(pod, node).await {
            Ok(()) => Status::SUCCESS,
            Err(e) => Status::error(e.to_string()),
        }
    }
}
