//! Builders for pods and nodes in tests and benches.

pub mod check;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::model::{NodeBase, NodeInfo, PodInfo};

/// A pod under construction.
#[derive(Debug, Clone)]
pub struct PodBuilder(pub Value);

/// A pod called `name` in namespace `default` with one container.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c", "image": "img"}]},
        "status": {},
    }))
}

impl PodBuilder {
    /// Sets what lies at a JSON pointer's parent and key, e.g. `("/spec", "priority", json!(5))`.
    #[must_use]
    pub fn set(mut self, at: &str, key: &str, value: Value) -> Self {
        if let Some(parent) = self.0.pointer_mut(at) {
            parent[key] = value;
        }
        self
    }

    /// Requests CPU.
    #[must_use]
    pub fn cpu(mut self, amount: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(amount);
        self
    }

    /// Requests memory.
    #[must_use]
    pub fn memory(mut self, amount: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!(amount);
        self
    }

    /// Binds it.
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        self.set("/spec", "nodeName", json!(node))
    }

    /// Sets its priority.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        self.set("/spec", "priority", json!(priority))
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Sets the namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.set("/metadata", "namespace", json!(namespace))
    }

    /// The API object.
    pub fn api(&self) -> Pod {
        serde_json::from_value(self.0.clone()).unwrap_or_default()
    }

    /// The scheduler's form.
    pub fn info(&self) -> PodInfo {
        PodInfo::from_api(&self.api())
    }
}

/// A node under construction.
#[derive(Debug, Clone)]
pub struct NodeBuilder(pub Value);

/// A node called `name` with 4 CPUs, 16 GiB and room for 110 pods.
pub fn node(name: &str) -> NodeBuilder {
    NodeBuilder(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}},
    }))
}

impl NodeBuilder {
    /// Sets what lies at a JSON pointer's parent and key.
    #[must_use]
    pub fn set(mut self, at: &str, key: &str, value: Value) -> Self {
        if let Some(parent) = self.0.pointer_mut(at) {
            parent[key] = value;
        }
        self
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Sets an allocatable amount.
    #[must_use]
    pub fn has(self, resource: &str, amount: &str) -> Self {
        self.set("/status/allocatable", resource, json!(amount))
    }

    /// Adds a taint.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        let taint = json!({"key": key, "value": value, "effect": effect});
        match self.0["spec"]["taints"].as_array_mut() {
            Some(list) => list.push(taint),
            None => self.0["spec"]["taints"] = json!([taint]),
        }
        self
    }

    /// The API object.
    pub fn api(&self) -> Node {
        serde_json::from_value(self.0.clone()).unwrap_or_default()
    }

    /// The scheduler's form.
    pub fn base(&self) -> NodeBase {
        NodeBase::from_api(&self.api())
    }

    /// With pods on it.
    pub fn with(&self, pods: &[PodInfo]) -> Arc<NodeInfo> {
        let mut info = NodeInfo::new(self.base());
        let name = Arc::clone(info.name());
        for p in pods {
            info.add(Arc::new(p.placed(&name)));
        }
        Arc::new(info)
    }
}
