//! Evaluators of quota usage: the usage of one object, under the names of quotas. Pure. Answers for upstream's
//! `pkg/quota/v1/evaluator/core` (`PodUsageFunc`).

use std::collections::{BTreeMap, BTreeSet};

use proto::quantity::Quantity;
use serde_json::Value;
use shared::types::{OLD_CLASS, is_extended_resource};

use super::super::resource_list::{self as list, List};
use super::super::{Attributes, Operation};
use super::scopes;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::core::binding::BINDINGS;
use crate::registry::core::config_map::CONFIG_MAPS;
use crate::registry::core::event::EVENTS;
use crate::registry::core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIMS;
use crate::registry::core::pod::PODS;
use crate::registry::core::replication_controller::REPLICATION_CONTROLLERS;
use crate::registry::core::resource_quota::RESOURCE_QUOTAS;
use crate::registry::core::secret::SECRETS;
use crate::registry::core::service::SERVICES;
use crate::registry::events::event::EVENTS as EVENTS_V1;
use crate::registry::is_question;
use crate::registry::resource::resource_claim::RESOURCE_CLAIMS;

const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The most devices that a claim may be given.
const MOST_DEVICES: i64 = 32;
/// Core kinds that may also be counted by their plain name.
const PLAIN: [GroupResource<'static>; 6] =
    [REPLICATION_CONTROLLERS, SECRETS, CONFIG_MAPS, RESOURCE_QUOTAS, SERVICES, PERSISTENT_VOLUME_CLAIMS];

/// Reports whether a request can increase usage.
pub(super) fn counts(a: &Attributes<'_>) -> bool {
    let (new, old) = (a.object().unwrap_or(&Value::Null), a.old_object.unwrap_or(&Value::Null));
    match (GroupResource::of(a.resource), a.subresource, a.operation) {
        (EVENTS | EVENTS_V1 | BINDINGS, ..) => false,
        (resource, ..) if is_question(resource) => false,
        (PODS, "resize", Operation::Update) => true,
        (PODS, "", Operation::Update) => scopes::terminates(new) != scopes::terminates(old),
        (_, "", Operation::Create) => true,
        (SERVICES | PERSISTENT_VOLUME_CLAIMS | RESOURCE_CLAIMS, "", Operation::Update) => true,
        // What a volume was given may be more than was asked for.
        (PERSISTENT_VOLUME_CLAIMS, "status", Operation::Update) => {
            allocated(new) != allocated(old) || scopes::attributes_classes(new) != scopes::attributes_classes(old)
        }
        _ => false,
    }
}

fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") }
}

/// Reports whether a quota's resource name applies to the resource.
pub(super) fn limits(group: &str, plural: &str, name: &str) -> bool {
    let resource = GroupResource::new(group, plural);
    if name == count_name(group, plural) || (PLAIN.contains(&resource) && name == plural) {
        return true;
    }
    match resource {
        PODS => {
            let (kind, plain) = name.split_once('.').filter(|(k, _)| matches!(*k, "requests" | "limits")).unzip();
            let (kind, plain) = (kind.unwrap_or_default(), plain.unwrap_or(name));
            matches!(plain, "cpu" | "memory" | "ephemeral-storage")
                || name == PODS.plural
                || (kind != "limits" && plain.starts_with("hugepages-"))
                || (kind == "requests" && is_extended_resource(plain))
        }
        SERVICES => matches!(name, "services.nodeports" | "services.loadbalancers"),
        PERSISTENT_VOLUME_CLAIMS => {
            let of_class = name.split_once(STORAGE_CLASS).map(|(_, what)| what);
            name == "requests.storage"
                || of_class.is_some_and(|what| what == PERSISTENT_VOLUME_CLAIMS.plural || what == "requests.storage")
        }
        RESOURCE_CLAIMS => name.ends_with(DEVICE_CLASS),
        _ => false,
    }
}

/// Usage of an object.
pub(super) fn usage_of(group: &str, plural: &str, object: &Value) -> List {
    let mut used = List::from([(count_name(group, plural), list::count(1))]);
    let resource = GroupResource::new(group, plural);
    if PLAIN.contains(&resource) {
        used.insert(plural.to_owned(), list::count(1));
    }
    match resource {
        RESOURCE_CLAIMS => devices(object, &mut used),
        PODS if lives(object, jiff::Timestamp::now()) => {
            used.insert(plural.to_owned(), list::count(1));
            let of = |which| list::of_resized_pod(object, which);
            used.extend(by_quota_name(&of("requests"), &of("limits")));
        }
        SERVICES => services(object, &mut used),
        PERSISTENT_VOLUME_CLAIMS => claims(object, &mut used),
        _ => {}
    }
    used
}

/// Reports whether a pod counts: not finished, nor overdue for deletion.
fn lives(pod: &Value, now: jiff::Timestamp) -> bool {
    if matches!(tree::text(pod, "/status/phase"), "Failed" | "Succeeded") {
        return false;
    }
    let deleted = tree::text(pod, "/metadata/deletionTimestamp").parse::<jiff::Timestamp>();
    match (deleted, tree::int(pod, "/metadata/deletionGracePeriodSeconds")) {
        (Ok(at), Some(grace)) => now.as_second() <= at.as_second().saturating_add(grace),
        _ => true,
    }
}

/// The devices that a claim may come to, by class: of alternatives the most of each.
fn devices(claim: &Value, used: &mut List) {
    for request in tree::list(claim, "/spec/devices/requests") {
        let alternatives = tree::list(request, "/firstAvailable");
        let mut most = List::new();
        for one in alternatives.iter().chain(request.get("exactly").filter(|_| alternatives.is_empty())) {
            let count = match tree::text(one, "/allocationMode") {
                "ExactCount" => tree::int(one, "/count").unwrap_or_default(),
                "All" => MOST_DEVICES,
                _ => 0,
            };
            let name = format!("{}{DEVICE_CLASS}", tree::text(one, "/deviceClassName"));
            most = list::max(&most, &List::from([(name, list::count(count))]));
        }
        *used = list::add(used, &most);
    }
}

/// Storage allocated to a claim.
fn allocated(claim: &Value) -> Option<Quantity> {
    list::read(claim, "/status/allocatedResources").remove("storage")
}

fn services(object: &Value, used: &mut List) {
    let ports = i64::try_from(tree::list(object, "/spec/ports").len()).unwrap_or(i64::MAX);
    let (mut node_ports, mut balancers) = (0, 0);
    match tree::text(object, "/spec/type") {
        "NodePort" => node_ports = ports,
        "LoadBalancer" => {
            balancers = 1;
            let allocates = tree::maybe_flag(object, "/spec/allocateLoadBalancerNodePorts").unwrap_or(true);
            let explicit =
                tree::list(object, "/spec/ports").iter().filter(|p| tree::int(p, "/nodePort").unwrap_or(0) > 0).count();
            node_ports = if allocates { ports } else { i64::try_from(explicit).unwrap_or(i64::MAX) };
        }
        _ => {}
    }
    used.insert("services.nodeports".to_owned(), list::count(node_ports));
    used.insert("services.loadbalancers".to_owned(), list::count(balancers));
}

fn claims(object: &Value, used: &mut List) {
    let class = tree::annotation(object, OLD_CLASS).unwrap_or_else(|| tree::text(object, "/spec/storageClassName"));
    let size = list::read(object, "/spec/resources/requests").remove("storage");
    let size = size.map(|asked| allocated(object).filter(|given| *given > asked).unwrap_or(asked));
    // As nothing else is a valid amount in a quota.
    let size = size.map(Quantity::rounded_up);
    if !class.is_empty() {
        used.insert(format!("{class}{STORAGE_CLASS}persistentvolumeclaims"), list::count(1));
        if let Some(size) = &size {
            used.insert(format!("{class}{STORAGE_CLASS}requests.storage"), size.clone());
        }
    }
    if let Some(size) = size {
        used.insert("requests.storage".to_owned(), size);
    }
}

/// Requests and limits under the names quotas know them by.
fn by_quota_name(requests: &List, limits: &List) -> List {
    let mut named = List::new();
    for (name, quantity) in requests {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if plain || name.starts_with("hugepages-") {
            named.insert(name.clone(), quantity.clone());
        }
        if plain || name.starts_with("hugepages-") || is_extended_resource(name) {
            named.insert(format!("requests.{name}"), quantity.clone());
        }
    }
    for (name, quantity) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            named.insert(format!("limits.{name}"), quantity.clone());
        }
    }
    named
}

/// `requests.cpu for: a,b; limits.cpu for: b`: what a pod's containers must say because it is limited. A pod that says
/// anything as a whole speaks for them.
pub(super) fn unspecified(group: &str, plural: &str, object: &Value, limited: &BTreeSet<String>) -> Option<String> {
    const MUST: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
    let says = |which: &str| !list::read(object, &format!("/spec/resources/{which}")).is_empty();
    if GroupResource::new(group, plural) != PODS || says("requests") || says("limits") {
        return None;
    }
    let must: Vec<&String> = limited.iter().filter(|n| MUST.contains(&n.as_str())).collect();
    let mut silent: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for containers in ["/spec/containers", "/spec/initContainers"] {
        for container in tree::list(object, containers) {
            let said = by_quota_name(
                &list::read(container, "/resources/requests"),
                &list::read(container, "/resources/limits"),
            );
            for name in must.iter().filter(|n| !said.contains_key(**n)) {
                silent.entry(name.as_str()).or_default().insert(tree::name_field(container));
            }
        }
    }
    let parts: Vec<String> = silent
        .iter()
        .map(|(name, who)| format!("{name} for: {}", who.iter().copied().collect::<Vec<_>>().join(",")))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_usage() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"}, "limits": {"cpu": "2"}}}]}});
        let describe = |plural: &str, object: &Value| list::describe(&usage_of("", plural, object));
        assert_eq!(
            describe("pods", &pod),
            "count/pods=1,cpu=1,limits.cpu=2,memory=1Gi,pods=1,requests.cpu=1,requests.example.com/gpu=2,requests.memory=1Gi"
        );
        let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}});
        assert_eq!(
            describe("persistentvolumeclaims", &claim),
            "count/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
             fast.storageclass.storage.k8s.io/requests.storage=5Gi,persistentvolumeclaims=1,requests.storage=5Gi"
        );
        let balancer = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}});
        assert_eq!(
            describe("services", &balancer),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=2"
        );
        assert_eq!(list::describe(&usage_of("apps", "deployments", &json!({}))), "count/deployments.apps=1");
    }

    #[test]
    fn devices_of_claims() {
        let one = |class: &str, mode: &str, count: i64| json!({"deviceClassName": class, "allocationMode": mode, "count": count});
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": one("a", "ExactCount", 2)},
            {"name": "b", "exactly": one("a", "All", 0)},
            {"name": "c", "firstAvailable": [one("a", "ExactCount", 1), one("b", "ExactCount", 3), one("b", "ExactCount", 2)]},
            {"name": "d", "exactly": one("c", "Tomorrow", 1)},
        ]}}});
        assert_eq!(
            list::describe(&usage_of(RESOURCE_CLAIMS.group, "resourceclaims", &claim)),
            "a.deviceclass.resource.k8s.io/devices=35,b.deviceclass.resource.k8s.io/devices=3,\
             c.deviceclass.resource.k8s.io/devices=0,count/resourceclaims.resource.k8s.io=1"
        );
    }

    #[test]
    fn quota_names_match_resources() {
        for (plural, name, want) in [
            ("pods", "requests.cpu", true),
            ("pods", "limits.memory", true),
            ("pods", "limits.hugepages-2Mi", false),
            ("pods", "requests.hugepages-2Mi", true),
            ("pods", "requests.example.com/gpu", true),
            ("pods", "requests.x.kubernetes.io/y", false),
            ("pods", "example.com/gpu", false),
            ("pods", "requests.storage", false),
            ("pods", "requests.pods", false),
            ("pods", "gpu.deviceclass.resource.k8s.io/devices", false),
            ("persistentvolumeclaims", "fast.storageclass.storage.k8s.io/requests.storage", true),
            ("persistentvolumeclaims", "fast.storageclass.storage.k8s.io/bananas", false),
        ] {
            assert_eq!(limits("", plural, name), want, "{plural} {name}");
        }
        assert!(limits(RESOURCE_CLAIMS.group, "resourceclaims", "gpu.deviceclass.resource.k8s.io/devices"));
    }

    #[test]
    fn pods_that_are_over() {
        let now: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        for (pod, want) in [
            (json!({"status": {"phase": "Running"}}), true),
            (json!({"status": {"phase": "Succeeded"}}), false),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}}),
                true,
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:29Z", "deletionGracePeriodSeconds": 30}}),
                false,
            ),
        ] {
            assert_eq!(lives(&pod, now), want, "{pod}");
        }
    }

    #[test]
    fn silent_containers_are_named() {
        let pod =
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": "1"}}}]}});
        let limited: BTreeSet<String> =
            ["requests.cpu".to_owned(), "limits.memory".to_owned(), "pods".to_owned()].into();
        assert_eq!(
            unspecified("", "pods", &pod, &limited).as_deref(),
            Some("limits.memory for: a,b; requests.cpu for: b")
        );
        let mut speaks = pod;
        speaks["spec"]["resources"] = json!({"requests": {"memory": "1Gi"}});
        assert_eq!(unspecified("", "pods", &speaks, &limited), None);
    }
}
