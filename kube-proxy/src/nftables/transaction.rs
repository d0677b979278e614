//! The difference between two tables as one nftables transaction.

use super::render::{MAPS, Table, header};
use crate::plan::Family;
use std::fmt::Write;

/// The table's name, upstream's.
pub(super) const TABLE: &str = "kube-proxy";

/// Base chains: name, hook, priority, rules.
const BASE: [(&str, &str, &str, &[&str]); 8] = [
    ("filter-prerouting", "filter hook prerouting", "-110", &["ct state new jump firewall-check"]),
    (
        "filter-input",
        "filter hook input",
        "-110",
        &["ct state new jump nodeport-endpoints-check", "ct state new jump service-endpoints-check"],
    ),
    (
        "filter-forward",
        "filter hook forward",
        "-110",
        &["ct state new jump service-endpoints-check", "ct state new jump cluster-ips-check"],
    ),
    (
        "filter-output",
        "filter hook output",
        "-110",
        &["ct state new jump service-endpoints-check", "ct state new jump firewall-check"],
    ),
    ("filter-output-post-dnat", "filter hook output", "-90", &["ct state new jump cluster-ips-check"]),
    ("nat-prerouting", "nat hook prerouting", "-100", &["jump services"]),
    ("nat-output", "nat hook output", "-100", &["jump services"]),
    ("nat-postrouting", "nat hook postrouting", "100", &["jump masquerading"]),
];

/// Builds the transaction from `old` to `new`; without `old` it makes the table anew,
/// whatever was there. Empty when nothing changes.
#[must_use]
pub fn transaction(old: Option<&Table>, new: &Table, family: Family) -> String {
    let mut writer = Writer { text: String::new(), family: header(family) };
    let empty = Table::default();
    if old.is_none() {
        writer.create(new, family);
    }
    writer.change(old.unwrap_or(&empty), new);
    writer.text
}

/// The transaction that takes the table away.
#[must_use]
pub fn removal(family: Family) -> String {
    let ip = header(family);
    format!("add table {ip} {TABLE}\ndelete table {ip} {TABLE}\n")
}

struct Writer {
    text: String,
    family: &'static str,
}

impl Writer {
    fn line(&mut self, verb: &str, what: &str, rest: &str) {
        writeln!(self.text, "{verb} {what} {} {TABLE} {rest}", self.family).ok();
    }

    fn address(&self) -> &'static str {
        if self.family == "ip" { "ipv4_addr" } else { "ipv6_addr" }
    }

    fn create(&mut self, new: &Table, family: Family) {
        self.text.push_str(&removal(family));
        writeln!(self.text, "add table {} {TABLE} {{ comment \"rules for kube-proxy\" ; }}", self.family).ok();
        for (name, kind) in MAPS {
            let kind = kind.replace("ADDRESS", self.address());
            self.line("add", "map", &format!("{name} {{ type {kind} : verdict ; }}"));
        }
        self.line("add", "set", &format!("cluster-ips {{ type {} ; }}", self.address()));
        // Jumps need their targets, so all chains come before any rule.
        for chain in new.chains.keys() {
            self.line("add", "chain", chain);
        }
        for (name, hook, priority, rules) in BASE {
            self.line("add", "chain", &format!("{name} {{ type {hook} priority {priority} ; }}"));
            for rule in rules {
                self.line("add", "rule", &format!("{name} {rule}"));
            }
        }
    }

    fn change(&mut self, old: &Table, new: &Table) {
        for (name, set) in new.affinity.iter().filter(|(name, set)| old.affinity.get(*name) != Some(set)) {
            let address = self.address();
            if old.affinity.contains_key(name) {
                // A set's time-out cannot be changed; its rules are flushed with their chains below.
                continue;
            }
            self.line(
                "add",
                "set",
                &format!("{name} {{ type {address} ; flags dynamic,timeout ; timeout {}s ; }}", set.seconds),
            );
        }
        let changed: Vec<_> = new.chains.iter().filter(|(name, rules)| old.chains.get(*name) != Some(rules)).collect();
        for (name, _) in &changed {
            self.line("add", "chain", name);
        }
        for (name, rules) in changed {
            self.line("flush", "chain", name);
            for rule in rules {
                self.line("add", "rule", &format!("{name} {rule}"));
            }
        }
        self.change_maps(old, new);
        for address in old.cluster_ips.difference(&new.cluster_ips) {
            self.line("delete", "element", &format!("cluster-ips {{ {address} }}"));
        }
        for address in new.cluster_ips.difference(&old.cluster_ips) {
            self.line("add", "element", &format!("cluster-ips {{ {address} }}"));
        }
        self.remove(old, new);
    }

    fn change_maps(&mut self, old: &Table, new: &Table) {
        let empty = std::collections::BTreeMap::new();
        for (map, _) in MAPS {
            let (before, after) = (old.maps.get(map).unwrap_or(&empty), new.maps.get(map).unwrap_or(&empty));
            for (key, verdict) in before {
                if after.get(key) != Some(verdict) {
                    self.line("delete", "element", &format!("{map} {{ {key} }}"));
                }
            }
            for (key, verdict) in after {
                if before.get(key) != Some(verdict) {
                    self.line("add", "element", &format!("{map} {{ {key} : {verdict} }}"));
                }
            }
        }
    }

    fn remove(&mut self, old: &Table, new: &Table) {
        let gone: Vec<_> = old.chains.keys().filter(|name| !new.chains.contains_key(*name)).collect();
        // Chains that go may jump to one another: all are emptied before the first is deleted.
        for verb in ["flush", "delete"] {
            for name in &gone {
                self.line(verb, "chain", name);
            }
        }
        for name in old.affinity.keys().filter(|name| !new.affinity.contains_key(*name)) {
            self.line("delete", "set", name);
        }
    }
}
