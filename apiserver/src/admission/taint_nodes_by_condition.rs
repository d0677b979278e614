//! TaintNodesByCondition: a new node takes no pods until it has shown that it is ready. Answers for upstream's
//! `plugin/pkg/admission/nodetaint`.

use async_trait::async_trait;
use serde_json::json;
use shared::status::Status;

use super::{Attributes, Plugin};
use crate::machinery::tree;

/// The plugin.
pub(super) struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        const KEY: &str = "node.kubernetes.io/not-ready";
        if let Some(node) = a.object.as_deref_mut()
            && let Some(taints) = tree::list_mut(node, &["spec", "taints"])
            && !taints.iter().any(|t| tree::text(t, "/key") == KEY && tree::text(t, "/effect") == "NoSchedule")
        {
            taints.push(json!({"key": KEY, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}
