//! Transactions of nftables as lists of operations. [`Display`](fmt::Display) is the tool's input.

use std::fmt;
use std::net::IpAddr;

use super::rule::{Element, FamilyText, MapKey, Rule, RuleVerdict, Statement, header};
use crate::plan::Family;

/// The table's name, upstream's.
pub(super) const TABLE: &str = "kube-proxy";
/// Comment of the table, upstream's.
pub(super) const TABLE_COMMENT: &str = "rules for kube-proxy";
/// Set of the cluster IPs of all services.
pub(super) const CLUSTER_IPS: &str = "cluster-ips";
/// Set of the addresses that node ports answer on, where not all do.
pub(super) const NODE_PORT_IPS: &str = "nodeport-ips";

/// Verdict maps, with what they are looked up by.
pub(super) const MAPS: [(&str, MapKey); 5] = [
    ("service-ips", MapKey::Service),
    ("service-nodeports", MapKey::NodePort),
    ("no-endpoint-services", MapKey::Service),
    ("no-endpoint-nodeports", MapKey::NodePort),
    ("firewall-ips", MapKey::Service),
];

/// A chain that packets come through by themselves.
#[derive(Debug)]
pub(super) struct BaseChain {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) hook: Hook,
    pub(super) priority: i32,
    /// Match of packets that begin a connection stands before the jump.
    is_for_new: bool,
    jumps: &'static [&'static str],
}

/// Place in a packet's way, with the kernel's number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

impl BaseChain {
    const fn filter(name: &'static str, hook: Hook, priority: i32, jumps: &'static [&'static str]) -> Self {
        Self { name, kind: "filter", hook, priority, is_for_new: true, jumps }
    }

    const fn nat(name: &'static str, hook: Hook, priority: i32, jumps: &'static [&'static str]) -> Self {
        Self { name, kind: "nat", hook, priority, is_for_new: false, jumps }
    }

    fn rules(&self) -> impl Iterator<Item = Rule> {
        let new = self.is_for_new.then_some(Statement::NewConnection);
        let jump = |chain: &&str| Statement::Jump((*chain).to_owned());
        self.jumps.iter().map(move |chain| new.iter().cloned().chain([jump(chain)]).collect::<Vec<_>>().into())
    }
}

/// Base chains, as upstream has them. What judges by the original destination comes before destinations are changed at -100,
/// what refuses comes after that.
pub(super) const BASE: [BaseChain; 8] = [
    BaseChain::filter("filter-prerouting-pre-dnat", Hook::Prerouting, -110, &["firewall-check"]),
    BaseChain::filter("filter-output-pre-dnat", Hook::Output, -110, &["firewall-check"]),
    BaseChain::filter("filter-input", Hook::Input, 0, &["nodeport-endpoints-check", "service-endpoints-check"]),
    BaseChain::filter("filter-forward", Hook::Forward, 0, &["service-endpoints-check", "cluster-ips-check"]),
    BaseChain::filter("filter-output", Hook::Output, 0, &["service-endpoints-check", "cluster-ips-check"]),
    BaseChain::nat("nat-prerouting", Hook::Prerouting, -100, &["services"]),
    BaseChain::nat("nat-output", Hook::Output, -100, &["services"]),
    BaseChain::nat("nat-postrouting", Hook::Postrouting, 100, &["masquerading"]),
];

/// Type of a set; a map is one, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetType {
    /// Verdicts by key.
    Map(MapKey),
    /// Addresses.
    Addresses,
    /// Clients that the kernel adds, and forgets after these seconds.
    Clients(u32),
}

/// A step of a transaction.
#[derive(Debug)]
pub(super) enum Operation {
    AddTable,
    DeleteTable,
    AddBaseChain(&'static BaseChain),
    AddChain(String),
    FlushChain(String),
    DeleteChain(String),
    AddRule(String, Rule),
    AddSet(String, SetType),
    FlushSet(&'static str),
    DeleteSet(String),
    AddElement(&'static str, Element, RuleVerdict),
    DeleteElement(&'static str, Element),
    AddAddress(&'static str, IpAddr),
    DeleteAddress(&'static str, IpAddr),
}

/// A transaction in the making. Chains and sets are made before any rule that names them.
#[derive(Debug)]
pub(super) struct Transaction {
    family: Family,
    made: Vec<Operation>,
    rules: Vec<Operation>,
}

impl Transaction {
    pub(super) fn new(family: Family) -> Self {
        Self { family, made: Vec::new(), rules: Vec::new() }
    }

    /// The one that takes the table away, whether it is there or not.
    pub(super) fn removal(family: Family) -> Self {
        Self { family, made: vec![Operation::AddTable], rules: vec![Operation::DeleteTable] }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of steps.
    pub(super) fn len(&self) -> usize {
        self.made.len() + self.rules.len()
    }

    /// All of it; the transaction is empty afterwards.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.family))
    }

    /// Steps in the order in which they are taken.
    pub(super) fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.made.iter().chain(&self.rules)
    }

    /// Puts the steps of another behind these.
    pub(super) fn append(&mut self, mut other: Self) {
        self.made.append(&mut other.made);
        self.rules.append(&mut other.rules);
    }

    /// Makes the table with its maps and sets, unless they are there.
    pub(super) fn table(&mut self) {
        self.made.push(Operation::AddTable);
        let maps = MAPS.map(|(name, key)| Operation::AddSet(name.to_owned(), SetType::Map(key)));
        let sets = [CLUSTER_IPS, NODE_PORT_IPS].map(|name| Operation::AddSet(name.to_owned(), SetType::Addresses));
        self.made.extend(maps.into_iter().chain(sets));
    }

    /// Makes a set for client affinity, or gives the one that is there another time-out.
    pub(super) fn affinity_set(&mut self, name: &str, seconds: u32) {
        self.made.push(Operation::AddSet(name.to_owned(), SetType::Clients(seconds)));
    }

    /// Writes a chain whole.
    pub(super) fn chain(&mut self, name: &str, rules: &[Rule]) {
        self.made.push(Operation::AddChain(name.to_owned()));
        self.flush_chain(name);
        self.rules.extend(rules.iter().map(|rule| Operation::AddRule(name.to_owned(), rule.clone())));
    }

    /// Writes the base chains; those that are there may have another place.
    pub(super) fn base_chains(&mut self, is_there: impl Fn(&str) -> bool) {
        for chain in &BASE {
            if is_there(chain.name) {
                self.flush_chain(chain.name);
                self.delete_chain(chain.name);
            }
            self.rules.push(Operation::AddBaseChain(chain));
            self.rules.extend(chain.rules().map(|rule| Operation::AddRule(chain.name.to_owned(), rule)));
        }
    }

    pub(super) fn flush_chain(&mut self, name: &str) {
        self.rules.push(Operation::FlushChain(name.to_owned()));
    }

    pub(super) fn delete_chain(&mut self, name: &str) {
        self.rules.push(Operation::DeleteChain(name.to_owned()));
    }

    /// Empties a set or a map.
    pub(super) fn flush_set(&mut self, name: &'static str) {
        self.rules.push(Operation::FlushSet(name));
    }

    pub(super) fn delete_set(&mut self, name: &str) {
        self.rules.push(Operation::DeleteSet(name.to_owned()));
    }

    pub(super) fn add_element(&mut self, map: &'static str, key: Element, verdict: RuleVerdict) {
        self.rules.push(Operation::AddElement(map, key, verdict));
    }

    pub(super) fn delete_element(&mut self, map: &'static str, key: Element) {
        self.rules.push(Operation::DeleteElement(map, key));
    }

    pub(super) fn add_address(&mut self, set: &'static str, address: IpAddr) {
        self.rules.push(Operation::AddAddress(set, address));
    }

    pub(super) fn delete_address(&mut self, set: &'static str, address: IpAddr) {
        self.rules.push(Operation::DeleteAddress(set, address));
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations().try_for_each(|operation| writeln!(out, "{}", FamilyText(self.family, operation)))
    }
}

impl fmt::Display for FamilyText<'_, Operation> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, table) = (self.0, format_args!("{} {TABLE}", header(self.0)));
        match self.1 {
            Operation::AddTable => write!(out, "add table {table} {{ comment \"{TABLE_COMMENT}\" ; }}"),
            Operation::DeleteTable => write!(out, "delete table {table}"),
            Operation::AddBaseChain(BaseChain { name, kind, hook, priority, .. }) => {
                write!(out, "add chain {table} {name} {{ type {kind} hook {hook} priority {priority} ; }}")
            }
            Operation::AddChain(name) => write!(out, "add chain {table} {name}"),
            Operation::FlushChain(name) => write!(out, "flush chain {table} {name}"),
            Operation::DeleteChain(name) => write!(out, "delete chain {table} {name}"),
            Operation::AddRule(chain, rule) => write!(out, "add rule {table} {chain} {}", FamilyText(family, rule)),
            Operation::AddSet(name, kind) => {
                let what = if matches!(kind, SetType::Map(_)) { "map" } else { "set" };
                write!(out, "add {what} {table} {name} {{ {} }}", FamilyText(family, kind))
            }
            Operation::FlushSet(name) => {
                let what = if MAPS.iter().any(|(map, _)| map == name) { "map" } else { "set" };
                write!(out, "flush {what} {table} {name}")
            }
            Operation::DeleteSet(name) => write!(out, "delete set {table} {name}"),
            Operation::AddElement(map, key, verdict) => {
                write!(out, "add element {table} {map} {{ {key} : {verdict} }}")
            }
            Operation::DeleteElement(map, key) => write!(out, "delete element {table} {map} {{ {key} }}"),
            Operation::AddAddress(set, address) => write!(out, "add element {table} {set} {{ {address} }}"),
            Operation::DeleteAddress(set, address) => write!(out, "delete element {table} {set} {{ {address} }}"),
        }
    }
}

impl fmt::Display for FamilyText<'_, SetType> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = if self.0 == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
        match self.1 {
            SetType::Map(MapKey::Service) => write!(out, "type {address} . inet_proto . inet_service : verdict ;"),
            SetType::Map(MapKey::NodePort) => out.write_str("type inet_proto . inet_service : verdict ;"),
            SetType::Addresses => write!(out, "type {address} ;"),
            SetType::Clients(seconds) => {
                write!(out, "type {address} ; flags dynamic,timeout ; timeout {seconds}s ;")
            }
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}
