//! Pods that have been promised a node, because room is being made for them there.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::PodInfo;

/// Promises by node.
#[derive(Debug, Clone, Default)]
pub struct Nominated {
    by_node: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    by_uid: HashMap<Arc<str>, Arc<str>>,
}

impl Nominated {
    /// Promises a node, in place of an earlier promise.
    pub fn set(&mut self, pod: Arc<PodInfo>, node: Arc<str>) {
        self.remove(&pod.uid);
        self.by_uid.insert(Arc::clone(&pod.uid), Arc::clone(&node));
        self.by_node.entry(node).or_default().push(pod);
    }

    /// Takes a promise back.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<str>> {
        let node = self.by_uid.remove(uid)?;
        if let Some(list) = self.by_node.get_mut(&node) {
            list.retain(|p| *p.uid != *uid);
            if list.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
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
