//! The iptables rules that lead packets for service ports to the proxy's listeners. Pure. Chains are those of upstream's
//! `pkg/proxy/userspace`, as it was up to v1.25, and one more for what is refused.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::backend::{NodePorts, Options};
use crate::iptables::Jump;
use crate::plan::{PortName, ServicePort, TrafficPolicy};

/// Chains: table and name.
pub(super) const CHAINS: [(&str, &str); 6] = [
    ("nat", "KUBE-PORTALS-CONTAINER"),
    ("nat", "KUBE-PORTALS-HOST"),
    ("nat", "KUBE-NODEPORT-CONTAINER"),
    ("nat", "KUBE-NODEPORT-HOST"),
    ("filter", "KUBE-NODEPORT-NON-LOCAL"),
    ("filter", "KUBE-PORTALS-FILTER"),
];
const CONTAINER: usize = 0;
const HOST: usize = 1;
const NODE_PORT_CONTAINER: usize = 2;
const NODE_PORT_HOST: usize = 3;
const NON_LOCAL: usize = 4;
const FILTER: usize = 5;

const PORTALS: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
const NODE_PORTS: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";

/// Jumps from the kernel's chains. Each is put first in line: the last one here is the first one there.
pub(super) const JUMPS: [Jump; 8] = [
    Jump::new("nat", "PREROUTING", "KUBE-NODEPORT-CONTAINER", NODE_PORTS).if_local(),
    Jump::new("nat", "OUTPUT", "KUBE-NODEPORT-HOST", NODE_PORTS).if_local(),
    Jump::new("nat", "PREROUTING", "KUBE-PORTALS-CONTAINER", PORTALS),
    Jump::new("nat", "OUTPUT", "KUBE-PORTALS-HOST", PORTALS),
    Jump::new("filter", "INPUT", "KUBE-NODEPORT-NON-LOCAL", "Ensure that non-local NodePort traffic can flow"),
    Jump::new("filter", "INPUT", "KUBE-PORTALS-FILTER", "kubernetes service portals"),
    Jump::new("filter", "FORWARD", "KUBE-PORTALS-FILTER", "kubernetes service portals").if_new(),
    Jump::new("filter", "OUTPUT", "KUBE-PORTALS-FILTER", "kubernetes service portals").if_new(),
];

/// Ports of this machine on which the proxy listens for a service port, by policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listening {
    pub(super) cluster: Option<u16>,
    pub(super) local: Option<u16>,
}

impl Listening {
    fn of(self, policy: TrafficPolicy) -> Option<u16> {
        match policy {
            TrafficPolicy::Cluster => self.cluster,
            TrafficPolicy::Local => self.local,
        }
    }
}

/// Rules of one service port, in each of [`CHAINS`].
pub(super) type Part = [Vec<String>; CHAINS.len()];

/// Renders a service port.
pub(super) fn part(name: &PortName, port: &ServicePort, listening: Listening, options: &Options) -> Part {
    let mut renderer = PortRules { name, port, listening, options, part: Part::default() };
    renderer.render();
    renderer.part
}

/// Addresses that node ports are answered on; none for all.
pub(super) fn node_port_addresses(options: &Options) -> Vec<String> {
    match &options.environment.node_ports {
        NodePorts::All => Vec::new(),
        NodePorts::Addresses(addresses) => addresses.iter().map(ToString::to_string).collect(),
    }
}

struct PortRules<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    listening: Listening,
    options: &'a Options,
    part: Part,
}

/// A match of a destination, and who may use it.
struct Portal {
    /// Chains for packets from elsewhere and from this machine.
    chains: [usize; 2],
    destination: String,
    ranges: Vec<String>,
}

impl PortRules<'_> {
    fn render(&mut self) {
        let number = self.port.port;
        let portal = |address: &IpAddr, ranges: &[IpNet]| Portal {
            chains: [CONTAINER, HOST],
            destination: format!("-d {}", IpNet::from(*address)),
            ranges: ranges.iter().map(|range| format!("-s {range} ")).collect(),
        };
        self.lead(&portal(&self.port.cluster_ip, &[]), number, self.port.internal, false);
        let externals = self.port.external_ips.iter().map(|address| portal(address, &[]));
        let balancers = self.port.load_balancer_ips.iter().map(|address| {
            let mut portal = portal(address, &self.port.source_ranges);
            // A node within the ranges that has the address as one of its own talks to it from that very one.
            let own = &self.options.node_addresses;
            if self.port.source_ranges.iter().any(|range| own.iter().any(|address| range.contains(address))) {
                portal.ranges.push(format!("-s {} ", IpNet::from(*address)));
            }
            portal
        });
        for portal in externals.chain(balancers).collect::<Vec<_>>() {
            self.lead(&portal, number, self.port.external, true);
        }
        if let Some(number) = self.port.node_port {
            let addresses = node_port_addresses(self.options);
            let destinations = if addresses.is_empty() {
                vec!["-m addrtype --dst-type LOCAL".to_owned()]
            } else {
                addresses.iter().map(|address| format!("-d {address}")).collect()
            };
            for destination in destinations {
                let chains = [NODE_PORT_CONTAINER, NODE_PORT_HOST];
                self.lead(&Portal { chains, destination, ranges: Vec::new() }, number, self.port.external, true);
            }
        }
        for number in [self.listening.cluster, self.listening.local].into_iter().flatten() {
            self.guard(number);
        }
        if let Some(number) = self.port.health_check_node_port {
            self.put(NON_LOCAL, format!("-p tcp -m tcp --dport {number} -j ACCEPT"));
        }
    }

    fn put(&mut self, chain: usize, rule: String) {
        let comment = format!("-m comment --comment \"{}\"", self.name);
        if let Some(rules) = self.part.get_mut(chain) {
            rules.push(format!("{comment} {rule}"));
        }
    }

    fn protocol(&self, number: u16) -> String {
        format!("-p {0} -m {0} --dport {number}", self.name.protocol.as_str())
    }

    /// Leads packets for a portal to the listener of their policy. Local policy is for what comes from outside.
    fn lead(&mut self, portal: &Portal, number: u16, policy: TrafficPolicy, is_external: bool) {
        let matching = format!("{} {}", portal.destination, self.protocol(number));
        let everybody = [String::new()];
        let sources = if portal.ranges.is_empty() { &everybody[..] } else { &portal.ranges };
        let pods = self.options.detector.local(self.options.family).map(|pods| format!("{pods} "));
        for source in sources {
            let mut ways = vec![(portal.chains[0], String::new(), self.listening.of(policy))];
            match policy {
                TrafficPolicy::Local if is_external => {
                    // What the pods of the cluster and this machine send may go anywhere. Two matches of a source do not go
                    // together.
                    let pods = pods.clone().filter(|pods| source.is_empty() || !pods.starts_with("-s"));
                    if let Some(pods) = pods {
                        ways.insert(0, (portal.chains[0], pods, self.listening.cluster));
                    }
                    ways.push((portal.chains[1], String::new(), self.listening.cluster));
                }
                _ => ways.push((portal.chains[1], String::new(), self.listening.of(policy))),
            }
            for (chain, pods, listener) in ways {
                if let Some(listener) = listener {
                    self.put(chain, format!("{source}{pods}{matching} -j REDIRECT --to-ports {listener}"));
                }
            }
        }
        // Those that were led away have another destination by now.
        if !self.port.has_endpoints {
            self.put(FILTER, format!("{matching} -j REJECT"));
        } else if self.listening.of(policy).is_none() || !portal.ranges.is_empty() {
            self.put(FILTER, format!("{matching} -j DROP"));
        }
    }

    /// Lets packets in that were led to a listener, and those alone.
    fn guard(&mut self, number: u16) {
        let matching = self.protocol(number);
        let direct = "-m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT";
        self.put(NON_LOCAL, format!("{matching} {direct} -j DROP"));
        self.put(NON_LOCAL, format!("{matching} -m conntrack --ctstate NEW -j ACCEPT"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::LocalDetector;
    use crate::plan::{Endpoint, Family, Protocol};

    fn name() -> PortName {
        PortName { namespace: "shop".into(), service: "web".into(), port: "http".into(), protocol: Protocol::Tcp }
    }

    fn port() -> ServicePort {
        let endpoint = Endpoint { address: "10.244.0.1".parse().expect("ip"), port: 8080, local: false };
        ServicePort::plain("10.96.0.5", 80, vec![endpoint])
    }

    fn options() -> Options {
        let pods = LocalDetector::Networks(vec!["10.244.0.0/16".parse().expect("a network")]);
        Options { detector: pods, ..Options::new(Family::V4) }
    }

    /// Rules without their comments, as chain and rule.
    fn rules(port: &ServicePort, listening: Listening) -> Vec<(&'static str, String)> {
        let part = part(&name(), port, listening, &options());
        let named =
            CHAINS.iter().zip(part).flat_map(|((_, chain), rules)| rules.into_iter().map(move |rule| (*chain, rule)));
        named.map(|(chain, rule)| (chain, rule.replace("-m comment --comment \"shop/web:http\" ", ""))).collect()
    }

    fn of(rules: &[(&'static str, String)], chain: &str) -> Vec<String> {
        rules.iter().filter(|(name, _)| *name == chain).map(|(_, rule)| rule.clone()).collect()
    }

    #[test]
    fn a_cluster_ip_leads_to_its_listener_from_everywhere() {
        let rules = rules(&port(), Listening { cluster: Some(40_001), local: None });
        let expected = "-d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 40001";
        assert_eq!(of(&rules, "KUBE-PORTALS-CONTAINER"), [expected]);
        assert_eq!(of(&rules, "KUBE-PORTALS-HOST"), [expected]);
        let guard = "-p tcp -m tcp --dport 40001 -m conntrack --ctstate NEW";
        let (refused, taken) = (format!("{guard} -m conntrack ! --ctstate DNAT -j DROP"), format!("{guard} -j ACCEPT"));
        assert_eq!(of(&rules, "KUBE-NODEPORT-NON-LOCAL"), [refused, taken]);
        assert!(of(&rules, "KUBE-PORTALS-FILTER").is_empty());
    }

    #[test]
    fn local_policy_is_for_outside() {
        let port = ServicePort { node_port: Some(30_001), external: TrafficPolicy::Local, ..port() };
        let with = |local| rules(&port, Listening { cluster: Some(40_001), local });
        let both = with(Some(40_002));
        let local = "-m addrtype --dst-type LOCAL -p tcp -m tcp --dport 30001";
        assert_eq!(
            of(&both, "KUBE-NODEPORT-CONTAINER"),
            [
                format!("-s 10.244.0.0/16 {local} -j REDIRECT --to-ports 40001"),
                format!("{local} -j REDIRECT --to-ports 40002")
            ]
        );
        assert_eq!(of(&both, "KUBE-NODEPORT-HOST"), [format!("{local} -j REDIRECT --to-ports 40001")]);
        assert!(of(&with(None), "KUBE-PORTALS-FILTER").contains(&format!("{local} -j DROP")));
    }

    #[test]
    fn source_ranges_are_for_the_balancers_addresses() {
        let port = ServicePort {
            load_balancer_ips: vec!["203.0.113.5".parse().expect("ip")],
            source_ranges: vec!["192.0.2.0/24".parse().expect("a network")],
            ..port()
        };
        let rules = rules(&port, Listening { cluster: Some(40_001), local: None });
        let to = "-d 203.0.113.5/32 -p tcp -m tcp --dport 80";
        let container = of(&rules, "KUBE-PORTALS-CONTAINER");
        assert_eq!(container[1], format!("-s 192.0.2.0/24 {to} -j REDIRECT --to-ports 40001"));
        assert!(of(&rules, "KUBE-PORTALS-FILTER").contains(&format!("{to} -j DROP")));
    }

    #[test]
    fn without_endpoints_packets_are_refused() {
        let port = ServicePort { has_endpoints: false, node_port: Some(30_001), ..port() };
        let rules = rules(&port, Listening::default());
        assert_eq!(
            of(&rules, "KUBE-PORTALS-FILTER"),
            [
                "-d 10.96.0.5/32 -p tcp -m tcp --dport 80 -j REJECT",
                "-m addrtype --dst-type LOCAL -p tcp -m tcp --dport 30001 -j REJECT"
            ]
        );
        assert_eq!(rules.len(), 2);
    }
}
