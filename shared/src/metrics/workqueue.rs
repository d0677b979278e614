//! The `workqueue_*` families, one series per queue.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::{Counter, Gauge, Histogram};

use super::{counter, gauge, histogram};

/// A queue, as far as the gauges of its unfinished work need it.
pub(crate) trait InProgress: Send + Sync {
    /// For how long each item has been worked on.
    fn in_progress(&self) -> Vec<Duration>;
}

struct Watched {
    name: String,
    metrics: WorkqueueMetrics,
    queue: Weak<dyn InProgress>,
}

/// The queues there are.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// Has the work in progress of a queue measured whenever somebody asks for metrics.
pub(crate) fn watch(name: &str, metrics: &WorkqueueMetrics, queue: Weak<dyn InProgress>) {
    WATCHED.lock().push(Watched { name: name.to_owned(), metrics: metrics.clone(), queue });
}

/// Sets the gauges of work in progress. Queues of one name are measured as one; what is left of one that is gone is 0.
pub(super) fn refresh() {
    let mut watched = WATCHED.lock();
    let mut all: BTreeMap<&str, (&WorkqueueMetrics, Duration, Duration)> = BTreeMap::new();
    for w in &*watched {
        let (_, sum, longest) = all.entry(&w.name).or_insert((&w.metrics, Duration::ZERO, Duration::ZERO));
        for taken in w.queue.upgrade().iter().flat_map(|queue| queue.in_progress()) {
            *sum += taken;
            *longest = taken.max(*longest);
        }
    }
    for (metrics, sum, longest) in all.into_values() {
        metrics.unfinished.set(sum.as_secs_f64());
        metrics.longest_running.set(longest.as_secs_f64());
    }
    watched.retain(|w| w.queue.strong_count() > 0);
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub struct WorkqueueMetrics {
    /// Items that wait.
    pub depth: Gauge,
    /// Items added.
    pub adds: Counter,
    /// Seconds an item waited.
    pub latency: Histogram,
    /// Seconds an item was worked on.
    pub work_duration: Histogram,
    /// Seconds of work in progress.
    pub unfinished: Gauge,
    /// Seconds of the longest work in progress.
    pub longest_running: Gauge,
    /// Items added again with a delay.
    pub retries: Counter,
}

/// A queue in which nothing ever waits: what upstream puts into one and is done here as it comes is told all the same.
#[derive(Clone, Debug)]
pub struct Passage(WorkqueueMetrics);

impl Passage {
    /// With the metrics of the queue of this name.
    pub fn new(name: &str) -> Self {
        Self(workqueue(name))
    }

    /// An item is worked on until what is returned is dropped.
    #[must_use]
    pub fn begin(&self) -> Passing<'_> {
        self.0.adds.inc();
        self.0.latency.observe(0.0);
        Passing { metrics: &self.0, since: Instant::now() }
    }
}

/// An item under way.
#[derive(Debug)]
pub struct Passing<'a> {
    metrics: &'a WorkqueueMetrics,
    since: Instant,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.metrics.work_duration.observe(self.since.elapsed().as_secs_f64());
    }
}

/// Upstream multiplies, and so do its bucket labels (`9.999999999999999e-06`).
fn buckets() -> Vec<f64> {
    super::exponential(1e-8, 10.0, 10)
}

/// The metrics of the queue of this name.
pub fn workqueue(name: &str) -> WorkqueueMetrics {
    let label = [name];
    let seconds = |family: &str, help: &str| histogram(family, help, &["name"], buckets()).with_label_values(&label);
    let level = |family: &str, help: &str| gauge(family, help, &["name"]).with_label_values(&label);
    let count = |family: &str, help: &str| counter(family, help, &["name"]).with_label_values(&label);
    WorkqueueMetrics {
        depth: level("workqueue_depth", "[ALPHA] Current depth of the work queue."),
        adds: count("workqueue_adds_total", "[ALPHA] Number of adds handled by the work queue."),
        latency: seconds(
            "workqueue_queue_duration_seconds",
            "[ALPHA] Seconds that an item stays in the work queue before it is requested.",
        ),
        work_duration: seconds(
            "workqueue_work_duration_seconds",
            "[ALPHA] Seconds that processing an item from the work queue takes.",
        ),
        unfinished: level(
            "workqueue_unfinished_work_seconds",
            "[ALPHA] Seconds of work in progress that work_duration has not observed yet.",
        ),
        longest_running: level(
            "workqueue_longest_running_processor_seconds",
            "[ALPHA] Seconds for which the longest running processor of the work queue has been running.",
        ),
        retries: count("workqueue_retries_total", "[ALPHA] Number of retries handled by the work queue."),
    }
}
