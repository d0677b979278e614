//! [`Desired`] as chains of iptables rules. Pure; the order of rules in a chain is upstream's.

use super::{accounting, names};
use crate::backend::{NodePorts, Options};
use crate::plan::{Endpoint, Family, PortName, ServicePort, TrafficPolicy};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::net::IpAddr;

/// Rules by chain, for the two tables that change with services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// The `filter` table.
    pub filter: BTreeMap<String, Vec<String>>,
    /// The `nat` table.
    pub nat: BTreeMap<String, Vec<String>>,
}

/// Chains that all services have rules in: table and name.
pub(super) const SHARED: [(&str, &str); 6] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-NODEPORTS"),
    ("filter", "KUBE-SERVICES"),
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-NODEPORTS"),
    ("filter", "KUBE-PROXY-FIREWALL"),
];
const NAT_SERVICES: usize = 0;
const NAT_NODE_PORTS: usize = 1;
const FILTER_SERVICES: usize = 2;
const FILTER_EXTERNAL: usize = 3;
const FILTER_NODE_PORTS: usize = 4;
const FILTER_FIREWALL: usize = 5;

/// Rules of one service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Chains of its own, in the `nat` table.
    pub(super) chains: Vec<(String, Vec<String>)>,
    /// Rules in each of [`SHARED`].
    pub(super) shared: [Vec<String>; SHARED.len()],
}

/// Renders a service port, with comments in the chains of its endpoints where `comments` says so.
pub(super) fn part(name: &PortName, port: &ServicePort, options: &Options, comments: bool) -> Part {
    let mut part = Part::default();
    Renderer { name, port, options, comments, endpoint_chains: HashSet::new(), part: &mut part }.render();
    part
}

/// The rules of a chain of [`SHARED`], out of those of all ports in order.
pub(super) fn shared<'a>(
    index: usize,
    parts: impl Iterator<Item = &'a [Vec<String>; SHARED.len()]>,
    options: &Options,
) -> Vec<String> {
    let mut rules: Vec<String> = parts.flat_map(|part| part[index].iter().cloned()).collect();
    match index {
        NAT_SERVICES => rules.extend(node_port_jumps(options)),
        // Ports of one service share its health-check port.
        FILTER_NODE_PORTS => {
            let mut seen = HashSet::new();
            rules.retain(|rule| seen.insert(rule.clone()));
        }
        _ => {}
    }
    rules
}

/// Chains that are the same whatever services there are.
pub(super) fn fixed(options: &Options) -> Rules {
    let mut rules = Rules::default();
    let mark = format!("{0:#x}/{0:#x}", options.masquerade_mark);
    if guards_localnet(options) {
        let drop = "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
        rules.filter.insert(FIREWALL.into(), vec![drop.into()]);
    }
    let counted = if options.counters.invalid { counted(accounting::INVALID) } else { String::new() };
    let invalid = options.drop_invalid.then(|| format!("-m conntrack --ctstate INVALID {counted}-j DROP"));
    let forward = [
        format!("-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark} -j ACCEPT"),
        "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".into(),
    ];
    rules.filter.insert("KUBE-FORWARD".into(), invalid.into_iter().chain(forward).collect());
    rules.nat.insert("KUBE-MARK-MASQ".into(), vec![format!("-j MARK --or-mark {:#x}", options.masquerade_mark)]);
    rules.nat.insert(
        "KUBE-POSTROUTING".into(),
        vec![
            format!("-m mark ! --mark {mark} -j RETURN"),
            format!("-j MARK --xor-mark {:#x}", options.masquerade_mark),
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully".into(),
        ],
    );
    rules
}

/// A match that counts.
fn counted(counter: &str) -> String {
    format!("-m nfacct --nfacct-name {counter} ")
}

/// The chain against packets from elsewhere that are for this machine's loopback, which `route_localnet` would let in
/// (CVE-2020-8558).
pub(super) const FIREWALL: &str = "KUBE-FIREWALL";

/// Reports whether the kernel routes packets to 127.0.0.0/8 for us, so that those of others have to be dropped.
pub(super) fn guards_localnet(options: &Options) -> bool {
    options.family == Family::V4 && options.localhost_node_ports
}

/// Jumps for node ports, by the destination. Loopback never works with IPv6, and with IPv4 where it was asked for.
pub(super) fn node_port_jumps(options: &Options) -> Vec<String> {
    let comment =
        "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"";
    let loopback = guards_localnet(options);
    let addresses = match &options.environment.node_ports {
        NodePorts::All => {
            let but = match (loopback, options.family) {
                (true, _) => "",
                (false, Family::V4) => " ! -d 127.0.0.0/8",
                (false, Family::V6) => " ! -d ::1/128",
            };
            return vec![format!("{comment} -m addrtype --dst-type LOCAL{but} -j KUBE-NODEPORTS")];
        }
        NodePorts::Addresses(addresses) => addresses,
    };
    let answering = addresses.iter().filter(|address| loopback || !address.is_loopback());
    answering.map(|address| format!("{comment} -d {address} -j KUBE-NODEPORTS")).collect()
}

/// Renders one service port into the chains.
struct Renderer<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    options: &'a Options,
    comments: bool,
    /// Chains of endpoints that are rendered.
    endpoint_chains: HashSet<String>,
    part: &'a mut Part,
}

impl Renderer<'_> {
    fn render(&mut self) {
        if self.port.has_endpoints {
            self.cluster_ip();
            self.external();
        }
        self.refusals();
        self.health_check_port();
    }

    fn share(&mut self, index: usize, rule: String) {
        self.part.shared[index].push(rule);
    }

    /// The comment of a rule of which there is one for each endpoint: upstream's `appendServiceCommentLocked`.
    fn endpoint_comment(&self, text: &str) -> String {
        if self.comments { format!("-m comment --comment \"{text}\" ") } else { String::new() }
    }

    fn to(&self, address: IpAddr) -> String {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let protocol = self.name.protocol.as_str();
        format!("-d {address}/{bits} -p {protocol} -m {protocol} --dport {}", self.port.port)
    }

    fn to_node_port(&self, number: u16) -> String {
        let protocol = self.name.protocol.as_str();
        format!("-p {protocol} -m {protocol} --dport {number}")
    }

    fn chain(&self, policy: TrafficPolicy) -> String {
        names::service(if policy == TrafficPolicy::Cluster { "SVC" } else { "SVL" }, self.name)
    }

    fn cluster_ip(&mut self) {
        let internal = self.port.internal;
        if self.port.uses(TrafficPolicy::Cluster) && !self.port.cluster_endpoints.is_empty() {
            self.service_chain(TrafficPolicy::Cluster);
        }
        if self.port.uses(TrafficPolicy::Local) && !self.port.local_endpoints.is_empty() {
            self.service_chain(TrafficPolicy::Local);
        }
        if self.port.endpoints(internal).is_empty() {
            return;
        }
        let name = self.name;
        let rule = format!(
            "-m comment --comment \"{name} cluster IP\" {} -j {}",
            self.to(self.port.cluster_ip),
            self.chain(internal)
        );
        self.share(NAT_SERVICES, rule);
    }

    /// Spreads connections over the endpoints of a policy.
    fn service_chain(&mut self, policy: TrafficPolicy) {
        let chain = self.chain(policy);
        let mut lines = Vec::new();
        if policy == self.port.internal {
            lines.extend(self.masquerade_rule());
        }
        let endpoints = self.port.endpoints(policy).to_vec();
        let chains: Vec<String> = endpoints.iter().map(|endpoint| names::endpoint(self.name, endpoint)).collect();
        if let Some(seconds) = self.port.affinity {
            for (endpoint, target) in endpoints.iter().zip(&chains) {
                let comment = self.endpoint_comment(&format!("{} -> {endpoint}", self.name));
                lines.push(format!(
                    "{comment}-m recent --name {target} --rcheck --seconds {seconds} --reap -j {target}"
                ));
            }
        }
        for (index, (endpoint, target)) in endpoints.iter().zip(&chains).enumerate() {
            let mut line = self.endpoint_comment(&format!("{} -> {endpoint}", self.name));
            let left = endpoints.len() - index;
            if left > 1 {
                // Each rule sees only what the rules before it let pass.
                #[allow(clippy::cast_precision_loss, reason = "a probability is a float")]
                let share = 1.0 / left as f64;
                write!(line, "-m statistic --mode random --probability {share:.10} ").ok();
            }
            write!(line, "-j {target}").ok();
            lines.push(line);
        }
        self.part.chains.push((chain, lines));
        for (endpoint, chain) in endpoints.iter().zip(chains) {
            self.endpoint_chain(endpoint, chain);
        }
    }

    /// Traffic to the cluster IP from outside of the cluster must come back through here.
    fn masquerade_rule(&self) -> Option<String> {
        let to = self.to(self.port.cluster_ip);
        let comment = format!("-m comment --comment \"{} cluster IP\"", self.name);
        if self.options.masquerade_all {
            return Some(format!("{comment} {to} -j KUBE-MARK-MASQ"));
        }
        let not_local = self.options.detector.not_local(self.options.family)?;
        Some(format!("{comment} {to} {not_local} -j KUBE-MARK-MASQ"))
    }

    /// Adds the chain of an endpoint, once for both policies.
    fn endpoint_chain(&mut self, endpoint: &Endpoint, chain: String) {
        if !self.endpoint_chains.insert(chain.clone()) {
            return;
        }
        let bits = if endpoint.address.is_ipv4() { 32 } else { 128 };
        let (name, protocol) = (self.name, self.name.protocol.as_str());
        // A pod that reaches itself through its service must not see its own address as the source.
        let comment = self.endpoint_comment(&name.to_string());
        let hairpin = format!("{comment}-s {}/{bits} -j KUBE-MARK-MASQ", endpoint.address);
        let recent = self.port.affinity.map(|_| format!("-m recent --name {chain} --set ")).unwrap_or_default();
        let forward = format!("{comment}{recent}-p {protocol} -m {protocol} -j DNAT --to-destination {endpoint}");
        self.part.chains.push((chain, vec![hairpin, forward]));
    }

    fn external(&mut self) {
        let port = self.port;
        if !port.is_external() || (port.cluster_endpoints.is_empty() && port.local_endpoints.is_empty()) {
            return;
        }
        self.external_chain();
        let (name, chain) = (self.name, names::service("EXT", self.name));
        for address in &port.external_ips {
            let rule = format!("-m comment --comment \"{name} external IP\" {} -j {chain}", self.to(*address));
            self.share(NAT_SERVICES, rule);
        }
        let balancer = if port.source_ranges.is_empty() { chain.clone() } else { self.firewall_chain() };
        for address in &port.load_balancer_ips {
            let rule = format!("-m comment --comment \"{name} loadbalancer IP\" {} -j {balancer}", self.to(*address));
            self.share(NAT_SERVICES, rule);
        }
        if let Some(number) = port.node_port {
            if self.options.counters.localhost {
                let (to, counted) = (self.to_node_port(number), counted(accounting::LOCALHOST));
                let rule = format!("-m comment --comment \"{name}\" {to} -d 127.0.0.0/8 {counted}-j {chain}");
                self.share(NAT_NODE_PORTS, rule);
            }
            let rule = format!("-m comment --comment \"{name}\" {} -j {chain}", self.to_node_port(number));
            self.share(NAT_NODE_PORTS, rule);
        }
    }

    fn external_chain(&mut self) {
        let (name, cluster) = (self.name, self.chain(TrafficPolicy::Cluster));
        let comment = |text: String| format!("-m comment --comment \"{text}\"");
        let mut lines = Vec::new();
        if self.port.external == TrafficPolicy::Cluster {
            let why = comment(format!("masquerade traffic for {name} external destinations"));
            lines.push(format!("{why} -j KUBE-MARK-MASQ"));
        } else if !self.port.cluster_endpoints.is_empty() {
            // The policy is for what comes from outside; pods and the node itself reach all endpoints.
            if let Some(local) = self.options.detector.local(self.options.family) {
                let why = comment(format!("pod traffic for {name} external destinations"));
                lines.push(format!("{why} {local} -j {cluster}"));
            }
            let why = comment(format!("masquerade LOCAL traffic for {name} external destinations"));
            lines.push(format!("{why} -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"));
            let why = comment(format!("route LOCAL traffic for {name} external destinations"));
            lines.push(format!("{why} -m addrtype --src-type LOCAL -j {cluster}"));
        }
        if !self.port.endpoints(self.port.external).is_empty() {
            lines.push(format!("-j {}", self.chain(self.port.external)));
        }
        let chain = names::service("EXT", self.name);
        self.part.chains.push((chain, lines));
    }

    /// Lets only the source ranges through to the load-balancer IPs; what is left is dropped in `filter`.
    fn firewall_chain(&mut self) -> String {
        let chain = names::service("FW", self.name);
        let target = names::service("EXT", self.name);
        let comment = format!("-m comment --comment \"{} loadbalancer IP\"", self.name);
        let ranges = self.port.source_ranges.iter();
        let mut lines: Vec<String> = ranges.map(|range| format!("{comment} -s {range} -j {target}")).collect();
        // A node within the ranges that has the balancer's address as one of its own talks to it from that very address.
        let node = &self.options.node_addresses;
        if self.port.source_ranges.iter().any(|range| node.iter().any(|address| range.contains(address))) {
            for address in &self.port.load_balancer_ips {
                lines.push(format!("{comment} -s {address} -j {target}"));
            }
        }
        lines.push(format!(
            "-m comment --comment \"other traffic to {} will be dropped by KUBE-PROXY-FIREWALL\"",
            self.name
        ));
        self.part.chains.push((chain.clone(), lines));
        for address in &self.port.load_balancer_ips {
            let why = format!("-m comment --comment \"{} traffic not accepted by {chain}\"", self.name);
            let rule = format!("{why} {} -j DROP", self.to(*address));
            self.share(FILTER_FIREWALL, rule);
        }
        chain
    }

    /// Refuses at once what no endpoint could answer.
    fn refusals(&mut self) {
        let port = self.port;
        if let Some((why, verdict)) = self.refusal(port.internal) {
            let rule = format!("{why} {} {verdict}", self.to(port.cluster_ip));
            self.share(FILTER_SERVICES, rule);
        }
        let Some((why, verdict)) = self.refusal(port.external) else { return };
        let mut lines = Vec::new();
        for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
            lines.push(format!("{why} {} {verdict}", self.to(*address)));
        }
        if let Some(number) = port.node_port {
            lines.push(format!("{why} -m addrtype --dst-type LOCAL {} {verdict}", self.to_node_port(number)));
        }
        self.part.shared[FILTER_EXTERNAL].extend(lines);
    }

    fn refusal(&self, policy: TrafficPolicy) -> Option<(String, &'static str)> {
        if !self.port.has_endpoints {
            let why = format!("-m comment --comment \"{} has no endpoints\"", self.name);
            return Some((why, "-j REJECT"));
        }
        if policy == TrafficPolicy::Local && self.port.local_endpoints.is_empty() {
            // Another node has one: a client that tries again may reach it, so it is not told "refused".
            return Some((format!("-m comment --comment \"{} has no local endpoints\"", self.name), "-j DROP"));
        }
        None
    }

    fn health_check_port(&mut self) {
        if let Some(number) = self.port.health_check_node_port {
            let name = PortName { port: String::new(), ..self.name.clone() };
            let rule = format!(
                "-m comment --comment \"{name} health check node port\" -m tcp -p tcp --dport {number} -j ACCEPT"
            );
            self.share(FILTER_NODE_PORTS, rule);
        }
    }
}

/// Renders everything at once.
#[cfg(test)]
pub(super) fn render(desired: &crate::plan::Desired, options: &Options) -> Rules {
    let mut rules = fixed(options);
    let parts: Vec<Part> = desired.ports.iter().map(|(name, port)| part(name, port, options, true)).collect();
    for (index, (table, chain)) in SHARED.iter().enumerate() {
        let lines = shared(index, parts.iter().map(|part| &part.shared), options);
        let table = if *table == "nat" { &mut rules.nat } else { &mut rules.filter };
        table.insert((*chain).to_owned(), lines);
    }
    rules.nat.extend(parts.into_iter().flat_map(|part| part.chains));
    rules
}
