use super::*;
use crate::backend::NodePorts;
use crate::detect::LocalDetector;
use crate::plan::{Endpoint, Family, Protocol, ServicePort};

fn options() -> Options {
    Options {
        family: Family::V4,
        masquerade_all: false,
        masquerade_mark: 0x4000,
        detector: LocalDetector::Networks(vec!["10.244.0.0/16".parse().expect("network")]),
        localhost_node_ports: false,
        drop_invalid: true,
        environment: Environment::default(),
        node_addresses: vec!["192.0.2.7".parse().expect("ip")],
    }
}

fn name() -> PortName {
    PortName { namespace: "shop".into(), service: "web".into(), port: "http".into(), protocol: Protocol::Tcp }
}

fn port(endpoints: &[&str]) -> ServicePort {
    let endpoint = |address: &&str| Endpoint { address: address.parse().expect("ip"), port: 8080, local: true };
    let plain = ServicePort::plain("10.0.0.5", 80, endpoints.iter().map(endpoint).collect());
    ServicePort { node_port: Some(30001), affinity: Some(60), ..plain }
}

fn verdict(part: &Part, map: &str, key: &str) -> Option<String> {
    let mut found = part.elements.iter().filter(|(name, k, _)| *name == map && k == key);
    found.next().map(|(_, _, verdict)| verdict.clone())
}

#[test]
fn a_service_is_one_map_entry_and_its_endpoints_a_choice() {
    let part = part(&name(), &port(&["10.244.0.1", "10.244.0.2"]), &options());
    let target = verdict(&part, "service-ips", "10.0.0.5 . tcp . 80").expect("an entry");
    let chain = target.strip_prefix("goto ").expect("a goto");
    let (_, rules) = part.chains.iter().find(|(name, _)| name == chain).expect("its chain");
    assert_eq!(rules[0], "ip daddr 10.0.0.5 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade");
    assert!(rules.last().expect("a rule").starts_with("numgen random mod 2 vmap { 0 : goto endpoint-"));
    assert!(verdict(&part, "service-nodeports", "tcp . 30001").is_some());
    assert!(!part.elements.iter().any(|(map, ..)| *map == "no-endpoint-services"));
}

#[test]
fn without_endpoints_a_service_refuses() {
    let part = part(&name(), &port(&[]), &options());
    assert_eq!(verdict(&part, "service-ips", "10.0.0.5 . tcp . 80"), None);
    let refusal = Some("goto reject-chain".to_owned());
    assert_eq!(verdict(&part, "no-endpoint-services", "10.0.0.5 . tcp . 80"), refusal);
    assert_eq!(verdict(&part, "no-endpoint-nodeports", "tcp . 30001"), refusal);
}

#[test]
fn a_node_within_the_source_ranges_reaches_the_balancer_from_its_own_address() {
    let firewall = |range: &str| {
        let port = ServicePort {
            load_balancer_ips: vec!["198.51.100.1".parse().expect("ip")],
            source_ranges: vec![range.parse().expect("network")],
            ..port(&["10.244.0.1"])
        };
        let part = part(&name(), &port, &options());
        part.chains.into_iter().find(|(name, _)| name.starts_with("firewall-")).expect("a chain").1
    };
    assert_eq!(firewall("192.0.2.0/24"), ["ip saddr != { 192.0.2.0/24, 198.51.100.1 } drop"]);
    assert_eq!(firewall("203.0.113.0/24"), ["ip saddr != { 203.0.113.0/24 } drop"]);
}

#[test]
fn node_ports_answer_where_they_should() {
    let services = |node_ports| {
        let environment = Environment { node_ports, ..Environment::default() };
        fixed_chains(&Options { environment, ..options() })["services"][1].clone()
    };
    let all = "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports";
    assert_eq!(services(NodePorts::All), all);
    let some = NodePorts::Addresses(["192.0.2.7", "127.0.0.1"].map(|ip| ip.parse().expect("ip")).into());
    assert_eq!(services(some.clone()), "ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports");
    assert_eq!(
        node_port_ips(&Options {
            environment: Environment { node_ports: some, ..Environment::default() },
            ..options()
        }),
        ["192.0.2.7".parse::<std::net::IpAddr>().expect("ip")]
    );
}

#[test]
fn names_are_upstreams() {
    let name =
        PortName { namespace: "ns1".into(), service: "svc1".into(), port: "p80".into(), protocol: Protocol::Tcp };
    let chains = |endpoint: &str| -> Vec<String> {
        let endpoint = Endpoint { address: endpoint.parse().expect("ip"), port: 80, local: false };
        let part = part(&name, &ServicePort::plain("172.30.0.41", 80, vec![endpoint]), &options());
        part.chains.into_iter().map(|(chain, _)| chain).collect()
    };
    let expected = ["endpoint-5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80", "service-ULMVA6XW-ns1/svc1/tcp/p80"];
    assert_eq!(chains("10.180.0.1"), expected);
    assert!(chains("fd00::1")[0].ends_with("-ns1/svc1/tcp/p80__fd00..1/80"));
    let long = PortName { namespace: "n".repeat(63), service: "s".repeat(63), port: "p".repeat(63), ..name.clone() };
    let longest = render::chain("affinity", &long, "__ffff.ffff.ffff.ffff.ffff.ffff.ffff.ffff/65535");
    assert!(longest.len() <= 256 && longest.ends_with("..."), "{longest}");
}
