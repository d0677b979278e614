//! The Endpoints object of a service: the addresses of its pods, grouped by the ports they serve. Answers for
//! upstream's `syncService`, `RepackSubsets`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Service, ServiceSpec};
use k8s_openapi::jiff::Timestamp;
use proto::numbers::core_v1::{endpoint_address, endpoint_port, endpoint_subset, endpoints};
use proto::protobuf::{write_bytes, write_nested, write_number};

use crate::engine::endpoints::PackedEndpoints;
use crate::engine::object::Key;
use crate::engine::packed::{NewMeta, Texts};
use crate::engine::pod::Pod;
use crate::engine::services::{self, Port, PortSet, PortSets, TRIGGER};
use crate::engine::{object, pods};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const TRUNCATED: &str = "truncated";
/// More addresses than this are cut off; endpoint slices carry the rest.
const CAPACITY: usize = 1000;

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The service.
    pub service: Arc<Service>,
    /// The pods it selects.
    pub pods: Vec<Arc<Pod>>,
    /// Stored object.
    pub current: Option<Arc<PackedEndpoints>>,
    /// Time of the change that caused this one.
    pub trigger: Option<Timestamp>,
}

/// Writes of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum EndpointsWrite {
    /// The object was not there.
    Create(PackedEndpoints),
    /// The object as it is to be, in the version it was seen in.
    Update(PackedEndpoints),
}

/// Create or update the Endpoints object, if it is not as it should be.
#[must_use]
pub fn plan(s: &Snapshot) -> Option<EndpointsWrite> {
    let spec = services::selecting(&s.service)?;
    let mut sets = PortSets::new(spec);
    let addresses = addresses(s, spec, &mut sets);
    let mut subsets = pack(&addresses, &sets);
    let cut = truncate(&mut subsets);
    let written = written(&s.service, &subsets);
    let labels = labels(s, spec);
    let trigger = s.trigger.map(services::trigger_text);
    let Some(current) = s.current.as_deref() else {
        let meta = NewMeta {
            name: object::name(&s.service.metadata),
            generate: false,
            namespace: object::namespace(&s.service.metadata),
            labels: &labels,
            annotations: annotations(Texts::new(), trigger.as_deref(), cut),
            owner: None,
        };
        return Some(EndpointsWrite::Create(PackedEndpoints::new(&meta, &written)));
    };
    if same(current, &written, &labels, cut) {
        return None;
    }
    let annotations = annotations(current.meta().annotations(), trigger.as_deref(), cut);
    Some(EndpointsWrite::Update(current.with(&labels, &annotations, &written)))
}

/// A pod behind the service.
struct Served<'a> {
    ip: &'a str,
    pod: &'a Pod,
    ready: bool,
    /// Index of the set of ports that it serves.
    set: usize,
}

fn addresses<'a>(s: &'a Snapshot, spec: &'a ServiceSpec, sets: &mut PortSets<'a>) -> Vec<Served<'a>> {
    let tolerate_unready = spec.publish_not_ready_addresses == Some(true);
    let v6 = spec.ip_families.as_ref().and_then(|f| f.first()).is_some_and(|f| f == "IPv6");
    let portless = spec.ports.as_deref().unwrap_or_default().is_empty() && services::headless(spec);
    let mut found: Vec<Served<'a>> = s
        .pods
        .iter()
        .filter(|p| services::belongs(p, tolerate_unready))
        .filter_map(|pod| {
            let ip = services::pod_ips(pod).find(|ip| ip.contains(':') == v6)?;
            let set = sets.of(pod);
            let ready = tolerate_unready || pods::ready(pod);
            (portless || !sets.all[set].key.is_empty()).then_some(Served { ip, pod, ready, set })
        })
        .collect();
    found.sort_by(|a, b| (a.ip, object::uid(&a.pod.metadata)).cmp(&(b.ip, object::uid(&b.pod.metadata))));
    found
}

/// The addresses that serve one set of ports.
struct Subset<'a> {
    ports: &'a [Port<'a>],
    ready: Vec<&'a Served<'a>>,
    unready: Vec<&'a Served<'a>>,
}

/// Group addresses that serve the same set of ports, in a stable order.
fn pack<'a>(addresses: &'a [Served<'a>], sets: &'a PortSets<'a>) -> Vec<Subset<'a>> {
    let empty = |set: &'a PortSet<'a>| Subset { ports: &set.key, ready: Vec::new(), unready: Vec::new() };
    let mut subsets: Vec<Subset<'a>> = sets.all.iter().map(empty).collect();
    for served in addresses {
        let subset = &mut subsets[served.set];
        if served.ready { subset.ready.push(served) } else { subset.unready.push(served) }
    }
    subsets.retain(|subset| !(subset.ready.is_empty() && subset.unready.is_empty()));
    subsets.sort_by(|a, b| a.ports.cmp(b.ports));
    subsets
}

/// Leaves as many addresses as there may be: of those that are ready each subset its share, or else all of those and of
/// the others each subset its share.
fn truncate(subsets: &mut [Subset<'_>]) -> bool {
    let ready: usize = subsets.iter().map(|s| s.ready.len()).sum();
    let unready: usize = subsets.iter().map(|s| s.unready.len()).sum();
    if ready + unready <= CAPACITY {
        return false;
    }
    let few_ready = ready <= CAPACITY;
    let (room, total) = if few_ready { (CAPACITY - ready, unready) } else { (CAPACITY, ready) };
    let mut left = room;
    for subset in subsets {
        let list = if few_ready { &mut subset.unready } else { &mut subset.ready };
        list.truncate((list.len() * room).div_ceil(total).min(left));
        left -= list.len();
        if !few_ready {
            subset.unready.clear();
        }
    }
    true
}

/// Returns the object, reason and message of the event about a failed write. An object that is to be made has no
/// namespace yet.
#[must_use]
pub fn complaint(change: &EndpointsWrite, key: &Key) -> (ObjectReference, &'static str, String) {
    let (of, reason, what) = match change {
        EndpointsWrite::Create(new) => {
            (new, "FailedToCreateEndpoint", format!("Failed to create endpoint for service {key}"))
        }
        EndpointsWrite::Update(new) => (new, "FailedToUpdateEndpoint", format!("Failed to update endpoint {key}")),
    };
    let there = matches!(change, EndpointsWrite::Update(_));
    let text = |text: &str| Some(text.to_owned()).filter(|_| there);
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Endpoints".to_owned()),
        name: Some(key.name.clone()),
        namespace: text(&key.namespace),
        uid: text(of.meta().uid()),
        resource_version: text(of.meta().version()),
        ..ObjectReference::default()
    };
    (about, reason, what)
}

/// The subsets as the server writes them: texts that are no pointers in Go are there also when they are empty.
fn written(service: &Service, subsets: &[Subset<'_>]) -> Vec<u8> {
    /// Most addresses take less.
    const EACH: usize = 160;
    let addresses: usize = subsets.iter().map(|subset| subset.ready.len() + subset.unready.len()).sum();
    let mut all = Vec::with_capacity(addresses * EACH);
    for subset in subsets {
        write_nested(endpoints::SUBSETS, &mut all, |out| {
            use endpoint_subset::{ADDRESSES, NOT_READY_ADDRESSES};
            for (number, list) in [(ADDRESSES, &subset.ready), (NOT_READY_ADDRESSES, &subset.unready)] {
                list.iter().for_each(|served| write_nested(number, out, |out| write_address(service, served, out)));
            }
            subset.ports.iter().for_each(|port| write_nested(endpoint_subset::PORTS, out, |out| write_port(port, out)));
        });
    }
    all
}

fn write_address(service: &Service, served: &Served<'_>, out: &mut Vec<u8>) {
    write_bytes(endpoint_address::IP, served.ip.as_bytes(), out);
    write_nested(endpoint_address::TARGET_REF, out, |out| services::write_pod_reference(served.pod, out));
    write_bytes(
        endpoint_address::HOSTNAME,
        services::hostname(served.pod, service).unwrap_or_default().as_bytes(),
        out,
    );
    let node = pods::node(served.pod);
    if !node.is_empty() {
        write_bytes(endpoint_address::NODE_NAME, node.as_bytes(), out);
    }
}

fn write_port(port: &Port<'_>, out: &mut Vec<u8>) {
    write_bytes(endpoint_port::NAME, port.name.as_bytes(), out);
    write_number(endpoint_port::PORT, port.number.into(), out);
    write_bytes(endpoint_port::PROTOCOL, port.protocol.as_bytes(), out);
    if !port.app_protocol.is_empty() {
        write_bytes(endpoint_port::APP_PROTOCOL, port.app_protocol.as_bytes(), out);
    }
}

fn labels<'a>(s: &'a Snapshot, spec: &ServiceSpec) -> Texts<'a> {
    let mut labels = services::labels(&s.service, spec);
    labels.insert(MANAGED_BY, CONTROLLER);
    labels
}

fn annotations<'a>(mut all: Texts<'a>, trigger: Option<&'a str>, cut: bool) -> Texts<'a> {
    for (key, value) in [(TRIGGER, trigger), (OVER_CAPACITY, cut.then_some(TRUNCATED))] {
        match value {
            Some(value) => all.insert(key, value),
            None => all.remove(key),
        };
    }
    all
}

fn same(current: &PackedEndpoints, subsets: &[u8], labels: &Texts<'_>, cut: bool) -> bool {
    current.subsets() == subsets
        && current.meta().has_labels(labels)
        && current.meta().annotation(OVER_CAPACITY) == cut.then_some(TRUNCATED)
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
            Some(EndpointsWrite::Create(made)) => {
                let again =
                    PackedEndpoints::of_json(&serde_json::to_value(made.typed().expect("typed")).expect("json"));
                assert_eq!(again.expect("an object").subsets(), made.subsets(), "as the server writes it");
                serde_json::to_value(made.typed().expect("typed")).expect("json")["subsets"].clone()
            }
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
    fn too_many_addresses_are_cut_off_in_proportion() {
        for (counts, want) in [
            ([(500, 100), (300, 100)], None),
            ([(500, 500), (300, 0)], Some([(500, 200), (300, 0)])),
            ([(600, 300), (200, 100)], Some([(600, 150), (200, 50)])),
            ([(1500, 10), (500, 10)], Some([(750, 0), (250, 0)])),
            ([(1000, 5), (1, 5)], Some([(1000, 0), (0, 0)])),
        ] {
            let pod = Pod::default();
            let served = Served { ip: "10.0.0.1", pod: &pod, ready: true, set: 0 };
            let list = |n: usize| std::iter::repeat_n(&served, n).collect();
            let subset = |(ready, unready)| Subset { ports: &[], ready: list(ready), unready: list(unready) };
            let mut subsets = counts.map(subset);
            let cut = truncate(&mut subsets);
            let left = subsets.map(|s| (s.ready.len(), s.unready.len()));
            assert_eq!((cut, left), (want.is_some(), want.unwrap_or(counts)), "{counts:?}");
        }
    }

    #[test]
    fn failures_are_told_of_the_endpoints() {
        let held = |meta: Value| PackedEndpoints::of_json(&json!({"metadata": meta})).expect("endpoints");
        let key = Key::new("ns", "web");
        let (about, reason, what) =
            complaint(&EndpointsWrite::Create(held(json!({"name": "web", "namespace": "ns"}))), &key);
        assert_eq!(
            (about.kind.as_deref(), about.namespace, reason),
            (Some("Endpoints"), None, "FailedToCreateEndpoint")
        );
        assert_eq!(what, "Failed to create endpoint for service ns/web");
        let there = held(json!({"name": "web", "namespace": "ns", "uid": "u"}));
        let (about, _, what) = complaint(&EndpointsWrite::Update(there), &key);
        assert_eq!((about.uid.as_deref(), about.namespace.as_deref()), (Some("u"), Some("ns")));
        assert_eq!(what, "Failed to update endpoint ns/web");
    }

    #[test]
    fn unchanged_endpoints_are_not_written() {
        let service: Arc<Service> = Arc::new(serde_json::from_value(service(json!({}))).expect("service"));
        let pods: Vec<Arc<Pod>> = vec![Arc::new(serde_json::from_value(pod("a", "10.1.0.1", true)).expect("pod"))];
        let mut s = Snapshot { service, pods, current: None, trigger: Some(Timestamp::UNIX_EPOCH) };
        let Some(EndpointsWrite::Create(made)) = plan(&s) else { panic!("no creation") };
        let body = made.typed().expect("typed").metadata;
        assert_eq!(body.annotations.expect("annotations")[TRIGGER], "1970-01-01T00:00:00Z");
        assert_eq!(json!(body.labels), json!({"l": "1", MANAGED_BY: CONTROLLER}));
        s.current = Some(Arc::new(made));
        s.trigger = None;
        assert_eq!(plan(&s), None);
        s.pods.clear();
        assert!(matches!(plan(&s), Some(EndpointsWrite::Update(_))));
    }
}
