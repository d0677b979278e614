//! Counts of pods by domain, where a domain is all nodes with one value of a label.
//!
//! HOT (held by `examples/throughput.rs`). [`Domains`] are the sums; copies share them, and a copy can be shifted to ask
//! "what if". [`Tracker`] keeps the sums current as nodes change, and knows which other nodes a change concerns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model::NodeBase;

/// Keys with more domains than this are *narrow*: a node shows the sum of its domain, and is told when that changes. Of
/// keys with fewer (zones, say) a node shows which domain it is in, so that a change concerns no node at all.
const BROAD_DOMAINS: usize = 64;
/// Token of a node that lacks the label.
pub const MISSING: i64 = i64::MIN;
const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Clone, Default)]
struct Domain {
    sum: i64,
    /// Nodes that are counted.
    nodes: u32,
}

#[derive(Debug, Clone, Default)]
struct Sums {
    ids: HashMap<Box<str>, u32>,
    domains: Vec<Domain>,
    /// Number of domains by sum.
    sizes: BTreeMap<i64, u32>,
    /// Domains with counted nodes.
    counted: usize,
    total: i64,
}

impl Sums {
    fn id(&mut self, value: &str) -> u32 {
        if let Some(id) = self.ids.get(value) {
            return *id;
        }
        let id = u32::try_from(self.domains.len()).unwrap_or(NOWHERE);
        self.ids.insert(value.into(), id);
        self.domains.push(Domain::default());
        id
    }

    fn change(&mut self, id: u32, by: i64, nodes: i32) {
        let Some(domain) = self.domains.get_mut(id as usize) else { return };
        let (before, had) = (domain.sum, domain.nodes > 0);
        domain.sum += by;
        domain.nodes = domain.nodes.saturating_add_signed(nodes);
        self.total += by;
        let (after, has) = (domain.sum, domain.nodes > 0);
        if had && has && before == after {
            return;
        }
        if had {
            if let Some(n) = self.sizes.get_mut(&before) {
                *n -= 1;
                if *n == 0 {
                    self.sizes.remove(&before);
                }
            }
            self.counted -= 1;
        }
        if has {
            *self.sizes.entry(after).or_default() += 1;
            self.counted += 1;
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Domains {
    key: Arc<str>,
    sums: Arc<Sums>,
    /// Hypothetical additions: how much more there is in which domains.
    shift: Vec<(u32, i64)>,
}

impl Domains {
    /// Nothing counted yet.
    pub fn new(key: &str) -> Self {
        Self { key: key.into(), sums: Arc::default(), shift: Vec::new() }
    }

    /// The label that makes a domain.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Counts a node with so many pods; nothing when it lacks the label.
    pub fn count(&mut self, node: &NodeBase, pods: i64) {
        if let Some(value) = node.labels.get(&*self.key) {
            let sums = Arc::make_mut(&mut self.sums);
            let id = sums.id(value);
            sums.change(id, pods, 1);
        }
    }

    /// Pretends that there were `by` more pods on a node. Nodes in domains of which no node is counted stay so.
    pub fn shift(&mut self, node: &NodeBase, by: i64) {
        let Some(id) = node.labels.get(&*self.key).and_then(|v| self.sums.ids.get(v.as_str())) else {
            // Nobody was counted there; the pretended pod is the first.
            self.count(node, by);
            return;
        };
        match self.shift.iter_mut().find(|(at, _)| at == id) {
            Some((_, n)) => *n += by,
            None => self.shift.push((*id, by)),
        }
    }

    fn shifted(&self, id: u32) -> i64 {
        self.shift.iter().find(|(at, _)| *at == id).map_or(0, |(_, by)| *by)
    }

    fn of(&self, id: u32) -> i64 {
        self.sums.domains.get(id as usize).map_or(0, |d| d.sum) + self.shifted(id)
    }

    /// The sum of a node's domain; `None` when it lacks the label.
    pub fn at(&self, node: &NodeBase) -> Option<i64> {
        let value = node.labels.get(&*self.key)?;
        Some(self.sums.ids.get(value.as_str()).map_or(0, |id| self.of(*id)))
    }

    /// The smallest sum; 0 when nothing is counted.
    pub fn min(&self) -> i64 {
        if self.shift.is_empty() {
            return self.sums.sizes.keys().next().copied().unwrap_or(0);
        }
        let counted = |id: u32| self.sums.domains.get(id as usize).filter(|d| d.nodes > 0);
        let moved = self.shift.iter().filter_map(|(id, by)| counted(*id).map(|d| (d.sum, d.sum + by)));
        let mut gone: Vec<i64> = moved.clone().map(|(before, _)| before).collect();
        gone.sort_unstable();
        let left = self.sums.sizes.iter().find(|(sum, n)| {
            let moved_away = gone.iter().filter(|g| g == sum).count();
            moved_away < **n as usize
        });
        moved.map(|(_, after)| after).chain(left.map(|(sum, _)| *sum)).min().unwrap_or(0)
    }

    /// Number of domains.
    pub fn len(&self) -> usize {
        self.sums.counted
    }

    /// No domain at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum over all domains.
    pub fn total(&self) -> i64 {
        self.sums.total + self.shift.iter().map(|(_, by)| by).sum::<i64>()
    }
}

/// Slots whose facet changed, although they themselves did not.
#[derive(Debug, Default)]
pub struct Touched {
    /// All of them.
    pub all: bool,
    /// Slots of the nodes.
    pub slots: Vec<usize>,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Tracker {
    domains: Domains,
    /// By slot: its domain, and what it adds to it ([`MISSING`]: it is not counted).
    slots: Vec<(u32, i64)>,
    /// Slots by domain.
    members: Vec<Vec<u32>>,
    broad: bool,
    /// Stays broad however many domains there are.
    whole: bool,
    /// Projects the part of a narrow domain's sum that matters.
    view: fn(i64) -> i64,
}

impl Tracker {
    /// A tracker of which all of a sum matters.
    pub fn new(key: &str) -> Self {
        Self::viewed(key, |sum| sum)
    }

    /// A tracker of which only `view` of a sum matters.
    pub fn viewed(key: &str, view: fn(i64) -> i64) -> Self {
        Self { domains: Domains::new(key), slots: Vec::new(), members: Vec::new(), broad: true, whole: false, view }
    }

    /// A tracker whose nodes always show which domain they are in.
    pub fn whole(key: &str) -> Self {
        Self { whole: true, ..Self::new(key) }
    }

    /// The sums.
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// A slot now has this node (or none), which adds `pods` (`None`: it is not counted).
    pub fn set(&mut self, slot: usize, node: Option<&NodeBase>, pods: Option<i64>, touched: &mut Touched) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, (NOWHERE, MISSING));
        }
        let value = node.and_then(|n| n.labels.get(&*self.domains.key));
        let (old_id, old) = self.slots[slot];
        let known = value.and_then(|v| self.domains.sums.ids.get(v.as_str()).copied());
        let new = if value.is_some() { pods.unwrap_or(MISSING) } else { MISSING };
        if known.unwrap_or(NOWHERE) == old_id && new == old && known.is_some() == value.is_some() {
            return;
        }
        let sums = Arc::make_mut(&mut self.domains.sums);
        let id = value.map_or(NOWHERE, |v| sums.id(v));
        self.slots[slot] = (id, new);
        let seen = |sums: &Sums, id: u32| sums.domains.get(id as usize).map_or(0, |d| (self.view)(d.sum));
        let before = (seen(sums, old_id), seen(sums, id));
        if old != MISSING {
            sums.change(old_id, -old, -1);
        }
        if new != MISSING {
            sums.change(id, new, 1);
        }
        let after = (seen(sums, old_id), seen(sums, id));
        let domains = sums.domains.len();
        if id != old_id {
            self.move_member(slot, old_id, id);
        }
        if self.broad && !self.whole && domains > BROAD_DOMAINS {
            self.broad = false;
            touched.all = true;
        }
        if !self.broad {
            for (id, changed) in [(old_id, before.0 != after.0), (id, id != old_id && before.1 != after.1)] {
                if changed && let Some(members) = self.members.get(id as usize) {
                    touched.slots.extend(members.iter().map(|m| *m as usize));
                }
            }
        }
    }

    fn move_member(&mut self, slot: usize, from: u32, to: u32) {
        let slot = u32::try_from(slot).unwrap_or(NOWHERE);
        if let Some(members) = self.members.get_mut(from as usize) {
            members.retain(|m| *m != slot);
        }
        if to != NOWHERE {
            if self.members.len() <= to as usize {
                self.members.resize(to as usize + 1, Vec::new());
            }
            self.members[to as usize].push(slot);
        }
    }

    /// Returns the token of a slot.
    pub fn token(&self, slot: usize) -> i64 {
        let id = self.slots.get(slot).map_or(NOWHERE, |(id, _)| *id);
        match id {
            NOWHERE => MISSING,
            id if self.broad => i64::from(id),
            id => (self.view)(self.domains.of(id)),
        }
    }

    /// The sum behind what a slot shows (as far as it matters); `None` when its node lacks the label.
    pub fn sum(&self, token: i64) -> Option<i64> {
        match token {
            MISSING => None,
            id if self.broad => Some(self.domains.of(u32::try_from(id).unwrap_or(NOWHERE))),
            sum => Some(sum),
        }
    }
}

/// Trackers by key, made as keys turn up.
#[derive(Debug, Clone)]
pub struct Trackers {
    list: Vec<Tracker>,
    view: fn(i64) -> i64,
}

impl Trackers {
    /// None yet; see [`Tracker::viewed`].
    pub fn new(view: fn(i64) -> i64) -> Self {
        Self { list: Vec::new(), view }
    }

    /// The trackers.
    pub fn list(&self) -> &[Tracker] {
        &self.list
    }

    /// A slot now has this node (or none), which adds `amounts` by key.
    pub fn set(
        &mut self,
        nodes: &[Arc<crate::model::NodeInfo>],
        slot: usize,
        amounts: &[(&str, i64)],
        touched: &mut Touched,
    ) {
        for (key, _) in amounts {
            if !self.list.iter().any(|t| t.domains.key() == *key) {
                let mut tracker = Tracker::viewed(key, self.view);
                for (slot, node) in nodes.iter().enumerate() {
                    tracker.set(slot, Some(&node.base), Some(0), touched);
                }
                self.list.push(tracker);
                touched.all = true;
            }
        }
        let node = nodes.get(slot).map(|n| &*n.base);
        for tracker in &mut self.list {
            let sum = amounts.iter().filter(|(key, _)| *key == tracker.domains.key()).map(|(_, n)| n).sum();
            tracker.set(slot, node, Some(sum), touched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    fn at(zone: &str) -> NodeBase {
        node("n").label("zone", zone).base()
    }

    #[test]
    fn sums_and_their_minimum() {
        let mut d = Domains::new("zone");
        for (zone, pods, want) in [("a", 2, 2), ("b", 1, 1), ("b", 2, 2), ("c", 0, 0), ("c", 5, 2)] {
            d.count(&at(zone), pods);
            assert_eq!(d.min(), want, "after {pods} in {zone}");
        }
        d.count(&node("bare").base(), 7);
        assert_eq!((d.len(), d.total(), d.at(&at("b")), d.at(&node("x").base())), (3, 10, Some(3), None));
    }

    #[test]
    fn what_if_leaves_the_original_alone() {
        let mut d = Domains::new("zone");
        for (zone, pods) in [("a", 2), ("b", 2), ("c", 4)] {
            d.count(&at(zone), pods);
        }
        let mut copy = d.clone();
        for (zone, by, min) in [("a", 3, 2), ("b", 1, 3), ("c", -4, 0), ("c", 4, 3), ("a", -5, 0)] {
            copy.shift(&at(zone), by);
            assert_eq!(copy.min(), min, "after {by} in {zone}");
        }
        assert_eq!((d.min(), d.at(&at("a")), copy.at(&at("a"))), (2, Some(2), Some(0)));
    }

    #[test]
    fn narrow_domains_tell_their_members() {
        let mut t = Tracker::viewed("zone", i64::signum);
        let mut touched = Touched::default();
        for slot in 0..200 {
            t.set(slot, Some(&at(&format!("z{}", slot / 2))), Some(0), &mut touched);
        }
        assert!(touched.all, "the key turned out to be narrow");
        for (pods, want) in [(1, vec![6, 7]), (5, vec![]), (0, vec![6, 7])] {
            let mut touched = Touched::default();
            t.set(6, Some(&at("z3")), Some(pods), &mut touched);
            assert_eq!(touched.slots, want, "{pods} pods");
            assert_eq!(t.token(7), pods.signum());
        }
        t.set(7, None, None, &mut touched);
        assert_eq!(t.token(7), MISSING);
    }

    #[test]
    fn nodes_of_broad_domains_show_where_they_are() {
        let mut t = Tracker::new("zone");
        let mut touched = Touched::default();
        for (slot, zone) in ["a", "a", "b"].iter().enumerate() {
            t.set(slot, Some(&at(zone)), Some(1), &mut touched);
        }
        t.set(0, Some(&at("a")), Some(4), &mut touched);
        assert!(!touched.all && touched.slots.is_empty());
        assert_eq!((t.token(0), t.sum(t.token(1)), t.sum(t.token(2))), (t.token(1), Some(5), Some(1)));
    }
}
