//! What objects use, by the names of quota resources.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};
use k8s_openapi::api::resource::v1::{DeviceRequest, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use k8s_openapi::jiff::Timestamp;
use proto::quantity::{Format, Quantity};

use crate::engine::pod::{Container, Pod, PodSpec};
use crate::engine::pods;

/// What a quota's name for the devices of a class ends in.
pub const PER_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The most devices that a claim may be given.
const MOST_DEVICES: i64 = 32;

/// Amounts by resource name.
pub type Usage = BTreeMap<String, Quantity>;

fn one() -> Quantity {
    Quantity::from_int(1, Format::DecimalSI)
}

/// Add `more` to `sum`.
pub fn add(sum: &mut Usage, more: &Usage) {
    for (name, amount) in more {
        sum.entry(name.clone()).or_default().add(amount);
    }
}

fn raise(sum: &mut Usage, other: &Usage) {
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

/// What a pod asks for as a whole: its containers and sidecars together, or its hungriest init container.
pub(crate) fn of_pod(spec: &PodSpec, limits: bool) -> Usage {
    let mut sum = Usage::new();
    for c in &spec.containers {
        add(&mut sum, &of_container(c, limits));
    }
    let mut sidecars = Usage::new();
    let mut peak = Usage::new();
    for c in spec.init_containers.iter().flatten() {
        let mut own = of_container(c, limits);
        if c.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
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
        if !limits || sum.contains_key(&name) {
            sum.entry(name).or_default().add(&amount);
        }
    }
    sum
}

/// Whether a pod still uses anything: not finished, nor overdue to vanish.
#[must_use]
pub fn counts(pod: &Pod, now: Timestamp) -> bool {
    if pods::finished(pod) {
        return false;
    }
    let grace = pod.metadata.deletion_grace_period_seconds;
    match (pod.metadata.deletion_timestamp.as_ref(), grace) {
        (Some(at), Some(grace)) => now.as_second() <= at.0.as_second() + grace,
        _ => true,
    }
}

/// Whether pods, services or claims are counted under this name; other objects are counted under names of their own.
#[must_use]
pub fn tracked(name: &str) -> bool {
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
    let extended = name.starts_with("requests.") && name.contains('/') && !name.contains("kubernetes.io/");
    NAMES.contains(&name) || huge || extended || OF_CLASS.iter().any(|suffix| name.ends_with(suffix))
}

/// Whether a pod uses less than before, or is in another scope.
#[must_use]
pub fn gives_back(old: &Pod, new: &Pod, now: Timestamp) -> bool {
    let scope = |p: &Pod| p.spec.as_ref().is_some_and(terminating);
    (counts(old, now) && !counts(new, now)) || scope(old) != scope(new)
}

/// What a pod uses.
#[must_use]
pub fn pod(pod: &Pod, now: Timestamp) -> Usage {
    let mut out = Usage::from([("count/pods".to_owned(), one())]);
    let Some(spec) = pod.spec.as_ref().filter(|_| counts(pod, now)) else { return out };
    out.insert("pods".into(), one());
    for (name, amount) in of_pod(spec, false) {
        let native = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if native {
            out.insert(name.clone(), amount.clone());
        }
        out.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in of_pod(spec, true) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            out.insert(format!("limits.{name}"), amount);
        }
    }
    out
}

/// What a service uses.
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

/// In whole bytes, as nothing else is a valid amount in a quota.
fn whole(q: Quantity) -> Quantity {
    let up = Quantity::from_int(q.saturating_value(), q.format());
    if up == q { q } else { up }
}

/// What a claim uses.
#[must_use]
pub fn claim(claim: &PersistentVolumeClaim) -> Usage {
    const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    let mut out =
        Usage::from([("count/persistentvolumeclaims".to_owned(), one()), ("persistentvolumeclaims".to_owned(), one())]);
    let class = claim
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(CLASS))
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_ref())
        .filter(|c| !c.is_empty());
    let asked = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let given = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref()?.get("storage"));
    let storage = [asked, given].into_iter().flatten().filter_map(|q| Quantity::parse(&q.0).ok()).max().map(whole);
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

/// What a claim of devices uses, by device class.
#[must_use]
pub fn device_claim(claim: &ResourceClaim) -> Usage {
    let mut out = Usage::from([("count/resourceclaims.resource.k8s.io".to_owned(), one())]);
    for request in claim.spec.devices.iter().flat_map(|d| d.requests.iter().flatten()) {
        add(&mut out, &of_request(request));
    }
    out
}

/// Of several alternatives the most that each class may come to.
fn of_request(request: &DeviceRequest) -> Usage {
    let mut out = Usage::new();
    let mut claim = |class: &str, mode: Option<&str>, count: Option<i64>| {
        let devices = match mode {
            Some("ExactCount") => count.unwrap_or(0),
            Some("All") => MOST_DEVICES,
            _ => 0,
        };
        let devices = Quantity::from_int(devices, Format::DecimalSI);
        raise(&mut out, &Usage::from([(format!("{class}{PER_DEVICE_CLASS}"), devices)]));
    };
    match (request.first_available.as_deref(), &request.exactly) {
        (Some(alternatives @ [_, ..]), _) => {
            for a in alternatives {
                claim(&a.device_class_name, a.allocation_mode.as_deref(), a.count);
            }
        }
        (_, Some(exactly)) => {
            claim(&exactly.device_class_name, exactly.allocation_mode.as_deref(), exactly.count);
        }
        _ => {}
    }
    out
}

/// Whether all scopes of a quota are true of a pod.
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

/// Whether a quota is only about some pods (or claims), and so not about other objects.
#[must_use]
pub fn scoped(spec: &ResourceQuotaSpec) -> bool {
    spec.scopes.as_ref().is_some_and(|s| !s.is_empty())
        || spec.scope_selector.as_ref().and_then(|s| s.match_expressions.as_ref()).is_some_and(|e| !e.is_empty())
}

/// Whether all scopes of a quota are true of a claim: the only one that is about claims is their attributes class.
#[must_use]
pub fn claim_in_scope(spec: &ResourceQuotaSpec, claim: &PersistentVolumeClaim) -> bool {
    const SCOPE: &str = "VolumeAttributesClass";
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

/// Whether a claim was given another amount, or is in another scope.
#[must_use]
pub fn claim_changes(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    fn given(c: &PersistentVolumeClaim) -> Option<&Stored> {
        c.status.as_ref()?.allocated_resources.as_ref()?.get("storage")
    }
    given(old) != given(new) || attributes_classes(old) != attributes_classes(new)
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
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shown(usage: &Usage) -> Value {
        usage.iter().map(|(k, q)| (k.clone(), json!(q.to_string()))).collect::<serde_json::Map<_, _>>().into()
    }

    fn a_pod(spec: Value, phase: &str) -> Pod {
        serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).expect("pod")
    }

    #[test]
    fn pods_use_the_larger_of_running_and_starting() {
        let c = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "1", "example.com/gpu": "1"}}});
        let spec =
            json!({"containers": [c("100m"), c("200m")], "initContainers": [c("1")], "overhead": {"cpu": "50m"}});
        assert_eq!(
            shown(&pod(&a_pod(spec.clone(), "Running"), Timestamp::UNIX_EPOCH)),
            json!({"count/pods": "1", "cpu": "1050m", "limits.cpu": "2050m", "pods": "1", "requests.cpu": "1050m"})
        );
        assert_eq!(shown(&pod(&a_pod(spec, "Succeeded"), Timestamp::UNIX_EPOCH)), json!({"count/pods": "1"}));
    }

    #[test]
    fn what_is_tracked() {
        for (name, want) in [
            ("requests.cpu", true),
            ("requests.example.com/gpu", true),
            ("requests.hugepages-2Mi", true),
            ("fast.storageclass.storage.k8s.io/requests.storage", true),
            ("example.com/gpu", false),
            ("limits.example.com/gpu", false),
            ("gpu.deviceclass.resource.k8s.io/devices", true),
            ("requests.x.kubernetes.io/y", false),
            ("requests.gpu", false),
            ("count/secrets", false),
            ("bananas", false),
        ] {
            assert_eq!(tracked(name), want, "{name}");
        }
    }

    #[test]
    fn services_and_claims() {
        let s: Service =
            serde_json::from_value(json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}}))
                .expect("service");
        assert_eq!(
            shown(&service(&s)),
            json!({"count/services": "1", "services": "1", "services.loadbalancers": "1", "services.nodeports": "2"})
        );
        let c: PersistentVolumeClaim = serde_json::from_value(
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}}),
        )
        .expect("claim");
        assert_eq!(
            shown(&claim(&c)),
            json!({"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1", "requests.storage": "1Gi",
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1", "fast.storageclass.storage.k8s.io/requests.storage": "1Gi"})
        );
    }

    #[test]
    fn claims_of_devices() {
        let claim = |requests: Value| -> ResourceClaim {
            serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}))
                .expect("claim")
        };
        let of = |class: &str, mode: &str, n: i64| json!({"name": "r", "deviceClassName": class, "allocationMode": mode, "count": n});
        let exactly = |v: Value| json!({"name": "r", "exactly": v});
        for (requests, want) in [
            (json!([exactly(of("gpu", "ExactCount", 2)), exactly(of("gpu", "ExactCount", 1))]), json!({"gpu": "3"})),
            (json!([exactly(of("gpu", "All", 0)), exactly(of("nic", "New", 7))]), json!({"gpu": "32", "nic": "0"})),
            (
                json!([{"name": "r", "firstAvailable": [of("gpu", "ExactCount", 2), of("gpu", "ExactCount", 4), of("nic", "ExactCount", 1)]}]),
                json!({"gpu": "4", "nic": "1"}),
            ),
        ] {
            let mut used = shown(&device_claim(&claim(requests)));
            let map = used.as_object_mut().expect("map");
            assert_eq!(map.remove("count/resourceclaims.resource.k8s.io"), Some(json!("1")));
            let named: Value =
                map.iter().map(|(k, v)| (k.trim_end_matches(PER_DEVICE_CLASS).to_owned(), v.clone())).collect();
            assert_eq!(named, want);
        }
    }

    #[test]
    fn changes_that_matter() {
        let plain = json!({"containers": [{"name": "c"}]});
        let bounded = json!({"containers": [{"name": "c"}], "activeDeadlineSeconds": 5});
        for (old, new, want) in [
            (a_pod(plain.clone(), "Running"), a_pod(plain.clone(), "Failed"), true),
            (a_pod(plain.clone(), "Failed"), a_pod(plain.clone(), "Failed"), false),
            (a_pod(plain.clone(), "Pending"), a_pod(plain.clone(), "Running"), false),
            (a_pod(plain, "Running"), a_pod(bounded, "Running"), true),
        ] {
            assert_eq!(gives_back(&old, &new, Timestamp::UNIX_EPOCH), want);
        }
        let claim = |v: Value| -> PersistentVolumeClaim { serde_json::from_value(v).expect("claim") };
        let plain = claim(json!({"spec": {"volumeAttributesClassName": "a"}}));
        for (status, want) in [
            (json!({"phase": "Bound"}), false),
            (json!({"currentVolumeAttributesClassName": "a"}), false),
            (json!({"currentVolumeAttributesClassName": "b"}), true),
            (json!({"allocatedResources": {"storage": "1Gi"}}), true),
        ] {
            let new = claim(json!({"spec": {"volumeAttributesClassName": "a"}, "status": status}));
            assert_eq!(claim_changes(&plain, &new), want);
        }
        let both = claim(
            json!({"spec": {"volumeAttributesClassName": "a"}, "status": {"currentVolumeAttributesClassName": "b"}}),
        );
        for (operator, class, want) in
            [("In", "b", true), ("In", "c", false), ("NotIn", "a", true), ("Exists", "", true)]
        {
            let spec = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": operator, "values": [class]}]}});
            let spec: ResourceQuotaSpec = serde_json::from_value(spec).expect("quota");
            assert_eq!(claim_in_scope(&spec, &both), want, "{operator} {class}: any of its classes will do");
        }
        let uneven = claim(json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}}));
        assert_eq!(shown(&super::claim(&uneven))["requests.storage"], "2");
    }

    #[test]
    fn scopes() {
        let plain = a_pod(json!({"containers": [{"name": "c"}], "priorityClassName": "high"}), "Running");
        let quota = |v: Value| -> ResourceQuotaSpec { serde_json::from_value(v).expect("quota") };
        let class = |op: &str, v: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": op, "values": v}]}});
        for (spec, want) in [
            (json!({}), true),
            (json!({"scopes": ["BestEffort"]}), true),
            (json!({"scopes": ["BestEffort", "Terminating"]}), false),
            (json!({"scopes": ["NotTerminating"]}), true),
            (class("In", json!(["high"])), true),
            (class("NotIn", json!(["high"])), false),
            (json!({"scopes": ["CrossNamespacePodAffinity"]}), false),
        ] {
            assert_eq!(in_scope(&quota(spec.clone()), &plain), want, "{spec}");
        }
    }
}
