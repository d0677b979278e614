//! Usage of objects, by the names of quota resources. Answers for upstream's `pkg/quota/v1/evaluator/core`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::jiff::Timestamp;
use proto::quantity::{Format, Quantity};
use shared::types::is_native_resource;

use super::devices::{IMPLICIT, PER_DEVICE_CLASS};
use crate::engine::pod::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use crate::engine::pods;

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

pub(super) fn one() -> Quantity {
    Quantity::from_int(1, Format::DecimalSI)
}

/// Add `more` to `sum`.
pub fn add(sum: &mut Usage, more: &Usage) {
    for (name, amount) in more {
        sum.entry(name.clone()).or_default().add(amount);
    }
}

/// Have at least as much of everything as `other`.
pub(super) fn raise(sum: &mut Usage, other: &Usage) {
    for (name, amount) in other {
        let have = sum.entry(name.clone()).or_default();
        if *amount > *have {
            *have = amount.clone();
        }
    }
}

fn read(list: Option<&BTreeMap<String, Stored>>) -> Usage {
    list.into_iter().flatten().filter_map(|(k, q)| Some((k.clone(), Quantity::parse(&q.0).ok()?))).collect()
}

fn of_container(c: &Container, limits: bool) -> Usage {
    let r = c.resources.as_ref();
    read(r.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() }))
}

/// Resources that a pod's containers have, which differ from their requests during an in-place resize.
#[derive(Clone, Copy, Default)]
pub(crate) struct Granted<'a>(Option<&'a PodStatus>);

impl<'a> Granted<'a> {
    fn of(pod: &'a Pod) -> Self {
        Self(pod.status.as_ref())
    }

    /// Returns what a container has or is promised, and what it requests unless that can never be given.
    fn or_asked(self, c: &Container, limits: bool) -> Usage {
        let asked = of_container(c, limits);
        let running = self.0.into_iter().flat_map(|s| [&s.container_statuses, &s.init_container_statuses]);
        let status = running.flatten().flat_map(|all| all.iter()).find(|s| *s.name == *c.name);
        let Some((status, has)) = status.and_then(|s| Some((s, s.resources.as_deref()?))) else { return asked };
        let mut usage = if self.infeasible() { Usage::new() } else { asked };
        raise(&mut usage, &read(if limits { has.limits.as_ref() } else { has.requests.as_ref() }));
        if !limits {
            raise(&mut usage, &read(status.allocated_resources.as_deref()));
        }
        usage
    }

    fn infeasible(self) -> bool {
        let conditions = self.0.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().find(|c| c.type_ == "PodResizePending").is_some_and(|c| c.infeasible.0)
    }
}

/// Returns the usage of a pod as a whole: its containers and sidecars together, or its hungriest init container.
pub(crate) fn of_pod(spec: &PodSpec, granted: Granted<'_>, limits: bool) -> Usage {
    let mut sum = Usage::new();
    for c in &spec.containers {
        add(&mut sum, &granted.or_asked(c, limits));
    }
    let mut sidecars = Usage::new();
    let mut peak = Usage::new();
    for c in spec.init_containers.iter().flatten() {
        let own = if c.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &granted.or_asked(c, limits));
            sidecars.clone()
        } else {
            // It ends: it is not resized.
            let mut own = of_container(c, limits);
            add(&mut own, &sidecars);
            own
        };
        raise(&mut peak, &own);
    }
    add(&mut sum, &sidecars);
    raise(&mut sum, &peak);
    let whole = spec.resources.as_ref();
    for (name, amount) in read(whole.and_then(|r| if limits { r.limits.as_ref() } else { r.requests.as_ref() })) {
        sum.insert(name, amount);
    }
    let overhead = read(spec.overhead.as_ref());
    for (name, amount) in overhead {
        if !limits || sum.get(&name).is_some_and(|limit| !limit.is_zero()) {
            sum.entry(name).or_default().add(&amount);
        }
    }
    sum
}

/// Reports whether a pod still uses anything: not finished, nor overdue to vanish.
#[must_use]
pub fn counts(pod: &Pod, now: Timestamp) -> bool {
    if pods::finished(pod) {
        return false;
    }
    let grace = pod.metadata.deletion_grace_period_seconds;
    match (pod.metadata.deletion_timestamp.as_ref(), grace) {
        (Some(at), Some(grace)) => now.as_second() <= at.0.as_second().saturating_add(grace),
        _ => true,
    }
}

/// Reports whether pods, services or claims are counted under this name; other objects are counted under names of their
/// own. `extended`: device classes are resources, too.
#[must_use]
pub fn tracked(name: &str, extended: bool) -> bool {
    const NAMES: [&str; 19] = [
        "count/persistentvolumeclaims",
        "count/pods",
        "count/resourceclaims.resource.k8s.io",
        "count/services",
        "cpu",
        "ephemeral-storage",
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "memory",
        "persistentvolumeclaims",
        "pods",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
        "requests.storage",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    ];
    const OF_CLASS: [&str; 3] = [
        ".storageclass.storage.k8s.io/persistentvolumeclaims",
        ".storageclass.storage.k8s.io/requests.storage",
        PER_DEVICE_CLASS,
    ];
    let huge = name.starts_with("hugepages-") || name.starts_with("requests.hugepages-");
    let foreign = name.starts_with("requests.") && !is_native_resource(name);
    let implicit = extended && name.starts_with(IMPLICIT);
    NAMES.contains(&name) || huge || foreign || implicit || OF_CLASS.iter().any(|suffix| name.ends_with(suffix))
}

/// Reports whether a pod may use less than before, or is in another scope.
#[must_use]
pub fn gives_back(old: &Pod, new: &Pod, now: Timestamp) -> bool {
    let scope = |p: &Pod| p.spec.as_ref().is_some_and(terminating);
    (counts(old, now) && !counts(new, now)) || scope(old) != scope(new) || resized(old, new)
}

/// Reports whether containers were given other resources. Those that have just begun to run have what they request.
fn resized(old: &Pod, new: &Pod) -> bool {
    fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
        let status = pod.status.as_ref();
        let all = status.into_iter().flat_map(|s| [&s.container_statuses, &s.init_container_statuses]);
        all.flatten().flat_map(|all| all.iter())
    }
    let other = |old: &ContainerStatus, new: &ContainerStatus| {
        old.name == new.name
            && ((old.resources.is_some() && old.resources != new.resources)
                || (old.allocated_resources.is_some() && old.allocated_resources != new.allocated_resources))
    };
    statuses(old).zip(statuses(new)).any(|(old, new)| other(old, new))
        || Granted::of(old).infeasible() != Granted::of(new).infeasible()
}

/// Returns the usage of a pod.
#[must_use]
pub fn pod(pod: &Pod, now: Timestamp) -> Usage {
    let mut out = Usage::from([("count/pods".to_owned(), one())]);
    let Some(spec) = pod.spec.as_ref().filter(|_| counts(pod, now)) else { return out };
    out.insert("pods".into(), one());
    let granted = Granted::of(pod);
    for (name, amount) in of_pod(spec, granted, false) {
        let native = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if native {
            out.insert(name.clone(), amount.clone());
        }
        out.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in of_pod(spec, granted, true) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            out.insert(format!("limits.{name}"), amount);
        }
    }
    out
}

/// Returns the usage of a service.
#[must_use]
pub fn service(service: &Service) -> Usage {
    let mut out = Usage::from([("count/services".to_owned(), one()), ("services".to_owned(), one())]);
    let Some(spec) = service.spec.as_ref() else { return out };
    let ports = i64::try_from(spec.ports.as_ref().map_or(0, Vec::len)).unwrap_or(0);
    let mut put = |name: &str, n: i64| out.insert(name.to_owned(), Quantity::from_int(n, Format::DecimalSI));
    match spec.type_.as_deref() {
        Some("NodePort") => {
            put("services.nodeports", ports);
        }
        Some("LoadBalancer") => {
            put("services.loadbalancers", 1);
            let allocated = spec.ports.iter().flatten().filter(|p| p.node_port.is_some_and(|n| n != 0)).count();
            let all = spec.allocate_load_balancer_node_ports != Some(false);
            put("services.nodeports", if all { ports } else { i64::try_from(allocated).unwrap_or(0) });
        }
        _ => {}
    }
    out
}

/// Returns the usage of a claim.
#[must_use]
pub fn claim(claim: &PersistentVolumeClaim) -> Usage {
    let mut out =
        Usage::from([("count/persistentvolumeclaims".to_owned(), one()), ("persistentvolumeclaims".to_owned(), one())]);
    let class = shared::types::claim_class(claim).filter(|c| !c.is_empty());
    let asked = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let given = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref()?.get("storage"));
    let storage = [asked, given].into_iter().flatten().filter_map(|q| Quantity::parse(&q.0).ok()).max();
    // As nothing else is a valid amount in a quota.
    let storage = storage.map(Quantity::rounded_up);
    if let Some(class) = class {
        out.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one());
    }
    if let Some(storage) = storage {
        if let Some(class) = class {
            out.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage.clone());
        }
        out.insert("requests.storage".into(), storage);
    }
    out
}

/// Reports whether all scopes of a quota match a pod.
#[must_use]
pub fn in_scope(spec: &ResourceQuotaSpec, pod: &Pod) -> bool {
    let plain = spec.scopes.iter().flatten().all(|s| scope(s, "Exists", &[], pod));
    let selected = spec.scope_selector.iter().flat_map(|s| s.match_expressions.iter().flatten()).all(
        |ScopedResourceSelectorRequirement { scope_name, operator, values }| {
            scope(scope_name, operator, values.as_deref().unwrap_or_default(), pod)
        },
    );
    plain && selected
}

/// Reports whether a quota is only about some pods (or claims), and so not about other objects.
#[must_use]
pub fn scoped(spec: &ResourceQuotaSpec) -> bool {
    spec.scopes.as_ref().is_some_and(|s| !s.is_empty())
        || spec.scope_selector.as_ref().and_then(|s| s.match_expressions.as_ref()).is_some_and(|e| !e.is_empty())
}

/// Reports whether all scopes of a quota match a claim: the only one that is about claims is their attributes class, where
/// there are such (`attributes`).
#[must_use]
pub fn claim_in_scope(spec: &ResourceQuotaSpec, claim: &PersistentVolumeClaim, attributes: bool) -> bool {
    const SCOPE: &str = "VolumeAttributesClass";
    if !attributes {
        return !scoped(spec);
    }
    let classes = attributes_classes(claim);
    let plain = spec.scopes.iter().flatten().all(|s| s == SCOPE && !classes.is_empty());
    let selected = spec.scope_selector.iter().flat_map(|s| s.match_expressions.iter().flatten()).all(|r| {
        let values = r.values.as_deref().unwrap_or_default();
        let listed = |c: &&str| values.iter().any(|v| v == c);
        let any = classes.iter().any(|c| matches_class(&r.operator, true, listed(c)));
        r.scope_name == SCOPE && (any || (classes.is_empty() && matches_class(&r.operator, false, false)))
    });
    plain && selected
}

fn attributes_classes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let asked = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.as_deref());
    let given = claim.status.as_ref().and_then(|s| s.current_volume_attributes_class_name.as_deref());
    let target = claim.status.as_ref().and_then(|s| s.modify_volume_status.as_ref());
    let target = target.and_then(|m| m.target_volume_attributes_class_name.as_deref());
    [asked, given, target].into_iter().flatten().filter(|c| !c.is_empty()).collect()
}

/// Reports whether a claim was given another amount, or is in another scope where classes of attributes make such.
#[must_use]
pub fn claim_changes(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim, attributes: bool) -> bool {
    fn given(c: &PersistentVolumeClaim) -> Option<&Stored> {
        c.status.as_ref()?.allocated_resources.as_ref()?.get("storage")
    }
    given(old) != given(new) || (attributes && attributes_classes(old) != attributes_classes(new))
}

fn matches_class(operator: &str, some: bool, listed: bool) -> bool {
    match operator {
        "Exists" => some,
        "DoesNotExist" => !some,
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

fn scope(name: &str, operator: &str, values: &[String], pod: &Pod) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return false };
    match name {
        "Terminating" => terminating(spec),
        "NotTerminating" => !terminating(spec),
        "BestEffort" => best_effort(spec),
        "NotBestEffort" => !best_effort(spec),
        "CrossNamespacePodAffinity" => cross_namespace(spec),
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().filter(|c| !c.is_empty());
            let listed = class.is_some_and(|c| values.iter().any(|v| v == c));
            matches_class(operator, class.is_some(), listed)
        }
        _ => false,
    }
}

fn terminating(spec: &PodSpec) -> bool {
    spec.active_deadline_seconds.is_some_and(|s| s >= 0)
}

fn best_effort(spec: &PodSpec) -> bool {
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let matters = |u: Usage| u.iter().any(|(k, q)| matches!(k.as_str(), "cpu" | "memory") && !q.is_zero());
    let whole = spec.resources.as_ref();
    !all.into_iter().any(|c| matters(of_container(c, false)) || matters(of_container(c, true)))
        && !matters(read(whole.and_then(|r| r.requests.as_ref())))
        && !matters(read(whole.and_then(|r| r.limits.as_ref())))
}

fn cross_namespace(spec: &PodSpec) -> bool {
    let Some(affinity) = spec.affinity.as_ref() else { return false };
    let far = |t: &k8s_openapi::api::core::v1::PodAffinityTerm| {
        t.namespaces.as_ref().is_some_and(|n| !n.is_empty()) || t.namespace_selector.is_some()
    };
    let terms = |required: Option<&Vec<k8s_openapi::api::core::v1::PodAffinityTerm>>,
                 preferred: Option<&Vec<k8s_openapi::api::core::v1::WeightedPodAffinityTerm>>| {
        required.into_iter().flatten().any(far) || preferred.into_iter().flatten().any(|w| far(&w.pod_affinity_term))
    };
    let near = affinity.pod_affinity.as_ref().is_some_and(|a| {
        terms(
            a.required_during_scheduling_ignored_during_execution.as_ref(),
            a.preferred_during_scheduling_ignored_during_execution.as_ref(),
        )
    });
    let apart = affinity.pod_anti_affinity.as_ref().is_some_and(|a| {
        terms(
            a.required_during_scheduling_ignored_during_execution.as_ref(),
            a.preferred_during_scheduling_ignored_during_execution.as_ref(),
        )
    });
    near || apart
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
