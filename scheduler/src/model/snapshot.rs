//! The cluster at one moment: what one scheduling cycle looks at.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::node::NodeInfo;

/// Nodes in scheduling order. Cheap to keep current (see [`super::Cache::refresh`]).
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(super) generation: u64,
    pub(super) images: Arc<HashMap<Arc<str>, u32>>,
    nodes: Vec<Arc<NodeInfo>>,
    index: HashMap<Arc<str>, usize>,
    affinity: BTreeSet<usize>,
    anti_affinity: BTreeSet<usize>,
}

impl Snapshot {
    /// A snapshot of given nodes, for simulations and tests.
    pub fn of(nodes: Vec<Arc<NodeInfo>>) -> Self {
        let mut images: HashMap<Arc<str>, u32> = HashMap::new();
        for image in nodes.iter().flat_map(|n| n.base.images.keys()) {
            *images.entry(Arc::clone(image)).or_default() += 1;
        }
        let mut out = Self { images: Arc::new(images), ..Self::default() };
        out.replace(nodes);
        out
    }

    pub(super) fn replace(&mut self, nodes: Vec<Arc<NodeInfo>>) {
        self.index = nodes.iter().enumerate().map(|(i, n)| (Arc::clone(n.name()), i)).collect();
        self.affinity.clear();
        self.anti_affinity.clear();
        self.nodes = nodes;
        for slot in 0..self.nodes.len() {
            self.classify(slot);
        }
    }

    pub(super) fn update(&mut self, node: &Arc<NodeInfo>) {
        if let Some(&slot) = self.index.get(node.name()) {
            self.nodes[slot] = Arc::clone(node);
            self.classify(slot);
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

    /// All nodes.
    pub fn nodes(&self) -> &[Arc<NodeInfo>] {
        &self.nodes
    }

    /// One node.
    pub fn get(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.index.get(name).map(|&i| &self.nodes[i])
    }

    /// Position of a node.
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
