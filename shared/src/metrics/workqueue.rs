//! The `workqueue_*` families, one series per queue.

use prometheus::{Counter, Gauge, Histogram};

use super::{counter, gauge, histogram};

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
        depth: level("workqueue_depth", "[ALPHA] Items that wait in the queue."),
        adds: count("workqueue_adds_total", "[ALPHA] Items added to the queue."),
        latency: seconds("workqueue_queue_duration_seconds", "[ALPHA] How long items wait in the queue."),
        work_duration: seconds("workqueue_work_duration_seconds", "[ALPHA] How long items are worked on."),
        unfinished: level("workqueue_unfinished_work_seconds", "[ALPHA] Time spent so far on unfinished items."),
        longest_running: level(
            "workqueue_longest_running_processor_seconds",
            "[ALPHA] Time spent so far on the longest item.",
        ),
        retries: count("workqueue_retries_total", "[ALPHA] Items put back for another try."),
    }
}
