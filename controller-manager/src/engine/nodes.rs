//! Readings of nodes: conditions and taints. Answers for upstream's `pkg/util/node`, pkg/util/taints.

use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};

/// The label with a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// A condition by type.
#[must_use]
pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// Reports whether the Ready condition is True.
#[must_use]
pub fn ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|c| c.status == "True")
}

/// The taints.
#[must_use]
pub fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
}
