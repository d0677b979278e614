//! Pods that wait for something to happen, in groups of those that the same things help: an event is held against each
//! group once, however many pods are in it. Answers for upstream's `unschedulablePods`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::QueuedPod;

/// Reasons of a group of pods, which decide the events that help them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Group {
    /// Address of the demand; the pods in the group keep it alive.
    demand: usize,
    rejectors: Vec<&'static str>,
    gate: Option<&'static str>,
    /// A pod with claims of its own is a group of its own.
    own: Option<Arc<str>>,
}

impl Group {
    fn of(q: &QueuedPod) -> Self {
        Self {
            demand: Arc::as_ptr(&q.pod.demand) as usize,
            rejectors: q.rejectors.iter().copied().collect(),
            gate: q.gate,
            own: q.pod.resource_claims.as_ref().map(|_| Arc::clone(&q.pod.uid)),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Parked {
    pods: HashMap<Arc<str>, QueuedPod>,
    groups: HashMap<Group, HashSet<Arc<str>>>,
    gated: usize,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Number of pods whose gates are closed.
    pub(super) fn gated(&self) -> usize {
        self.gated
    }

    pub(super) fn get(&self, uid: &str) -> Option<&QueuedPod> {
        self.pods.get(uid)
    }

    pub(super) fn insert(&mut self, q: QueuedPod) {
        let uid = Arc::clone(&q.pod.uid);
        self.remove(&uid);
        self.gated += usize::from(q.gate.is_some());
        self.groups.entry(Group::of(&q)).or_default().insert(Arc::clone(&uid));
        self.pods.insert(uid, q);
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<QueuedPod> {
        let q = self.pods.remove(uid)?;
        self.gated -= usize::from(q.gate.is_some());
        let group = Group::of(&q);
        if let Some(members) = self.groups.get_mut(&group) {
            members.remove(uid);
            if members.is_empty() {
                self.groups.remove(&group);
            }
        }
        Some(q)
    }

    /// The pods of all groups of which `helped` says so for one of them.
    pub(super) fn helped(&self, helped: impl Fn(&QueuedPod) -> bool) -> Vec<Arc<str>> {
        let one = |members: &&HashSet<Arc<str>>| {
            members.iter().next().and_then(|uid| self.pods.get(uid)).is_some_and(&helped)
        };
        self.groups.values().filter(one).flatten().cloned().collect()
    }

    /// Every pod.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedPod> {
        self.pods.values()
    }
}
