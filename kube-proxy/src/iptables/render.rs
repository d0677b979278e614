//! [`Desired`] as chains of iptables rules. Pure; the order of rules in a chain is upstream's.

use super::names;
use crate::detect::LocalDetector;
use crate::plan::{Desired, Endpoint, Family, Policy, PortName, ServicePort};
use std::collections::BTreeMap;
use std::fmt::Write;
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
    /// Node addresses that answer on node ports; empty for all.
    pub node_port_addresses: Vec<ipnet::IpNet>,
    /// Whether node ports answer on loopback.
    pub localhost_node_ports: bool,
}

/// Rules by chain, for the two tables that change with services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The `filter` table.
    pub filter: BTreeMap<String, Vec<String>>,
    /// The `nat` table.
    pub nat: BTreeMap<String, Vec<String>>,
}

/// Renders everything.
#[must_use]
pub fn render(desired: &Desired, options: &Options) -> Rules {
    let mut rules = Rules::default();
    base(&mut rules, options);
    for (name, port) in &desired.ports {
        Renderer { name, port, options, rules: &mut rules }.render();
    }
    node_port_jump(&mut rules, options);
    rules
}

fn base(rules: &mut Rules, options: &Options) {
    let mark = format!("{0:#x}/{0:#x}", options.masquerade_mark);
    for chain in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL"] {
        rules.filter.insert(chain.into(), Vec::new());
    }
    if options.guards_localnet() {
        let drop = "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
        rules.filter.insert(FIREWALL.into(), vec![drop.into()]);
    }
    rules.filter.insert(
        "KUBE-FORWARD".into(),
        vec![
            "-m conntrack --ctstate INVALID -j DROP".into(),
            format!("-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark} -j ACCEPT"),
            "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".into(),
        ],
    );
    for chain in ["KUBE-SERVICES", "KUBE-NODEPORTS"] {
        rules.nat.insert(chain.into(), Vec::new());
    }
    rules.nat.insert("KUBE-MARK-MASQ".into(), vec![format!("-j MARK --or-mark {:#x}", options.masquerade_mark)]);
    rules.nat.insert(
        "KUBE-POSTROUTING".into(),
        vec![
            format!("-m mark ! --mark {mark} -j RETURN"),
            format!("-j MARK --xor-mark {:#x}", options.masquerade_mark),
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully".into(),
        ],
    );
}

/// The chain against packets from elsewhere that are for this machine's loopback, which `route_localnet` would let in
/// (CVE-2020-8558).
pub(super) const FIREWALL: &str = "KUBE-FIREWALL";

impl Options {
    /// Reports whether the kernel routes packets to 127.0.0.0/8 for us, so that those of others have to be dropped.
    pub(super) fn guards_localnet(&self) -> bool {
        self.family == Family::V4 && self.localhost_node_ports
    }
}

fn node_port_jump(rules: &mut Rules, options: &Options) {
    let comment =
        "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"";
    let loopback = if options.family == Family::V4 { "127.0.0.0/8" } else { "::1/128" };
    let services = rules.nat.entry("KUBE-SERVICES".into()).or_default();
    if options.node_port_addresses.is_empty() {
        let not_loopback = if options.localhost_node_ports { String::new() } else { format!("! -d {loopback} ") };
        services.push(format!("{comment} {not_loopback}-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"));
    }
    for network in options.node_port_addresses.iter().filter(|network| options.family.holds(network.addr())) {
        services.push(format!("{comment} -d {network} -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"));
    }
}

/// Renders one service port into the chains.
struct Renderer<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    options: &'a Options,
    rules: &'a mut Rules,
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

    fn nat(&mut self, chain: &str) -> &mut Vec<String> {
        self.rules.nat.entry(chain.to_owned()).or_default()
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

    fn chain(&self, policy: Policy) -> String {
        names::service(if policy == Policy::Cluster { "SVC" } else { "SVL" }, self.name)
    }

    fn cluster_ip(&mut self) {
        let internal = self.port.internal;
        if self.port.uses(Policy::Cluster) && !self.port.cluster_endpoints.is_empty() {
            self.service_chain(Policy::Cluster);
        }
        if self.port.uses(Policy::Local) && !self.port.local_endpoints.is_empty() {
            self.service_chain(Policy::Local);
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
        self.nat("KUBE-SERVICES").push(rule);
    }

    /// Spreads connections over the endpoints of a policy.
    fn service_chain(&mut self, policy: Policy) {
        let chain = self.chain(policy);
        let mut lines = Vec::new();
        if policy == self.port.internal {
            lines.extend(self.masquerade_rule());
        }
        let endpoints = self.port.endpoints(policy).to_vec();
        let chains: Vec<String> = endpoints.iter().map(|endpoint| names::endpoint(self.name, endpoint)).collect();
        if let Some(seconds) = self.port.affinity {
            for (endpoint, target) in endpoints.iter().zip(&chains) {
                lines.push(format!(
                    "-m comment --comment \"{} -> {endpoint}\" -m recent --name {target} --rcheck --seconds {seconds} --reap -j {target}",
                    self.name
                ));
            }
        }
        for (index, (endpoint, target)) in endpoints.iter().zip(&chains).enumerate() {
            let mut line = format!("-m comment --comment \"{} -> {endpoint}\"", self.name);
            let left = endpoints.len() - index;
            if left > 1 {
                // Each rule sees only what the rules before it let pass.
                #[allow(clippy::cast_precision_loss)]
                let share = 1.0 / left as f64;
                write!(line, " -m statistic --mode random --probability {share:.10}").ok();
            }
            write!(line, " -j {target}").ok();
            lines.push(line);
        }
        self.rules.nat.insert(chain, lines);
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

    fn endpoint_chain(&mut self, endpoint: &Endpoint, chain: String) {
        let bits = if endpoint.address.is_ipv4() { 32 } else { 128 };
        let (name, protocol) = (self.name, self.name.protocol.as_str());
        // A pod that reaches itself through its service must not see its own address as the source.
        let hairpin = format!("-m comment --comment \"{name}\" -s {}/{bits} -j KUBE-MARK-MASQ", endpoint.address);
        let recent = self.port.affinity.map(|_| format!(" -m recent --name {chain} --set")).unwrap_or_default();
        let forward = format!(
            "-m comment --comment \"{name}\"{recent} -p {protocol} -m {protocol} -j DNAT --to-destination {endpoint}"
        );
        self.rules.nat.insert(chain, vec![hairpin, forward]);
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
            self.nat("KUBE-SERVICES").push(rule);
        }
        let balancer = if port.source_ranges.is_empty() { chain.clone() } else { self.firewall_chain() };
        for address in &port.load_balancer_ips {
            let rule = format!("-m comment --comment \"{name} loadbalancer IP\" {} -j {balancer}", self.to(*address));
            self.nat("KUBE-SERVICES").push(rule);
        }
        if let Some(number) = port.node_port {
            let rule = format!("-m comment --comment \"{name}\" {} -j {chain}", self.to_node_port(number));
            self.nat("KUBE-NODEPORTS").push(rule);
        }
    }

    fn external_chain(&mut self) {
        let (name, cluster) = (self.name, self.chain(Policy::Cluster));
        let comment = |text: String| format!("-m comment --comment \"{text}\"");
        let mut lines = Vec::new();
        if self.port.external == Policy::Cluster {
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
        self.rules.nat.insert(chain, lines);
    }

    /// Lets only the source ranges through to the load-balancer IPs; what is left is dropped in `filter`.
    fn firewall_chain(&mut self) -> String {
        let chain = names::service("FW", self.name);
        let target = names::service("EXT", self.name);
        let comment = format!("-m comment --comment \"{} loadbalancer IP\"", self.name);
        let ranges = self.port.source_ranges.iter();
        let mut lines: Vec<String> = ranges.map(|range| format!("{comment} -s {range} -j {target}")).collect();
        // A node within the ranges that talks to the balancer's IP does so from that very IP.
        for address in &self.port.load_balancer_ips {
            if self.port.source_ranges.iter().any(|range| range.contains(address)) {
                lines.push(format!("{comment} -s {address} -j {target}"));
            }
        }
        lines.push(format!(
            "-m comment --comment \"other traffic to {} will be dropped by KUBE-PROXY-FIREWALL\"",
            self.name
        ));
        self.rules.nat.insert(chain.clone(), lines);
        for address in &self.port.load_balancer_ips {
            let why = format!("-m comment --comment \"{} traffic not accepted by {chain}\"", self.name);
            let rule = format!("{why} {} -j DROP", self.to(*address));
            self.rules.filter.entry("KUBE-PROXY-FIREWALL".into()).or_default().push(rule);
        }
        chain
    }

    /// Refuses at once what no endpoint could answer.
    fn refusals(&mut self) {
        let port = self.port;
        if let Some((why, verdict)) = self.refusal(port.internal) {
            let rule = format!("{why} {} {verdict}", self.to(port.cluster_ip));
            self.rules.filter.entry("KUBE-SERVICES".into()).or_default().push(rule);
        }
        let Some((why, verdict)) = self.refusal(port.external) else { return };
        let mut lines = Vec::new();
        for address in port.external_ips.iter().chain(&port.load_balancer_ips) {
            lines.push(format!("{why} {} {verdict}", self.to(*address)));
        }
        if let Some(number) = port.node_port {
            lines.push(format!("{why} -m addrtype --dst-type LOCAL {} {verdict}", self.to_node_port(number)));
        }
        self.rules.filter.entry("KUBE-EXTERNAL-SERVICES".into()).or_default().extend(lines);
    }

    fn refusal(&self, policy: Policy) -> Option<(String, &'static str)> {
        if !self.port.has_endpoints {
            let why = format!("-m comment --comment \"{} has no endpoints\"", self.name);
            return Some((why, "-j REJECT"));
        }
        if policy == Policy::Local && self.port.local_endpoints.is_empty() {
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
            let chain = self.rules.filter.entry("KUBE-NODEPORTS".into()).or_default();
            if !chain.contains(&rule) {
                chain.push(rule);
            }
        }
    }
}
