//! Ranking of pods for eviction. Pure. Answers for `pkg/kubelet/eviction/helpers.go` of upstream.

use super::signals::{Observed, Signal, Threshold};
use crate::resources::at_peak;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource as k8s;
use proto::quantity::Quantity;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

const STORAGE: &str = "ephemeral-storage";

/// A pod that may be evicted.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The pod.
    pub pod: Arc<Pod>,
    signal: Signal,
    /// Use of the pod; none where nothing is known of it.
    used: Option<u64>,
    requested: u64,
    /// Request that the use is compared with among pods that exceed theirs.
    base: u64,
    /// Use and request of every container.
    containers: Vec<(String, u64, u64)>,
}

fn request(pod: &Pod, container: &str, resource: &str) -> u64 {
    let spec = pod.spec.as_ref();
    let all = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    all.filter(|c| c.name == container)
        .find_map(|c| amount(c.resources.as_ref()?.requests.as_ref(), resource))
        .unwrap_or(0)
}

fn amount(list: Option<&BTreeMap<String, k8s::Quantity>>, resource: &str) -> Option<u64> {
    u64::try_from(list?.get(resource)?.0.parse::<Quantity>().ok()?.value()).ok()
}

/// Requests of a pod: what it asks for as a whole, or what its containers ask for at the time when that is most, and its
/// overhead.
fn pod_request(spec: &PodSpec, resource: &str) -> u64 {
    let of = |c: &Container| amount(c.resources.as_ref().and_then(|r| r.requests.as_ref()), resource).unwrap_or(0);
    let containers = at_peak(spec, of, u64::saturating_add, u64::max);
    let whole = amount(spec.resources.as_ref().and_then(|r| r.requests.as_ref()), resource);
    whole.unwrap_or(containers).saturating_add(amount(spec.overhead.as_ref(), resource).unwrap_or(0))
}

impl Candidate {
    /// `used` is what each container uses of the short resource, `total` what the pod does; none where the pod has no
    /// statistics.
    pub fn new(pod: Arc<Pod>, signal: Signal, used: Vec<(String, u64)>, total: Option<u64>) -> Self {
        let resource = signal.resource();
        let containers: Vec<(String, u64, u64)> =
            used.into_iter().map(|(name, used)| (name.clone(), used, request(&pod, &name, resource))).collect();
        let of_pod = |resource: &str| pod.spec.as_ref().map_or(0, |spec| pod_request(spec, resource));
        // Upstream's `disk` compares inodes with the request for storage, too.
        let base = if signal.is_disk() { of_pod(STORAGE) } else { of_pod(resource) };
        let requested = of_pod(resource);
        Self { pod, signal, used: total, requested, base, containers }
    }

    /// Use of memory by a pod that asks for it as a whole, and its request as written.
    fn of_pod_level(&self) -> Option<(u64, String)> {
        let requests = self.pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
        let requested = requests.get("memory").filter(|_| self.signal.resource() == "memory")?;
        Some((self.used?, requested.0.clone()))
    }

    fn priority(&self) -> i32 {
        self.pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
    }

    /// Message of the eviction.
    pub fn message(&self, threshold: &Threshold, observed: &Observed) -> String {
        let resource = self.signal.resource();
        let mut text = format!("The node was low on resource: {resource}. ");
        if let Some((left, capacity)) = observed.available(self.signal) {
            write!(text, "Threshold quantity: {}, available: {}. ", binary(threshold.amount(capacity)), binary(left))
                .ok();
        }
        if let Some((used, requested)) = self.of_pod_level() {
            let (name, used) = (crate::pods::name(&self.pod), binary(used));
            write!(text, "Pod {name} was using {used}, request is {requested}, has larger consumption of {resource}. ")
                .ok();
        }
        let is_told = matches!(resource, STORAGE | "memory");
        let exceeding = self.containers.iter().filter(|(_, used, requested)| is_told && used > requested);
        for (name, used, requested) in exceeding {
            let (used, requested) = (binary(*used), binary(*requested));
            write!(
                text,
                "Container {name} was using {used}, request is {requested}, has larger consumption of {resource}. "
            )
            .ok();
        }
        text
    }
}

/// The one to evict first comes first: those of which nothing is known, those above their request, then those of low
/// priority, then those that use most beyond their request. Processes have no requests: priority comes first. Answers for
/// upstream's `rankMemoryPressure`, `rankPIDPressure` and `rankDiskPressureFunc`.
pub fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|candidate| {
        let (used, is_unknown) = (candidate.used.unwrap_or(0), candidate.used.is_none());
        let (of_processes, priority) = (candidate.signal == Signal::Processes, candidate.priority());
        let exceeds = !of_processes && used > candidate.requested;
        let beyond = i128::from(used) - i128::from(candidate.base);
        let first = if of_processes { i32::MIN } else { priority };
        let before = if of_processes { priority } else { i32::MIN };
        (before, Reverse(is_unknown), Reverse(exceeds), first, Reverse(beyond))
    });
}

/// Bytes with the largest binary unit that divides them.
fn binary(bytes: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::super::signals::Least;
    use super::*;
    use crate::stats::machine::Memory;
    use serde_json::json;

    fn candidate(name: &str, priority: i32, used: u64, requested: &str) -> Candidate {
        let pod = json!({"metadata": {"name": name}, "spec": {"priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {"memory": requested}}}]}});
        let pod = Arc::new(serde_json::from_value(pod).expect("pod"));
        Candidate::new(pod, Signal::Memory, vec![("c".into(), used)], Some(used))
    }

    #[test]
    fn greedy_pods_go_first() {
        let mut all = [
            candidate("modest", 0, 10, "1Ki"),
            candidate("greedy", 0, 4096, "1Ki"),
            candidate("greedier", 0, 8192, "1Ki"),
            candidate("important", 10, 9999, "1Ki"),
        ];
        sort(&mut all);
        let names: Vec<_> = all.iter().map(|c| crate::pods::name(&c.pod).to_owned()).collect();
        assert_eq!(names, ["greedier", "greedy", "important", "modest"]);
    }

    #[test]
    fn pods_of_which_nothing_is_known_go_first_and_processes_by_priority() {
        let of = |signal: Signal, name: &str, priority: i32, used: Option<u64>| {
            let known = candidate(name, priority, 0, "1Ki");
            Candidate::new(known.pod, signal, Vec::new(), used)
        };
        let order = |mut all: Vec<Candidate>| -> Vec<String> {
            sort(&mut all);
            all.iter().map(|found| crate::pods::name(&found.pod).to_owned()).collect()
        };
        let memory = |name, priority, used| of(Signal::Memory, name, priority, used);
        let all = vec![memory("greedy", 0, Some(9999)), memory("unknown", 5, None), memory("modest", 0, Some(1))];
        assert_eq!(order(all), ["unknown", "greedy", "modest"]);
        let processes = |name, priority, used| of(Signal::Processes, name, priority, used);
        let all = vec![processes("many", 5, Some(900)), processes("few", 0, Some(1)), processes("unknown", 5, None)];
        assert_eq!(order(all), ["few", "unknown", "many"]);
    }

    #[test]
    fn messages_tell_of_whole_pods_and_of_no_inodes() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}],
            "resources": {"requests": {"memory": "1Mi"}}}});
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("pod"));
        let about = |signal: Signal| {
            let threshold = Threshold { signal, least: Least::Amount(1), grace: None, reclaim: None };
            let candidate = Candidate::new(Arc::clone(&pod), signal, vec![("c".into(), 2048)], Some(2 << 20));
            candidate.message(&threshold, &Observed::default())
        };
        assert_eq!(
            about(Signal::Memory),
            "The node was low on resource: memory. Pod p was using 2Mi, request is 1Mi, has larger consumption of memory. Container c was using 2Ki, request is 0, has larger consumption of memory. "
        );
        assert_eq!(about(Signal::NodeInodes), "The node was low on resource: inodes. ");
    }

    #[test]
    fn requests_of_sidecars_init_containers_and_whole_pods_count() {
        let with = |memory: &str| json!({"requests": {"memory": memory}});
        for (spec, expected) in [
            (json!({"containers": [{"name": "c", "resources": with("1Ki")}]}), 1024),
            (
                json!({"containers": [{"name": "c", "resources": with("1Ki")}],
                    "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": with("2Ki")}]}),
                3072,
            ),
            (
                json!({"containers": [{"name": "c", "resources": with("1Ki")}], "overhead": {"memory": "1"},
                    "initContainers": [{"name": "i", "resources": with("4Ki")}]}),
                4097,
            ),
            (json!({"containers": [{"name": "c"}], "resources": with("8Ki")}), 8192),
        ] {
            let spec: PodSpec = serde_json::from_value(spec).expect("spec");
            assert_eq!(pod_request(&spec, "memory"), expected);
        }
    }

    #[test]
    fn the_message_says_what_was_short() {
        let threshold =
            Threshold { signal: Signal::Memory, least: Least::Amount(100 << 20), grace: None, reclaim: None };
        let observed = Observed {
            memory: Memory { total: 1 << 30, working_set: (1 << 30) - (54 << 20), ..Memory::default() },
            ..Observed::default()
        };
        assert_eq!(
            candidate("p", 0, 2048, "1Ki").message(&threshold, &observed),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 54Mi. Container c was using 2Ki, request is 1Ki, has larger consumption of memory. "
        );
    }
}
