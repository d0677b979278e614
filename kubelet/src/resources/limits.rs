//! Quality of service and the limits that follow from a pod's requests: pure arithmetic.
//! Answers for `ResourceConfigForPod`, `GetContainerOOMScoreAdjust`, `GetPodQOS` and `calculateLinuxResources` of
//! upstream.

use super::machine::page_size;
use super::memory_qos;
use super::{MachineInfo, QosClass, ResourceConfig, cgroup_version};
use crate::cri::v1::{HugepageLimit, LinuxContainerResources};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::Quantity as Amount;
use shared::types::is_sidecar;
use std::collections::BTreeMap;

/// The smallest CPU weight the kernel takes.
pub(super) const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// The shortest CPU quota the kernel takes, in microseconds.
const MIN_QUOTA: i64 = 1000;
const GUARANTEED_OOM: i64 = -997;
const BEST_EFFORT_OOM: i64 = 1000;
/// The priority class whose pods are ended last of all.
const NODE_CRITICAL: &str = "system-node-critical";

/// CPU (thousandths) and memory (bytes) of one request or limit list; absent is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Thousandths of CPUs.
    pub cpu: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
}

impl Amounts {
    fn of(list: Option<&BTreeMap<String, Quantity>>) -> Self {
        let amount =
            |name: &str| list.and_then(|list| list.get(name)).and_then(|quantity| quantity.0.parse::<Amount>().ok());
        Self {
            cpu: amount("cpu").map(|amount| amount.milli_value()).filter(|cpu| *cpu > 0),
            memory: amount("memory").map(|amount| amount.value()).filter(|memory| *memory > 0),
        }
    }

    /// Reads the requests.
    pub fn requests(resources: Option<&ResourceRequirements>) -> Self {
        Self::of(resources.and_then(|resources| resources.requests.as_ref()))
    }

    /// Reads the limits.
    pub fn limits(resources: Option<&ResourceRequirements>) -> Self {
        Self::of(resources.and_then(|resources| resources.limits.as_ref()))
    }

    fn sum(self, other: Self) -> Self {
        let add = |a: Option<i64>, b: Option<i64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        Self { cpu: add(self.cpu, other.cpu), memory: add(self.memory, other.memory) }
    }

    fn max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }
}

/// The pod's class as upstream computes it (pod-level resources first, then init and app containers).
pub fn qos_class(pod: &Pod) -> QosClass {
    let Some(spec) = &pod.spec else { return QosClass::BestEffort };
    let mut requests = Amounts::default();
    let mut limits = Amounts::default();
    let mut all_limited = true;
    if let Some(resources) = &spec.resources {
        requests = Amounts::requests(Some(resources));
        limits = Amounts::limits(Some(resources));
        all_limited = limits.cpu.is_some() && limits.memory.is_some();
    } else {
        for container in containers(spec) {
            let limit = Amounts::limits(container.resources.as_ref());
            requests = requests.sum(Amounts::requests(container.resources.as_ref()));
            limits = limits.sum(limit);
            all_limited &= limit.cpu.is_some() && limit.memory.is_some();
        }
    }
    let nothing = Amounts::default();
    if requests == nothing && limits == nothing {
        return QosClass::BestEffort;
    }
    // A request that is not set equals the limit: defaulting has written it into the object.
    let equal = requests.cpu.is_none_or(|cpu| Some(cpu) == limits.cpu)
        && requests.memory.is_none_or(|memory| Some(memory) == limits.memory);
    if all_limited && equal { QosClass::Guaranteed } else { QosClass::Burstable }
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

/// Amount of a pod's containers at its peak: app containers and sidecars together, or an init container with the
/// sidecars that were started before it.
pub fn at_peak<T: Copy + Default>(
    spec: &PodSpec,
    of: impl Fn(&Container) -> T,
    sum: fn(T, T) -> T,
    max: fn(T, T) -> T,
) -> T {
    let (mut sidecars, mut peak) = (T::default(), T::default());
    for container in spec.init_containers.iter().flatten() {
        let running = sum(sidecars, of(container));
        peak = max(peak, running);
        if is_sidecar(container) {
            sidecars = running;
        }
    }
    let running = spec.containers.iter().fold(sidecars, |running, container| sum(running, of(container)));
    max(running, peak)
}

/// Amounts of a pod at its peak with its overhead. Pod-level resources, where set, stand instead of its containers'.
pub(super) fn pod_amounts(spec: &PodSpec, of: fn(Option<&ResourceRequirements>) -> Amounts) -> Amounts {
    let whole = of(spec.resources.as_ref());
    let summed = at_peak(spec, |container| of(container.resources.as_ref()), Amounts::sum, Amounts::max);
    let overhead = Amounts::of(spec.overhead.as_ref());
    Amounts { cpu: whole.cpu.or(summed.cpu), memory: whole.memory.or(summed.memory) }.sum(overhead)
}

/// Requests of a pod at its peak.
pub fn pod_requests(spec: &PodSpec) -> Amounts {
    pod_amounts(spec, Amounts::requests)
}

/// A pod has a limit only where each of its containers has one.
pub fn pod_limits(spec: &PodSpec) -> Amounts {
    let sum = pod_amounts(spec, Amounts::limits);
    let whole = Amounts::limits(spec.resources.as_ref());
    let every = |has: fn(&Amounts) -> bool| containers(spec).all(|c| has(&Amounts::limits(c.resources.as_ref())));
    Amounts {
        cpu: sum.cpu.filter(|_| whole.cpu.is_some() || every(|limits| limits.cpu.is_some())),
        memory: sum.memory.filter(|_| whole.memory.is_some() || every(|limits| limits.memory.is_some())),
    }
}

/// Bytes of huge pages of a size that a pod may have at its peak; none where it asks for none.
pub(super) fn pod_huge_pages(spec: &PodSpec, size: u64) -> Option<u64> {
    let name = format!("hugepages-{}", page_size(size));
    let amount = |resources: Option<&ResourceRequirements>| {
        let resources = resources?;
        let of = |list: &Option<BTreeMap<String, Quantity>>| list.as_ref()?.get(&name)?.0.parse::<Amount>().ok();
        let amount = of(&resources.requests).or_else(|| of(&resources.limits))?;
        u64::try_from(amount.value()).ok()
    };
    let summed = || {
        let of = |container: &Container| amount(container.resources.as_ref()).unwrap_or(0);
        at_peak(spec, of, u64::saturating_add, u64::max)
    };
    Some(amount(spec.resources.as_ref()).unwrap_or_else(summed)).filter(|bytes| *bytes > 0)
}

pub(super) fn shares(milli_cpu: i64) -> i64 {
    (milli_cpu.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

pub(super) fn quota(milli_cpu: i64, period: i64) -> i64 {
    (milli_cpu.saturating_mul(period) / 1000).max(MIN_QUOTA)
}

/// CRI resources of a container: shares, quota, period, memory limit, `oom_score_adj`, hugepage limits, unified
/// keys on cgroup v2.
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    machine: &MachineInfo,
    config: &ResourceConfig,
) -> LinuxContainerResources {
    let requests = Amounts::requests(container.resources.as_ref());
    let own = Amounts::limits(container.resources.as_ref());
    // What the pod may have as a whole is the most of each of its containers that has no limit of its own.
    let whole = Amounts::limits(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()));
    let limits = Amounts { cpu: own.cpu.or(whole.cpu), memory: own.memory.or(whole.memory) };
    let mut resources = LinuxContainerResources {
        cpu_shares: shares(requests.cpu.or(own.cpu).unwrap_or(0)),
        memory_limit_in_bytes: limits.memory.unwrap_or(0),
        oom_score_adj: oom_score_adj(pod, container, machine),
        hugepage_limits: hugepage_limits(container, machine),
        ..LinuxContainerResources::default()
    };
    if let Some(cpu) = limits.cpu.filter(|_| config.cpu_cfs_quota) {
        resources.cpu_period = config.cpu_cfs_quota_period_us;
        resources.cpu_quota = quota(cpu, config.cpu_cfs_quota_period_us);
    }
    if cgroup_version() == super::CgroupVersion::V2 && !config.single_process_oom_kill {
        resources.unified = BTreeMap::from([("memory.oom.group".to_owned(), "1".to_owned())]);
    }
    if let Some(factor) = config.memory_qos.filter(|_| cgroup_version() == super::CgroupVersion::V2) {
        let allocatable = super::enforced(machine, config);
        let memory = allocatable.get("memory").and_then(|memory| memory.0.parse::<Amount>().ok());
        let memory = memory.map_or(0, |memory| memory.value());
        resources.unified.extend(memory_qos::of_container(container, memory, factor));
    }
    if machine.swap_is_limited {
        limit_swap(&mut resources, swap(pod, container, machine, config), cgroup_version());
    }
    resources
}

/// Reports whether a container is one of those that `LimitedSwap` lets swap: one of a burstable pod that asks for memory and
/// not for all that it may have.
fn may_swap(pod: &Pod, container: &Container, config: &ResourceConfig) -> bool {
    let request = Amounts::requests(container.resources.as_ref()).memory;
    let limit = Amounts::limits(container.resources.as_ref()).memory;
    let suits = config.limited_swap && qos_class(pod) == QosClass::Burstable && !crate::pods::is_critical(pod);
    suits && request.or(limit).is_some() && request.or(limit) != limit
}

/// Reports whether a container may swap on this machine. Answers for upstream's `GetContainerSwapBehavior`.
pub fn swaps(pod: &Pod, container: &Container, machine: &MachineInfo, config: &ResourceConfig) -> bool {
    machine.swap_is_limited && cgroup_version() == super::CgroupVersion::V2 && may_swap(pod, container, config)
}

/// Bytes of swap that a container may use beyond its memory. With `LimitedSwap` burstable containers that ask for memory
/// get the part of the machine's swap that their request is of its memory. Answers for upstream's
/// `calcSwapForBurstablePods` and the choice before it.
fn swap(pod: &Pod, container: &Container, machine: &MachineInfo, config: &ResourceConfig) -> u64 {
    let request = Amounts::requests(container.resources.as_ref()).memory;
    let limit = Amounts::limits(container.resources.as_ref()).memory;
    let Some(asked) = request.or(limit).and_then(|bytes| u64::try_from(bytes).ok()) else { return 0 };
    if !may_swap(pod, container, config) || machine.memory == 0 || asked > machine.memory {
        return 0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "upstream's formula in floats; casts saturate"
    )]
    let part = (asked as f64 / machine.memory as f64 * machine.swap as f64) as u64;
    part
}

/// Limits swap as the version of cgroups can: the old one cannot give a container some, only none beyond its memory.
fn limit_swap(resources: &mut LinuxContainerResources, bytes: u64, version: super::CgroupVersion) {
    match version {
        super::CgroupVersion::V1 => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        super::CgroupVersion::V2 => drop(resources.unified.insert("memory.swap.max".to_owned(), bytes.to_string())),
    }
}

/// Returns the OOM score adjustment: the less of the machine's memory a burstable container requests, the sooner the
/// kernel ends it.
fn oom_score_adj(pod: &Pod, container: &Container, machine: &MachineInfo) -> i64 {
    let Some(spec) = &pod.spec else { return BEST_EFFORT_OOM };
    let node_critical = spec.priority_class_name.as_deref() == Some(NODE_CRITICAL);
    let critical = node_critical && crate::pods::is_critical(pod);
    match qos_class(pod) {
        _ if critical => return GUARANTEED_OOM,
        QosClass::Guaranteed => return GUARANTEED_OOM,
        QosClass::BestEffort => return BEST_EFFORT_OOM,
        QosClass::Burstable => {}
    }
    let request = |container: &Container| Amounts::requests(container.resources.as_ref()).memory.unwrap_or(0);
    let mut memory = request(container);
    if is_sidecar(container) {
        // A sidecar must not be ended before the containers that it serves.
        let served = spec.containers.iter().map(request).min().unwrap_or(0);
        memory = memory.max(served);
    }
    let total = i64::try_from(machine.memory).unwrap_or(i64::MAX).max(1);
    let score = 1000 - memory.saturating_mul(1000) / total;
    score.clamp(1000 + GUARANTEED_OOM, BEST_EFFORT_OOM - 1)
}

fn hugepage_limits(container: &Container, machine: &MachineInfo) -> Vec<HugepageLimit> {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let limit = |size: u64| {
        let quantity = limits?.get(&format!("hugepages-{}", page_size(size)))?;
        u64::try_from(quantity.0.parse::<Amount>().ok()?.value()).ok()
    };
    let entry =
        |size: &u64| HugepageLimit { page_size: page_size(*size).replace('i', "B"), limit: limit(*size).unwrap_or(0) };
    machine.hugepages.keys().map(entry).collect()
}

/// CRI resources of the sandbox: (the pod's overhead, the pod without it).
pub fn sandbox_resources(pod: &Pod, config: &ResourceConfig) -> (LinuxContainerResources, LinuxContainerResources) {
    let Some(spec) = &pod.spec else { return Default::default() };
    let build = |requests: Amounts, limits: Amounts| {
        let mut resources = LinuxContainerResources {
            cpu_shares: shares(requests.cpu.unwrap_or(0)),
            memory_limit_in_bytes: limits.memory.unwrap_or(0),
            ..LinuxContainerResources::default()
        };
        if let Some(cpu) = limits.cpu.filter(|_| config.cpu_cfs_quota) {
            resources.cpu_period = config.cpu_cfs_quota_period_us;
            resources.cpu_quota = quota(cpu, config.cpu_cfs_quota_period_us);
        }
        resources
    };
    let overhead = Amounts::of(spec.overhead.as_ref());
    let without = PodSpec { overhead: None, ..spec.clone() };
    let overhead =
        if overhead == Amounts::default() { LinuxContainerResources::default() } else { build(overhead, overhead) };
    (overhead, build(pod_requests(&without), pod_limits(&without)))
}

/// Reports whether `wanted` allows more than `now`; none is no limit.
pub(super) fn raises(now: Option<i64>, wanted: Option<i64>) -> bool {
    now.is_some_and(|now| wanted.is_none_or(|wanted| wanted > now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn swap_of(spec: serde_json::Value, limited_swap: bool) -> u64 {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("pod");
        let container = pod.spec.as_ref().expect("spec").containers[0].clone();
        let machine = MachineInfo { memory: 1000, swap: 500, ..MachineInfo::default() };
        let config = ResourceConfig { limited_swap, ..super::super::tests::config() };
        swap(&pod, &container, &machine, &config)
    }

    #[test]
    fn swap_is_for_burstable_containers_in_proportion_to_their_requests() {
        let spec = |requests: serde_json::Value, limits: serde_json::Value, priority: i32| {
            let container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
            json!({"priority": priority, "containers": [container]})
        };
        let (some, most) = (json!({"memory": "200"}), json!({"memory": "400"}));
        let rows = [
            (spec(some.clone(), json!({}), 0), true, 100),
            (spec(some.clone(), most.clone(), 0), true, 100),
            (spec(some.clone(), json!({}), 0), false, 0),
            (spec(most.clone(), most, 0), true, 0),
            (spec(json!({"cpu": "1"}), json!({}), 0), true, 0),
            (spec(some, json!({}), 2_000_000_000), true, 0),
            (spec(json!({}), json!({}), 0), true, 0),
            (spec(json!({"memory": "2000"}), json!({}), 0), true, 0),
        ];
        for (spec, limited, expected) in rows {
            assert_eq!(swap_of(spec.clone(), limited), expected, "{spec}");
        }
    }

    #[test]
    fn no_swap_is_a_limit_in_both_versions() {
        let with = |bytes: u64, version| {
            let mut resources = LinuxContainerResources { memory_limit_in_bytes: 7, ..Default::default() };
            limit_swap(&mut resources, bytes, version);
            (resources.memory_swap_limit_in_bytes, resources.unified.get("memory.swap.max").cloned())
        };
        assert_eq!(with(0, super::super::CgroupVersion::V1), (7, None));
        assert_eq!(with(5, super::super::CgroupVersion::V2), (0, Some("5".to_owned())));
    }
}
