//! The static policy: containers of guaranteed pods that ask for whole processors have them to themselves. Pure; upstream's
//! `policy_static.go`.

use super::assignment::take;
use super::set::CpuSet;
use super::state::{Owner, State};
use super::topology::Topology;
use crate::pods;
use crate::resources::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::quantity::Quantity;
use shared::flags::parse_bool;
use std::collections::BTreeMap;

/// Options of the policy that this kubelet has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// `full-pcpus-only`: nobody shares a core with a container that has processors of its own.
    pub(super) whole_cores: bool,
    /// `strict-cpu-reservation`: no container runs on the reserved ones.
    pub(super) strict_reservation: bool,
}

impl Options {
    /// Reads `cpuManagerPolicyOptions`.
    ///
    /// # Errors
    /// An option that there is not, or a value that is none.
    pub(super) fn parse(options: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut found = Self::default();
        for (name, value) in options {
            let is_on = parse_bool(value).map_err(|error| format!("bad value for option {name:?}: {error}"))?;
            match name.as_str() {
                "full-pcpus-only" => found.whole_cores = is_on,
                "strict-cpu-reservation" => found.strict_reservation = is_on,
                "distribute-cpus-across-numa"
                | "align-by-socket"
                | "distribute-cpus-across-cores"
                | "prefer-align-cpus-by-uncorecache" => {
                    if is_on {
                        return Err(format!("CPU Manager policy option {name:?} is not supported by this kubelet"));
                    }
                }
                _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
            }
        }
        Ok(found)
    }
}

/// Why a pod cannot run here: the status' reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

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
    pub(super) fn start(&self, left: Option<State>) -> Result<State, String> {
        let usable = self.usable();
        let Some(left) = left.filter(|left| !left.shared.is_empty() || !left.exclusive.is_empty()) else {
            return Ok(State { shared: usable, exclusive: BTreeMap::new() });
        };
        if left.shared.is_empty() {
            return Err("default cpuset cannot be empty".to_owned());
        }
        let (reserved, shared) = (&self.reserved, &left.shared);
        let of_both = reserved.intersection(shared);
        if self.options.strict_reservation && !of_both.is_empty() {
            let (of_both, shared) = (of_both.to_string(), shared.to_string());
            return Err(format!(
                "some of strictly reserved cpus: {of_both:?} are present in defaultCpuSet: {shared:?}"
            ));
        }
        if !self.options.strict_reservation && of_both != *reserved {
            let (reserved, shared) = (reserved.to_string(), shared.to_string());
            return Err(format!("not all reserved cpus: {reserved:?} are present in defaultCpuSet: {shared:?}"));
        }
        for ((uid, container), cpus) in &left.exclusive {
            if !shared.intersection(cpus).is_empty() {
                let (cpus, shared) = (cpus.to_string(), shared.to_string());
                return Err(format!(
                    "pod: {uid}, container: {container} cpuset: {cpus:?} overlaps with default cpuset {shared:?}"
                ));
            }
        }
        let known = left.exclusive.values().fold(shared.clone(), |known, cpus| known.union(cpus));
        if known != usable {
            let (usable, known) = (usable.to_string(), known.to_string());
            return Err(format!("current set of available CPUs {usable:?} doesn't match with CPUs in state {known:?}"));
        }
        Ok(left)
    }

    /// Gives a pod's containers their processors. Those of init containers that have ended by then are used again.
    ///
    /// # Errors
    /// There are not enough, or they are not whole cores.
    pub(super) fn allocate(&self, state: &mut State, pod: &Pod) -> Result<(), Refusal> {
        let uid = pods::uid(pod);
        let mut reusable = CpuSet::default();
        for (container, is_passed_on) in pods::by_start(pod) {
            let owner: Owner = (uid.to_owned(), container.name.clone());
            let Some(number) = exclusive(pod, container) else { continue };
            if !state.exclusive.contains_key(&owner) {
                let cpus = self.choose(state, &reusable, number)?;
                state.give(owner.clone(), cpus);
            }
            let own = state.exclusive[&owner].clone();
            reusable = if is_passed_on { reusable.union(&own) } else { reusable.difference(&own) };
        }
        Ok(())
    }

    fn choose(&self, state: &State, reusable: &CpuSet, number: usize) -> Result<CpuSet, Refusal> {
        let free = state.shared.difference(&self.reserved).union(reusable);
        let per_core = self.topology.per_core();
        if self.options.whole_cores {
            let refused = |message| Err(Refusal { reason: "SMTAlignmentError", message });
            if !number.is_multiple_of(per_core) {
                return refused(format!(
                    "SMT Alignment Error: requested {number} cpus not multiple cpus per core = {per_core}"
                ));
            }
            let whole = self.whole_cores(&free).len();
            if number > whole {
                return refused(format!(
                    "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {whole}, requested CPUs \
                     = {number}, CPUs per core = {per_core}"
                ));
            }
        }
        let refused = |error| Refusal {
            reason: "UnexpectedAdmissionError",
            message: format!("Allocate failed due to {error}, which is unexpected"),
        };
        // What the pod has already is taken first.
        let own = take(&self.topology, reusable, number.min(reusable.len())).map_err(refused)?;
        let more = take(&self.topology, &free.difference(&own), number - own.len()).map_err(|_| {
            let available = free.len();
            refused(format!("not enough cpus available to satisfy request: requested={number}, available={available}"))
        })?;
        Ok(own.union(&more))
    }

    /// Filters processors whose cores are free as a whole.
    fn whole_cores(&self, free: &CpuSet) -> CpuSet {
        let is_whole = |cpu: &u32| {
            let Some(place) = self.topology.0.get(cpu) else { return false };
            free.is_superset(&self.topology.at(super::assignment::Level::Core, place.core))
        };
        free.ids().filter(is_whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::machine;
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

    fn of(state: &State, uid: &str, container: &str) -> String {
        state.of(&(uid.to_owned(), container.to_owned())).to_string()
    }

    #[test]
    fn guaranteed_pods_have_whole_processors_to_themselves() {
        let policy = policy(Options::default());
        let mut state = policy.start(None).expect("a state");
        let both = pod("u", json!({"containers": [container("own", "2"), container("shares", "500m")]}));
        policy.allocate(&mut state, &both).expect("allocated");
        policy.allocate(&mut state, &both).expect("it has them");
        assert_eq!((of(&state, "u", "own"), of(&state, "u", "shares")), ("1,5".into(), "0,2-4,6-7".into()));
        let burstable = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
        policy.allocate(&mut state, &pod("v", json!({"containers": [burstable]}))).expect("it shares");
        assert_eq!(of(&state, "v", "c"), "0,2-4,6-7");
        let large = pod("w", json!({"containers": [container("c", "5")]}));
        let refusal = policy.allocate(&mut state, &large).expect_err("the reserved ones are not for it");
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
        policy.allocate(&mut state, &pod("u", spec)).expect("allocated");
        assert_eq!(of(&state, "u", "init"), of(&state, "u", "one"));
        assert_eq!(of(&state, "u", "two"), "2");
        assert!(state.retain(|_| false));
        assert_eq!(state.shared.to_string(), "0-7");
    }

    #[test]
    fn cores_are_not_shared_where_that_is_asked_for() {
        let policy = policy(Options { whole_cores: true, strict_reservation: true });
        let mut state = policy.start(None).expect("a state");
        assert_eq!(state.shared.to_string(), "1-3,5-7", "nobody runs on the reserved ones");
        let ask = |state: &mut State, uid: &str, cpu: &str| {
            let pod = pod(uid, json!({"containers": [container("c", cpu)]}));
            policy.allocate(state, &pod).map_err(|refusal| (refusal.reason, refusal.message))
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
            assert_eq!(policy.start(Some(left)).err().as_deref(), expected);
        }
    }

    #[test]
    fn options_are_known_or_refused() {
        let parse = |name: &str, value: &str| Options::parse(&[(name.to_owned(), value.to_owned())].into());
        assert_eq!(parse("full-pcpus-only", "true"), Ok(Options { whole_cores: true, ..Options::default() }));
        assert_eq!(parse("align-by-socket", "false"), Ok(Options::default()));
        for (name, value, expected) in [
            ("magic", "true", "unknown CPU Manager Policy option: \"magic\""),
            (
                "align-by-socket",
                "true",
                "CPU Manager policy option \"align-by-socket\" is not supported by this kubelet",
            ),
            (
                "full-pcpus-only",
                "maybe",
                "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
        ] {
            assert_eq!(parse(name, value), Err(expected.to_owned()));
        }
    }
}
