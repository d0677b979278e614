//! Admission of pods: a last look at what the scheduler decided, as pods may come around it and nodes change. Pure.
//! Answers for upstream's `pkg/kubelet/lifecycle/predicate.go` and the eviction manager's admission.

use super::{app_armor, resize, sysctls};
use crate::pods;
use crate::pressure::Pressure;
use crate::resources::{Amounts, QosClass, qos_class};
use crate::settings::ExclusiveResources;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::Quantity as Amount;
use shared::types::is_sidecar;
use shared::{declared_features, placement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reason and message of a pod that is refused.
pub type Refusal = (String, String);

/// Node that a pod is measured against.
pub struct Measure<'a> {
    /// The node, if the API server's is known.
    pub node: Option<&'a Node>,
    /// Amounts that pods may use in all.
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// The pods that are here already.
    pub others: &'a [Arc<Pod>],
    /// Resources that run short.
    pub pressure: Pressure,
    /// Kernel settings that pods may ask for besides the safe ones.
    pub sysctls: &'a [String],
    /// Tolerations may compare numbers.
    pub tolerations_compare: bool,
    /// The node is going down.
    pub going_down: bool,
    /// The kernel holds containers to AppArmor profiles.
    pub app_armor: bool,
    /// Features that the node declares; none where nodes declare none.
    pub declared_features: Option<&'a [String]>,
}

/// A resource of which the node has too little for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Name of the resource.
    pub resource: String,
    /// Amount that the pod requests.
    pub requested: i64,
    /// Amount that other pods have.
    pub used: i64,
    /// Amount there is in all.
    pub capacity: i64,
}

impl Shortage {
    /// Returns the amount that other pods would have to give back.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    /// The refusal of a pod for want of it.
    pub fn refusal(&self) -> Refusal {
        let text = short_of(&self.resource, self.requested, self.used, self.capacity);
        (format!("OutOf{}", self.resource), format!("Pod was rejected: {text}"))
    }
}

/// Resources that a pod asks for, in thousandths of CPUs, else in units.
pub(super) fn requests(pod: &Pod) -> BTreeMap<String, i64> {
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let of = |list: Option<&BTreeMap<String, Quantity>>| -> BTreeMap<String, i64> {
        let parse = |(name, quantity): (&String, &Quantity)| {
            let amount = quantity.0.parse::<Amount>().ok()?;
            Some((name.clone(), if name == "cpu" { amount.milli_value() } else { amount.value() }))
        };
        list.into_iter().flatten().filter_map(parse).collect()
    };
    let add = |sum: &mut BTreeMap<String, i64>, more: &BTreeMap<String, i64>| {
        for (name, value) in more {
            let sum = sum.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*value);
        }
    };
    let most = |peak: &mut BTreeMap<String, i64>, other: &BTreeMap<String, i64>| {
        for (name, value) in other {
            let entry = peak.entry(name.clone()).or_default();
            *entry = (*entry).max(*value);
        }
    };
    let (mut running, mut peak) = (BTreeMap::new(), BTreeMap::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container.resources.as_ref().and_then(|r| r.requests.as_ref()));
        if is_sidecar(container) {
            add(&mut running, &own);
            most(&mut peak, &running);
        } else {
            let mut during = running.clone();
            add(&mut during, &own);
            most(&mut peak, &during);
        }
    }
    for container in &spec.containers {
        add(&mut running, &of(container.resources.as_ref().and_then(|r| r.requests.as_ref())));
    }
    most(&mut running, &peak);
    for (name, value) in of(spec.resources.as_ref().and_then(|r| r.requests.as_ref())) {
        running.insert(name, value);
    }
    add(&mut running, &of(spec.overhead.as_ref()));
    running
}

/// A port of the node that a pod wants.
#[derive(PartialEq, Eq)]
struct HostPort<'a> {
    /// Empty for all addresses.
    ip: &'a str,
    protocol: &'a str,
    port: i32,
}

impl HostPort<'_> {
    fn conflicts(&self, other: &Self) -> bool {
        let same_address = self.ip == other.ip || self.ip.is_empty() || other.ip.is_empty();
        same_address && self.protocol == other.protocol && self.port == other.port
    }
}

fn host_ports(pod: &Pod) -> Vec<HostPort<'_>> {
    let spec = pod.spec.iter().flat_map(|spec| {
        let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
        spec.containers.iter().chain(sidecars)
    });
    let wanted = spec.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        let ip = port.host_ip.as_deref().filter(|ip| *ip != "0.0.0.0").unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        Some(HostPort { ip, protocol, port: port.host_port.filter(|port| *port > 0)? })
    });
    wanted.collect()
}

/// None when nothing but room may be missing.
pub fn refuse(pod: &Pod, measure: &Measure<'_>) -> Option<Refusal> {
    if measure.going_down {
        let text = "Pod was rejected: Pod was rejected as the node is shutting down.";
        return Some(("NodeShutdown".to_owned(), text.to_owned()));
    }
    if let Some(refusal) = pressed(pod, measure.pressure) {
        return Some(refusal);
    }
    let rejected = |reason: &str, text: String| Some((reason.to_owned(), format!("Pod was rejected: {text}")));
    if let Some(text) = sysctls::forbidden(pod, measure.sysctls) {
        return rejected("SysctlForbidden", format!("forbidden sysctl: {text}"));
    }
    if pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).is_some_and(|os| os.name != "linux") {
        return rejected("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS".to_owned());
    }
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref()?.get("kubernetes.io/os"));
    if selector.is_some_and(|os| os != "linux") {
        return rejected(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label".to_owned(),
        );
    }
    if needs_strict_groups(pod) && !has_strict_groups(measure.node) {
        let text = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return rejected("SupplementalGroupsPolicyNotSupported", text.to_owned());
    }
    if let Some(node) = measure.node
        && !pod.spec.as_ref().is_none_or(|spec| placement::affinity_allows(spec, node))
    {
        return rejected(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector".to_owned(),
        );
    }
    let ports = host_ports(pod);
    let taken = measure.others.iter().flat_map(|other| host_ports(other));
    if taken.into_iter().any(|taken| ports.iter().any(|port| port.conflicts(&taken))) {
        return rejected(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports".to_owned(),
        );
    }
    if !pods::is_static(pod) && !tolerates_execution(pod, measure) {
        return rejected(
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate".to_owned(),
        );
    }
    if let (Some(declared), Some(spec)) = (measure.declared_features, pod.spec.as_ref())
        && let Some(text) = undeclared(&declared_features::needed_to_run(spec), declared)
    {
        return rejected("PodFeatureUnsupported", text);
    }
    None
}

/// Reports whether a pod's processes must have no groups of the image. Answers for upstream's
/// `rejectPodAdmissionBasedOnSupplementalGroupsPolicy`.
fn needs_strict_groups(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    policy.is_some_and(|policy| !matches!(policy, "" | "Merge"))
}

fn has_strict_groups(node: Option<&Node>) -> bool {
    let features = node.and_then(|node| node.status.as_ref()?.features.as_ref());
    features.and_then(|features| features.supplemental_groups_policy).unwrap_or(false)
}

/// Refuses what a node with room for the pod cannot do for it: those of upstream's admit handlers that come last.
pub fn refuse_features(pod: &Pod, measure: &Measure<'_>) -> Option<Refusal> {
    let text = app_armor::refuse(pod, measure.app_armor)?;
    Some(("AppArmor".to_owned(), format!("Pod was rejected: {text}")))
}

/// Text about features that are needed and not declared.
pub fn undeclared(needed: &[&str], declared: &[String]) -> Option<String> {
    let missing = declared_features::missing(needed, declared);
    (!missing.is_empty()).then(|| format!("Pod requires node features that are not available: {}", missing.join(", ")))
}

/// False where the node has a taint that would have the pod removed at once.
fn tolerates_execution(pod: &Pod, measure: &Measure<'_>) -> bool {
    let taints = measure.node.and_then(|node| node.spec.as_ref()?.taints.as_ref());
    let tolerations: Vec<_> = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten()).collect();
    let covers = |t: &Toleration, taint: &Taint| placement::tolerates(t, taint, measure.tolerations_compare);
    let tolerated = |taint: &Taint| tolerations.iter().any(|toleration| covers(toleration, taint));
    taints.into_iter().flatten().filter(|taint| taint.effect == "NoExecute").all(tolerated)
}

/// Resources of which there is too little for the pod besides the others.
pub fn shortages(pod: &Pod, measure: &Measure<'_>) -> Vec<Shortage> {
    let mut all = Vec::new();
    let mut check = |name: &str, requested: i64, used: i64| {
        let capacity = capacity(measure.allocatable, name);
        if requested.saturating_add(used) > capacity {
            all.push(Shortage { resource: name.to_owned(), requested, used, capacity });
        }
    };
    check("pods", 1, i64::try_from(measure.others.len()).unwrap_or(i64::MAX));
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in measure.others {
        for (name, value) in requests(other) {
            let used = used.entry(name).or_default();
            *used = used.saturating_add(value);
        }
    }
    for (name, requested) in requests(pod) {
        let known = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        let used = used.get(&name).copied().unwrap_or(0);
        // A node that does not tell of its storage does not share it out.
        let told = name != "ephemeral-storage" || measure.allocatable.contains_key(&name);
        if known && told && requested > 0 {
            check(&name, requested, used);
        }
    }
    all
}

/// None when the node has room for what the pod asks for now, besides the others.
pub fn refuse_resize(
    (pod, held): (&Pod, &Pod),
    allocatable: &BTreeMap<String, Quantity>,
    others: &[Arc<Pod>],
    exclusive: ExclusiveResources,
) -> Option<Refusal> {
    let infeasible = |text: String| Some(("Infeasible".to_owned(), text));
    if pods::is_static(pod) {
        return infeasible("In-place resize of static-pods is not supported".to_owned());
    }
    let asked = requests(pod);
    if qos_class(pod) == QosClass::Guaranteed {
        let changes = |of: fn(&Amounts) -> Option<i64>| resize::changes_requests(pod, held, of);
        if exclusive.cpu && changes(|amounts| amounts.cpu) {
            return infeasible(placed("CPU", "static"));
        }
        if exclusive.memory && changes(|amounts| amounts.memory) {
            return infeasible(placed("Memory", "Static"));
        }
    }
    let needs = |name: &'static str| Some((name, *asked.get(name)?, capacity(allocatable, name)));
    for (name, requested, capacity) in ["memory", "cpu"].into_iter().filter_map(needs) {
        if requested > capacity {
            return infeasible(format!(
                "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
            ));
        }
    }
    for (name, requested, capacity) in ["cpu", "memory"].into_iter().filter_map(needs) {
        let used: i64 = others.iter().map(|other| requests(other).get(name).copied().unwrap_or(0)).sum();
        if requested > 0 && requested + used > capacity {
            return Some(("Deferred".to_owned(), short_of(name, requested, used, capacity)));
        }
    }
    None
}

/// Upstream's text of a resize of containers that may swap.
pub(super) const SWAP: &str = "In-place resize of containers with swap is not supported.";

/// Returns why a resize can never be, by the words of upstream's metric; none for one that may wait.
pub fn infeasible_detail(reason: &str, text: &str) -> Option<&'static str> {
    if reason != "Infeasible" {
        return None;
    }
    Some(match text {
        _ if text.starts_with("In-place resize of static") => "static_pod",
        _ if text == placed("CPU", "static") => "guaranteed_pod_cpu_manager_static_policy",
        _ if text == placed("Memory", "Static") => "guaranteed_pod_memory_manager_static_policy",
        SWAP => "swap_limitation",
        _ => "insufficient_node_allocatable",
    })
}

/// Upstream's text of a resize that a static policy does not allow.
fn placed(manager: &str, policy: &str) -> String {
    format!("Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\"")
}

fn capacity(allocatable: &BTreeMap<String, Quantity>, name: &str) -> i64 {
    let amount = allocatable.get(name).and_then(|quantity| quantity.0.parse::<Amount>().ok());
    amount.map_or(0, |amount| if name == "cpu" { amount.milli_value() } else { amount.value() })
}

fn short_of(name: &str, requested: i64, used: i64, capacity: i64) -> String {
    format!("Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}")
}

fn pressed(pod: &Pod, pressure: Pressure) -> Option<Refusal> {
    let mut conditions = Vec::new();
    for (holds, name) in
        [(pressure.memory, "MemoryPressure"), (pressure.disk, "DiskPressure"), (pressure.pid, "PIDPressure")]
    {
        if holds {
            conditions.push(name);
        }
    }
    if conditions.is_empty() || pods::is_critical(pod) {
        return None;
    }
    if conditions == ["MemoryPressure"] {
        let (key, effect) = ("node.kubernetes.io/memory-pressure".to_owned(), "NoSchedule".to_owned());
        let taint = Taint { key, effect, ..Taint::default() };
        let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
        if qos_class(pod) != QosClass::BestEffort || tolerations.any(|t| placement::tolerates(t, &taint, false)) {
            return None;
        }
    }
    let text = format!("Pod was rejected: The node had condition: [{}]. ", conditions.join(" "));
    Some(("Evicted".to_owned(), text))
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
