//! Fields that caches leave out of API types: no controller reads them, and they would fill memory in large clusters.

use k8s_openapi::api::core::v1::{Node, NodeStatus};

use super::pod::worth_keeping;

/// Nodes are patched, never written back whole. Most of what they report is for others.
pub fn node(node: &mut Node) {
    if let Some(annotations) = node.metadata.annotations.as_mut() {
        annotations.retain(|key, _| worth_keeping(key));
    }
    let Some(status) = node.status.take() else { return };
    let mut allocatable = status.allocatable;
    if let Some(all) = allocatable.as_mut() {
        all.retain(|name, _| name == "cpu");
    }
    node.status = Some(NodeStatus {
        addresses: status.addresses,
        allocatable,
        conditions: status.conditions,
        phase: status.phase,
        volumes_attached: status.volumes_attached,
        volumes_in_use: status.volumes_in_use,
        ..NodeStatus::default()
    });
}
