use super::*;
use serde_json::{Value, json};

fn service(spec: Value) -> Arc<Service> {
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    Arc::new(serde_json::from_value(object).expect("a service"))
}

fn slice(endpoints: Value) -> Arc<EndpointSlice> {
    let object = json!({
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    });
    Arc::new(serde_json::from_value(object).expect("a slice"))
}

fn spec(more: Value) -> Value {
    let mut spec =
        json!({"clusterIP": "10.0.0.5", "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30001}]});
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    spec
}

fn port(spec: Value, endpoints: Value) -> Option<ServicePort> {
    let node = NodeFacts { name: "here".into(), zone: Some("a".into()) };
    let service = service(spec);
    ports(&service, &[slice(endpoints)], &node, Family::V4).into_iter().map(|(_, port)| port).next()
}

fn addresses(endpoints: &[Endpoint]) -> Vec<String> {
    endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
}

#[test]
fn services_that_need_no_rules() {
    for more in [
        json!({"clusterIP": "None"}),
        json!({"clusterIP": ""}),
        json!({"clusterIP": "fd00::1"}),
        json!({"type": "ExternalName"}),
        json!({"ports": [{"name": "http", "port": 0}]}),
    ] {
        assert_eq!(port(spec(more.clone()), json!([])), None, "{more}");
    }
}

#[test]
fn readiness_and_termination() {
    let endpoint = |ip: &str, conditions: Value| json!({"addresses": [ip], "conditions": conditions});
    let terminating = json!({"ready": false, "serving": true, "terminating": true});
    let cluster = |endpoints: Value| addresses(&port(spec(json!({})), endpoints).expect("a port").cluster_endpoints);
    assert_eq!(cluster(json!([endpoint("10.1.0.1", json!({}))])), ["10.1.0.1"], "unknown counts as ready");
    assert!(cluster(json!([endpoint("10.1.0.1", json!({"ready": false}))])).is_empty());
    assert_eq!(cluster(json!([endpoint("10.1.0.1", terminating.clone())])), ["10.1.0.1"], "better than nothing");
    let both = json!([endpoint("10.1.0.1", terminating), endpoint("10.1.0.2", json!({"ready": true}))]);
    assert_eq!(cluster(both), ["10.1.0.2"]);
}

#[test]
fn local_policy_keeps_to_the_node() {
    let endpoints = json!([
        {"addresses": ["10.1.0.1"], "nodeName": "here"},
        {"addresses": ["10.1.0.2"], "nodeName": "there"},
    ]);
    let planned = port(spec(json!({"externalTrafficPolicy": "Local"})), endpoints).expect("a port");
    assert_eq!(addresses(planned.endpoints(planned.external)), ["10.1.0.1"]);
    assert_eq!(addresses(planned.endpoints(planned.internal)), ["10.1.0.1", "10.1.0.2"]);
}

#[test]
fn hints_count_only_when_complete_and_for_us() {
    let endpoint = |ip: &str, zone: &str| json!({"addresses": [ip], "hints": {"forZones": [{"name": zone}]}});
    let cluster = |endpoints: Value| addresses(&port(spec(json!({})), endpoints).expect("a port").cluster_endpoints);
    assert_eq!(cluster(json!([endpoint("10.1.0.1", "a"), endpoint("10.1.0.2", "b")])), ["10.1.0.1"]);
    assert_eq!(cluster(json!([endpoint("10.1.0.1", "b"), endpoint("10.1.0.2", "b")])).len(), 2);
    assert_eq!(cluster(json!([endpoint("10.1.0.1", "a"), {"addresses": ["10.1.0.2"]}])).len(), 2);
}

#[test]
fn two_slices_with_the_same_endpoint_count_once() {
    let node = NodeFacts::default();
    let slices = [
        slice(json!([{"addresses": ["10.1.0.1"], "conditions": {"ready": false}}])),
        slice(json!([{"addresses": ["10.1.0.1"]}])),
    ];
    let mut desired = Desired::default();
    let web = service(spec(json!({})));
    desired.replace(("shop", "web"), Some(&web), &slices, (&node, Family::V4), &mut Delta::default());
    let planned = desired.ports.values().next().expect("a port");
    assert_eq!(addresses(&planned.cluster_endpoints), ["10.1.0.1"]);
}

#[test]
fn affinity_and_balancer_fields() {
    let planned = port(
        spec(json!({"sessionAffinity": "ClientIP", "externalIPs": ["192.0.2.1", "fd00::2"], "loadBalancerSourceRanges": ["10.0.0.0/8", "bad"]})),
        json!([]),
    )
    .expect("a port");
    assert_eq!(planned.affinity, Some(10_800));
    assert_eq!(planned.external_ips, ["192.0.2.1".parse::<IpAddr>().expect("ip")]);
    assert_eq!(planned.source_ranges.len(), 1);
    assert!(!planned.has_endpoints);
}

#[test]
fn a_service_that_is_planned_anew_changes_its_own_ports_alone() {
    let node = NodeFacts { name: "here".into(), zone: None };
    let mut desired = Desired::default();
    let mut replace = |service: Option<&Service>, endpoints: Value| {
        let mut delta = Delta::default();
        let slices = [slice(endpoints)];
        desired.replace(("shop", "web"), service, &slices, (&node, Family::V4), &mut delta);
        (delta.ports.into_iter().map(|name| name.port).collect::<Vec<_>>(), delta.checks, desired.ports.len())
    };
    let web = service(spec(json!({})));
    assert_eq!(replace(Some(&web), json!([])), (vec!["http".to_owned()], false, 1));
    assert_eq!(replace(Some(&web), json!([])), (vec![], false, 1), "nothing has changed");
    assert_eq!(replace(Some(&web), json!([{"addresses": ["10.1.0.1"]}])), (vec!["http".to_owned()], false, 1));
    let checked = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "type": "LoadBalancer"});
    assert_eq!(replace(Some(&service(spec(checked))), json!([])), (vec!["http".to_owned()], true, 1));
    assert_eq!(replace(None, json!([])), (vec!["http".to_owned()], true, 0), "its check is gone");
}

#[test]
fn endpoints_that_terminate_serve_from_anywhere_and_make_no_node_healthy() {
    let hint = |zone: &str| json!({"forZones": [{"name": zone}]});
    let terminating = json!({"ready": false, "serving": true, "terminating": true});
    let endpoints = json!([
        {"addresses": ["10.1.0.1"], "nodeName": "here", "conditions": terminating, "hints": hint("a")},
        {"addresses": ["10.1.0.2"], "nodeName": "there", "conditions": terminating, "hints": hint("b")},
    ]);
    let local = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "type": "LoadBalancer"});
    let port = port(spec(local), endpoints).expect("a port");
    assert_eq!(addresses(&port.cluster_endpoints), ["10.1.0.1", "10.1.0.2"]);
    assert_eq!(addresses(&port.local_endpoints), ["10.1.0.1"]);
    assert!(port.ready_local.is_empty());
}

#[test]
fn a_source_range_of_everybody_is_none() {
    let ranges = |all: Value| {
        let more = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": all});
        port(spec(more), json!([])).expect("a port").source_ranges.len()
    };
    assert_eq!(ranges(json!(["10.0.0.0/8", "192.0.2.0/24"])), 2);
    assert_eq!(ranges(json!(["10.0.0.0/8", "0.0.0.0/0"])), 0);
}
