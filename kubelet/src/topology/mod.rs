//! The topology manager: places what containers have to themselves near one another, or refuses pods for which that cannot
//! be had. Answers for upstream's `pkg/kubelet/cm/topologymanager`.
//!
//! In: policy, scope and options, the machine's NUMA nodes, hints of the managers of processors, memory and devices. Out: one
//! placement for a container or a pod, which those managers follow when they allocate. Nothing is allocated here.

mod error;
pub mod machine;
mod mask;
mod merge;
pub mod metrics;

pub use error::TopologyError;
pub use machine::NumaNodes;
pub use mask::{NodeMask, combinations};

use crate::pods;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use merge::{Numa, merge};
use shared::flags::{parse_bool, parse_integer};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Instant;
use tokio::sync::Mutex;

/// Number of nodes that upstream supports unless it is told otherwise.
const MOST_NODES: usize = 8;
const PREFER_CLOSEST: &str = "prefer-closest-numa-nodes";
const MAX_NODES: &str = "max-allowable-numa-nodes";

/// A possible placement of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// NUMA nodes; none for no matter which.
    pub affinity: Option<NodeMask>,
    /// The placement needs no more nodes than necessary.
    pub preferred: bool,
}

/// Possible placements by resource: none where it does not matter, an empty list where there is none.
pub type Hints = BTreeMap<String, Option<Vec<Hint>>>;

/// Marks the hints preferred that need no more nodes than necessary.
pub fn prefer(masks: Vec<NodeMask>, is_preferred: impl Fn(NodeMask) -> bool) -> Vec<Hint> {
    masks.into_iter().map(|mask| Hint { affinity: Some(mask), preferred: is_preferred(mask) }).collect()
}

/// Refusal of a pod that cannot run here: the status' reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

impl Refusal {
    /// A refusal for an error that upstream does not name. Upstream's `unexpectedAdmissionError`.
    pub fn unexpected(error: impl std::fmt::Display) -> Self {
        Self {
            reason: "UnexpectedAdmissionError",
            message: format!("Allocate failed due to {error}, which is unexpected"),
        }
    }

    fn unaligned() -> Self {
        Self {
            reason: "TopologyAffinityError",
            message: "Resources cannot be allocated with Topology locality".to_owned(),
        }
    }
}

/// A manager of resources that containers have to themselves. Upstream's `HintProvider`.
#[async_trait]
pub trait HintProvider: Send + Sync {
    /// Possible placements of what a container asks for.
    fn hints(&self, pod: &Pod, container: &Container) -> Hints;

    /// Possible placements of what a pod's containers ask for together.
    fn pod_hints(&self, pod: &Pod) -> Hints;

    /// Gives a container what it asks for, as near to the placement as possible; one that has it keeps it.
    ///
    /// # Errors
    /// There is not enough.
    async fn allocate(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Refusal>;

    /// Takes back what a pod has.
    fn release(&self, uid: &str);
}

/// `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// Resources are placed wherever their managers place them.
    #[default]
    None,
    /// Every pod is admitted.
    BestEffort,
    /// Pods are admitted whose resources are on as few nodes as possible.
    Restricted,
    /// Pods are admitted whose resources are on one node.
    SingleNumaNode,
}

impl FromStr for TopologyPolicy {
    type Err = TopologyError;

    fn from_str(name: &str) -> Result<Self, TopologyError> {
        match name {
            "" | "none" => Ok(Self::None),
            "best-effort" => Ok(Self::BestEffort),
            "restricted" => Ok(Self::Restricted),
            "single-numa-node" => Ok(Self::SingleNumaNode),
            other => Err(TopologyError::Policy(other.to_owned())),
        }
    }
}

/// `topologyManagerScope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlacementScope {
    Container,
    Pod,
}

impl FromStr for PlacementScope {
    type Err = TopologyError;

    fn from_str(name: &str) -> Result<Self, TopologyError> {
        match name {
            "" | "container" => Ok(Self::Container),
            "pod" => Ok(Self::Pod),
            other => Err(TopologyError::Scope(other.to_owned())),
        }
    }
}

/// Settings of the topology manager in the configuration.
#[derive(Clone, Debug, Default)]
pub struct TopologyConfig {
    /// `topologyManagerPolicy`.
    pub policy: String,
    /// `topologyManagerScope`.
    pub scope: String,
    /// `topologyManagerPolicyOptions`.
    pub options: BTreeMap<String, String>,
}

/// `topologyManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    prefer_closest: bool,
    most_nodes: usize,
}

impl Options {
    /// Reads the options. All are stable: no feature gate guards one.
    fn parse(options: &BTreeMap<String, String>) -> Result<Self, TopologyError> {
        let mut found = Self { prefer_closest: false, most_nodes: MOST_NODES };
        for (name, value) in options {
            match name.as_str() {
                PREFER_CLOSEST => {
                    let value = parse_bool(value);
                    found.prefer_closest =
                        value.map_err(|cause| TopologyError::NotBool { name: name.clone(), cause })?;
                }
                MAX_NODES => found.most_nodes = most_nodes(name, value)?,
                _ => return Err(TopologyError::Option(name.clone())),
            }
        }
        Ok(found)
    }
}

fn most_nodes(name: &str, value: &str) -> Result<usize, TopologyError> {
    let number = parse_integer(value);
    let number = number.map_err(|cause| TopologyError::NotNumber { name: name.to_owned(), cause })?;
    let number = usize::try_from(number).ok().filter(|number| *number >= MOST_NODES);
    let number = number.ok_or_else(|| TopologyError::TooSmall { name: name.to_owned(), least: MOST_NODES })?;
    if number > MOST_NODES {
        tracing::warn!(number, "The value of max-allowable-numa-nodes is more than the default recommended value");
    }
    Ok(number)
}

/// Places what pods have to themselves.
pub struct TopologyManager {
    policy: TopologyPolicy,
    scope: PlacementScope,
    numa: Numa,
    /// Held while a pod is placed: nobody takes what its placement was chosen for.
    placing: Mutex<()>,
}

impl TopologyManager {
    /// A manager for a machine.
    ///
    /// # Errors
    /// A setting is unknown, or does not suit the machine; upstream's texts.
    pub fn new(config: &TopologyConfig, machine: &NumaNodes) -> Result<Self, TopologyError> {
        let policy: TopologyPolicy = config.policy.parse()?;
        if policy == TopologyPolicy::None {
            return Ok(Self {
                policy,
                scope: PlacementScope::Container,
                numa: Numa::default(),
                placing: Mutex::default(),
            });
        }
        let options = Options::parse(&config.options)?;
        let numa = Numa::new(machine, options.prefer_closest)?;
        if numa.count() > options.most_nodes {
            return Err(TopologyError::TooManyNodes(options.most_nodes));
        }
        let scope = config.scope.parse()?;
        metrics::show_alignment("container", "numa_node");
        metrics::show_alignment("pod", "numa_node");
        Ok(Self { policy, scope, numa, placing: Mutex::default() })
    }

    /// The policy.
    pub fn policy(&self) -> TopologyPolicy {
        self.policy
    }

    /// Gives a pod's containers what they have to themselves. A pod that is refused keeps nothing.
    ///
    /// # Errors
    /// The pod cannot run here.
    pub async fn admit(&self, pod: &Pod, providers: &[&dyn HintProvider]) -> Result<(), Refusal> {
        let begun = Instant::now();
        let outcome = match (self.policy, self.scope) {
            (TopologyPolicy::None, _) => self.allocate_all(pod, providers, Hint::default()).await,
            (_, PlacementScope::Container) => self.admit_containers(pod, providers).await,
            (_, PlacementScope::Pod) => self.admit_whole(pod, providers).await,
        };
        if outcome.is_err() {
            providers.iter().for_each(|provider| provider.release(pods::uid(pod)));
        }
        metrics::admission(begun, outcome.is_err() && self.policy != TopologyPolicy::None);
        outcome
    }

    async fn admit_containers(&self, pod: &Pod, providers: &[&dyn HintProvider]) -> Result<(), Refusal> {
        let _placing = self.placing.lock().await;
        for (container, _) in pods::by_start(pod) {
            let hints: Vec<Hints> = providers.iter().map(|provider| provider.hints(pod, container)).collect();
            let hint = self.placement("container", pod, &hints)?;
            allocate(pod, container, providers, hint).await?;
            self.count_aligned("container");
        }
        Ok(())
    }

    async fn admit_whole(&self, pod: &Pod, providers: &[&dyn HintProvider]) -> Result<(), Refusal> {
        let _placing = self.placing.lock().await;
        let hints: Vec<Hints> = providers.iter().map(|provider| provider.pod_hints(pod)).collect();
        let hint = self.placement("pod", pod, &hints)?;
        self.allocate_all(pod, providers, hint).await?;
        self.count_aligned("pod");
        Ok(())
    }

    fn placement(&self, scope: &str, pod: &Pod, hints: &[Hints]) -> Result<Hint, Refusal> {
        let (hint, is_admitted) = merge(self.policy, &self.numa, hints);
        tracing::debug!(pod = pods::describe(pod), ?hint, is_admitted, "Merged topology hints");
        if is_admitted {
            return Ok(hint);
        }
        if self.policy == TopologyPolicy::SingleNumaNode {
            metrics::aligned(scope, "numa_node", false);
        }
        Err(Refusal::unaligned())
    }

    fn count_aligned(&self, scope: &str) {
        if self.policy == TopologyPolicy::SingleNumaNode {
            metrics::aligned(scope, "numa_node", true);
        }
    }

    async fn allocate_all(&self, pod: &Pod, providers: &[&dyn HintProvider], hint: Hint) -> Result<(), Refusal> {
        for (container, _) in pods::by_start(pod) {
            allocate(pod, container, providers, hint).await?;
        }
        Ok(())
    }
}

async fn allocate(
    pod: &Pod,
    container: &Container,
    providers: &[&dyn HintProvider],
    hint: Hint,
) -> Result<(), Refusal> {
    for provider in providers {
        provider.allocate(pod, container, hint).await?;
    }
    Ok(())
}

#[cfg(test)]
mod recorded_tests;
#[cfg(test)]
mod tests;
