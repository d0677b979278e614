//! [`Desired`] as the chains, maps and sets of one nftables table. Pure.

use crate::detect::LocalDetector;
use crate::plan::{Desired, Endpoint, Family, Policy, PortName, ServicePort};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Settings that change rules.
#[derive(Clone, Debug)]
pub struct Options {
    /// IP family.
    pub family: Family,
    /// Masquerade everything that goes to a service.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_mark: u32,
    /// How pods of this cluster are told from others.
    pub detector: LocalDetector,
    /// Node addresses that answer on node ports; empty for all but loopback.
    pub node_port_addresses: Vec<ipnet::IpNet>,
}

/// A set whose elements the kernel adds as packets pass (client affinity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinitySet {
    /// How long a client stays with its endpoint, in seconds.
    pub seconds: u32,
}

/// The content of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Rules by chain, base chains left out.
    pub chains: BTreeMap<String, Vec<String>>,
    /// Verdict maps: key to verdict.
    pub maps: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// The `cluster-ips` set.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Dynamic sets by name.
    pub affinity: BTreeMap<String, AffinitySet>,
}

/// Verdict maps and their key types; `ADDRESS` stands for the family's address type.
pub(super) const MAPS: [(&str, &str); 5] = [
    ("service-ips", "ADDRESS . inet_proto . inet_service"),
    ("service-nodeports", "inet_proto . inet_service"),
    ("no-endpoint-services", "ADDRESS . inet_proto . inet_service"),
    ("no-endpoint-nodeports", "inet_proto . inet_service"),
    ("firewall-ips", "ADDRESS . inet_proto . inet_service"),
];

/// `ip` or `ip6`: the table's family and the header's name in matches.
pub(super) fn header(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// Renders everything.
#[must_use]
pub fn render(desired: &Desired, options: &Options) -> Table {
    let mut table = Table { maps: MAPS.iter().map(|(name, _)| (*name, BTreeMap::new())).collect(), ..Table::default() };
    table.chains = fixed_chains(options);
    for (name, port) in &desired.ports {
        table.cluster_ips.insert(port.cluster_ip);
        Renderer { name, port, options, table: &mut table }.render();
    }
    table
}

/// Chains that are the same whatever services there are.
fn fixed_chains(options: &Options) -> BTreeMap<String, Vec<String>> {
    let ip = header(options.family);
    let mark = format!("{:#x}", options.masquerade_mark);
    let service_key = format!("{ip} daddr . meta l4proto . th dport");
    let node_port = |map: &str| -> Vec<String> {
        let networks = options.node_port_addresses.iter().filter(|network| options.family.holds(network.addr()));
        let networks: Vec<String> = networks.map(ToString::to_string).collect();
        let loopback = if ip == "ip" { "127.0.0.0/8" } else { "::1" };
        let whose = match networks.is_empty() {
            true if options.node_port_addresses.is_empty() => format!("fib daddr type local {ip} daddr != {loopback}"),
            true => return Vec::new(),
            false => format!("fib daddr type local {ip} daddr {{ {} }}", networks.join(", ")),
        };
        vec![format!("{whose} meta l4proto . th dport vmap @{map}")]
    };
    let mut services = vec![format!("{service_key} vmap @service-ips")];
    services.extend(node_port("service-nodeports"));
    BTreeMap::from([
        ("services".into(), services),
        ("service-endpoints-check".into(), vec![format!("{service_key} vmap @no-endpoint-services")]),
        ("nodeport-endpoints-check".into(), node_port("no-endpoint-nodeports")),
        ("firewall-check".into(), vec![format!("{service_key} vmap @firewall-ips")]),
        // A cluster IP that is still the destination here has no such port.
        ("cluster-ips-check".into(), vec![format!("{ip} daddr @cluster-ips reject")]),
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

/// A chain's name: a hash for uniqueness, the port's name for people; at most 127 characters.
fn chain(kind: &str, name: &PortName, more: &str) -> String {
    let protocol = name.protocol.as_str();
    let hash = Sha256::digest(format!("{name}/{protocol}{more}"));
    let text = format!("{}/{}/{protocol}/{}{more}", name.namespace, name.service, name.port);
    let readable: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "/_.-".contains(c) { c } else { '.' }).collect();
    let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut name = format!("{kind}-{hash}-{readable}");
    name.truncate(127);
    name
}

struct Renderer<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    options: &'a Options,
    table: &'a mut Table,
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
        // The first service that claims an address keeps it.
        self.table.maps.entry(map).or_default().entry(key).or_insert(verdict);
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
        self.table.chains.insert(self.chain(policy), rules);
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
            self.table.affinity.insert(set, AffinitySet { seconds });
        }
        rules.push(format!("meta l4proto {} dnat to {endpoint}", self.name.protocol.as_str()));
        self.table.chains.insert(name.clone(), rules);
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
            let ranges: Vec<String> = port.source_ranges.iter().map(ToString::to_string).collect();
            let firewall = chain("firewall", self.name, "");
            let rule = format!("{} saddr != {{ {} }} drop", header(self.options.family), ranges.join(", "));
            self.table.chains.insert(firewall.clone(), vec![rule]);
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
        self.table.chains.insert(name.clone(), rules);
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
    format!("__{}/{}", endpoint.address, endpoint.port)
}
