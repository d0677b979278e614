use super::*;
use crate::detect::LocalDetector;
use crate::plan::{Endpoint, Family, PortName, Protocol, ServicePort};

fn options() -> Options {
    Options {
        family: Family::V4,
        masquerade_all: false,
        masquerade_mark: 0x4000,
        detector: LocalDetector::Networks(vec!["10.244.0.0/16".parse().expect("network")]),
        node_port_addresses: Vec::new(),
    }
}

fn desired(endpoints: &[&str]) -> Desired {
    let endpoint = |address: &&str| Endpoint { address: address.parse().expect("ip"), port: 8080, local: true };
    let endpoints = endpoints.iter().map(endpoint).collect();
    let name =
        PortName { namespace: "shop".into(), service: "web".into(), port: "http".into(), protocol: Protocol::Tcp };
    let plain = ServicePort::plain("10.0.0.5", 80, endpoints);
    let port = ServicePort { node_port: Some(30001), affinity: Some(60), ..plain };
    Desired { ports: [(name, port)].into() }
}

#[test]
fn a_service_is_one_map_entry_and_its_endpoints_a_choice() {
    let table = render(&desired(&["10.244.0.1", "10.244.0.2"]), &options());
    let target = table.maps["service-ips"].get("10.0.0.5 . tcp . 80").expect("an entry");
    let chain = target.strip_prefix("goto ").expect("a goto");
    let rules = &table.chains[chain];
    assert_eq!(rules[0], "ip daddr 10.0.0.5 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade");
    assert!(rules.last().expect("a rule").starts_with("numgen random mod 2 vmap { 0 : goto endpoint-"));
    assert!(table.maps["service-nodeports"].contains_key("tcp . 30001"));
    assert!(table.maps["no-endpoint-services"].is_empty());
}

#[test]
fn without_endpoints_a_service_refuses() {
    let table = render(&desired(&[]), &options());
    assert!(table.maps["service-ips"].is_empty());
    assert_eq!(table.maps["no-endpoint-services"]["10.0.0.5 . tcp . 80"], "goto reject-chain");
    assert_eq!(table.maps["no-endpoint-nodeports"]["tcp . 30001"], "goto reject-chain");
}

#[test]
fn a_change_of_one_endpoint_touches_that_service_alone() {
    let before = render(&desired(&["10.244.0.1", "10.244.0.2"]), &options());
    let after = render(&desired(&["10.244.0.1"]), &options());
    assert_eq!(transaction(Some(&before), &before, Family::V4), "");
    let text = transaction(Some(&before), &after, Family::V4);
    assert_eq!(text.matches("flush chain").count(), 2, "{text}");
    assert_eq!(text.matches("delete chain").count(), 1, "{text}");
    assert!(!text.contains("element"), "no map entry changes: {text}");
}
