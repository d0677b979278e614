//! Pods of jobs that were let go although the cache still shows their finalizer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::finalizer;
use crate::engine::object::{self, Key};
use crate::engine::pod::Pod;

/// Uids by job. What the cache shows no longer is forgotten at the job's next look, and all of a job with the job.
#[derive(Debug, Default)]
pub(super) struct Released(Mutex<HashMap<Key, HashSet<String>>>);

impl Released {
    /// Takes note of a pod that is about to be let go: the watch may show it before the answer comes.
    pub(super) fn begin(&self, job: &Key, pod: &str) {
        self.0.lock().entry(job.clone()).or_default().insert(pod.to_owned());
    }

    /// The pod was not let go after all.
    pub(super) fn failed(&self, job: &Key, pod: &str) {
        let mut all = self.0.lock();
        let Some(pods) = all.get_mut(job) else { return };
        pods.remove(pod);
        if pods.is_empty() {
            all.remove(job);
        }
    }

    /// Returns those of a job that still show their finalizer; others are forgotten.
    pub(super) fn still_shown(&self, job: &Key, pods: &[Arc<Pod>]) -> HashSet<String> {
        let mut all = self.0.lock();
        let Some(released) = all.get_mut(job) else { return HashSet::new() };
        let shown: HashSet<&str> =
            pods.iter().filter(|p| finalizer::tracked(p)).map(|p| object::uid(&p.metadata)).collect();
        released.retain(|uid| shown.contains(&**uid));
        let left = released.clone();
        if left.is_empty() {
            all.remove(job);
        }
        left
    }

    /// The job is gone.
    pub(super) fn forget(&self, job: &Key) {
        self.0.lock().remove(job);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, finalizers: &[&str]) -> Arc<Pod> {
        let meta = json!({"name": uid, "namespace": "ns", "uid": uid, "finalizers": finalizers});
        Arc::new(serde_json::from_value(json!({"metadata": meta})).expect("pod"))
    }

    #[test]
    fn pods_are_remembered_until_the_cache_shows_that_they_were_let_go() {
        let (released, job, other) = (Released::default(), Key::new("ns", "job"), Key::new("ns", "other"));
        for uid in ["a", "b", "never-seen"] {
            released.begin(&job, uid);
        }
        released.begin(&other, "x");
        released.begin(&job, "refused");
        released.failed(&job, "refused");
        let tracked = [finalizer::FINALIZER];
        let mut left: Vec<String> =
            released.still_shown(&job, &[pod("a", &tracked), pod("b", &tracked)]).into_iter().collect();
        left.sort();
        assert_eq!(left, ["a", "b"], "one that came and went unseen is forgotten");
        assert_eq!(released.still_shown(&job, &[pod("a", &[]), pod("b", &tracked)]), HashSet::from(["b".to_owned()]));
        assert!(released.still_shown(&job, &[]).is_empty());
        assert_eq!(released.0.lock().keys().collect::<Vec<_>>(), [&other], "nothing is left of the job");
        released.forget(&other);
        assert!(released.0.lock().is_empty());
    }
}
