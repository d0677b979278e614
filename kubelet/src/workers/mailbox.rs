//! Mailbox of a worker: what the pod map tells it, and how it wakes it.
//! Answers for the updates of upstream's `podWorkers` (`UpdatePod`, `podSyncStatus`).

use super::admission::Refusal;
use crate::pods;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Messages of the pod map to a worker.
#[derive(Debug)]
pub struct Mailbox {
    state: Mutex<KnownPod>,
    pub(super) notify: Notify,
    /// Cancelled once the pod has ended and its volumes and cgroups were given back.
    pub(super) given_back: CancellationToken,
}

/// Stages in the life of a pod's worker, by upstream's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// The pod is kept running.
    #[default]
    Sync,
    /// The containers are being stopped.
    Terminating,
    /// The containers have ended.
    Terminated,
}

impl Lifecycle {
    /// All stages.
    pub const ALL: [Self; 3] = [Self::Sync, Self::Terminating, Self::Terminated];

    /// Upstream's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
        }
    }
}

/// Known state of the pod.
#[derive(Clone, Debug)]
pub(super) struct KnownPod {
    pub(super) pod: Arc<Pod>,
    pub(super) removed: bool,
    pub(super) failure: Option<(String, String)>,
    /// Time to stop that the kubelet itself decided on.
    grace: Option<i64>,
    /// The failure is that this node never took the pod.
    pub(super) rejected: bool,
    /// Reason and message of a resize that waits.
    pub(super) resize: Option<Refusal>,
    lifecycle: Lifecycle,
}

impl KnownPod {
    /// Seconds that a stop of the pod may take.
    pub(super) fn grace(&self) -> i64 {
        let grace = pods::grace(&self.pod);
        self.grace.map_or(grace, |own| own.min(grace)).max(1)
    }
}

impl Mailbox {
    /// A mailbox for a new pod.
    pub fn new(pod: Arc<Pod>) -> Self {
        Self {
            state: Mutex::new(KnownPod {
                pod,
                removed: false,
                failure: None,
                grace: None,
                rejected: false,
                resize: None,
                lifecycle: Lifecycle::Sync,
            }),
            notify: Notify::new(),
            given_back: CancellationToken::new(),
        }
    }

    /// The pod as it is allocated changed, or why what it asks for is not.
    pub fn allocate(&self, pod: Arc<Pod>, resize: Option<Refusal>) {
        {
            let mut state = self.state.lock();
            state.pod = pod;
            state.resize = resize;
        }
        self.notify.notify_one();
    }

    /// Returns why a resize of the pod waits.
    pub fn resize(&self) -> Option<Refusal> {
        self.state.lock().resize.clone()
    }

    /// No source has the pod any more.
    pub fn remove(&self) {
        self.state.lock().removed = true;
        self.notify.notify_one();
    }

    /// The kubelet itself ends the pod.
    pub fn fail(&self, reason: &str, message: &str, grace: Option<i64>) {
        {
            let mut state = self.state.lock();
            state.failure.get_or_insert_with(|| (reason.to_owned(), message.to_owned()));
            // Once it is shorter, it stays so. Upstream's `calculateEffectiveGracePeriod`.
            state.grace = state.grace.into_iter().chain(grace).min();
        }
        self.notify.notify_one();
    }

    /// This node does not take the pod.
    pub fn reject(&self, reason: &str, message: &str) {
        let mut state = self.state.lock();
        state.failure = Some((reason.to_owned(), message.to_owned()));
        state.rejected = true;
    }

    /// Look again: something happened in the runtime or to a probe.
    pub fn poke(&self) {
        self.notify.notify_one();
    }

    /// The pod as it was told last.
    pub fn pod(&self) -> Arc<Pod> {
        Arc::clone(&self.state.lock().pod)
    }

    /// The worker has come to a stage.
    pub(super) fn enter(&self, lifecycle: Lifecycle) {
        self.state.lock().lifecycle = lifecycle;
    }

    /// Returns the worker's stage.
    pub fn lifecycle(&self) -> Lifecycle {
        self.state.lock().lifecycle
    }

    /// Gone from its source.
    pub fn is_removed(&self) -> bool {
        self.state.lock().removed
    }

    pub(super) fn snapshot(&self) -> KnownPod {
        self.state.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_time_to_stop_only_becomes_shorter() {
        let pod = |spec: serde_json::Value| Arc::new(serde_json::from_value::<Pod>(spec).expect("a pod"));
        let running = pod(json!({"spec": {"containers": [], "terminationGracePeriodSeconds": 600}}));
        let mailbox = Mailbox::new(running);
        assert_eq!(mailbox.snapshot().grace(), 600);
        for (grace, expected) in [(None, 600), (Some(300), 300), (Some(400), 300), (None, 300), (Some(0), 1)] {
            mailbox.fail("Evicted", "memory runs short", grace);
            assert_eq!(mailbox.snapshot().grace(), expected, "{grace:?}");
        }
        let deleted = |seconds: i64| {
            pod(
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": seconds},
                "spec": {"containers": [], "terminationGracePeriodSeconds": 600}}),
            )
        };
        let mailbox = Mailbox::new(deleted(500));
        assert_eq!(mailbox.snapshot().grace(), 500);
        mailbox.allocate(deleted(0), None);
        assert_eq!(mailbox.snapshot().grace(), 1, "a forced deletion");
    }
}
