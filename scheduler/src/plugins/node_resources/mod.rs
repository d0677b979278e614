//! NodeResourcesFit and NodeResourcesBalancedAllocation. Answers for upstream's
//! `pkg/scheduler/framework/plugins/noderesources`.

pub mod balanced;
pub mod fit;
pub mod strategy;

use serde::Deserialize;

use crate::model::{NodeInfo, PodInfo, Resource};

/// A resource and how much it counts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub struct ResourceSpec {
    kind: ResourceKind,
    weight: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: String,
    #[serde(default)]
    weight: i64,
}

/// Kinds of resources, so that the hot path compares no names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ResourceKind {
    Cpu,
    Memory,
    Storage,
    Scalar(String),
}

impl From<Written> for ResourceSpec {
    fn from(w: Written) -> Self {
        let kind = match w.name.as_str() {
            "cpu" => ResourceKind::Cpu,
            "memory" => ResourceKind::Memory,
            "ephemeral-storage" => ResourceKind::Storage,
            _ => ResourceKind::Scalar(w.name),
        };
        Self { kind, weight: w.weight.max(1) }
    }
}

impl ResourceKind {
    fn of(&self, r: &Resource) -> i64 {
        match self {
            Self::Cpu => r.milli_cpu,
            Self::Memory => r.memory,
            Self::Storage => r.ephemeral_storage,
            Self::Scalar(name) => r.get(name),
        }
    }
}

impl ResourceSpec {
    fn defaults() -> Vec<Self> {
        [ResourceKind::Cpu, ResourceKind::Memory].map(|kind| Self { kind, weight: 1 }).to_vec()
    }

    /// Request of the pod, without stand-ins.
    fn asked(&self, pod: &PodInfo) -> i64 {
        self.kind.of(&pod.requests)
    }

    /// Returns the allocatable amount of a node, and the amount taken with the pod on it, with stand-ins or without.
    fn allocatable_and_taken(&self, pod: &PodInfo, node: &NodeInfo, non_zero: bool) -> (i64, i64) {
        let asked = self.kind.of(if non_zero { &pod.non_zero } else { &pod.requests });
        let taken = match self.kind {
            ResourceKind::Cpu if non_zero => node.non_zero_cpu,
            ResourceKind::Memory if non_zero => node.non_zero_memory,
            // Who does not ask for an extended resource is not judged by it.
            ResourceKind::Scalar(_) if asked == 0 => return (0, 0),
            _ => self.kind.of(&node.requested),
        };
        (self.kind.of(&node.base.allocatable), taken.saturating_add(asked))
    }
}
