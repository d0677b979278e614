//! The iptables rules around the virtual servers. They depend on which sets have members, not on the members: they hardly
//! ever change. Pure; the order of rules in a chain is upstream's.

use std::collections::{BTreeMap, BTreeSet};

use super::sets::{Set, name};
use crate::backend::Options;
use crate::iptables::Jump;
use crate::plan::Family;

/// Jumps from the kernel's chains.
pub(super) const JUMPS: [Jump; 9] = [
    Jump::new("nat", "OUTPUT", "KUBE-SERVICES", "kubernetes service portals"),
    Jump::new("nat", "PREROUTING", "KUBE-SERVICES", "kubernetes service portals"),
    Jump::new("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
    Jump::new("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    Jump::new("filter", "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    Jump::new("filter", "INPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump::new("filter", "FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    Jump::new("filter", "INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
    Jump::new("filter", "OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter"),
];

/// Rules by table and chain.
pub(super) type Chains = BTreeMap<(&'static str, &'static str), Vec<String>>;

/// Rules about one set: the set, a comment, directions of the match, table, chain, target, protocol.
type SetRule = (Set, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

/// Rules that are there where their set has members.
const SET_RULES: [SetRule; 12] = [
    (
        Set::LoopBack,
        "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
        "dst,dst,src",
        "nat",
        "KUBE-POSTROUTING",
        "MASQUERADE",
        "",
    ),
    (Set::LoadBalancer, "Kubernetes service lb portal", "dst,dst", "nat", "KUBE-SERVICES", "KUBE-LOAD-BALANCER", ""),
    (
        Set::LoadBalancerLocal,
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
        "dst,dst",
        "nat",
        "KUBE-LOAD-BALANCER",
        "RETURN",
        "",
    ),
    (
        Set::NodePortLocalTcp,
        "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
        "dst",
        "nat",
        "KUBE-NODE-PORT",
        "RETURN",
        "tcp",
    ),
    (
        Set::NodePortTcp,
        "Kubernetes nodeport TCP port for masquerade purpose",
        "dst",
        "nat",
        "KUBE-NODE-PORT",
        "KUBE-MARK-MASQ",
        "tcp",
    ),
    (
        Set::NodePortLocalUdp,
        "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
        "dst",
        "nat",
        "KUBE-NODE-PORT",
        "RETURN",
        "udp",
    ),
    (
        Set::NodePortUdp,
        "Kubernetes nodeport UDP port for masquerade purpose",
        "dst",
        "nat",
        "KUBE-NODE-PORT",
        "KUBE-MARK-MASQ",
        "udp",
    ),
    (
        Set::NodePortLocalSctp,
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local",
        "dst,dst",
        "nat",
        "KUBE-NODE-PORT",
        "RETURN",
        "sctp",
    ),
    (
        Set::NodePortSctp,
        "Kubernetes nodeport SCTP port for masquerade purpose",
        "dst,dst",
        "nat",
        "KUBE-NODE-PORT",
        "KUBE-MARK-MASQ",
        "sctp",
    ),
    (
        Set::LoadBalancerFirewall,
        "Kubernetes service load balancer ip + port for load balancer with sourceRange",
        "dst,dst",
        "filter",
        "KUBE-PROXY-FIREWALL",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "",
    ),
    (
        Set::LoadBalancerSourceCidr,
        "Kubernetes service load balancer ip + port + source cidr for packet filter",
        "dst,dst,src",
        "filter",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "RETURN",
        "",
    ),
    (
        Set::LoadBalancerSourceIp,
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
        "dst,dst,src",
        "filter",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "RETURN",
        "",
    ),
];

/// All chains of the mode.
const CHAINS: [(&str, &str); 11] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-POSTROUTING"),
    ("nat", "KUBE-NODE-PORT"),
    ("nat", "KUBE-LOAD-BALANCER"),
    ("nat", "KUBE-MARK-MASQ"),
    ("filter", "KUBE-FORWARD"),
    ("filter", "KUBE-NODE-PORT"),
    ("filter", "KUBE-PROXY-FIREWALL"),
    ("filter", "KUBE-SOURCE-RANGES-FIREWALL"),
    ("filter", "KUBE-IPVS-FILTER"),
    ("filter", "KUBE-IPVS-OUT-FILTER"),
];

/// The rules for sets of which these have members.
pub(super) fn chains(filled: &BTreeSet<Set>, options: &Options) -> Chains {
    let mut rules =
        ChainRules { filled, options, chains: CHAINS.into_iter().map(|chain| (chain, Vec::new())).collect() };
    rules.of_sets();
    rules.masquerade();
    rules.services();
    rules.filters();
    rules.chains
}

struct ChainRules<'a> {
    filled: &'a BTreeSet<Set>,
    options: &'a Options,
    chains: Chains,
}

impl ChainRules<'_> {
    fn add(&mut self, table: &'static str, chain: &'static str, rule: impl Into<String>) {
        self.chains.entry((table, chain)).or_default().push(rule.into());
    }

    fn matching(&self, set: Set, directions: &str) -> String {
        format!("-m set --match-set {} {directions}", name(self.options.family, set))
    }

    fn of_sets(&mut self) {
        for (set, comment, directions, table, chain, target, protocol) in SET_RULES {
            if !self.filled.contains(&set) {
                continue;
            }
            let protocol = if protocol.is_empty() { String::new() } else { format!("-p {protocol} ") };
            let matching = self.matching(set, directions);
            self.add(table, chain, format!("{protocol}-m comment --comment \"{comment}\" {matching} -j {target}"));
        }
        self.add("filter", "KUBE-SOURCE-RANGES-FIREWALL", "-j DROP");
        self.add("nat", "KUBE-LOAD-BALANCER", "-j KUBE-MARK-MASQ");
    }

    fn masquerade(&mut self) {
        let mark = self.options.masquerade_mark;
        for rule in [
            format!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"),
            format!("-j MARK --xor-mark {mark:#x}"),
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully"
                .to_owned(),
        ] {
            self.add("nat", "KUBE-POSTROUTING", rule);
        }
        self.add("nat", "KUBE-MARK-MASQ", format!("-j MARK --or-mark {mark:#x}"));
    }

    fn services(&mut self) {
        const CHAIN: &str = "KUBE-SERVICES";
        if self.options.family == Family::V4 {
            // The node's own traffic from loopback addresses, which nothing may change.
            self.chains.entry(("nat", CHAIN)).or_default().insert(0, "-s 127.0.0.0/8 -j RETURN".to_owned());
        }
        if self.filled.contains(&Set::ClusterIp) {
            self.masquerade_cluster_ips();
        }
        if self.filled.contains(&Set::ExternalIp) {
            let matching = self.matching(Set::ExternalIp, "dst,dst");
            let comment =
                "-m comment --comment \"Kubernetes service external ip + port for masquerade and filter purpose\"";
            self.add("nat", CHAIN, format!("{comment} {matching} -j KUBE-MARK-MASQ"));
            self.accept_external(&format!("{comment} {matching}"));
        }
        if self.filled.contains(&Set::ExternalIpLocal) {
            let matching = self.matching(Set::ExternalIpLocal, "dst,dst");
            self.accept_external(&format!(
                "-m comment --comment \"Kubernetes service external ip + port with externalTrafficPolicy=local\" {matching}"
            ));
        }
        self.add("nat", CHAIN, "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT");
        for set in [Set::ClusterIp, Set::LoadBalancer] {
            if self.filled.contains(&set) {
                let matching = self.matching(set, "dst,dst");
                self.add("nat", CHAIN, format!("{matching} -j ACCEPT"));
            }
        }
    }

    fn masquerade_cluster_ips(&mut self) {
        let comment = "-m comment --comment \"Kubernetes service cluster ip + port for masquerade purpose\"";
        let to_service = self.matching(Set::ClusterIp, "dst,dst");
        let rule = match (self.options.masquerade_all, self.options.detector.not_local(self.options.family)) {
            (true, _) => format!("{comment} {to_service}"),
            (false, Some(not_local)) => format!("{comment} {to_service} {not_local}"),
            // What the kernel itself gives a service's address as its source, for want of another one.
            (false, None) => format!("{comment} {}", self.matching(Set::ClusterIp, "src,dst")),
        };
        self.add("nat", "KUBE-SERVICES", format!("{rule} -j KUBE-MARK-MASQ"));
    }

    /// Takes what comes from outside for an external address, and what is for one that the node has itself.
    fn accept_external(&mut self, matching: &str) {
        let outside = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT";
        self.add("nat", "KUBE-SERVICES", format!("{matching} {outside}"));
        self.add("nat", "KUBE-SERVICES", format!("{matching} -m addrtype --dst-type LOCAL -j ACCEPT"));
    }

    fn filters(&mut self) {
        let mark = self.options.masquerade_mark;
        let forward =
            format!("-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark:#x}/{mark:#x}");
        self.add("filter", "KUBE-FORWARD", format!("{forward} -j ACCEPT"));
        let related = "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        self.add("filter", "KUBE-FORWARD", related);
        let health = self.matching(Set::HealthCheckNodePort, "dst");
        let comment = "-m comment --comment \"Kubernetes health check node port\"";
        self.add("filter", "KUBE-NODE-PORT", format!("-p tcp {comment} {health} -j ACCEPT"));
        // The device has the addresses of services: ports of them that nobody serves are not the node's own.
        for set in [Set::LoadBalancer, Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal] {
            let matching = self.matching(set, "dst,dst");
            self.add("filter", "KUBE-IPVS-FILTER", format!("{matching} -j RETURN"));
        }
        self.add("filter", "KUBE-IPVS-FILTER", format!("-p tcp {health} -j RETURN"));
        let reject = format!("-m conntrack --ctstate NEW {} -j REJECT", self.matching(Set::IpvsIps, "dst"));
        self.add("filter", "KUBE-IPVS-FILTER", reject.clone());
        self.add("filter", "KUBE-IPVS-OUT-FILTER", reject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::LocalDetector;

    fn rules(filled: &[Set], detector: LocalDetector, family: Family) -> Chains {
        let options = Options { detector, ..Options::new(family) };
        chains(&filled.iter().copied().collect(), &options)
    }

    #[test]
    fn rules_are_about_sets_that_have_members() {
        let cluster = LocalDetector::Networks(vec!["10.244.0.0/16".parse().expect("a network")]);
        let some = rules(&[Set::ClusterIp, Set::NodePortTcp], cluster, Family::V4);
        assert_eq!(
            some[&("nat", "KUBE-SERVICES")],
            [
                "-s 127.0.0.0/8 -j RETURN",
                "-m comment --comment \"Kubernetes service cluster ip + port for masquerade purpose\" -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ",
                "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
                "-m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
            ]
        );
        assert_eq!(some[&("nat", "KUBE-NODE-PORT")].len(), 1);
        let none = rules(&[], LocalDetector::None, Family::V6);
        assert_eq!(none[&("nat", "KUBE-SERVICES")], ["-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"]);
        assert!(none[&("filter", "KUBE-IPVS-OUT-FILTER")][0].contains("KUBE-6-IPVS-IPS"));
    }

    #[test]
    fn hairpins_are_masqueraded_before_unmarked_packets_return() {
        let rules = rules(&[Set::LoopBack], LocalDetector::None, Family::V4);
        assert!(rules[&("nat", "KUBE-POSTROUTING")][0].ends_with("KUBE-LOOP-BACK dst,dst,src -j MASQUERADE"));
    }

    #[test]
    fn every_jump_has_its_chain() {
        for jump in JUMPS {
            assert!(CHAINS.contains(&(jump.table, jump.to)), "{jump:?}");
        }
    }
}
