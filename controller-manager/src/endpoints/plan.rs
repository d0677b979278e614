//! The Endpoints object of a service: the addresses of its pods, grouped by the ports they serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::engine::pod::Pod;
use crate::engine::services::{self, HEADLESS, Port, TRIGGER, ports_of, sorted};
use crate::engine::{object, pods};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const TRUNCATED: &str = "truncated";
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

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The object was not there.
    Create(Endpoints),
    /// The object as it is to be, in the version it was seen in.
    Update(Endpoints),
}

/// Create or update the Endpoints object, if it is not as it should be.
#[must_use]
pub fn plan(s: &Snapshot) -> Option<Change> {
    let spec = services::selecting(&s.service)?;
    let mut subsets = pack(s, addresses(s, spec));
    let cut = truncate(&mut subsets);
    let labels = labels(s, spec);
    match s.current.as_deref() {
        None => {
            let metadata = ObjectMeta {
                name: s.service.metadata.name.clone(),
                namespace: s.service.metadata.namespace.clone(),
                ..ObjectMeta::default()
            };
            Some(Change::Create(assemble(s, metadata, labels, subsets, cut)))
        }
        Some(current) if same(current, &subsets, &labels, cut) => None,
        Some(current) => Some(Change::Update(assemble(s, current.metadata.clone(), labels, subsets, cut))),
    }
}

/// A pod behind the service.
struct Served<'a> {
    ip: &'a str,
    pod: &'a Pod,
    ready: bool,
    /// In order.
    ports: Vec<Port<'a>>,
}

fn addresses<'a>(s: &'a Snapshot, spec: &'a ServiceSpec) -> Vec<Served<'a>> {
    let tolerate_unready = spec.publish_not_ready_addresses == Some(true);
    let v6 = spec.ip_families.as_ref().and_then(|f| f.first()).is_some_and(|f| f == "IPv6");
    let portless = spec.ports.as_deref().unwrap_or_default().is_empty() && services::headless(spec);
    let mut found: Vec<Served<'a>> = s
        .pods
        .iter()
        .filter(|p| services::belongs(p, tolerate_unready))
        .filter_map(|pod| {
            let ip = services::pod_ips(pod).into_iter().find(|ip| ip.contains(':') == v6)?;
            let ports = sorted(&ports_of(pod, spec));
            let ready = tolerate_unready || pods::ready(pod);
            (portless || !ports.is_empty()).then_some(Served { ip, pod, ready, ports })
        })
        .collect();
    found.sort_by(|a, b| (a.ip, object::uid(&a.pod.metadata)).cmp(&(b.ip, object::uid(&b.pod.metadata))));
    found
}

/// Group addresses that serve the same set of ports, in a stable order.
fn pack(s: &Snapshot, addresses: Vec<Served<'_>>) -> Vec<EndpointSubset> {
    let mut by_ports: BTreeMap<Vec<Port<'_>>, EndpointSubset> = BTreeMap::new();
    for Served { ip, pod, ready, ports } in addresses {
        let subset = by_ports.entry(ports).or_default();
        let list = if ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        list.get_or_insert_default().push(EndpointAddress {
            ip: ip.to_owned(),
            hostname: services::hostname(pod, &s.service).map(str::to_owned),
            node_name: Some(pods::node(pod)).filter(|n| !n.is_empty()).map(str::to_owned),
            target_ref: Some(services::pod_reference(pod)),
        });
    }
    let written = |port: &Port<'_>| EndpointPort {
        name: Some(port.name).filter(|n| !n.is_empty()).map(str::to_owned),
        port: port.number,
        protocol: Some(port.protocol.to_owned()),
        app_protocol: Some(port.app_protocol).filter(|p| !p.is_empty()).map(str::to_owned),
    };
    by_ports
        .into_iter()
        .map(|(ports, subset)| EndpointSubset {
            ports: Some(ports.iter().map(written).collect::<Vec<_>>()).filter(|p| !p.is_empty()),
            ..subset
        })
        .collect()
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

fn labels(s: &Snapshot, spec: &ServiceSpec) -> BTreeMap<String, String> {
    let mut labels = s.service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if services::headless(spec) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels.insert(MANAGED_BY.into(), CONTROLLER.into());
    labels
}

fn assemble(
    s: &Snapshot,
    mut metadata: ObjectMeta,
    labels: BTreeMap<String, String>,
    subsets: Vec<EndpointSubset>,
    cut: bool,
) -> Endpoints {
    let mut annotations = metadata.annotations.take().unwrap_or_default();
    match s.trigger {
        Some(at) => annotations.insert(TRIGGER.into(), services::trigger_text(at)),
        None => annotations.remove(TRIGGER),
    };
    if cut {
        annotations.insert(OVER_CAPACITY.into(), TRUNCATED.into());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    metadata.labels = Some(labels);
    metadata.annotations = Some(annotations).filter(|a| !a.is_empty());
    Endpoints { metadata, subsets: Some(subsets).filter(|s| !s.is_empty()) }
}

fn same(current: &Endpoints, subsets: &[EndpointSubset], labels: &BTreeMap<String, String>, cut: bool) -> bool {
    current.subsets.as_deref().unwrap_or_default() == subsets
        && current.metadata.labels.as_ref() == Some(labels)
        && object::annotation(&current.metadata, OVER_CAPACITY) == cut.then_some(TRUNCATED)
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
        match plan(&s) {
            Some(Change::Create(made)) => serde_json::to_value(made).expect("json")["subsets"].clone(),
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
        let Some(Change::Create(made)) = plan(&s) else { panic!("no creation") };
        let body = serde_json::to_value(&made).expect("json");
        assert_eq!(body["metadata"]["annotations"][TRIGGER], "1970-01-01T00:00:00Z");
        assert_eq!(body["metadata"]["labels"], json!({"l": "1", MANAGED_BY: CONTROLLER}));
        s.current = Some(Arc::new(made));
        s.trigger = None;
        assert_eq!(plan(&s), None);
        s.pods.clear();
        assert!(matches!(plan(&s), Some(Change::Update(_))));
    }
}
