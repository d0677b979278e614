//! NodeResourcesFit and NodeResourcesBalancedAllocation.

pub mod balanced;
pub mod fit;
pub mod strategy;

use serde::Deserialize;

use crate::model::{NodeInfo, PodInfo};

/// A resource and how much it counts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceSpec {
    /// Name.
    pub name: String,
    /// Weight; 0 stands for 1.
    #[serde(default)]
    pub weight: i64,
}

impl ResourceSpec {
    fn defaults() -> Vec<Self> {
        ["cpu", "memory"].map(|name| Self { name: name.to_owned(), weight: 1 }).to_vec()
    }

    fn weight(&self) -> i64 {
        self.weight.max(1)
    }
}

/// What the pod asks of a resource, with stand-ins or without.
fn asked(pod: &PodInfo, name: &str, non_zero: bool) -> i64 {
    if non_zero { pod.non_zero.get(name) } else { pod.requests.get(name) }
}

/// What a node has of a resource, and what would be taken with the pod on it.
fn allocatable_and_taken(pod: &PodInfo, node: &NodeInfo, name: &str, non_zero: bool) -> (i64, i64) {
    let asked = asked(pod, name, non_zero);
    let taken = match name {
        "cpu" if non_zero => node.non_zero_cpu,
        "memory" if non_zero => node.non_zero_memory,
        "cpu" | "memory" | "ephemeral-storage" => node.requested.get(name),
        _ if asked == 0 => return (0, 0),
        _ => node.requested.get(name),
    };
    (node.base.allocatable.get(name), taken.saturating_add(asked))
}
