//! Memory of NUMA nodes: which containers have some to themselves. Answers for upstream's `pkg/kubelet/cm/memorymanager`.
//!
//! In: the policy, the machine's NUMA nodes, what is reserved of them, pods. Out: nodes for container configurations, the
//! checkpoint. Without a policy it only says so in the checkpoint.

mod error;
mod policy;
mod reserved;
mod state;

pub use error::MemoryError;
pub use reserved::{MemoryReservation, validate};
pub use state::Block;

use crate::topology::{Hint, HintProvider, Hints, NumaNodes, Refusal};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use policy::StaticPolicy;
use proto::quantity::Quantity;
use state::State;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The checkpoint, below the root directory.
const FILE: &str = "memory_manager_state";
const NONE: &str = "None";
const STATIC: &str = "Static";
const BEST_EFFORT: &str = "BestEffort";
/// Number of nodes whose sets can be gone through; upstream goes through those of any number.
const MOST_NODES: usize = 16;

/// Settings of memory in the configuration.
#[derive(Clone, Debug, Default)]
pub struct MemoryConfig {
    /// `memoryManagerPolicy`.
    pub policy: String,
    /// `reservedMemory`.
    pub reservations: Vec<MemoryReservation>,
    /// Amounts that the node keeps from pods in all, by resource.
    pub kept: BTreeMap<String, Quantity>,
}

/// Memory of one node.
pub struct MemoryManager {
    /// None where the policy is `None`.
    policy: Option<StaticPolicy>,
    state: Mutex<State>,
    file: PathBuf,
}

fn static_policy(config: &MemoryConfig, machine: &NumaNodes) -> Result<StaticPolicy, MemoryError> {
    if machine.0.len() > MOST_NODES {
        return Err(MemoryError::TooManyNodes(MOST_NODES));
    }
    let reserved = reserved::reserved(machine, &config.kept, &config.reservations)?;
    Ok(StaticPolicy::new(machine.clone(), reserved)?)
}

impl MemoryManager {
    /// The node's memory as an earlier kubelet left it, below its root directory.
    ///
    /// # Errors
    /// The policy is not usable here, or another one left its state: pods would keep what they have. Upstream's texts.
    pub fn new(root: &Path, machine: &NumaNodes, config: &MemoryConfig) -> Result<Arc<Self>, MemoryError> {
        let file = root.join(FILE);
        let policy = match config.policy.as_str() {
            "" | NONE => None,
            STATIC => Some(static_policy(config, machine)?),
            BEST_EFFORT => return Err(MemoryError::OtherPlatform(BEST_EFFORT)),
            other => return Err(MemoryError::UnknownPolicy(other.to_owned())),
        };
        let name = if policy.is_some() { STATIC } else { NONE };
        let left = State::read(&file, name).map_err(|cause| MemoryError::Restore { file: file.clone(), cause })?;
        let state = match &policy {
            Some(policy) => policy.start(left)?,
            None => State::default(),
        };
        let memory = Self { policy, state: Mutex::new(state), file };
        memory.save();
        Ok(Arc::new(memory))
    }

    /// Writes the checkpoint; a failure is logged: what runs goes on.
    fn save(&self) {
        let name = if self.policy.is_some() { STATIC } else { NONE };
        if let Err(error) = self.state.lock().write(&self.file, name) {
            tracing::error!(file = %self.file.display(), %error, "Could not save checkpoint");
        }
    }

    /// Takes back what pods have that are not there any more.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let is_changed = StaticPolicy::release(&mut self.state.lock(), is_there);
        if is_changed {
            self.save();
        }
    }

    /// Memory that a container has to itself.
    pub fn of_container(&self, uid: &str, container: &str) -> Vec<Block> {
        let state = self.state.lock();
        state.blocks.get(&(uid.to_owned(), container.to_owned())).cloned().unwrap_or_default()
    }

    /// Nodes that a container's memory is of, in the kernel's notation; empty where it may be of any. Upstream's
    /// `GetMemoryNUMANodes`.
    pub fn nodes(&self, uid: &str, container: &str) -> String {
        let blocks = self.of_container(uid, container);
        let nodes: BTreeSet<u32> = blocks.into_iter().flat_map(|block| block.numa_affinity).collect();
        nodes.iter().map(u32::to_string).collect::<Vec<String>>().join(",")
    }

    /// Memory that containers can be given to themselves, whoever has it.
    pub fn allocatable(&self) -> Vec<Block> {
        let state = self.state.lock();
        let tables = state.machine.iter().flat_map(|(id, node)| node.memory_map.iter().map(move |entry| (*id, entry)));
        let usable = tables.filter(|(_, (_, table))| table.allocatable > 0);
        usable
            .map(|(id, (kind, table))| Block { numa_affinity: vec![id], kind: kind.clone(), size: table.allocatable })
            .collect()
    }
}

#[async_trait]
impl HintProvider for MemoryManager {
    fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        let policy = self.policy.as_ref();
        policy.map(|policy| policy.hints(&self.state.lock(), pod, container)).unwrap_or_default()
    }

    fn pod_hints(&self, pod: &Pod) -> Hints {
        self.policy.as_ref().map(|policy| policy.pod_hints(&self.state.lock(), pod)).unwrap_or_default()
    }

    async fn allocate(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Refusal> {
        let Some(policy) = &self.policy else { return Ok(()) };
        let mut state = self.state.lock();
        let before = state.blocks.len();
        policy.allocate(&mut state, pod, container, hint)?;
        let is_changed = state.blocks.len() != before;
        drop(state);
        if is_changed {
            self.save();
        }
        Ok(())
    }

    fn release(&self, uid: &str) {
        self.retain(|other| other != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::machine::NumaNode;
    use serde_json::json;
    use std::fs;

    fn machine() -> NumaNodes {
        NumaNodes([(0, NumaNode { memory: 2 << 30, ..NumaNode::default() })].into())
    }

    fn config(policy: &str, reserved: &str) -> MemoryConfig {
        let reservation =
            MemoryReservation { numa_node: 0, limits: [("memory".to_owned(), reserved.to_owned())].into() };
        MemoryConfig {
            policy: policy.to_owned(),
            reservations: vec![reservation],
            kept: [("memory".to_owned(), reserved.parse().expect("an amount"))].into(),
        }
    }

    #[test]
    fn policies_are_known_and_usable() {
        let root = tempfile::tempdir().expect("a folder");
        let failure = |config: &MemoryConfig| {
            MemoryManager::new(root.path(), &machine(), config).err().map(|error| error.to_string())
        };
        assert_eq!(failure(&config("magic", "1Gi")).as_deref(), Some("unknown policy: \"magic\""));
        let windows = "policy \"BestEffort\" is not available for platform \"linux\"";
        assert_eq!(failure(&config("BestEffort", "1Gi")).as_deref(), Some(windows));
        let nothing = MemoryConfig { policy: STATIC.to_owned(), ..MemoryConfig::default() };
        let expected = "[memorymanager] you should specify the system reserved memory";
        assert_eq!(failure(&nothing).as_deref(), Some(expected));
        assert_eq!(failure(&config("None", "1Gi")), None);
        let written = fs::read_to_string(root.path().join(FILE)).expect("a checkpoint");
        assert_eq!(written, r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#);
        let file = root.path().join(FILE).display().to_string();
        let other = format!(
            "start memory manager error: could not restore state from checkpoint: [memorymanager] configured policy \
             \"Static\" differs from state checkpoint policy \"None\", please drain this node and delete the memory manager \
             checkpoint file {file:?} before restarting Kubelet"
        );
        assert_eq!(failure(&config("Static", "1Gi")), Some(other));
    }

    #[tokio::test]
    async fn the_next_kubelet_knows_who_has_memory() {
        let root = tempfile::tempdir().expect("a folder");
        let memory = || MemoryManager::new(root.path(), &machine(), &config("Static", "1Gi"));
        let amounts = json!({"cpu": "1", "memory": "512Mi"});
        let container = json!({"name": "c", "resources": {"requests": amounts, "limits": amounts}});
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let before = memory().expect("memory");
        let container = &pod.spec.as_ref().expect("a spec").containers[0];
        before.allocate(&pod, container, Hint::default()).await.expect("allocated");
        let after = memory().expect("memory");
        let block = Block { numa_affinity: vec![0], kind: "memory".to_owned(), size: 512 << 20 };
        assert_eq!((after.of_container("u", "c"), after.nodes("u", "c")), (vec![block.clone()], "0".to_owned()));
        assert_eq!(after.allocatable(), [Block { size: 1 << 30, ..block }]);
        after.release("u");
        assert_eq!(after.nodes("u", "c"), "");
        assert!(memory().expect("memory").of_container("u", "c").is_empty());
        // Less memory than before: what was given may not be there.
        let grown = MemoryManager::new(root.path(), &machine(), &config("Static", "512Mi")).err().expect("refused");
        assert!(matches!(grown, MemoryError::State(error::StateError::OtherMachine)), "{grown}");
    }
}
