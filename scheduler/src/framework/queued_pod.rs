//! A pod in the queue. Answers for upstream's `QueuedPodInfo`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::model::PodInfo;

/// A pod with its history in the queue.
#[derive(Debug, Clone)]
pub struct QueuedPod {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Time at which the pod last entered the queue from outside or from a failed attempt.
    pub queued: Instant,
    /// Attempts so far, the running one included.
    pub attempts: u32,
    /// Time at which the first attempt was due.
    pub first: Option<Instant>,
    /// Attempts that found no place, which lengthen the back-off.
    pub failures: u32,
    /// Attempts that broke since the last one that did not; while there are any, they alone count.
    pub errors: u32,
    /// The last attempt broke rather than found no place.
    pub broke: bool,
    /// Plugins that turned it down in the last attempt.
    pub rejectors: BTreeSet<&'static str>,
    /// The plugin that keeps it out of the queue altogether.
    pub gate: Option<&'static str>,
    /// End of the back-off.
    pub(crate) due: Instant,
}

impl QueuedPod {
    /// A pod that has just come.
    pub fn new(pod: Arc<PodInfo>, now: Instant) -> Self {
        Self {
            pod,
            queued: now,
            attempts: 0,
            first: None,
            failures: 0,
            errors: 0,
            broke: false,
            rejectors: BTreeSet::new(),
            gate: None,
            due: now,
        }
    }
}
