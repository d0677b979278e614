//! [`Desired`] as the chains, maps and sets of one nftables table. Pure.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use data_encoding::BASE32;
use ipnet::{IpNet, Ipv4Net};
use sha2::{Digest, Sha256};

use super::rule::{Addresses, Element, InterfaceName, Is, MapKey, Rule, RuleVerdict, Side, Statement};
use super::transaction::{CLUSTER_IPS, NODE_PORT_IPS};
use crate::backend::{NodePorts, Options};
use crate::detect::LocalDetector;
use crate::plan::{Endpoint, Family, PortName, ServicePort, TrafficPolicy};

/// Rules of one service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Chains of its own.
    pub(super) chains: Vec<(String, Vec<Rule>)>,
    /// Elements of the verdict maps.
    pub(super) elements: Vec<(&'static str, Element, RuleVerdict)>,
    /// Address in the set of cluster IPs.
    pub(super) cluster_ip: Option<IpAddr>,
    /// Sets of clients that stay with an endpoint, with the seconds they do; the kernel adds to them as packets pass.
    pub(super) affinity: Vec<(String, u32)>,
}

/// Renders a service port.
pub(super) fn part(name: &PortName, port: &ServicePort, options: &Options) -> Part {
    let mut part = Part { cluster_ip: Some(port.cluster_ip), ..Part::default() };
    Renderer { name, port, options, endpoint_chains: HashSet::new(), part: &mut part }.render();
    part
}

/// The elements of [`NODE_PORT_IPS`].
pub(super) fn node_port_ips(options: &Options) -> Vec<IpAddr> {
    match &options.environment.node_ports {
        NodePorts::All => Vec::new(),
        NodePorts::Addresses(addresses) => addresses.iter().copied().filter(|address| !address.is_loopback()).collect(),
    }
}

/// Chains that are the same whatever services there are.
pub(super) fn fixed_chains(options: &Options) -> BTreeMap<&'static str, Vec<Rule>> {
    let mark = options.masquerade_mark;
    let by_service = |map| vec![Rule::from(vec![Statement::LookUp(MapKey::Service, map)])];
    let by_node_port =
        |map| Rule::from([node_port_match(options), vec![Statement::LookUp(MapKey::NodePort, map)]].concat());
    let services = [by_service("service-ips"), vec![by_node_port("service-nodeports")]].concat();
    let masquerading = [
        vec![Statement::Unmarked(mark), Statement::Verdict(RuleVerdict::Return)],
        vec![Statement::FlipMark(mark)],
        vec![Statement::Masquerade],
    ];
    BTreeMap::from([
        ("services", services),
        ("service-endpoints-check", by_service("no-endpoint-services")),
        ("nodeport-endpoints-check", vec![by_node_port("no-endpoint-nodeports")]),
        ("firewall-check", by_service("firewall-ips")),
        ("cluster-ips-check", cluster_ips_check(options)),
        ("reject-chain", vec![vec![Statement::Reject].into()]),
        (MASQUERADE_CHAIN, vec![vec![Statement::SetMark(mark)].into()]),
        ("masquerading", masquerading.map(Rule::from).into()),
    ])
}

/// Match of the addresses that node ports answer on.
fn node_port_match(options: &Options) -> Vec<Statement> {
    let to = |is, addresses| Statement::Address(Side::Destination, is, addresses);
    if let NodePorts::Addresses(_) = options.environment.node_ports {
        return vec![to(Is::Equal, Addresses::Set(NODE_PORT_IPS.to_owned()))];
    }
    let loopback = match options.family {
        Family::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
    };
    vec![Statement::Local(Side::Destination), to(Is::Other, Addresses::Network(loopback))]
}

/// Refuses what is still for a cluster IP after destinations were changed: the Service has no such port, or there is no
/// Service of that address.
fn cluster_ips_check(options: &Options) -> Vec<Rule> {
    let to = |addresses| Statement::Address(Side::Destination, Is::Equal, addresses);
    let reject = Rule {
        statements: vec![to(Addresses::Set(CLUSTER_IPS.to_owned())), Statement::Reject],
        comment: Some("Reject traffic to invalid ports of ClusterIPs"),
    };
    let networks: Vec<IpNet> = options.environment.service_networks.iter().copied().collect();
    if networks.is_empty() {
        return vec![reject];
    }
    let drop = Rule {
        statements: vec![to(networks.into()), Statement::Verdict(RuleVerdict::Drop)],
        comment: Some("Drop traffic to unallocated ClusterIPs"),
    };
    vec![reject, drop]
}

/// Match of traffic of this cluster's pods, or of all other; none when there is no way to tell.
fn pods(detector: &LocalDetector, family: Family, is: Is) -> Option<Statement> {
    match detector {
        LocalDetector::None => None,
        LocalDetector::Networks(_) => {
            let network = *detector.network(family)?;
            Some(Statement::Address(Side::Source, is, Addresses::Network(network)))
        }
        LocalDetector::Bridge(name) => Some(Statement::Interface(is, InterfaceName::Whole(name.clone()))),
        LocalDetector::Prefix(prefix) => Some(Statement::Interface(is, InterfaceName::Prefix(prefix.clone()))),
    }
}

/// The chain that marks packets whose source is to be changed.
pub(super) const MASQUERADE_CHAIN: &str = "mark-for-masquerade";

fn masquerade() -> Statement {
    Statement::Jump(MASQUERADE_CHAIN.to_owned())
}

fn goto(chain: &str) -> Statement {
    Statement::Verdict(RuleVerdict::Goto(chain.to_owned()))
}

fn from(addresses: impl Into<Addresses>) -> Statement {
    Statement::Address(Side::Source, Is::Equal, addresses.into())
}

/// Longest name of a chain or set after its prefix; upstream's `chainNameBaseLengthMax`.
const NAME_LENGTH: usize = 256 - 16;

/// The name of a chain or set of a service port, as upstream's `servicePortChainNameBase` and
/// `servicePortEndpointChainNameBase` have it: prefix, hash, and what was hashed.
pub(super) fn chain(kind: &str, name: &PortName, endpoint: &str) -> String {
    let text = format!("{}/{}/{}/{}{endpoint}", name.namespace, name.service, name.protocol.as_str(), name.port);
    let mut name = format!("{}-{text}", &BASE32.encode(&Sha256::digest(&text))[..8]);
    if name.len() > NAME_LENGTH {
        name.truncate(NAME_LENGTH - 3);
        name.push_str("...");
    }
    format!("{kind}-{name}")
}

struct Renderer<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    options: &'a Options,
    /// Chains of endpoints that are rendered.
    endpoint_chains: HashSet<String>,
    part: &'a mut Part,
}

impl Renderer<'_> {
    fn render(&mut self) {
        if self.port.has_endpoints {
            for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
                if self.port.uses(policy) && !self.port.endpoints(policy).is_empty() {
                    self.service_chain(policy);
                }
            }
            if !self.port.endpoints(self.port.internal).is_empty() {
                let (key, target) = (self.key(self.port.cluster_ip), self.chain(self.port.internal));
                self.put("service-ips", key, RuleVerdict::Goto(target));
            }
            self.external();
        }
        self.refusals();
    }

    fn put(&mut self, map: &'static str, key: Element, verdict: RuleVerdict) {
        self.part.elements.push((map, key, verdict));
    }

    fn key(&self, address: IpAddr) -> Element {
        Element { address: Some(address), protocol: self.name.protocol, port: self.port.port }
    }

    fn node_port_key(&self, port: u16) -> Element {
        Element { address: None, protocol: self.name.protocol, port }
    }

    fn chain(&self, policy: TrafficPolicy) -> String {
        chain(if policy == TrafficPolicy::Cluster { "service" } else { "local" }, self.name, "")
    }

    fn service_chain(&mut self, policy: TrafficPolicy) {
        let endpoints = self.port.endpoints(policy).to_vec();
        let chains: Vec<String> = endpoints.iter().map(|endpoint| self.endpoint_chain(endpoint)).collect();
        let mut rules: Vec<Rule> = Vec::new();
        if policy == self.port.internal {
            let cluster_ip = Statement::Address(Side::Destination, Is::Equal, self.port.cluster_ip.into());
            let to = vec![cluster_ip, Statement::Port(self.name.protocol, self.port.port)];
            if self.options.masquerade_all {
                rules.push([to, vec![masquerade()]].concat().into());
            } else if let Some(outside) = pods(&self.options.detector, self.options.family, Is::Other) {
                rules.push([to, vec![outside, masquerade()]].concat().into());
            }
        }
        if self.port.affinity.is_some() {
            for (endpoint, target) in endpoints.iter().zip(&chains) {
                let known = from(Addresses::Set(self.affinity_set(endpoint)));
                rules.push(vec![known, goto(target)].into());
            }
        }
        rules.push(vec![Statement::Choice(chains)].into());
        self.part.chains.push((self.chain(policy), rules));
    }

    fn affinity_set(&self, endpoint: &Endpoint) -> String {
        chain("affinity", self.name, &endpoint_text(endpoint))
    }

    fn endpoint_chain(&mut self, endpoint: &Endpoint) -> String {
        let name = chain("endpoint", self.name, &endpoint_text(endpoint));
        if !self.endpoint_chains.insert(name.clone()) {
            return name;
        }
        let mut rules: Vec<Rule> = vec![vec![from(endpoint.address), masquerade()].into()];
        if let Some(seconds) = self.port.affinity {
            let set = self.affinity_set(endpoint);
            rules.push(vec![Statement::Remember(set.clone())].into());
            self.part.affinity.push((set, seconds));
        }
        let destination = Statement::Destination(SocketAddr::new(endpoint.address, endpoint.port));
        rules.push(vec![Statement::Protocol(self.name.protocol), destination].into());
        self.part.chains.push((name.clone(), rules));
        name
    }

    fn external(&mut self) {
        let port = self.port;
        if !port.is_external() || (port.cluster_endpoints.is_empty() && port.local_endpoints.is_empty()) {
            return;
        }
        let target = self.external_chain();
        for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
            self.put("service-ips", self.key(*address), RuleVerdict::Goto(target.clone()));
        }
        if let Some(number) = port.node_port {
            self.put("service-nodeports", self.node_port_key(number), RuleVerdict::Goto(target));
        }
        if !port.source_ranges.is_empty() && !port.load_balancer_ips.is_empty() {
            let mut ranges = port.source_ranges.clone();
            // A node within the ranges that has the balancer's address as one of its own talks to it from that very one.
            let node = &self.options.node_addresses;
            if port.source_ranges.iter().any(|range| node.iter().any(|address| range.contains(address))) {
                ranges.extend(port.load_balancer_ips.iter().copied().map(IpNet::from));
            }
            let firewall = chain("firewall", self.name, "");
            let other = Statement::Address(Side::Source, Is::Other, ranges.into());
            self.part.chains.push((firewall.clone(), vec![vec![other, Statement::Verdict(RuleVerdict::Drop)].into()]));
            for address in &port.load_balancer_ips {
                self.put("firewall-ips", self.key(*address), RuleVerdict::Goto(firewall.clone()));
            }
        }
    }

    fn external_chain(&mut self) -> String {
        let cluster = self.chain(TrafficPolicy::Cluster);
        let mut rules: Vec<Rule> = Vec::new();
        if self.port.external == TrafficPolicy::Cluster {
            rules.push(vec![masquerade()].into());
        } else if !self.port.cluster_endpoints.is_empty() {
            // The policy is for what comes from outside; pods and the node itself reach all endpoints.
            if let Some(pods) = pods(&self.options.detector, self.options.family, Is::Equal) {
                rules.push(vec![pods, goto(&cluster)].into());
            }
            rules.push(vec![Statement::Local(Side::Source), masquerade()].into());
            rules.push(vec![Statement::Local(Side::Source), goto(&cluster)].into());
        }
        if !self.port.endpoints(self.port.external).is_empty() {
            rules.push(vec![goto(&self.chain(self.port.external))].into());
        }
        let name = chain("external", self.name, "");
        self.part.chains.push((name.clone(), rules));
        name
    }

    fn refusals(&mut self) {
        let port = self.port;
        if let Some(verdict) = self.refusal(port.internal) {
            self.put("no-endpoint-services", self.key(port.cluster_ip), verdict.clone());
        }
        let Some(verdict) = self.refusal(port.external) else { return };
        for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
            self.put("no-endpoint-services", self.key(*address), verdict.clone());
        }
        if let Some(number) = port.node_port {
            self.put("no-endpoint-nodeports", self.node_port_key(number), verdict);
        }
    }

    fn refusal(&self, policy: TrafficPolicy) -> Option<RuleVerdict> {
        if !self.port.has_endpoints {
            return Some(RuleVerdict::Goto("reject-chain".into()));
        }
        (policy == TrafficPolicy::Local && self.port.local_endpoints.is_empty()).then_some(RuleVerdict::Drop)
    }
}

fn endpoint_text(endpoint: &Endpoint) -> String {
    format!("__{}/{}", endpoint.address.to_string().replace(':', "."), endpoint.port)
}
