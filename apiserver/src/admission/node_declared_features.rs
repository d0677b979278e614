//! NodeDeclaredFeatureValidator: a running pod is not changed in a way that its node does not declare a feature for. Answers
//! for upstream's `plugin/pkg/admission/nodedeclaredfeatures`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use shared::declared_features::{missing, needed_to_change_trees};
use shared::status::Status;

use super::{Attributes, Plugin};
use crate::api::Reader;
use crate::machinery::tree;
use crate::registry::core::node::NODES;

/// The plugin, where the gate NodeDeclaredFeatures is on.
pub(super) struct NodeDeclaredFeatureValidator {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
}

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let (Some(new), Some(old)) = (a.object(), a.old_object) else { return Ok(()) };
        let generation = |pod: &Value| pod.pointer("/metadata/generation").and_then(Value::as_i64);
        let node = tree::text(new, "/spec/nodeName");
        // A pod asks for something else only where its generation differs.
        if node.is_empty() || generation(new) == generation(old) {
            return Ok(());
        }
        let needed = needed_to_change_trees(old, new)
            .map_err(|error| a.forbidden(format!("failed to infer pod capability requirements: {error}")))?;
        if needed.is_empty() {
            return Ok(());
        }
        let Some(found) = self.reader.get(NODES, "", node) else {
            return Err(a.forbidden(format!("node {node:?} not found")));
        };
        let declared = tree::list(&found, "/status/declaredFeatures");
        let declared: Vec<String> = declared.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let missing = missing(&needed, &declared);
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        Err(a.forbidden(format!("pod update requires features {missing} which are not available on node {node:?}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::testing::{Fixed, Write};

    #[tokio::test]
    async fn resizes_need_what_the_node_declares() {
        let pod = |node: &str, cpu: &str, generation: i64| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "e", "generation": generation},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
                "status": {"qosClass": "Guaranteed"}})
        };
        let fixed = Arc::new(Fixed::default());
        fixed.put("", "nodes", json!({"metadata": {"name": "old"}, "status": {}}));
        let declared = json!({"declaredFeatures": ["GuaranteedQoSPodCPUResize"]});
        fixed.put("", "nodes", json!({"metadata": {"name": "new"}, "status": declared}));
        let plugin = NodeDeclaredFeatureValidator { reader: fixed };
        let lacks = "pods \"p\" is forbidden: pod update requires features GuaranteedQoSPodCPUResize which are not available on node \"old\"";
        let gone = "pods \"p\" is forbidden: node \"gone\" not found";
        for (node, cpu, generation, refused) in [
            ("old", "2", 2, Some(lacks)),
            ("old", "1", 2, None),
            ("old", "2", 1, None),
            ("new", "2", 2, None),
            ("gone", "2", 2, Some(gone)),
            ("", "2", 2, None),
        ] {
            for subresource in ["", "resize"] {
                let write = Write::update("", "pods", subresource, "p", pod(node, cpu, generation), pod(node, "1", 1));
                let outcome = write.told(&plugin, false).await;
                let error = outcome.refused.map(|status| status.message);
                assert_eq!(error.as_deref(), refused, "{node:?} {cpu} {generation} {subresource:?}");
            }
        }
    }
}
