//! The Endpoints object of a service: the addresses of its pods, grouped by the ports they serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::services::{self, HEADLESS, TRIGGER};
use crate::engine::{object, pods};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// More addresses than this are cut off; endpoint slices carry the rest.
const CAPACITY: usize = 1000;

/// What the decision rests on.
#[derive(Debug)]
pub struct Snapshot {
    /// The service.
    pub service: Arc<Service>,
    /// The pods it selects.
    pub pods: Vec<Arc<Pod>>,
    /// What is stored.
    pub current: Option<Arc<Endpoints>>,
    /// What caused the change.
    pub trigger: Option<Timestamp>,
}

/// Whether this controller made the object.
#[must_use]
pub fn ours(endpoints: &Endpoints) -> bool {
    object::label(&endpoints.metadata, MANAGED_BY) == Some(CONTROLLER)
}

/// Create or update the Endpoints object, if it is not as it should be.
#[must_use]
pub fn plan(s: &Snapshot) -> Vec<Action> {
    let Some(spec) = services::selecting(&s.service) else { return Vec::new() };
    let tolerate_unready = spec.publish_not_ready_addresses == Some(true);
    let family = spec.ip_families.as_ref().and_then(|f| f.first()).map_or("IPv4", String::as_str);
    let mut rows: Vec<(EndpointPort, EndpointAddress, bool)> = Vec::new();
    let mut portless: Vec<(EndpointAddress, bool)> = Vec::new();
    for pod in s.pods.iter().filter(|p| services::belongs(p, tolerate_unready)) {
        let Some(ip) = services::pod_ips(pod).into_iter().find(|ip| ip.contains(':') == (family == "IPv6")) else {
            continue;
        };
        let address = EndpointAddress {
            ip: ip.to_owned(),
            hostname: services::hostname(pod, &s.service).map(str::to_owned),
            node_name: Some(pods::node(pod).to_owned()).filter(|n| !n.is_empty()),
            target_ref: Some(services::pod_reference(pod)),
        };
        let ready = tolerate_unready || pods::ready(pod);
        let ports = spec.ports.as_deref().unwrap_or_default();
        if ports.is_empty() && services::headless(spec) {
            portless.push((address, ready));
            continue;
        }
        for port in ports {
            let Some(number) = services::pod_port(pod, port) else { continue };
            let port = EndpointPort {
                name: port.name.clone().filter(|n| !n.is_empty()),
                port: number,
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            };
            rows.push((port, address.clone(), ready));
        }
    }
    let mut subsets = repack(rows, portless);
    let cut = truncate(&mut subsets);
    let desired = assemble(s, subsets, cut);
    match s.current.as_deref() {
        None => vec![Action::create(&desired)],
        Some(current) if same(current, &desired) => Vec::new(),
        Some(current) => {
            let mut copy = current.clone();
            copy.subsets = desired.subsets;
            copy.metadata.labels = desired.metadata.labels;
            copy.metadata.annotations = desired.metadata.annotations;
            vec![Action::update(&copy)]
        }
    }
}

/// Group addresses that serve the same set of ports, in a stable order.
fn repack(
    rows: Vec<(EndpointPort, EndpointAddress, bool)>,
    portless: Vec<(EndpointAddress, bool)>,
) -> Vec<EndpointSubset> {
    type PortKey = (String, i32, String, String);
    let key = |p: &EndpointPort| -> PortKey {
        let text = |v: &Option<String>| v.clone().unwrap_or_default();
        (text(&p.name), p.port, text(&p.protocol), text(&p.app_protocol))
    };
    type Served = (EndpointAddress, BTreeMap<PortKey, EndpointPort>);
    // Address (by IP and uid) → its ports; then set of ports → its addresses.
    let mut by_address: BTreeMap<(String, String, bool), Served> = BTreeMap::new();
    let id = |a: &EndpointAddress, ready: bool| {
        (a.ip.clone(), a.target_ref.as_ref().and_then(|r| r.uid.clone()).unwrap_or_default(), ready)
    };
    for (address, ready) in portless {
        by_address.entry(id(&address, ready)).or_insert_with(|| (address, BTreeMap::new()));
    }
    for (port, address, ready) in rows {
        by_address.entry(id(&address, ready)).or_insert_with(|| (address, BTreeMap::new())).1.insert(key(&port), port);
    }
    let mut by_ports: BTreeMap<Vec<PortKey>, EndpointSubset> = BTreeMap::new();
    for ((_, _, ready), (address, ports)) in by_address {
        let subset = by_ports.entry(ports.keys().cloned().collect()).or_insert_with(|| EndpointSubset {
            ports: Some(ports.into_values().collect::<Vec<_>>()).filter(|p| !p.is_empty()),
            ..EndpointSubset::default()
        });
        let list = if ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        list.get_or_insert_default().push(address);
    }
    by_ports.into_values().collect()
}

fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    let mut room = CAPACITY;
    let mut cut = false;
    let ready = |s: &mut EndpointSubset| s.addresses.take();
    let unready = |s: &mut EndpointSubset| s.not_ready_addresses.take();
    // Ready addresses first; unready ones only get the room that is left.
    for subset in subsets.iter_mut() {
        if let Some(mut list) = ready(subset) {
            cut |= list.len() > room;
            list.truncate(room);
            room -= list.len();
            subset.addresses = Some(list).filter(|l| !l.is_empty());
        }
    }
    for subset in subsets.iter_mut() {
        if let Some(mut list) = unready(subset) {
            cut |= list.len() > room;
            list.truncate(room);
            room -= list.len();
            subset.not_ready_addresses = Some(list).filter(|l| !l.is_empty());
        }
    }
    cut
}

fn assemble(s: &Snapshot, subsets: Vec<EndpointSubset>, cut: bool) -> Endpoints {
    let service = &s.service.metadata;
    let mut labels = service.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if s.service.spec.as_ref().is_some_and(services::headless) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    let mut annotations = s.current.as_ref().and_then(|c| c.metadata.annotations.clone()).unwrap_or_default();
    match s.trigger {
        Some(at) => annotations.insert(TRIGGER.into(), services::trigger_text(at)),
        None => annotations.remove(TRIGGER),
    };
    if cut {
        annotations.insert(OVER_CAPACITY.into(), "truncated".into());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    Endpoints {
        metadata: ObjectMeta {
            name: service.name.clone(),
            namespace: service.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|a| !a.is_empty()),
            ..ObjectMeta::default()
        },
        subsets: Some(subsets).filter(|s| !s.is_empty()),
    }
}

fn same(current: &Endpoints, desired: &Endpoints) -> bool {
    let over = |e: &Endpoints| object::annotation(&e.metadata, OVER_CAPACITY).map(str::to_owned);
    let none_if_empty = |e: &Endpoints| e.subsets.clone().filter(|s| !s.is_empty());
    none_if_empty(current) == none_if_empty(desired)
        && current.metadata.labels == desired.metadata.labels
        && over(current) == over(desired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, ip: &str, ready: bool) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    }

    fn service(spec: Value) -> Value {
        let mut v = json!({"metadata": {"name": "web", "namespace": "ns", "labels": {"l": "1"}},
            "spec": {"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ports": [{"port": 80, "targetPort": "http", "protocol": "TCP"}]}});
        if let (Some(s), Value::Object(e)) = (v["spec"].as_object_mut(), spec) {
            s.extend(e);
        }
        v
    }

    fn subsets(service: Value, pods: Vec<Value>) -> Value {
        let s = Snapshot {
            service: Arc::new(serde_json::from_value(service).expect("service")),
            pods: pods.into_iter().map(|p| Arc::new(serde_json::from_value(p).expect("pod"))).collect(),
            current: None,
            trigger: None,
        };
        match plan(&s).as_slice() {
            [Action::Create { body, .. }] => body["subsets"].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_by_readiness_and_port() {
        let got = subsets(service(json!({})), vec![pod("a", "10.1.0.1", true), pod("b", "10.1.0.2", false)]);
        let target = |n: &str| json!({"kind": "Pod", "name": n, "namespace": "ns", "uid": n});
        assert_eq!(
            got,
            json!([{"addresses": [{"ip": "10.1.0.1", "nodeName": "n1", "targetRef": target("a")}],
                "notReadyAddresses": [{"ip": "10.1.0.2", "nodeName": "n1", "targetRef": target("b")}],
                "ports": [{"port": 8080, "protocol": "TCP"}]}])
        );
        let all = subsets(
            service(json!({"publishNotReadyAddresses": true})),
            vec![pod("a", "10.1.0.1", true), pod("b", "10.1.0.2", false)],
        );
        assert_eq!(all[0]["addresses"].as_array().map(Vec::len), Some(2));
        let nameless =
            subsets(service(json!({"ports": [{"port": 80, "targetPort": "nope"}]})), vec![pod("a", "10.1.0.1", true)]);
        assert_eq!(nameless, Value::Null, "no container names that port");
        let headless = subsets(service(json!({"clusterIP": "None", "ports": []})), vec![pod("a", "10.1.0.1", true)]);
        assert_eq!(headless[0]["addresses"][0]["ip"], "10.1.0.1");
        assert_eq!(headless[0]["ports"], Value::Null);
    }

    #[test]
    fn finished_and_dying_pods_are_left_out() {
        let mut done = pod("a", "10.1.0.1", true);
        done["status"]["phase"] = json!("Succeeded");
        let mut dying = pod("b", "10.1.0.2", true);
        dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(subsets(service(json!({})), vec![done, dying]), Value::Null);
    }

    #[test]
    fn unchanged_endpoints_are_not_written() {
        let service: Arc<Service> = Arc::new(serde_json::from_value(service(json!({}))).expect("service"));
        let pods: Vec<Arc<Pod>> = vec![Arc::new(serde_json::from_value(pod("a", "10.1.0.1", true)).expect("pod"))];
        let mut s = Snapshot { service, pods, current: None, trigger: Some(Timestamp::UNIX_EPOCH) };
        let Some(Action::Create { body, .. }) = plan(&s).into_iter().next() else { panic!("no creation") };
        assert_eq!(body["metadata"]["annotations"][TRIGGER], "1970-01-01T00:00:00Z");
        assert_eq!(body["metadata"]["labels"], json!({"l": "1", MANAGED_BY: CONTROLLER}));
        s.current = Some(Arc::new(serde_json::from_value(body).expect("endpoints")));
        s.trigger = None;
        assert!(plan(&s).is_empty());
        s.pods.clear();
        assert!(matches!(plan(&s).as_slice(), [Action::Update { .. }]));
    }
}
