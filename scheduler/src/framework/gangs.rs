//! Pods of each pod group of a Workload, and how far they have come.
//!
//! Answers for upstream's `WorkloadManager`. Shared by all profiles. Pods are counted from when they are seen until they are
//! gone: the driver tells of both, Reserve of what lies between.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::PodInfo;
use crate::model::demand::PodGroupRef;

/// Time that a group may take until enough of its pods have a node.
pub const TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Namespace and group.
type Key = (Arc<str>, PodGroupRef);

/// See the module. The lock is held for the length of a call.
#[derive(Debug, Default)]
pub struct Gangs(Mutex<HashMap<Key, GangPods>>);

/// The pods of one group, by uid; each is in one of the sets.
#[derive(Debug, Default)]
struct GangPods {
    /// Without a node.
    waiting: HashSet<Arc<str>>,
    /// With a node that was chosen.
    assumed: HashSet<Arc<str>>,
    /// On their node.
    assigned: HashSet<Arc<str>>,
    /// Time at which the pods that wait for the others are given up.
    deadline: Option<Instant>,
}

/// Progress of the pods of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Number of pods that are known.
    pub all: usize,
    /// Uids of those without a node.
    pub waiting: Vec<Arc<str>>,
    /// Uids of those with a node that was chosen.
    pub assumed: Vec<Arc<str>>,
    /// Number of those on their node.
    pub assigned: usize,
}

impl GangPods {
    fn len(&self) -> usize {
        self.waiting.len() + self.assumed.len() + self.assigned.len()
    }
}

fn key(pod: &PodInfo) -> Option<Key> {
    Some((Arc::clone(&pod.namespace), pod.group.clone()?))
}

impl Gangs {
    /// Counts a pod, or takes over that it has its node now.
    pub fn seen(&self, pod: &PodInfo) {
        let Some(key) = key(pod) else { return };
        let mut groups = self.0.lock();
        let group = groups.entry(key).or_default();
        if pod.node_name.is_some() {
            group.waiting.remove(&pod.uid);
            group.assumed.remove(&pod.uid);
            group.assigned.insert(Arc::clone(&pod.uid));
        } else if !group.assumed.contains(&pod.uid) {
            group.waiting.insert(Arc::clone(&pod.uid));
        }
    }

    /// Counts a pod no longer.
    pub fn gone(&self, pod: &PodInfo) {
        let Some(key) = key(pod) else { return };
        let mut groups = self.0.lock();
        let Some(group) = groups.get_mut(&key) else { return };
        let sets = [&mut group.waiting, &mut group.assumed, &mut group.assigned];
        let left: usize = sets
            .into_iter()
            .map(|set| {
                set.remove(&pod.uid);
                set.len()
            })
            .sum();
        if left == 0 {
            groups.remove(&key);
        }
    }

    /// Takes note that a node was chosen for a pod. Reports whether its group is known.
    pub fn assume(&self, pod: &PodInfo) -> bool {
        self.shift(pod, |group| (&mut group.waiting, &mut group.assumed))
    }

    /// The pod does not get that node after all.
    pub fn forget(&self, pod: &PodInfo) {
        self.shift(pod, |group| (&mut group.assumed, &mut group.waiting));
    }

    fn shift(
        &self,
        pod: &PodInfo,
        sets: impl FnOnce(&mut GangPods) -> (&mut HashSet<Arc<str>>, &mut HashSet<Arc<str>>),
    ) -> bool {
        let Some(key) = key(pod) else { return false };
        let mut groups = self.0.lock();
        let Some(group) = groups.get_mut(&key) else { return false };
        let (from, to) = sets(group);
        // It may be gone, or on its node, by now.
        if let Some(uid) = from.take(&pod.uid) {
            to.insert(uid);
        }
        true
    }

    /// Number of pods that are known of the pod's group; `None` when no such group is known.
    pub fn count(&self, pod: &PodInfo) -> Option<usize> {
        self.0.lock().get(&key(pod)?).map(GangPods::len)
    }

    /// Progress of the pods of the pod's group; `None` when no such group is known.
    pub fn census(&self, pod: &PodInfo) -> Option<Census> {
        let groups = self.0.lock();
        let group = groups.get(&key(pod)?)?;
        Some(Census {
            all: group.len(),
            waiting: group.waiting.iter().cloned().collect(),
            assumed: group.assumed.iter().cloned().collect(),
            assigned: group.assigned.len(),
        })
    }

    /// Time that pods of the pod's group may still wait for the others. When it is over, it begins anew.
    pub fn patience(&self, pod: &PodInfo, now: Instant) -> Duration {
        let mut groups = self.0.lock();
        let Some(group) = key(pod).and_then(|key| groups.get_mut(&key)) else { return TIMEOUT };
        let deadline = group.deadline.filter(|deadline| *deadline >= now).unwrap_or(now + TIMEOUT);
        group.deadline = Some(deadline);
        deadline.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::pod;

    fn member(name: &str, replica: &str) -> PodInfo {
        let group = json!({"name": "w", "podGroup": "g", "podGroupReplicaKey": replica});
        pod(name).set("/spec", "workloadRef", group).info()
    }

    fn counts(gangs: &Gangs, pod: &PodInfo) -> Option<[usize; 4]> {
        gangs.census(pod).map(|c| [c.all, c.waiting.len(), c.assumed.len(), c.assigned])
    }

    #[test]
    fn pods_are_counted_by_how_far_they_have_come() {
        let (gangs, a, b, other) = (Gangs::default(), member("a", ""), member("b", ""), member("c", "1"));
        gangs.seen(&pod("loner").info());
        assert_eq!(counts(&gangs, &a), None);
        [&a, &b, &other].into_iter().for_each(|pod| gangs.seen(pod));
        assert_eq!(counts(&gangs, &a), Some([2, 2, 0, 0]), "replicas of a group are groups of their own");
        gangs.assume(&a);
        gangs.seen(&a);
        assert_eq!(counts(&gangs, &b), Some([2, 1, 1, 0]), "an update says nothing of the node that was chosen");
        gangs.forget(&a);
        gangs.forget(&a);
        assert_eq!(counts(&gangs, &b), Some([2, 2, 0, 0]));
        gangs.assume(&a);
        gangs.seen(&a.placed(&"n".into()));
        gangs.forget(&a);
        assert_eq!(counts(&gangs, &b), Some([2, 1, 0, 1]), "a pod on its node is not forgotten");
        gangs.gone(&a);
        gangs.gone(&b);
        gangs.assume(&b);
        assert_eq!(counts(&gangs, &b), None);
        assert_eq!(counts(&gangs, &other), Some([1, 1, 0, 0]));
    }

    #[test]
    fn pods_of_a_group_wait_until_one_deadline() {
        let (gangs, a, now) = (Gangs::default(), member("a", ""), Instant::now());
        gangs.seen(&a);
        assert_eq!(gangs.patience(&a, now), TIMEOUT);
        let later = now + Duration::from_secs(60);
        assert_eq!(gangs.patience(&member("b", ""), later), TIMEOUT - Duration::from_secs(60));
        assert_eq!(gangs.patience(&a, now + TIMEOUT + Duration::from_secs(1)), TIMEOUT, "the next attempt");
    }
}
