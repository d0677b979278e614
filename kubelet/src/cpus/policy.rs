//! The static policy: containers of guaranteed pods that ask for whole processors have them to themselves. Pure; upstream's
//! `policy_static.go`.

use super::assignment::{self, Level, Packing};
use super::distribution;
use super::error::{StateError, TakeError};
use super::machine::Topology;
use super::options::Options;
use super::state::{Owner, State};
use crate::cpu_set::CpuSet;
use crate::pods;
use crate::resources::{QosClass, at_peak, qos_class};
use crate::topology::{Hint, Hints, NodeMask, Refusal, metrics, prefer};
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::quantity::Quantity;
use std::collections::BTreeMap;

/// The policy on one machine.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) topology: Topology,
    pub(super) reserved: CpuSet,
    pub(super) options: Options,
}

/// Processors that a container asks for to itself; none where it shares. Upstream's `guaranteedCPUs`.
fn exclusive(pod: &Pod, container: &Container) -> Option<usize> {
    let has_own = pod.spec.as_ref().is_some_and(|spec| spec.resources.is_some());
    if qos_class(pod) != QosClass::Guaranteed || has_own {
        return None;
    }
    let resources = container.resources.as_ref()?;
    let lists = [resources.requests.as_ref(), resources.limits.as_ref()];
    let cpu = lists.into_iter().flatten().find_map(|list| list.get("cpu"))?;
    let millis = cpu.0.parse::<Quantity>().ok()?.milli_value();
    if millis <= 0 || millis % 1000 != 0 { None } else { usize::try_from(millis / 1000).ok() }
}

impl Policy {
    /// Processors that containers run on at all.
    fn usable(&self) -> CpuSet {
        let all = self.topology.all();
        if self.options.strict_reservation { all.difference(&self.reserved) } else { all }
    }

    /// The state to start with: as it was left, or with everything shared.
    ///
    /// # Errors
    /// It was left on another machine, or with another reservation; upstream's texts.
    pub(super) fn start(&self, left: Option<State>) -> Result<State, StateError> {
        let usable = self.usable();
        let Some(left) = left.filter(|left| !left.shared.is_empty() || !left.exclusive.is_empty()) else {
            return Ok(State { shared: usable, exclusive: BTreeMap::new() });
        };
        if left.shared.is_empty() {
            return Err(StateError::NothingShared);
        }
        let (reserved, shared) = (&self.reserved, &left.shared);
        let of_both = reserved.intersection(shared);
        if self.options.strict_reservation && !of_both.is_empty() {
            return Err(StateError::ReservedShared { both: of_both.to_string(), shared: shared.to_string() });
        }
        if !self.options.strict_reservation && of_both != *reserved {
            let (reserved, shared) = (reserved.to_string(), shared.to_string());
            return Err(StateError::ReservedMissing { reserved, shared });
        }
        for ((uid, container), cpus) in &left.exclusive {
            if !shared.intersection(cpus).is_empty() {
                let (cpus, shared) = (cpus.to_string(), shared.to_string());
                let (uid, container) = (uid.clone(), container.clone());
                return Err(StateError::OwnShared { uid, container, cpus, shared });
            }
        }
        let known = left.exclusive.values().fold(shared.clone(), |known, cpus| known.union(cpus));
        if known != usable {
            let (usable, known) = (usable.to_string(), known.to_string());
            return Err(StateError::OtherMachine { usable, known });
        }
        Ok(left)
    }

    /// Processors of init containers that have ended when a container starts. Upstream's `cpusToReuse`.
    fn reusable(state: &State, pod: &Pod, container: Option<&str>) -> CpuSet {
        let mut reusable = CpuSet::default();
        for (other, is_passed_on) in pods::by_start(pod) {
            if container == Some(other.name.as_str()) {
                break;
            }
            let Some(own) = state.exclusive.get(&owner(pod, other)) else { continue };
            reusable = if is_passed_on { reusable.union(own) } else { reusable.difference(own) };
        }
        reusable
    }

    /// Processors that containers can be given to themselves and that nobody has.
    pub(super) fn available(&self, state: &State) -> CpuSet {
        state.shared.difference(&self.reserved)
    }

    /// Gives a container its processors; those of init containers that have ended by then are used again. One that has some
    /// keeps them.
    ///
    /// # Errors
    /// There are not enough, or they are not whole cores.
    pub(super) fn allocate(
        &self,
        state: &mut State,
        pod: &Pod,
        container: &Container,
        hint: Hint,
    ) -> Result<(), Refusal> {
        let Some(number) = exclusive(pod, container) else { return Ok(()) };
        let owner = owner(pod, container);
        if state.exclusive.contains_key(&owner) {
            return Ok(());
        }
        let reusable = Self::reusable(state, pod, Some(&container.name));
        let chosen = self.choose(state, &reusable, number, hint);
        metrics::processors(chosen.is_err());
        if self.options.whole_cores {
            metrics::aligned("container", "physical_cpu", chosen.is_ok());
        }
        let cpus = chosen?;
        if self.is_within_cache(&cpus) {
            metrics::aligned("container", "uncore_cache", true);
        }
        state.give(owner, cpus);
        Ok(())
    }

    fn is_within_cache(&self, cpus: &CpuSet) -> bool {
        let mut caches = cpus.ids().filter_map(|cpu| self.topology.0.get(&cpu)).map(|place| place.cache);
        let first = caches.next();
        caches.all(|cache| Some(cache) == first)
    }

    /// Checks that whole cores can be had. What init containers pass on counts as free, which upstream forgets.
    fn check_cores(&self, state: &State, reusable: &CpuSet, number: usize) -> Result<(), Refusal> {
        let per_core = self.topology.per(Level::Core);
        let refused = |message| Err(Refusal { reason: "SMTAlignmentError", message });
        if !number.is_multiple_of(per_core.max(1)) {
            return refused(format!(
                "SMT Alignment Error: requested {number} cpus not multiple cpus per core = {per_core}"
            ));
        }
        let whole = state.shared.difference(&self.reserved_cores()).union(reusable).len();
        if number > whole {
            return refused(format!(
                "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {whole}, requested CPUs \
                 = {number}, CPUs per core = {per_core}"
            ));
        }
        Ok(())
    }

    /// Reserved processors with those that share their cores.
    fn reserved_cores(&self) -> CpuSet {
        let core = |cpu: u32| self.topology.0.get(&cpu).map(|place| self.topology.at(Level::Core, place.core));
        self.reserved.ids().filter_map(core).fold(CpuSet::default(), |all, core| all.union(&core))
    }

    fn choose(&self, state: &State, reusable: &CpuSet, number: usize, hint: Hint) -> Result<CpuSet, Refusal> {
        if self.options.whole_cores {
            self.check_cores(state, reusable, number)?;
        }
        let free = self.available(state).union(reusable);
        let near = hint.affinity.map(|nodes| self.near(nodes).intersection(&free)).unwrap_or_default();
        let first = self.take(&near, number.min(near.len())).map_err(Refusal::unexpected)?;
        let more = self.take(&free.difference(&first), number - first.len()).map_err(Refusal::unexpected)?;
        Ok(first.union(&more))
    }

    /// Processors of NUMA nodes, or of the sockets that the nodes are in where that is asked for. Upstream's
    /// `getAlignedCPUs`.
    fn near(&self, nodes: NodeMask) -> CpuSet {
        let places = || self.topology.0.values().filter(|place| nodes.contains(place.node));
        if self.options.align_by_socket {
            let sockets: Vec<u32> = places().map(|place| place.socket).collect();
            let is_near = |socket: u32| sockets.contains(&socket);
            return self.topology.0.iter().filter(|(_, place)| is_near(place.socket)).map(|(cpu, _)| *cpu).collect();
        }
        self.topology.0.iter().filter(|(_, place)| nodes.contains(place.node)).map(|(cpu, _)| *cpu).collect()
    }

    /// Takes processors in the manner that the options ask for. Upstream's `takeByTopology`.
    ///
    /// # Errors
    /// There are not enough; upstream's text.
    pub(super) fn take(&self, available: &CpuSet, number: usize) -> Result<CpuSet, TakeError> {
        let options = self.options;
        if options.across_nodes {
            let group = if options.whole_cores { self.topology.per(Level::Core) } else { 1 };
            return distribution::take(&self.topology, available, number, group);
        }
        let packing = match options {
            Options { across_cores: true, .. } => Packing::Spread,
            Options { by_cache: true, .. } => Packing::Caches,
            _ => Packing::Cores,
        };
        assignment::take(&self.topology, available, number, packing)
    }

    /// Possible placements of a container's processors. Upstream's `GetTopologyHints`.
    pub(super) fn hints(&self, state: &State, pod: &Pod, container: &Container) -> Hints {
        let Some(number) = exclusive(pod, container) else { return Hints::new() };
        let list = match state.exclusive.get(&owner(pod, container)) {
            Some(own) if own.len() != number => Vec::new(),
            Some(own) => self.placements(own, &CpuSet::default(), number),
            None => {
                let reusable = Self::reusable(state, pod, Some(&container.name));
                self.placements(&self.available(state), &reusable, number)
            }
        };
        Hints::from([("cpu".to_owned(), Some(list))])
    }

    /// Possible placements of the processors of all of a pod's containers. Upstream's `GetPodTopologyHints`.
    pub(super) fn pod_hints(&self, state: &State, pod: &Pod) -> Hints {
        let of = |container: &Container| exclusive(pod, container).unwrap_or(0);
        let number = pod.spec.as_ref().map_or(0, |spec| at_peak(spec, of, usize::saturating_add, usize::max));
        if number == 0 {
            return Hints::new();
        }
        let mut own = CpuSet::default();
        for (container, _) in pods::by_start(pod) {
            let Some(cpus) = state.exclusive.get(&owner(pod, container)) else { continue };
            if cpus.len() != of(container) {
                return Hints::from([("cpu".to_owned(), Some(Vec::new()))]);
            }
            own = own.union(cpus);
        }
        let list = if own.len() == number {
            self.placements(&own, &CpuSet::default(), number)
        } else {
            self.placements(&self.available(state), &Self::reusable(state, pod, None).union(&own), number)
        };
        Hints::from([("cpu".to_owned(), Some(list))])
    }

    /// Sets of nodes that have enough processors. Upstream's `generateCPUTopologyHints`.
    fn placements(&self, available: &CpuSet, reusable: &CpuSet, number: usize) -> Vec<Hint> {
        let by_node = |cpus: &CpuSet| {
            let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
            for place in cpus.ids().filter_map(|cpu| self.topology.0.get(&cpu)) {
                *counts.entry(place.node).or_default() += 1;
            }
            counts
        };
        let (all, free, kept) = (by_node(&self.topology.all()), by_node(available), by_node(reusable));
        let nodes: Vec<u32> = all.keys().copied().collect();
        let within = |counts: &BTreeMap<u32, usize>, mask: NodeMask| -> usize {
            counts.iter().filter(|(node, _)| mask.contains(**node)).map(|(_, count)| count).sum()
        };
        let mut least = nodes.len();
        let mut masks = Vec::new();
        for mask in NodeMask::combinations(&nodes) {
            if within(&all, mask) >= number {
                least = least.min(mask.nodes().count());
            }
            let keeps_all = kept.keys().all(|node| mask.contains(*node));
            if keeps_all && within(&free, mask) + within(&kept, mask) >= number {
                masks.push(mask);
            }
        }
        prefer(masks, |mask| {
            mask.nodes().count() == least || self.options.align_by_socket && self.is_within_sockets(mask, least)
        })
    }

    /// Reports whether nodes are in as few sockets as are necessary. Upstream's `isHintSocketAligned`.
    fn is_within_sockets(&self, mask: NodeMask, least: usize) -> bool {
        let per_socket = self.topology.count(Level::Node) / self.topology.count(Level::Socket).max(1);
        if per_socket == 0 {
            return false;
        }
        let places = self.topology.0.values().filter(|place| mask.contains(place.node));
        let sockets: std::collections::BTreeSet<u32> = places.map(|place| place.socket).collect();
        sockets.len() == least.div_ceil(per_socket)
    }
}

fn owner(pod: &Pod, container: &Container) -> Owner {
    (pods::uid(pod).to_owned(), container.name.clone())
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;
    use serde_json::{Value, json};

    /// A policy for one socket of four cores with two threads, the first core reserved.
    fn policy(options: Options) -> Policy {
        Policy { topology: machine(1, 1, 4, 2), reserved: "0,4".parse().expect("a set"), options }
    }

    fn pod(uid: &str, spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": spec})).expect("a pod")
    }

    fn container(name: &str, cpu: &str) -> Value {
        let amounts = json!({"cpu": cpu, "memory": "1Mi"});
        json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
    }

    /// Gives every container of a pod its processors, wherever they are.
    fn allocate(policy: &Policy, state: &mut State, pod: &Pod) -> Result<(), Refusal> {
        pods::by_start(pod).try_for_each(|(container, _)| policy.allocate(state, pod, container, Hint::default()))
    }

    fn of(state: &State, uid: &str, container: &str) -> String {
        state.of(&(uid.to_owned(), container.to_owned())).to_string()
    }

    #[test]
    fn guaranteed_pods_have_whole_processors_to_themselves() {
        let policy = policy(Options::default());
        let mut state = policy.start(None).expect("a state");
        let both = pod("u", json!({"containers": [container("own", "2"), container("shares", "500m")]}));
        allocate(&policy, &mut state, &both).expect("allocated");
        allocate(&policy, &mut state, &both).expect("it has them");
        assert_eq!((of(&state, "u", "own"), of(&state, "u", "shares")), ("1,5".into(), "0,2-4,6-7".into()));
        let burstable = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
        allocate(&policy, &mut state, &pod("v", json!({"containers": [burstable]}))).expect("it shares");
        assert_eq!(of(&state, "v", "c"), "0,2-4,6-7");
        let large = pod("w", json!({"containers": [container("c", "5")]}));
        let refusal = allocate(&policy, &mut state, &large).expect_err("the reserved ones are not for it");
        let message = "Allocate failed due to not enough cpus available to satisfy request: requested=5, available=4, which \
                       is unexpected";
        assert_eq!((refusal.reason, refusal.message.as_str()), ("UnexpectedAdmissionError", message));
    }

    #[test]
    fn init_containers_pass_their_processors_on() {
        let policy = policy(Options::default());
        let mut state = policy.start(None).expect("a state");
        let spec = json!({"initContainers": [container("init", "2")],
            "containers": [container("one", "2"), container("two", "1")]});
        allocate(&policy, &mut state, &pod("u", spec)).expect("allocated");
        assert_eq!(of(&state, "u", "init"), of(&state, "u", "one"));
        assert_eq!(of(&state, "u", "two"), "2");
        assert!(state.retain(|_| false));
        assert_eq!(state.shared.to_string(), "0-7");
    }

    #[test]
    fn cores_are_not_shared_where_that_is_asked_for() {
        let policy = policy(Options { whole_cores: true, strict_reservation: true, ..Options::default() });
        let mut state = policy.start(None).expect("a state");
        assert_eq!(state.shared.to_string(), "1-3,5-7", "nobody runs on the reserved ones");
        let ask = |state: &mut State, uid: &str, cpu: &str| {
            let pod = pod(uid, json!({"containers": [container("c", cpu)]}));
            allocate(&policy, state, &pod).map_err(|refusal| (refusal.reason, refusal.message))
        };
        let odd = "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2".to_owned();
        assert_eq!(ask(&mut state, "u", "3"), Err(("SMTAlignmentError", odd)));
        assert_eq!(ask(&mut state, "u", "4"), Ok(()));
        let few =
            "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, \
                   CPUs per core = 2"
                .to_owned();
        assert_eq!(ask(&mut state, "v", "4"), Err(("SMTAlignmentError", few)));
    }

    #[test]
    fn a_state_of_another_machine_is_refused() {
        let policy = policy(Options::default());
        let state = |shared: &str, own: &str| State {
            shared: shared.parse().expect("a set"),
            exclusive: [(("u".to_owned(), "c".to_owned()), own.parse().expect("a set"))].into(),
        };
        let strict = Policy { options: Options { strict_reservation: true, ..Options::default() }, ..policy.clone() };
        for (policy, left, expected) in [
            (&policy, state("0,2-4,6-7", "1,5"), None),
            (&policy, state("", "1,5"), Some("default cpuset cannot be empty")),
            (
                &policy,
                state("2-4,6-7", "0-1,5"),
                Some("not all reserved cpus: \"0,4\" are present in defaultCpuSet: \"2-4,6-7\""),
            ),
            (
                &strict,
                state("0,2-3,6-7", "1,5"),
                Some("some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0,2-3,6-7\""),
            ),
            (
                &policy,
                state("0-4,6-7", "1,5"),
                Some("pod: u, container: c cpuset: \"1,5\" overlaps with default cpuset \"0-4,6-7\""),
            ),
            (
                &policy,
                state("0,2-4,6-8", "1,5"),
                Some("current set of available CPUs \"0-7\" doesn't match with CPUs in state \"0-8\""),
            ),
        ] {
            assert_eq!(policy.start(Some(left)).err().map(|error| error.to_string()).as_deref(), expected);
        }
    }

    fn nodes(ids: &[u32]) -> Option<NodeMask> {
        Some(ids.iter().copied().collect())
    }

    fn told(hints: &Hints) -> String {
        let list = |hint: &Hint| {
            let nodes: Vec<String> =
                hint.affinity.iter().flat_map(|mask| mask.nodes()).map(|id| id.to_string()).collect();
            format!("{}{}", nodes.join("+"), if hint.preferred { "!" } else { "" })
        };
        hints["cpu"].iter().flatten().map(list).collect::<Vec<String>>().join(" ")
    }

    #[test]
    fn placements_are_told_and_followed() {
        let policy = Policy {
            topology: machine(2, 1, 4, 1),
            reserved: "0".parse().expect("a set"),
            options: Options::default(),
        };
        let mut state = policy.start(None).expect("a state");
        let ask = |uid: &str, cpu: &str| pod(uid, json!({"containers": [container("c", cpu)]}));
        let of = |pod: &Pod| pod.spec.as_ref().expect("a spec").containers[0].clone();
        for (cpu, expected) in [("3", "0! 1! 0+1"), ("4", "1! 0+1"), ("5", "0+1!"), ("8", ""), ("500m", "")] {
            let pod = ask("u", cpu);
            let hints = policy.hints(&state, &pod, &of(&pod));
            if cpu == "500m" {
                assert_eq!(hints, Hints::new(), "it shares");
                continue;
            }
            assert_eq!(told(&hints), expected, "{cpu}");
            assert_eq!(policy.pod_hints(&state, &pod), hints, "{cpu}");
        }
        let two = ask("u", "2");
        let hint = Hint { affinity: nodes(&[1]), preferred: true };
        policy.allocate(&mut state, &two, &of(&two), hint).expect("allocated");
        assert_eq!(state.of(&("u".into(), "c".into())).to_string(), "4-5");
        assert_eq!(told(&policy.hints(&state, &two, &of(&two))), "1! 0+1", "it has them");
        let four = ask("v", "4");
        policy.allocate(&mut state, &four, &of(&four), hint).expect("the rest is elsewhere");
        assert_eq!(state.of(&("v".into(), "c".into())).to_string(), "1-2,6-7");
    }

    #[test]
    fn sockets_are_as_good_as_nodes_where_that_is_asked_for() {
        let options = Options { align_by_socket: true, ..Options::default() };
        let policy = Policy { topology: machine(2, 2, 2, 1), reserved: CpuSet::default(), options };
        let mut state = policy.start(None).expect("a state");
        let pod = pod("u", json!({"containers": [container("c", "2")]}));
        let container = pod.spec.as_ref().expect("a spec").containers[0].clone();
        let hints = policy.hints(&state, &pod, &container);
        assert_eq!(told(&hints), "0! 1! 2! 3! 0+1! 0+2 0+3 1+2 1+3 2+3! 0+1+2 0+1+3 0+2+3 1+2+3 0+1+2+3");
        state.give(("v".into(), "c".into()), "4".parse().expect("a set"));
        policy
            .allocate(&mut state, &pod, &container, Hint { affinity: nodes(&[2]), preferred: true })
            .expect("allocated");
        assert_eq!(state.of(&("u".into(), "c".into())).to_string(), "6-7", "of the same socket");
    }

    #[test]
    fn cores_that_init_containers_pass_on_are_free_for_the_others() {
        let policy = policy(Options { whole_cores: true, ..Options::default() });
        let mut state = policy.start(None).expect("a state");
        let spec = json!({"initContainers": [container("init", "6")], "containers": [container("app", "6")]});
        allocate(&policy, &mut state, &pod("u", spec)).expect("the same ones");
        assert_eq!(of(&state, "u", "init"), of(&state, "u", "app"));
    }
}
