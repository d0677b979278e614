//! Pods that have been promised a node, because room is being made for them there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::model::PodInfo;

/// Changes that are remembered.
const LOG: usize = 4096;

/// Promises by node.
#[derive(Debug, Clone, Default)]
pub struct Nominated {
    by_node: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    by_uid: HashMap<Arc<str>, Arc<str>>,
    version: u64,
    /// Nodes of the latest changes.
    log: VecDeque<Arc<str>>,
}

impl Nominated {
    /// Promises a node, in place of an earlier promise.
    pub fn set(&mut self, pod: Arc<PodInfo>, node: Arc<str>) {
        self.remove(&pod.uid);
        self.by_uid.insert(Arc::clone(&pod.uid), Arc::clone(&node));
        self.note(&node);
        self.by_node.entry(node).or_default().push(pod);
    }

    /// Takes a promise back.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<str>> {
        let node = self.by_uid.remove(uid)?;
        self.note(&node);
        if let Some(list) = self.by_node.get_mut(&node) {
            list.retain(|p| *p.uid != *uid);
            if list.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
    }

    fn note(&mut self, node: &Arc<str>) {
        self.version += 1;
        self.log.push_back(Arc::clone(node));
        if self.log.len() > LOG {
            self.log.pop_front();
        }
    }

    /// Grows with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Nodes whose promises changed after `version`; `None` when that is too long ago.
    pub fn changes_since(&self, version: u64) -> Option<impl Iterator<Item = &Arc<str>>> {
        let missed = usize::try_from(self.version.checked_sub(version)?).ok()?;
        let skip = self.log.len().checked_sub(missed)?;
        Some(self.log.range(skip..))
    }

    /// Every pod that was promised a node.
    pub fn all(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.by_node.values().flatten()
    }

    /// The node a pod was promised.
    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        self.by_uid.get(uid)
    }

    /// Pods that were promised a node.
    pub fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        if self.by_node.is_empty() { &[] } else { self.by_node.get(node).map_or(&[], Vec::as_slice) }
    }

    /// Nothing promised to anybody.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }
}
