//! The cluster at one moment: what one scheduling cycle looks at. Answers for upstream's `pkg/scheduler/backend/cache`
//! (`Snapshot`).
//!
//! HOT (held by `examples/throughput.rs`): refreshed once per pod. Nodes sit in *slots* that stay theirs while they live
//! (the last node moves into the slot of one that goes), and every change is written down in a bounded log, so that
//! whoever keeps something per slot looks at changed slots only.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use super::node::NodeInfo;
use super::pod::PodInfo;

/// Changes that are remembered beyond two per node; who is further behind starts anew.
const LOG_SLACK: usize = 1024;

/// Nodes by slot. Cheap to keep current (see [`super::Cache::refresh`]).
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(super) generation: u64,
    pub(super) images: Arc<HashMap<Arc<str>, u32>>,
    nodes: Vec<Arc<NodeInfo>>,
    index: HashMap<Arc<str>, usize>,
    affinity: BTreeSet<usize>,
    anti_affinity: BTreeSet<usize>,
    claims: ClaimUses,
    /// Slots in the order in which they are searched; made when asked for.
    order: OnceLock<Vec<usize>>,
    /// Nodes that ever came.
    arrivals: u64,
    /// Number of the latest change.
    epoch: u64,
    /// Number of each slot's latest change.
    changed: Vec<u64>,
    /// Slots of the latest changes, the latest last.
    log: VecDeque<usize>,
}

impl Snapshot {
    /// A snapshot of given nodes, for simulations and tests.
    pub fn of(nodes: Vec<Arc<NodeInfo>>) -> Self {
        let mut images: HashMap<Arc<str>, u32> = HashMap::new();
        for image in nodes.iter().flat_map(|n| n.base.images.keys()) {
            *images.entry(Arc::clone(image)).or_default() += 1;
        }
        let mut out = Self { images: Arc::new(images), ..Self::default() };
        for node in &nodes {
            out.set(node, usize::MAX);
        }
        out
    }

    /// The slot of a node, which probably still is `hint`.
    fn slot(&self, node: &NodeInfo, hint: usize) -> Option<usize> {
        let there = self.nodes.get(hint).is_some_and(|n| Arc::ptr_eq(n.name(), node.name()));
        if there { Some(hint) } else { self.index.get(node.name()).copied() }
    }

    /// Adds a node or takes over its new state; its slot, which may be given next time.
    pub(super) fn set(&mut self, node: &Arc<NodeInfo>, hint: usize) -> usize {
        let slot = match self.slot(node, hint) {
            Some(slot) => {
                if self.nodes[slot].base.zone != node.base.zone {
                    self.order.take();
                }
                self.claims.exchange(&self.nodes[slot].with_claims, &node.with_claims);
                self.nodes[slot] = Arc::clone(node);
                slot
            }
            None => {
                let slot = self.nodes.len();
                self.claims.exchange(&[], &node.with_claims);
                self.arrivals += 1;
                self.index.insert(Arc::clone(node.name()), slot);
                self.nodes.push(Arc::clone(node));
                self.order.take();
                slot
            }
        };
        self.classify(slot);
        self.note(slot);
        slot
    }

    /// Takes over newer forms of the same pods, which is no change to anybody's chances.
    pub(super) fn renew(&mut self, node: &Arc<NodeInfo>, hint: usize) -> usize {
        let Some(slot) = self.slot(node, hint) else { return self.set(node, hint) };
        self.nodes[slot] = Arc::clone(node);
        slot
    }

    /// Drops a node; the last one takes its slot.
    pub(super) fn drop_node(&mut self, name: &str) {
        let Some(slot) = self.index.remove(name) else { return };
        let last = self.nodes.len() - 1;
        let gone = self.nodes.swap_remove(slot);
        self.claims.exchange(&gone.with_claims, &[]);
        self.order.take();
        self.affinity.remove(&last);
        self.anti_affinity.remove(&last);
        if slot != last {
            self.index.insert(Arc::clone(self.nodes[slot].name()), slot);
            self.classify(slot);
            self.note(slot);
        }
        self.note(last);
    }

    fn note(&mut self, slot: usize) {
        self.epoch += 1;
        if self.changed.len() <= slot {
            self.changed.resize(slot + 1, 0);
        }
        self.changed[slot] = self.epoch;
        self.log.push_back(slot);
        if self.log.len() > 2 * self.nodes.len() + LOG_SLACK {
            self.log.pop_front();
        }
    }

    fn classify(&mut self, slot: usize) {
        let node = &self.nodes[slot];
        for (set, member) in [
            (&mut self.affinity, !node.with_affinity.is_empty()),
            (&mut self.anti_affinity, !node.with_anti_affinity.is_empty()),
        ] {
            if member {
                set.insert(slot);
            } else if !set.is_empty() {
                set.remove(&slot);
            }
        }
    }

    /// Grows with every change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of nodes that ever came.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// The number of the latest change to any slot.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of a slot's latest change; 0 when there never was such a slot.
    pub fn changed_at(&self, slot: usize) -> u64 {
        self.changed.get(slot).copied().unwrap_or(0)
    }

    /// Slots that changed after the change numbered `epoch`, some more than once, some no longer there; `None` when that
    /// is too long ago.
    pub fn changes_since(&self, epoch: u64) -> Option<impl Iterator<Item = usize>> {
        let missed = usize::try_from(self.epoch.checked_sub(epoch)?).ok()?;
        let skip = self.log.len().checked_sub(missed)?;
        Some(self.log.range(skip..).copied())
    }

    /// All nodes, by slot.
    pub fn nodes(&self) -> &[Arc<NodeInfo>] {
        &self.nodes
    }

    /// Slots in the order in which they are searched: zones take turns.
    pub fn order(&self) -> &[usize] {
        self.order.get_or_init(|| {
            let mut zones: Vec<Vec<usize>> = Vec::new();
            let mut known: HashMap<&str, usize> = HashMap::new();
            for (slot, node) in self.nodes.iter().enumerate() {
                let zone = *known.entry(&node.base.zone).or_insert_with(|| {
                    zones.push(Vec::new());
                    zones.len() - 1
                });
                zones[zone].push(slot);
            }
            let longest = zones.iter().map(Vec::len).max().unwrap_or(0);
            (0..longest).flat_map(|i| zones.iter().filter_map(move |z| z.get(i))).copied().collect()
        })
    }

    /// One node.
    pub fn get(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.index.get(name).map(|&i| &self.nodes[i])
    }

    /// Slot of a node.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// Nodes that run pods with any affinity to pods.
    pub fn with_affinity(&self) -> impl Iterator<Item = &Arc<NodeInfo>> {
        self.affinity.iter().map(|&i| &self.nodes[i])
    }

    /// Nodes that run pods with required anti-affinity.
    pub fn with_anti_affinity(&self) -> impl Iterator<Item = &Arc<NodeInfo>> {
        self.anti_affinity.iter().map(|&i| &self.nodes[i])
    }

    /// Reports whether any pod anywhere has required anti-affinity.
    pub fn any_anti_affinity(&self) -> bool {
        !self.anti_affinity.is_empty()
    }

    /// Number of pods with a node that use a volume claim.
    pub fn claim_uses(&self, namespace: &str, claim: &str) -> u32 {
        self.claims.0.get(namespace).and_then(|claims| claims.get(claim)).copied().unwrap_or(0)
    }

    /// On how many nodes an image is.
    pub fn image_spread(&self, image: &str) -> u32 {
        self.images.get(image).copied().unwrap_or(0)
    }
}

/// Number of pods that use each volume claim, by namespace and name.
#[derive(Debug, Default)]
struct ClaimUses(HashMap<Arc<str>, HashMap<Box<str>, u32>>);

impl ClaimUses {
    /// A node's pods with claims were those, and are these.
    fn exchange(&mut self, old: &[Arc<PodInfo>], new: &[Arc<PodInfo>]) {
        // Of a node that gains a pod or loses one most of the list stays.
        let same = old.iter().zip(new).take_while(|(a, b)| Arc::ptr_eq(&a.demand, &b.demand)).count();
        old[same..].iter().for_each(|pod| self.remove(pod));
        new[same..].iter().for_each(|pod| self.add(pod));
    }

    fn add(&mut self, pod: &PodInfo) {
        let claims = self.0.entry(Arc::clone(&pod.namespace)).or_default();
        for (name, _) in pod.claims() {
            match claims.get_mut(name) {
                Some(uses) => *uses += 1,
                None => {
                    claims.insert(name.into(), 1);
                }
            }
        }
    }

    fn remove(&mut self, pod: &PodInfo) {
        let Some(claims) = self.0.get_mut(&pod.namespace) else { return };
        for (name, _) in pod.claims() {
            let Some(uses) = claims.get_mut(name) else { continue };
            *uses -= 1;
            if *uses == 0 {
                claims.remove(name);
            }
        }
        if claims.is_empty() {
            self.0.remove(&pod.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Cache;
    use crate::testing::{node, pod};

    #[test]
    fn uses_of_claims_follow_pods_and_nodes() {
        let using = |name: &str, claim: &str, on: &str| {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
            Arc::new(pod(name).set("/spec", "volumes", volumes).on(on).info())
        };
        let (mut cache, mut snapshot) = (Cache::default(), Snapshot::default());
        let mut uses = |cache: &mut Cache| {
            cache.refresh(&mut snapshot);
            ["c", "d"].map(|claim| snapshot.claim_uses("default", claim))
        };
        cache.set_node(node("n").base());
        cache.set_node(node("m").base());
        assert_eq!(uses(&mut cache), [0, 0]);
        for pod in [using("a", "c", "n"), using("b", "d", "n"), using("e", "c", "m")] {
            cache.assume(pod);
        }
        assert_eq!(uses(&mut cache), [2, 1]);
        cache.forget("uid-a");
        assert_eq!(uses(&mut cache), [1, 1]);
        cache.remove_node("m");
        assert_eq!(uses(&mut cache), [0, 1], "pods of a node that went do not count");
        cache.set_node(node("m").base());
        assert_eq!(uses(&mut cache), [1, 1]);
        cache.remove_pod("uid-b");
        cache.remove_pod("uid-e");
        assert_eq!(uses(&mut cache), [0, 0]);
        assert!(snapshot.claims.0.is_empty());
    }

    #[test]
    fn snapshot_that_is_begun_anew_holds_every_node() {
        let (mut cache, mut snapshot) = (Cache::default(), Snapshot::default());
        cache.set_node(node("n").base());
        cache.refresh(&mut snapshot);
        snapshot = Snapshot::default();
        cache.set_node(node("m").base());
        cache.refresh(&mut snapshot);
        let mut names: Vec<&str> = snapshot.nodes().iter().map(|n| &**n.name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["m", "n"]);
    }
}
