//! What one object uses, in the names quotas are written in. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::resource_list::{self as list, List};
use super::super::{Attributes, Operation};
use crate::access::tree;

const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Core kinds that may also be counted by their plain name.
const PLAIN: [&str; 6] =
    ["replicationcontrollers", "secrets", "configmaps", "resourcequotas", "services", "persistentvolumeclaims"];
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Whether the request can raise any usage.
pub(super) fn counts(a: &Attributes<'_>) -> bool {
    let core = a.resource.group.is_empty();
    match (a.resource.plural.as_ref(), a.subresource, a.operation) {
        ("events", ..) => false,
        ("pods", "resize", Operation::Update) if core => true,
        (_, "", Operation::Create) => true,
        ("services" | "persistentvolumeclaims", "", Operation::Update) => core,
        _ => false,
    }
}

fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") }
}

/// Whether a limit of that name concerns the resource.
pub(super) fn limits(group: &str, plural: &str, name: &str) -> bool {
    if name == count_name(group, plural) || (group.is_empty() && PLAIN.contains(&plural) && name == plural) {
        return true;
    }
    match (group, plural) {
        ("", "pods") => {
            matches!(name, "pods" | "cpu" | "memory" | "ephemeral-storage")
                || name.starts_with("limits.")
                || name.starts_with("hugepages-")
                || (name.starts_with("requests.") && name != "requests.storage")
        }
        ("", "services") => matches!(name, "services.nodeports" | "services.loadbalancers"),
        ("", "persistentvolumeclaims") => name == "requests.storage" || name.contains(STORAGE_CLASS),
        _ => false,
    }
}

/// What an object uses.
pub(super) fn of(group: &str, plural: &str, object: &Value) -> List {
    let mut used = List::from([(count_name(group, plural), list::count(1))]);
    if !group.is_empty() {
        return used;
    }
    if PLAIN.contains(&plural) {
        used.insert(plural.to_owned(), list::count(1));
    }
    match plural {
        "pods" => {
            used.insert("pods".to_owned(), list::count(1));
            used.extend(by_quota_name(&list::of_pod(object, "requests"), &list::of_pod(object, "limits")));
        }
        "services" => services(object, &mut used),
        "persistentvolumeclaims" => claims(object, &mut used),
        _ => {}
    }
    used
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
    let class = tree::annotation(object, BETA_CLASS).unwrap_or_else(|| tree::text(object, "/spec/storageClassName"));
    let size = list::read(object, "/spec/resources/requests").remove("storage");
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
        if plain || name.starts_with("hugepages-") || list::is_extended(name) {
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

/// `requests.cpu for: a,b; limits.cpu for: b`: what a pod's containers must say because it is limited.
pub(super) fn unspecified(group: &str, plural: &str, object: &Value, limited: &BTreeSet<String>) -> Option<String> {
    const MUST: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
    if !group.is_empty() || plural != "pods" {
        return None;
    }
    let whole =
        by_quota_name(&list::read(object, "/spec/resources/requests"), &list::read(object, "/spec/resources/limits"));
    let must: Vec<&String> = limited.iter().filter(|n| MUST.contains(&n.as_str()) && !whole.contains_key(*n)).collect();
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
        let describe = |plural: &str, object: &Value| list::describe(&of("", plural, object));
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
        assert_eq!(list::describe(&of("apps", "deployments", &json!({}))), "count/deployments.apps=1");
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
    }
}
