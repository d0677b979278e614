//! Pod address ranges for nodes: what each node is given, and when it comes back. Answers for upstream's
//! `AllocateOrOccupyCIDR`, `updateCIDRsAllocation`.
//!
//! A node keeps what it was promised until the cache shows what it has. A look at a stale cache therefore gives nothing
//! twice, and a write of which nobody knows whether it arrived is repeated with the same ranges. Blocks that were promised
//! come back only when the server has refused them or the node is gone.

use std::collections::HashMap;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::cidr_set::CidrSet;
use crate::engine::action::{Action, PatchKind};
use crate::engine::object;

/// Range that a node was given and the cache does not show yet.
#[derive(Debug)]
struct Promise {
    uid: String,
    cidrs: Vec<IpNet>,
    /// The server has stored it.
    stored: bool,
}

/// Actions for a node.
#[derive(Debug, PartialEq)]
pub enum NodeAction {
    /// Nothing, or nothing yet.
    Rest,
    /// Tell the server. Its answer is for [`Ledger::stored`] or [`Ledger::refused`].
    Write(Action),
    /// There is no block left.
    Exhausted(Action),
}

/// The blocks of all ranges, and who was promised some.
#[derive(Debug)]
pub struct Ledger {
    sets: Vec<CidrSet>,
    /// By node name.
    promised: HashMap<String, Promise>,
}

/// The ranges a node has.
#[must_use]
pub fn cidrs_of(node: &Node) -> Vec<IpNet> {
    let Some(spec) = node.spec.as_ref() else { return Vec::new() };
    let listed: Vec<IpNet> = spec.pod_cidrs.iter().flatten().filter_map(|c| c.parse().ok()).collect();
    if listed.is_empty() { spec.pod_cidr.iter().filter_map(|c| c.parse().ok()).collect() } else { listed }
}

impl Ledger {
    /// All blocks of the sets are free but those marked already.
    #[must_use]
    pub fn new(sets: Vec<CidrSet>) -> Self {
        Self { sets, promised: HashMap::new() }
    }

    /// The sets, one for each range of the cluster.
    #[must_use]
    pub fn sets(&self) -> &[CidrSet] {
        &self.sets
    }

    /// The next step for a node: one block of each set, if it has none. On exhaustion it keeps none and is told.
    pub fn plan(&mut self, node: &Node) -> NodeAction {
        let (name, uid) = (object::name(&node.metadata), object::uid(&node.metadata));
        let have = cidrs_of(node);
        if !have.is_empty() {
            self.break_promise(name);
            self.occupy(&have);
            return NodeAction::Rest;
        }
        if self.promised.get(name).is_some_and(|p| p.uid != uid) {
            // Another node had that name.
            self.break_promise(name);
        }
        if object::deleting(&node.metadata) {
            return NodeAction::Rest;
        }
        if let Some(promise) = self.promised.get(name) {
            return if promise.stored { NodeAction::Rest } else { NodeAction::Write(write(node, &promise.cidrs)) };
        }
        let Some(cidrs) = self.allocate() else { return NodeAction::Exhausted(complaint(node, "CIDRNotAvailable")) };
        let action = write(node, &cidrs);
        self.promised.insert(name.to_owned(), Promise { uid: uid.to_owned(), cidrs, stored: false });
        NodeAction::Write(action)
    }

    /// A node has these ranges.
    pub fn occupy(&mut self, cidrs: &[IpNet]) {
        for (cidr, set) in cidrs.iter().zip(&mut self.sets) {
            set.occupy(cidr);
        }
    }

    /// The server has what a node was promised; the cache will show it.
    pub fn stored(&mut self, node: &Node) {
        if let Some(promise) = self.promise_of(node) {
            promise.stored = true;
        }
    }

    /// The server has refused what a node was promised.
    pub fn refused(&mut self, node: &Node) {
        if self.promise_of(node).is_some() {
            self.break_promise(object::name(&node.metadata));
        }
    }

    /// A node is gone, with what it had and what it was promised.
    pub fn gone(&mut self, node: &Node) {
        self.refused(node);
        self.release(&cidrs_of(node));
    }

    fn promise_of(&mut self, node: &Node) -> Option<&mut Promise> {
        let uid = object::uid(&node.metadata);
        self.promised.get_mut(object::name(&node.metadata)).filter(|p| p.uid == uid)
    }

    fn break_promise(&mut self, name: &str) {
        if let Some(promise) = self.promised.remove(name) {
            self.release(&promise.cidrs);
        }
    }

    fn release(&mut self, cidrs: &[IpNet]) {
        for (cidr, set) in cidrs.iter().zip(&mut self.sets) {
            set.release(cidr);
        }
    }

    /// One block of each set, or none at all.
    fn allocate(&mut self) -> Option<Vec<IpNet>> {
        let mut taken = Vec::with_capacity(self.sets.len());
        for at in 0..self.sets.len() {
            let Some(cidr) = self.sets[at].allocate() else {
                self.release(&taken);
                return None;
            };
            taken.push(cidr);
        }
        Some(taken)
    }
}

fn write(node: &Node, cidrs: &[IpNet]) -> Action {
    let texts: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    let body = json!({"spec": {"podCIDR": texts.first(), "podCIDRs": texts}});
    Action::patch::<Node>(&node.metadata, PatchKind::Strategic, body)
}

/// Returns the event about a node that goes without a range.
#[must_use]
pub fn complaint(node: &Node, why: &'static str) -> Action {
    let name = object::name(&node.metadata);
    let text = format!("Node {name} status is now: {why}");
    Action::normal(&object::reference::<Node>(&node.metadata), why, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, uid: &str, cidr: Option<&str>) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "uid": uid}, "spec": {"podCIDR": cidr}}))
            .expect("node")
    }

    /// Makes a ledger with as many blocks as `bits` tell.
    fn ledger(bits: u8) -> Ledger {
        let range = format!("10.244.0.0/{}", 24 - bits).parse().expect("range");
        Ledger::new(vec![CidrSet::new(range, 24).expect("set")])
    }

    fn written(step: &NodeAction) -> &str {
        match step {
            NodeAction::Write(Action::Patch { body, .. }) => body["spec"]["podCIDR"].as_str().expect("a range"),
            NodeAction::Exhausted(_) => "none left",
            _ => "",
        }
    }

    #[test]
    fn nodes_get_one_block_each() {
        let mut ledger = ledger(1);
        assert_eq!(ledger.plan(&node("a", "1", Some("10.244.0.0/24"))), NodeAction::Rest);
        let got = ledger.plan(&node("b", "2", None));
        let NodeAction::Write(Action::Patch { path, body, .. }) = &got else { panic!("{got:?}") };
        assert_eq!(path, "/api/v1/nodes/b");
        assert_eq!(*body, json!({"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}}));
        let got = ledger.plan(&node("c", "3", None));
        assert!(matches!(&got, NodeAction::Exhausted(Action::Event { reason: "CIDRNotAvailable", .. })), "{got:?}");
    }

    enum Then {
        /// Another look at the same node, which writes this.
        Look(&'static str),
        Stored,
        Refused,
        /// The cache shows this range.
        Seen(&'static str),
        Gone,
        /// A node of the same name but another uid is there, and this is written.
        Successor(&'static str),
    }

    #[test]
    fn a_node_keeps_what_it_was_promised() {
        use Then::{Gone, Look, Refused, Seen, Stored, Successor};
        const A: &str = "10.244.0.0/24";
        const B: &str = "10.244.1.0/24";
        let table: &[(&str, &[Then], usize)] = &[
            ("an answer that was lost: the same again", &[Look(A), Look(A)], 1),
            ("a stale cache: wait", &[Look(A), Stored, Look(""), Look("")], 1),
            ("seen", &[Look(A), Stored, Seen(A)], 1),
            ("seen before the answer", &[Look(A), Seen(A), Stored, Look("")], 1),
            ("a lost answer, then seen", &[Look(A), Seen(A)], 1),
            ("somebody else was first", &[Look(A), Refused, Seen(B)], 1),
            ("somebody else was first, as the cache shows", &[Look(A), Seen(B)], 1),
            ("refused", &[Look(A), Refused, Look(B)], 1),
            ("gone before the cache shows it", &[Look(A), Stored, Gone], 0),
            ("gone while the write is under way: refused once", &[Look(A), Gone, Refused, Look(B)], 1),
            ("seen and gone", &[Look(A), Stored, Seen(A), Gone], 0),
            ("another of that name", &[Look(A), Stored, Successor(B)], 1),
            ("another of that name, the old one's end is seen late", &[Look(A), Successor(B), Gone], 1),
        ];
        for (what, steps, used) in table {
            let (mut ledger, mut shown) = (ledger(2), None);
            for step in *steps {
                let (this, next) = (node("n", "1", shown), node("n", "2", None));
                match step {
                    Look(want) => assert_eq!(written(&ledger.plan(&this)), *want, "{what}"),
                    Stored => ledger.stored(&this),
                    Refused => ledger.refused(&this),
                    Seen(cidr) => {
                        shown = Some(*cidr);
                        assert_eq!(ledger.plan(&node("n", "1", shown)), NodeAction::Rest, "{what}");
                    }
                    Gone => ledger.gone(&this),
                    Successor(want) => assert_eq!(written(&ledger.plan(&next)), *want, "{what}"),
                }
            }
            assert_eq!(ledger.sets()[0].in_use(), *used, "{what}");
        }
    }

    #[test]
    fn on_exhaustion_of_one_range_nothing_is_taken_of_the_other() {
        let set = |range: &str, mask| CidrSet::new(range.parse().expect("range"), mask).expect("set");
        let mut ledger = Ledger::new(vec![set("10.244.0.0/22", 24), set("fd00::/64", 64)]);
        assert_eq!(written(&ledger.plan(&node("a", "1", None))), "10.244.0.0/24");
        assert_eq!(written(&ledger.plan(&node("b", "2", None))), "none left");
        assert_eq!(ledger.sets()[0].in_use(), 1);
    }
}
