//! Pods that have been promised a node, because room is being made for them there. Answers for upstream's `nominator`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::model::PodInfo;

/// Changes that are remembered.
const LOG: usize = 4096;

/// Promises by node.
#[derive(Debug, Clone, Default)]
pub struct Nominated {
    by_node: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    by_uid: HashMap<Arc<str>, Arc<str>>,
    /// Number of pods by priority.
    by_priority: BTreeMap<i32, usize>,
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
        *self.by_priority.entry(pod.priority).or_default() += 1;
        self.by_node.entry(node).or_default().push(pod);
    }

    /// Takes a promise back.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<str>> {
        let node = self.by_uid.remove(uid)?;
        self.note(&node);
        let Some(list) = self.by_node.get_mut(&node) else { return Some(node) };
        let gone = list.iter().position(|p| *p.uid == *uid).map(|at| list.remove(at));
        if list.is_empty() {
            self.by_node.remove(&node);
        }
        if let Some(pod) = gone {
            self.forget_priority(pod.priority);
        }
        Some(node)
    }

    fn forget_priority(&mut self, priority: i32) {
        let Some(pods) = self.by_priority.get_mut(&priority) else { return };
        *pods -= 1;
        if *pods == 0 {
            self.by_priority.remove(&priority);
        }
    }

    /// Reports whether another pod of this one's priority or a higher one was promised a node.
    pub fn has_rivals(&self, pod: &PodInfo) -> bool {
        let at_least: usize = self.by_priority.range(pod.priority..).map(|(_, pods)| pods).sum();
        let own = self.node_of(&pod.uid).map_or(&[][..], |node| self.on(node));
        let counted = own.iter().any(|p| p.uid == pod.uid && p.priority >= pod.priority);
        at_least > usize::from(counted)
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
    #[cfg(test)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn rivals_are_others_of_no_lower_priority() {
        let of = |name: &str, priority: i32| Arc::new(pod(name).priority(priority).info());
        let (low, high) = (of("low", 1), of("high", 9));
        let mut nominated = Nominated::default();
        assert!(!nominated.has_rivals(&low));
        nominated.set(Arc::clone(&low), "n".into());
        assert!(!nominated.has_rivals(&low) && !nominated.has_rivals(&high));
        nominated.set(Arc::clone(&high), "n".into());
        assert!(nominated.has_rivals(&low) && !nominated.has_rivals(&high));
        assert!(nominated.has_rivals(&of("other", 9)));
        nominated.set(Arc::clone(&high), "m".into());
        nominated.remove(&high.uid);
        assert!(!nominated.has_rivals(&low));
        nominated.remove(&low.uid);
        assert!(nominated.by_priority.is_empty() && nominated.by_node.is_empty());
    }
}
