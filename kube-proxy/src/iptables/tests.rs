use super::render::{Rules, render};
use super::*;
use crate::detect::LocalDetector;
use crate::plan::{Endpoint, Family, Protocol, ServicePort, TrafficPolicy};

fn options() -> Options {
    Options {
        detector: LocalDetector::Networks(vec!["10.244.0.0/16".parse().expect("network")]),
        localhost_node_ports: true,
        node_addresses: vec!["192.0.2.7".parse().expect("ip")],
        ..Options::new(Family::V4)
    }
}

fn name() -> PortName {
    PortName {
        namespace: "default".into(),
        service: "kubernetes".into(),
        port: "https".into(),
        protocol: Protocol::Tcp,
    }
}

fn port() -> ServicePort {
    ServicePort::plain("10.96.0.1", 443, vec![endpoint("192.0.2.10")])
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint { address: address.parse().expect("ip"), port: 26443, local: false }
}

fn rules(port: ServicePort) -> Rules {
    render(&Desired::from([(name(), port)].into_iter().collect::<BTreeMap<_, _>>()), &options())
}

/// The rules that upstream's proxy writes for the API server's service (its `iptables-save` in the facts),
/// in the order of matches in which they are given to `iptables-restore`.
#[test]
fn the_api_servers_service() {
    let rules = rules(port());
    assert_eq!(
        rules.nat["KUBE-SERVICES"],
        [
            "-m comment --comment \"default/kubernetes:https cluster IP\" -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y",
            "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        ]
    );
    assert_eq!(
        rules.nat["KUBE-SVC-NPX46M4PTMTKRN6Y"],
        [
            "-m comment --comment \"default/kubernetes:https cluster IP\" -d 10.96.0.1/32 -p tcp -m tcp --dport 443 ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ",
            "-m comment --comment \"default/kubernetes:https -> 192.0.2.10:26443\" -j KUBE-SEP-Y6Z3E3DZCUVWLI56",
        ]
    );
    assert_eq!(
        rules.nat["KUBE-SEP-Y6Z3E3DZCUVWLI56"],
        [
            "-m comment --comment \"default/kubernetes:https\" -s 192.0.2.10/32 -j KUBE-MARK-MASQ",
            "-m comment --comment \"default/kubernetes:https\" -p tcp -m tcp -j DNAT --to-destination 192.0.2.10:26443",
        ]
    );
}

#[test]
fn connections_are_spread_evenly() {
    let three = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(endpoint).to_vec();
    let rules = rules(ServicePort { cluster_endpoints: three, ..port() });
    let lines = &rules.nat["KUBE-SVC-NPX46M4PTMTKRN6Y"];
    assert!(lines[1].contains("--probability 0.3333333333 "));
    assert!(lines[2].contains("--probability 0.5000000000 "));
    assert!(!lines[3].contains("--probability"));
}

#[test]
fn a_service_without_endpoints_refuses() {
    let nothing = ServicePort { cluster_endpoints: Vec::new(), has_endpoints: false, node_port: Some(32700), ..port() };
    let rules = rules(nothing);
    assert_eq!(rules.nat["KUBE-SERVICES"].len(), 1);
    assert_eq!(
        rules.filter["KUBE-SERVICES"],
        [
            "-m comment --comment \"default/kubernetes:https has no endpoints\" -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j REJECT"
        ]
    );
    assert_eq!(
        rules.filter["KUBE-EXTERNAL-SERVICES"],
        [
            "-m comment --comment \"default/kubernetes:https has no endpoints\" -m addrtype --dst-type LOCAL -p tcp -m tcp --dport 32700 -j REJECT"
        ]
    );
}

#[test]
fn local_policy_without_local_endpoints_drops() {
    let rules = rules(ServicePort { external: TrafficPolicy::Local, node_port: Some(32700), ..port() });
    assert!(rules.filter["KUBE-EXTERNAL-SERVICES"][0].ends_with("-j DROP"));
    let external = rules.nat.iter().find(|(chain, _)| chain.starts_with("KUBE-EXT-")).expect("a chain").1;
    assert!(external.iter().all(|rule| !rule.contains("KUBE-SVL-")), "there is no chain to jump to: {external:?}");
    assert!(external[0].contains("pod traffic for default/kubernetes:https external destinations"));
}

#[test]
fn an_endpoint_of_both_policies_has_one_chain() {
    let local = vec![Endpoint { local: true, ..endpoint("192.0.2.10") }];
    let port = ServicePort {
        external: TrafficPolicy::Local,
        node_port: Some(32700),
        cluster_endpoints: local.clone(),
        local_endpoints: local,
        ..port()
    };
    let part = render::part(&name(), &port, &options(), true);
    let mut chains: Vec<&String> = part.chains.iter().map(|(chain, _)| chain).collect();
    chains.sort_unstable();
    let all = chains.len();
    chains.dedup();
    assert_eq!((chains.len(), all), (4, 4), "{chains:?}");
}

#[test]
fn endpoints_have_comments_until_there_are_many() {
    let with = |count: usize| {
        let endpoints = (0..count).map(|n| endpoint(&format!("10.244.{}.{}", n / 250, 1 + n % 250))).collect();
        Desired::from(BTreeMap::from([(name(), ServicePort { cluster_endpoints: endpoints, ..port() })]))
    };
    assert_eq!((with(1000).endpoints(), with(1001).endpoints()), (1000, 1001));
    assert!(has_comments(&with(1000)) && !has_comments(&with(1001)));
}

#[test]
fn affinity_remembers_clients() {
    let rules = rules(ServicePort { affinity: Some(10_800), ..port() });
    assert!(rules.nat["KUBE-SVC-NPX46M4PTMTKRN6Y"][1].contains("--rcheck --seconds 10800 --reap"));
    assert!(rules.nat["KUBE-SEP-Y6Z3E3DZCUVWLI56"][1].contains("-m recent --name KUBE-SEP-Y6Z3E3DZCUVWLI56 --set"));
}

#[test]
fn every_jump_has_its_target() {
    let rules = rules(ServicePort {
        node_port: Some(32700),
        load_balancer_ips: vec!["192.0.2.99".parse().expect("ip")],
        source_ranges: vec!["192.0.2.0/24".parse().expect("network")],
        ..port()
    });
    for (chain, lines) in &rules.nat {
        for target in
            lines.iter().filter_map(|line| line.rsplit_once("-j KUBE-")).map(|(_, name)| format!("KUBE-{name}"))
        {
            assert!(rules.nat.contains_key(&target), "{chain} jumps to {target}");
        }
    }
}

#[test]
fn packets_of_others_for_loopback_are_dropped_where_the_kernel_routes_them() {
    let with = |family, localhost_node_ports| {
        let options = Options { family, localhost_node_ports, ..options() };
        render(&Desired::default(), &options).filter.get(FIREWALL).cloned()
    };
    let drop = "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
    assert_eq!(with(Family::V4, true), Some(vec![drop.to_owned()]));
    assert_eq!(with(Family::V4, false), None);
    assert_eq!(with(Family::V6, true), None);
    assert_eq!(FIREWALL_JUMPS[0].arguments("-I"), ["-t", "filter", "-I", "INPUT", "-j", "KUBE-FIREWALL"]);
}

#[test]
fn rules_name_the_counters_that_the_kernel_has() {
    let with = |counters| {
        let options = Options { counters, ..options() };
        let port =
            ServicePort { node_port: Some(30_001), ..ServicePort::plain("10.0.0.5", 80, vec![endpoint("10.244.0.1")]) };
        let part = part(&name(), &port, &options, false);
        (fixed(&options).filter["KUBE-FORWARD"][0].clone(), part.shared[1].clone())
    };
    let (forward, node_ports) = with(Counters { invalid: true, localhost: true });
    assert_eq!(forward, "-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP");
    assert_eq!(node_ports.len(), 2);
    assert!(node_ports[0].contains("-d 127.0.0.0/8 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-"));
    let (forward, node_ports) = with(Counters::default());
    assert_eq!(forward, "-m conntrack --ctstate INVALID -j DROP");
    assert_eq!(node_ports.len(), 1);
}
