//! PodTopologyLabels: a pod learns the zone and region of the node it is bound to. Answers for upstream's
//! `plugin/pkg/admission/podtopologylabels`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use shared::status::Status;

use super::{Attributes, Plugin};
use crate::api::Reader;
use crate::machinery::tree;
use crate::registry::core::binding::BINDINGS;
use crate::registry::core::node::NODES;
use crate::registry::core::pod::PODS;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// The plugin.
pub(super) struct PodTopologyLabels {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for PodTopologyLabels {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let binding = a.of(PODS) && a.subresource == "binding";
        if !binding && !a.is(PODS) && !a.is(BINDINGS) {
            return Ok(());
        }
        let Some(object) = a.object.as_deref_mut() else { return Ok(()) };
        let node = match tree::text(object, "/target/name") {
            "" => tree::text(object, "/spec/nodeName"),
            target => target,
        };
        if node.is_empty() {
            return Ok(());
        }
        let Some(node) = self.reader.get(NODES, "", node) else { return Ok(()) };
        for key in LABELS {
            if let Some(value) = tree::label(&node, key) {
                *tree::field(object, &["metadata", "labels", key]) = json!(value);
            }
        }
        Ok(())
    }
}
