//! The cluster at one moment: what one scheduling cycle looks at.
//!
//! HOT (held by `examples/throughput.rs`): refreshed once per pod. Nodes sit in *slots* that stay theirs while they live
//! (the last node moves into the slot of one that goes), and every change is written down in a bounded log, so that
//! whoever keeps something per slot looks at changed slots only.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use super::node::NodeInfo;

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
                self.nodes[slot] = Arc::clone(node);
                slot
            }
            None => {
                let slot = self.nodes.len();
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
        self.nodes.swap_remove(slot);
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

    /// Whether any pod anywhere has required anti-affinity.
    pub fn any_anti_affinity(&self) -> bool {
        !self.anti_affinity.is_empty()
    }

    /// On how many nodes an image is.
    pub fn image_spread(&self, image: &str) -> u32 {
        self.images.get(image).copied().unwrap_or(0)
    }
}
