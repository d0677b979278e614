//! The cluster as the informers tell it, plus what the scheduler has decided but not yet seen confirmed.
//!
//! Answers for upstream's scheduler cache. A pod is *assumed* on its node the moment it is placed, so that the next pod
//! sees the room taken; the bound pod arriving from the API server confirms it, a failed binding forgets it.
//! [`Cache::refresh`] brings a [`Snapshot`] up to date by touching changed nodes only.

use std::collections::HashMap;
use std::sync::Arc;

use super::node::{NodeBase, NodeInfo};
use super::pod::PodInfo;
use super::snapshot::Snapshot;

#[derive(Debug)]
struct NodeEntry {
    info: Arc<NodeInfo>,
    /// The Node object is there (pods may be seen before it and after).
    present: bool,
    /// Changed since the last refresh.
    dirty: bool,
    /// Holds newer forms of the same pods since then.
    renewed: bool,
    /// Slot of the pod's node in the snapshot.
    slot: usize,
}

#[derive(Debug)]
struct KnownPod {
    pod: Arc<PodInfo>,
    assumed: bool,
}

/// Sizes, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Nodes.
    pub nodes: usize,
    /// Pods with a node, assumed ones included.
    pub pods: usize,
    /// Assumed pods.
    pub assumed: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    nodes: HashMap<Arc<str>, NodeEntry>,
    pods: HashMap<Arc<str>, KnownPod>,
    /// Nodes whose object is there.
    present: usize,
    /// On how many nodes an image is.
    images: Arc<HashMap<Arc<str>, u32>>,
    generation: u64,
    /// Nodes that changed since the last refresh, or went.
    dirty: Vec<Arc<str>>,
    /// Generation that the snapshot had after the last refresh.
    refreshed: u64,
    assumed: usize,
}

impl Cache {
    fn touch(&mut self, name: &Arc<str>) -> &mut NodeInfo {
        self.generation += 1;
        if !self.nodes.contains_key(name) {
            let base = NodeBase { name: Arc::clone(name), ..NodeBase::default() };
            let entry = NodeEntry {
                info: Arc::new(NodeInfo::new(base)),
                present: false,
                dirty: false,
                renewed: false,
                slot: usize::MAX,
            };
            self.nodes.insert(Arc::clone(name), entry);
        }
        let entry = self.nodes.get_mut(name).expect("made above");
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(Arc::clone(name));
        }
        let info = Arc::make_mut(&mut entry.info);
        info.generation = self.generation;
        info
    }

    /// Adds a node or takes over its new form; `None` when nothing that matters has changed.
    pub fn set_node(&mut self, base: impl Into<Arc<NodeBase>>) -> Option<Arc<NodeInfo>> {
        let base: Arc<NodeBase> = base.into();
        let name = Arc::clone(&base.name);
        let old = self.nodes.get(&name).filter(|e| e.present).map(|e| Arc::clone(&e.info.base));
        if old.as_ref() == Some(&base) {
            return None;
        }
        let old_images = old.as_ref().map(|o| &o.images);
        if old_images != Some(&base.images) {
            let counts = Arc::make_mut(&mut self.images);
            forget_images(counts, old.as_deref());
            for image in base.images.keys() {
                *counts.entry(Arc::clone(image)).or_default() += 1;
            }
        }
        self.present += usize::from(old.is_none());
        self.touch(&name).base = base;
        let entry = self.nodes.get_mut(&name)?;
        entry.present = true;
        Some(Arc::clone(&entry.info))
    }

    /// Removes a node.
    pub fn remove_node(&mut self, name: &str) {
        let Some(entry) = self.nodes.get_mut(name).filter(|e| e.present) else { return };
        entry.present = false;
        let base = Arc::clone(&entry.info.base);
        if entry.info.pods.is_empty() {
            self.nodes.remove(name);
        }
        forget_images(Arc::make_mut(&mut self.images), Some(&base));
        self.present -= 1;
        self.dirty.push(Arc::clone(&base.name));
        self.generation += 1;
    }

    /// The node as it is now.
    pub fn node(&self, name: &str) -> Option<&Arc<NodeInfo>> {
        self.nodes.get(name).filter(|e| e.present).map(|e| &e.info)
    }

    /// All nodes as they are now, in no order.
    pub fn nodes(&self) -> Vec<Arc<NodeInfo>> {
        self.nodes.values().filter(|e| e.present).map(|e| Arc::clone(&e.info)).collect()
    }

    /// A bound pod was seen: confirms an assumed one, moves it if it went elsewhere, or adds it.
    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        let Some(node) = pod.node_name.clone() else { return };
        if let Some(known) = self.pods.get_mut(&pod.uid)
            && known.pod.weighs_as(&pod)
            && let Some(entry) = self.nodes.get_mut(&node)
        {
            self.assumed -= usize::from(known.assumed);
            *known = KnownPod { pod: Arc::clone(&pod), assumed: false };
            Arc::make_mut(&mut entry.info).replace(&pod);
            if !entry.dirty && !entry.renewed {
                entry.renewed = true;
                self.dirty.push(node);
            }
            return;
        }
        self.drop_pod(&pod.uid);
        self.touch(&node).add(Arc::clone(&pod));
        self.pods.insert(Arc::clone(&pod.uid), KnownPod { pod, assumed: false });
    }

    /// A bound pod is gone.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        self.drop_pod(uid)
    }

    fn drop_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let known = self.pods.remove(uid)?;
        self.assumed -= usize::from(known.assumed);
        if let Some(node) = &known.pod.node_name {
            let info = self.touch(node);
            info.remove(uid);
            let empty = info.pods.is_empty();
            if empty && self.nodes.get(node).is_some_and(|e| !e.present) {
                self.nodes.remove(node);
            }
        }
        Some(known.pod)
    }

    /// Takes a pod as placed. `false` when it is known already.
    pub fn assume(&mut self, pod: Arc<PodInfo>) -> bool {
        let Some(node) = pod.node_name.clone() else { return false };
        if self.pods.contains_key(&pod.uid) {
            return false;
        }
        self.touch(&node).add(Arc::clone(&pod));
        self.assumed += 1;
        self.pods.insert(Arc::clone(&pod.uid), KnownPod { pod, assumed: true });
        true
    }

    /// An assumed pod did not get its place after all.
    pub fn forget(&mut self, uid: &str) -> bool {
        self.is_assumed(uid) && self.drop_pod(uid).is_some()
    }

    /// Reports whether a pod is placed but not confirmed.
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|k| k.assumed)
    }

    /// The pod as placed, if it is.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|k| &k.pod)
    }

    /// Sizes, for metrics.
    pub fn sizes(&self) -> Sizes {
        Sizes { nodes: self.present, pods: self.pods.len(), assumed: self.assumed }
    }

    /// Brings a snapshot up to date. There must be only one snapshot per cache; in its place an empty one may come.
    pub fn refresh(&mut self, snapshot: &mut Snapshot) {
        if snapshot.generation != self.refreshed {
            self.dirty_all();
        }
        self.refreshed = self.generation;
        snapshot.generation = self.generation;
        if !Arc::ptr_eq(&snapshot.images, &self.images) {
            snapshot.images = Arc::clone(&self.images);
        }
        for name in self.dirty.drain(..) {
            let entry = self.nodes.get_mut(&name);
            match entry {
                Some(entry) => {
                    let changed = std::mem::take(&mut entry.dirty) || !entry.renewed;
                    entry.renewed = false;
                    if entry.present && !changed {
                        entry.slot = snapshot.renew(&entry.info, entry.slot);
                    } else if entry.present {
                        entry.slot = snapshot.set(&entry.info, entry.slot);
                    } else {
                        snapshot.drop_node(&name);
                    }
                }
                None => snapshot.drop_node(&name),
            }
        }
    }
}

impl Cache {
    /// Every node counts as changed: the snapshot knows none.
    fn dirty_all(&mut self) {
        self.dirty.clear();
        for (name, entry) in &mut self.nodes {
            (entry.dirty, entry.renewed, entry.slot) = (entry.present, false, usize::MAX);
            if entry.present {
                self.dirty.push(Arc::clone(name));
            }
        }
    }
}

fn forget_images(counts: &mut HashMap<Arc<str>, u32>, base: Option<&NodeBase>) {
    for image in base.iter().flat_map(|b| b.images.keys()) {
        if let Some(count) = counts.get_mut(image) {
            *count -= 1;
            if *count == 0 {
                counts.remove(image);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, pod};

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.order().iter().map(|&slot| &**snapshot.nodes()[slot].name()).collect()
    }

    fn cpu(snapshot: &Snapshot, name: &str) -> i64 {
        snapshot.get(name).map_or(-1, |n| n.requested.milli_cpu)
    }

    #[test]
    fn zones_take_turns() {
        let mut cache = Cache::default();
        let mut snapshot = Snapshot::default();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("c2", "c")] {
            cache.set_node(node(name).label("topology.kubernetes.io/zone", zone).base());
        }
        cache.refresh(&mut snapshot);
        assert_eq!(names(&snapshot), ["a1", "b1", "c1", "a2", "c2", "a3"]);
        cache.remove_node("a1");
        cache.refresh(&mut snapshot);
        assert_eq!(names(&snapshot), ["c2", "a2", "b1", "c1", "a3"]);
        assert!(snapshot.get("a1").is_none());
    }

    #[test]
    fn assumed_pods_take_room_until_forgotten_or_confirmed() {
        let mut cache = Cache::default();
        let mut snapshot = Snapshot::default();
        cache.set_node(node("n").base());
        let p = Arc::new(pod("p").cpu("500m").on("n").info());
        assert!(cache.assume(Arc::clone(&p)));
        assert!(!cache.assume(Arc::clone(&p)));
        cache.refresh(&mut snapshot);
        assert_eq!((cpu(&snapshot, "n"), cache.sizes().assumed), (500, 1));
        assert!(cache.forget(&p.uid));
        cache.refresh(&mut snapshot);
        assert_eq!((cpu(&snapshot, "n"), cache.sizes().assumed), (0, 0));

        cache.assume(Arc::clone(&p));
        cache.add_pod(Arc::clone(&p));
        assert!(!cache.is_assumed(&p.uid) && !cache.forget(&p.uid));
        cache.refresh(&mut snapshot);
        assert_eq!(cpu(&snapshot, "n"), 500);
        cache.remove_pod(&p.uid);
        cache.refresh(&mut snapshot);
        assert_eq!((cpu(&snapshot, "n"), cache.sizes().pods), (0, 0));
    }

    #[test]
    fn only_changed_nodes_are_copied() {
        let mut cache = Cache::default();
        let mut snapshot = Snapshot::default();
        cache.set_node(node("a").base());
        cache.set_node(node("b").base());
        cache.refresh(&mut snapshot);
        let before = Arc::clone(snapshot.get("a").expect("a"));
        cache.assume(Arc::new(pod("p").on("b").info()));
        cache.refresh(&mut snapshot);
        assert!(Arc::ptr_eq(&before, snapshot.get("a").expect("a")));
        assert_eq!(snapshot.get("b").expect("b").pods.len(), 1);
        assert!(cache.set_node(node("a").base()).is_none(), "an equal node is no change");
    }

    #[test]
    fn pods_of_unknown_nodes_wait_for_them() {
        let mut cache = Cache::default();
        let mut snapshot = Snapshot::default();
        cache.add_pod(Arc::new(pod("p").cpu("1").on("late").info()));
        cache.refresh(&mut snapshot);
        assert!(snapshot.nodes().is_empty());
        cache.set_node(node("late").base());
        cache.refresh(&mut snapshot);
        assert_eq!(cpu(&snapshot, "late"), 1000);
        cache.remove_node("late");
        cache.set_node(node("late").base());
        cache.refresh(&mut snapshot);
        assert_eq!(cpu(&snapshot, "late"), 1000);
    }
}
