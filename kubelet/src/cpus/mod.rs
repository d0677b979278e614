//! Processors of the node: which containers have some to themselves, and on which all others run. Answers for upstream's
//! `pkg/kubelet/cm/cpumanager`.
//!
//! In: the policy, the machine's topology, pods. Out: sets of processors for container configurations, updates of running
//! containers, the checkpoint. Without a policy it only says so in the checkpoint.

mod assignment;
mod distribution;
mod error;
mod machine;
mod options;
mod policy;
mod state;

pub use crate::cpu_set::CpuSet;
pub use error::CpuError;

use crate::cri::{Runtime, labels, v1};
use crate::pods;
use crate::topology::{self, Hint, HintProvider, Hints, Refusal, metrics};
use assignment::Level;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use machine::Topology;
use options::Options;
use parking_lot::Mutex;
use policy::Policy;
use proto::quantity::Quantity;
use shared::flags::FeatureGates;
use state::State;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The checkpoint, below the root directory.
const FILE: &str = "cpu_manager_state";
const NONE: &str = "none";
const STATIC: &str = "static";

/// Settings of processors in the configuration.
#[derive(Clone, Debug, Default)]
pub struct CpuConfig {
    /// `cpuManagerPolicy`.
    pub policy: String,
    /// `cpuManagerPolicyOptions`.
    pub options: BTreeMap<String, String>,
    /// `reservedSystemCPUs`; empty for as many as are reserved by amount.
    pub reserved: String,
    /// `kubeReserved` and `systemReserved`.
    pub amounts: [BTreeMap<String, String>; 2],
    /// `cpuManagerReconcilePeriod`.
    pub period: Duration,
    /// Feature gates, which guard options.
    pub gates: FeatureGates,
}

/// Processors of one node.
pub struct Cpus {
    /// None where the policy is `none`.
    policy: Option<Policy>,
    state: Mutex<State>,
    file: PathBuf,
    period: Duration,
}

/// Processors that are reserved by their amounts, rounded up.
fn reserved_number(amounts: &[BTreeMap<String, String>]) -> usize {
    let cpu = amounts.iter().filter_map(|list| list.get("cpu")).filter_map(|text| text.parse::<Quantity>().ok());
    let millis: i64 = cpu.map(|amount| amount.milli_value().max(0)).fold(0, i64::saturating_add);
    usize::try_from(millis.saturating_add(999) / 1000).unwrap_or(usize::MAX)
}

fn static_policy(
    config: &CpuConfig,
    topology: Topology,
    placement: topology::TopologyPolicy,
) -> Result<Policy, CpuError> {
    let options = Options::parse(&config.options, &config.gates)?;
    options.suit(&topology, placement)?;
    let mut policy = Policy { topology, reserved: CpuSet::default(), options };
    let all = policy.topology.all();
    let number = reserved_number(&config.amounts);
    policy.reserved = match config.reserved.as_str() {
        "" if number == 0 => return Err(CpuError::NothingReserved),
        "" => policy.take(&all, number).unwrap_or_default(),
        named => named.parse()?,
    };
    let size = policy.reserved.len();
    if size == 0 || config.reserved.is_empty() && size != number {
        return Err(CpuError::ReservedNumber { reserved: policy.reserved, number });
    }
    let unknown = policy.reserved.difference(&all).ids().next();
    if let Some(cpu) = unknown {
        return Err(CpuError::UnknownCpu(cpu));
    }
    Ok(policy)
}

impl Cpus {
    /// The node's processors as an earlier kubelet left them, below its root directory; `system` is `/sys/devices/system`.
    ///
    /// # Errors
    /// The policy is not usable here, or another one left its state: pods would keep what they have.
    pub fn new(
        root: &Path,
        system: &Path,
        config: &CpuConfig,
        placement: topology::TopologyPolicy,
    ) -> Result<Arc<Self>, CpuError> {
        let file = root.join(FILE);
        let policy = match config.policy.as_str() {
            "" | NONE => None,
            STATIC => {
                let topology = Topology::read(system).map_err(CpuError::Topology)?;
                Some(static_policy(config, topology, placement)?)
            }
            other => return Err(CpuError::UnknownPolicy(other.to_owned())),
        };
        let name = if policy.is_some() { STATIC } else { NONE };
        let left = State::read(&file, name).map_err(|cause| CpuError::Restore { file: file.clone(), cause })?;
        let state = match &policy {
            Some(policy) => policy.start(left)?,
            None => State::default(),
        };
        let cpus = Self { policy, state: Mutex::new(state), file, period: config.period };
        cpus.save();
        if cpus.policy.is_some() {
            metrics::show_alignment("container", "physical_cpu");
            metrics::show_alignment("container", "uncore_cache");
        }
        cpus.show();
        Ok(Arc::new(cpus))
    }

    /// Writes the checkpoint; a failure is logged: what runs goes on.
    fn save(&self) {
        let name = if self.policy.is_some() { STATIC } else { NONE };
        if let Err(error) = self.state.lock().write(&self.file, name) {
            tracing::error!(file = %self.file.display(), %error, "Failed to save the state of processors");
        }
    }

    /// Gives back what pods have that are not there any more.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let is_changed = self.state.lock().retain(is_there);
        if is_changed {
            self.show();
            self.save();
        }
    }

    /// Shows in metrics who has processors.
    fn show(&self) {
        let Some(policy) = &self.policy else { return };
        let state = self.state.lock();
        let given = state.exclusive.values().fold(CpuSet::default(), |all, cpus| all.union(cpus));
        let node = |node| (node, given.intersection(&policy.topology.at(Level::Node, node)).len());
        let by_node = policy.topology.ids(Level::Node).into_iter().map(node);
        metrics::processors_given(policy.available(&state).len(), given.len(), by_node);
    }

    /// Processors of a container; none where it runs on any.
    pub fn of_container(&self, uid: &str, container: &str) -> Option<CpuSet> {
        self.policy.as_ref()?;
        let state = self.state.lock();
        Some(state.of(&(uid.to_owned(), container.to_owned())).clone()).filter(|cpus| !cpus.is_empty())
    }

    /// Processors that a container has to itself.
    pub fn exclusive(&self, uid: &str, container: &str) -> Option<CpuSet> {
        self.state.lock().exclusive.get(&(uid.to_owned(), container.to_owned())).cloned()
    }

    /// Processors that containers can be given to themselves, whoever has them.
    pub fn allocatable(&self) -> Option<CpuSet> {
        let policy = self.policy.as_ref()?;
        Some(policy.topology.all().difference(&policy.reserved))
    }

    /// Keeps running containers on their processors until shutdown: those of the others become fewer and more.
    pub async fn run(self: Arc<Self>, runtime: Arc<dyn Runtime>, shutdown: CancellationToken) {
        if self.policy.is_none() {
            return;
        }
        let mut known = HashMap::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.period) => {}
            }
            if let Ok(containers) = runtime.list_containers(None).await {
                known = self.reconcile(runtime.as_ref(), &containers, known).await;
            }
        }
    }

    /// Tells the runtime of containers whose processors are others by now: what it knows then, by container.
    async fn reconcile(
        &self,
        runtime: &dyn Runtime,
        containers: &[v1::Container],
        mut known: HashMap<String, CpuSet>,
    ) -> HashMap<String, CpuSet> {
        let mut now = HashMap::new();
        for container in containers.iter().filter(|found| found.state() == v1::ContainerState::ContainerRunning) {
            let label = |key: &str| container.labels.get(key).map(String::as_str).unwrap_or_default();
            let Some(wanted) = self.of_container(label(labels::POD_UID), label(labels::CONTAINER_NAME)) else {
                continue;
            };
            if known.remove(&container.id).as_ref() != Some(&wanted) {
                let resources = v1::LinuxContainerResources { cpuset_cpus: wanted.to_string(), ..Default::default() };
                if let Err(error) = runtime.update_container(&container.id, resources).await {
                    tracing::error!(id = container.id, %error, "Failed to update the processors of a container");
                    continue;
                }
            }
            now.insert(container.id.clone(), wanted);
        }
        now
    }

    /// Describes a pod's processors for podresources: those that a container has to itself.
    pub fn ids(&self, pod: &Pod, container: &str) -> Vec<i64> {
        self.exclusive(pods::uid(pod), container).iter().flat_map(CpuSet::ids).map(i64::from).collect()
    }
}

#[async_trait]
impl HintProvider for Cpus {
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
        let before = state.exclusive.len();
        policy.allocate(&mut state, pod, container, hint)?;
        let is_changed = state.exclusive.len() != before;
        drop(state);
        if is_changed {
            self.show();
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

    #[test]
    fn amounts_are_rounded_up_to_processors() {
        let cpu = |text: &str| BTreeMap::from([("cpu".to_owned(), text.to_owned())]);
        for (kube, system, expected) in [("500m", "600m", 2), ("1", "0", 1), ("1m", "0", 1), ("x", "0", 0)] {
            assert_eq!(reserved_number(&[cpu(kube), cpu(system)]), expected, "{kube} {system}");
        }
        assert_eq!(reserved_number(&[]), 0);
    }

    #[test]
    fn policies_are_known_and_usable() {
        let root = tempfile::tempdir().expect("a folder");
        let config = |policy: &str| CpuConfig { policy: policy.to_owned(), ..CpuConfig::default() };
        let new = |root: &Path, config: &CpuConfig| {
            Cpus::new(root, Path::new("/nonexistent"), config, topology::TopologyPolicy::None)
        };
        let failure = |policy: &str| new(root.path(), &config(policy)).err().map(|error| error.to_string());
        assert_eq!(failure("magic").as_deref(), Some("unknown policy: \"magic\""));
        assert!(failure("static").is_some_and(|error| error.starts_with("failed to detect the topology")));
        let none = new(root.path(), &config("none")).expect("no policy");
        assert_eq!(none.of_container("u", "c"), None);
        let written = std::fs::read_to_string(root.path().join(FILE)).expect("a checkpoint");
        assert_eq!(written, "{\"policyName\":\"none\",\"defaultCpuSet\":\"\",\"checksum\":1353318690}");
        let policy = |config: &CpuConfig| {
            static_policy(config, machine::tests::machine(1, 1, 2, 2), topology::TopologyPolicy::None)
        };
        let needs = policy(&config("static")).expect_err("nothing is reserved");
        let text =
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero";
        assert_eq!(needs.to_string(), text);
        let named = |reserved: &str| policy(&CpuConfig { reserved: reserved.to_owned(), ..config("static") });
        let unknown = "unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: 4";
        assert_eq!(named("0-9").expect_err("there are four").to_string(), format!("[cpumanager] {unknown}"));
        assert_eq!(named("2").expect("a policy").reserved.to_string(), "2");
        let amounts = [BTreeMap::from([("cpu".to_owned(), "5".to_owned())]), BTreeMap::new()];
        let many = policy(&CpuConfig { amounts, ..config("static") }).expect_err("there are four");
        let text = "unable to reserve the required amount of CPUs (size of  did not equal 5)";
        assert_eq!(many.to_string(), format!("[cpumanager] {text}"));
    }
}
