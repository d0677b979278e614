//! The text of nftables transactions.

use super::render::{MAPS, NODE_PORT_IPS, header};
use crate::plan::Family;
use std::fmt::Write;
use std::net::IpAddr;

/// The table's name, upstream's.
pub(super) const TABLE: &str = "kube-proxy";
/// Set of the cluster IPs of all services.
pub(super) const CLUSTER_IPS: &str = "cluster-ips";

/// Base chains, as upstream has them: name, hook, priority, rules. What judges by the original destination comes before
/// destinations are changed at -100, what refuses comes after that.
pub(super) const BASE: [(&str, &str, &str, &[&str]); 8] = [
    ("filter-prerouting-pre-dnat", "filter hook prerouting", "-110", &["ct state new jump firewall-check"]),
    ("filter-output-pre-dnat", "filter hook output", "-110", &["ct state new jump firewall-check"]),
    (
        "filter-input",
        "filter hook input",
        "0",
        &["ct state new jump nodeport-endpoints-check", "ct state new jump service-endpoints-check"],
    ),
    (
        "filter-forward",
        "filter hook forward",
        "0",
        &["ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check"],
    ),
    (
        "filter-output",
        "filter hook output",
        "0",
        &["ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check"],
    ),
    ("nat-prerouting", "nat hook prerouting", "-100", &["jump services"]),
    ("nat-output", "nat hook output", "-100", &["jump services"]),
    ("nat-postrouting", "nat hook postrouting", "100", &["jump masquerading"]),
];

/// The transaction that takes the table away.
#[must_use]
pub(super) fn removal(family: Family) -> String {
    let ip = header(family);
    format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\n")
}

/// A transaction in the making. Chains and sets are made before any rule that names them.
#[derive(Debug)]
pub(super) struct Transaction {
    family: &'static str,
    made: String,
    rules: String,
}

impl Transaction {
    pub(super) fn new(family: Family) -> Self {
        Self { family: header(family), made: String::new(), rules: String::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.made.is_empty() && self.rules.is_empty()
    }

    /// The tool's input; the transaction is empty afterwards.
    pub(super) fn take(&mut self) -> String {
        let (made, rules) = (std::mem::take(&mut self.made), std::mem::take(&mut self.rules));
        made + &rules
    }

    fn address(&self) -> &'static str {
        if self.family == "ip" { "ipv4_addr" } else { "ipv6_addr" }
    }

    fn make(&mut self, what: &str, rest: &str) {
        writeln!(self.made, "add {what} {} {TABLE} {rest}", self.family).ok();
    }

    fn line(&mut self, verb: &str, what: &str, rest: &str) {
        writeln!(self.rules, "{verb} {what} {} {TABLE} {rest}", self.family).ok();
    }

    /// Makes the table with its maps and sets, unless they are there.
    pub(super) fn table(&mut self) {
        writeln!(self.made, "add table {} {TABLE} {{ comment \"rules for kube-proxy\" ; }}", self.family).ok();
        for (name, kind) in MAPS {
            let kind = kind.replace("ADDRESS", self.address());
            self.make("map", &format!("{name} {{ type {kind} : verdict ; }}"));
        }
        for name in [CLUSTER_IPS, NODE_PORT_IPS] {
            self.make("set", &format!("{name} {{ type {} ; }}", self.address()));
        }
    }

    /// Makes a set for client affinity, or gives the one that is there another time-out.
    pub(super) fn affinity_set(&mut self, name: &str, seconds: u32) {
        let set = format!("{name} {{ type {} ; flags dynamic,timeout ; timeout {seconds}s ; }}", self.address());
        self.make("set", &set);
    }

    /// Writes a chain whole.
    pub(super) fn chain(&mut self, name: &str, rules: &[String]) {
        self.make("chain", name);
        self.line("flush", "chain", name);
        for rule in rules {
            self.line("add", "rule", &format!("{name} {rule}"));
        }
    }

    /// Writes the base chains; those that are there may have another place.
    pub(super) fn base_chains(&mut self, is_there: impl Fn(&str) -> bool) {
        for (name, hook, priority, rules) in BASE {
            if is_there(name) {
                self.line("flush", "chain", name);
                self.line("delete", "chain", name);
            }
            self.line("add", "chain", &format!("{name} {{ type {hook} priority {priority} ; }}"));
            for rule in rules {
                self.line("add", "rule", &format!("{name} {rule}"));
            }
        }
    }

    /// Empties a set, a map or a chain.
    pub(super) fn flush(&mut self, what: &str, name: &str) {
        self.line("flush", what, name);
    }

    /// Deletes a set or a chain.
    pub(super) fn delete(&mut self, what: &str, name: &str) {
        self.line("delete", what, name);
    }

    pub(super) fn add_element(&mut self, map: &str, key: &str, verdict: &str) {
        self.line("add", "element", &format!("{map} {{ {key} : {verdict} }}"));
    }

    pub(super) fn delete_element(&mut self, map: &str, key: &str) {
        self.line("delete", "element", &format!("{map} {{ {key} }}"));
    }

    pub(super) fn add_address(&mut self, set: &str, address: IpAddr) {
        self.line("add", "element", &format!("{set} {{ {address} }}"));
    }

    pub(super) fn delete_address(&mut self, set: &str, address: IpAddr) {
        self.line("delete", "element", &format!("{set} {{ {address} }}"));
    }
}
