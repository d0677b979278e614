//! [`Desired`] as the chains, maps and sets of one nftables table. Pure.

use crate::backend::{NodePorts, Options};
use crate::plan::{Endpoint, Family, Policy, PortName, ServicePort};
use data_encoding::BASE32;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Element of a verdict map: map, key, verdict.
pub(super) type Element = (&'static str, String, String);

/// Rules of one service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Chains of its own.
    pub(super) chains: Vec<(String, Vec<String>)>,
    /// Elements of the verdict maps.
    pub(super) elements: Vec<Element>,
    /// Address in the set of cluster IPs.
    pub(super) cluster_ip: Option<IpAddr>,
    /// Sets of clients that stay with an endpoint, with the seconds they do; the kernel adds to them as packets pass.
    pub(super) affinity: Vec<(String, u32)>,
}

/// Renders a service port.
pub(super) fn part(name: &PortName, port: &ServicePort, options: &Options) -> Part {
    let mut part = Part { cluster_ip: Some(port.cluster_ip), ..Part::default() };
    Renderer { name, port, options, part: &mut part }.render();
    part
}

/// Verdict maps and their key types; `ADDRESS` stands for the family's address type.
pub(super) const MAPS: [(&str, &str); 5] = [
    ("service-ips", "ADDRESS . inet_proto . inet_service"),
    ("service-nodeports", "inet_proto . inet_service"),
    ("no-endpoint-services", "ADDRESS . inet_proto . inet_service"),
    ("no-endpoint-nodeports", "inet_proto . inet_service"),
    ("firewall-ips", "ADDRESS . inet_proto . inet_service"),
];

/// Set of the addresses that node ports answer on, where not all do.
pub(super) const NODE_PORT_IPS: &str = "nodeport-ips";

/// The elements of [`NODE_PORT_IPS`].
pub(super) fn node_port_ips(options: &Options) -> Vec<IpAddr> {
    match &options.environment.node_ports {
        NodePorts::All => Vec::new(),
        NodePorts::Addresses(addresses) => addresses.iter().copied().filter(|address| !address.is_loopback()).collect(),
    }
}

/// `ip` or `ip6`: the table's family and the header's name in matches.
pub(super) fn header(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Chains that are the same whatever services there are.
pub(super) fn fixed_chains(options: &Options) -> BTreeMap<String, Vec<String>> {
    let ip = header(options.family);
    let mark = format!("{:#x}", options.masquerade_mark);
    let service_key = format!("{ip} daddr . meta l4proto . th dport");
    let node_port = |map: &str| -> String {
        let loopback = if ip == "ip" { "127.0.0.0/8" } else { "::1" };
        let whose = match &options.environment.node_ports {
            NodePorts::All => format!("fib daddr type local {ip} daddr != {loopback}"),
            NodePorts::Addresses(_) => format!("{ip} daddr @{NODE_PORT_IPS}"),
        };
        format!("{whose} meta l4proto . th dport vmap @{map}")
    };
    let services = vec![format!("{service_key} vmap @service-ips"), node_port("service-nodeports")];
    BTreeMap::from([
        ("services".into(), services),
        ("service-endpoints-check".into(), vec![format!("{service_key} vmap @no-endpoint-services")]),
        ("nodeport-endpoints-check".into(), vec![node_port("no-endpoint-nodeports")]),
        ("firewall-check".into(), vec![format!("{service_key} vmap @firewall-ips")]),
        ("cluster-ips-check".into(), cluster_ips_check(options)),
        ("reject-chain".into(), vec!["reject".into()]),
        ("mark-for-masquerade".into(), vec![format!("mark set mark or {mark}")]),
        (
            "masquerading".into(),
            vec![
                format!("mark and {mark} == 0 return"),
                format!("mark set mark xor {mark}"),
                "masquerade fully-random".into(),
            ],
        ),
    ])
}

/// Refuses what is still for a cluster IP after destinations were changed: the Service has no such port, or there is no
/// Service of that address.
fn cluster_ips_check(options: &Options) -> Vec<String> {
    let ip = header(options.family);
    let networks: Vec<String> = options.environment.service_networks.iter().map(ToString::to_string).collect();
    let reject = format!("{ip} daddr @cluster-ips reject comment \"Reject traffic to invalid ports of ClusterIPs\"");
    let drop =
        format!("{ip} daddr {{ {} }} drop comment \"Drop traffic to unallocated ClusterIPs\"", networks.join(", "));
    if networks.is_empty() { vec![reject] } else { vec![reject, drop] }
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
    part: &'a mut Part,
}

impl Renderer<'_> {
    fn render(&mut self) {
        if self.port.has_endpoints {
            for policy in [Policy::Cluster, Policy::Local] {
                if self.port.uses(policy) && !self.port.endpoints(policy).is_empty() {
                    self.service_chain(policy);
                }
            }
            if !self.port.endpoints(self.port.internal).is_empty() {
                let (key, target) = (self.key(self.port.cluster_ip), self.chain(self.port.internal));
                self.put("service-ips", key, format!("goto {target}"));
            }
            self.external();
        }
        self.refusals();
    }

    fn put(&mut self, map: &'static str, key: String, verdict: String) {
        self.part.elements.push((map, key, verdict));
    }

    fn key(&self, address: IpAddr) -> String {
        format!("{address} . {} . {}", self.name.protocol.as_str(), self.port.port)
    }

    fn node_port_key(&self, number: u16) -> String {
        format!("{} . {number}", self.name.protocol.as_str())
    }

    fn chain(&self, policy: Policy) -> String {
        chain(if policy == Policy::Cluster { "service" } else { "local" }, self.name, "")
    }

    fn service_chain(&mut self, policy: Policy) {
        let ip = header(self.options.family);
        let endpoints = self.port.endpoints(policy).to_vec();
        let chains: Vec<String> = endpoints.iter().map(|endpoint| self.endpoint_chain(endpoint)).collect();
        let mut rules = Vec::new();
        if policy == self.port.internal {
            let cluster_ip = self.port.cluster_ip;
            let (protocol, port) = (self.name.protocol.as_str(), self.port.port);
            let to = format!("{ip} daddr {cluster_ip} {protocol} dport {port}");
            if self.options.masquerade_all {
                rules.push(format!("{to} jump mark-for-masquerade"));
            } else if let Some(outside) = self.options.detector.nft(self.options.family, true) {
                rules.push(format!("{to} {outside} jump mark-for-masquerade"));
            }
        }
        if self.port.affinity.is_some() {
            for (endpoint, target) in endpoints.iter().zip(&chains) {
                rules.push(format!("{ip} saddr @{} goto {target}", self.affinity_set(endpoint)));
            }
        }
        let choices: Vec<String> =
            chains.iter().enumerate().map(|(index, target)| format!("{index} : goto {target}")).collect();
        rules.push(format!("numgen random mod {} vmap {{ {} }}", chains.len(), choices.join(", ")));
        self.part.chains.push((self.chain(policy), rules));
    }

    fn affinity_set(&self, endpoint: &Endpoint) -> String {
        chain("affinity", self.name, &endpoint_text(endpoint))
    }

    fn endpoint_chain(&mut self, endpoint: &Endpoint) -> String {
        let ip = header(self.options.family);
        let name = chain("endpoint", self.name, &endpoint_text(endpoint));
        let mut rules = vec![format!("{ip} saddr {} jump mark-for-masquerade", endpoint.address)];
        if let Some(seconds) = self.port.affinity {
            let set = self.affinity_set(endpoint);
            rules.push(format!("update @{set} {{ {ip} saddr }}"));
            self.part.affinity.push((set, seconds));
        }
        rules.push(format!("meta l4proto {} dnat to {endpoint}", self.name.protocol.as_str()));
        let known = self.part.chains.iter().any(|(chain, _)| *chain == name);
        if !known {
            self.part.chains.push((name.clone(), rules));
        }
        name
    }

    fn external(&mut self) {
        let port = self.port;
        if !port.is_external() || (port.cluster_endpoints.is_empty() && port.local_endpoints.is_empty()) {
            return;
        }
        let target = self.external_chain();
        for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
            self.put("service-ips", self.key(*address), format!("goto {target}"));
        }
        if let Some(number) = port.node_port {
            self.put("service-nodeports", self.node_port_key(number), format!("goto {target}"));
        }
        if !port.source_ranges.is_empty() && !port.load_balancer_ips.is_empty() {
            let mut ranges: Vec<String> = port.source_ranges.iter().map(ToString::to_string).collect();
            // A node within the ranges that has the balancer's address as one of its own talks to it from that very one.
            let node = &self.options.node_addresses;
            if port.source_ranges.iter().any(|range| node.iter().any(|address| range.contains(address))) {
                ranges.extend(port.load_balancer_ips.iter().map(ToString::to_string));
            }
            let firewall = chain("firewall", self.name, "");
            let rule = format!("{} saddr != {{ {} }} drop", header(self.options.family), ranges.join(", "));
            self.part.chains.push((firewall.clone(), vec![rule]));
            for address in &port.load_balancer_ips {
                self.put("firewall-ips", self.key(*address), format!("goto {firewall}"));
            }
        }
    }

    fn external_chain(&mut self) -> String {
        let cluster = self.chain(Policy::Cluster);
        let mut rules = Vec::new();
        if self.port.external == Policy::Cluster {
            rules.push("jump mark-for-masquerade".to_owned());
        } else if !self.port.cluster_endpoints.is_empty() {
            // The policy is for what comes from outside; pods and the node itself reach all endpoints.
            if let Some(local) = self.options.detector.nft(self.options.family, false) {
                rules.push(format!("{local} goto {cluster}"));
            }
            rules.push("fib saddr type local jump mark-for-masquerade".to_owned());
            rules.push(format!("fib saddr type local goto {cluster}"));
        }
        if !self.port.endpoints(self.port.external).is_empty() {
            rules.push(format!("goto {}", self.chain(self.port.external)));
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

    fn refusal(&self, policy: Policy) -> Option<String> {
        if !self.port.has_endpoints {
            return Some("goto reject-chain".into());
        }
        (policy == Policy::Local && self.port.local_endpoints.is_empty()).then(|| "drop".into())
    }
}

fn endpoint_text(endpoint: &Endpoint) -> String {
    format!("__{}/{}", endpoint.address.to_string().replace(':', "."), endpoint.port)
}
