//! Metrics of reads from one cache, under upstream's names. Each cache looks up its own series once.

use std::time::Instant;

use proto::resources::Resource;
use shared::metrics::{self, Counter, Histogram};

const LABELS: [&str; 2] = ["group", "resource"];
/// Seconds.
const WAIT: [f64; 13] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];

/// Metrics of reads from one watch cache.
pub struct ReadMetrics {
    waited: Histogram,
    consistent: [Counter; 2],
    lists: Counter,
    fetched: Counter,
    returned: Counter,
    initial: Counter,
}

impl ReadMetrics {
    pub(super) fn new(row: &Resource) -> Self {
        let labels = [&*row.group, &*row.plural];
        let indexed = |name: &str, help: &str| {
            metrics::counter(name, help, &["group", "resource", "index"]).with_label_values(&[labels[0], labels[1], ""])
        };
        let counter = |name: &str, help: &str| metrics::counter(name, help, &LABELS).with_label_values(&labels);
        let consistent = |success: &str| {
            metrics::counter(
                "apiserver_watch_cache_consistent_read_total",
                "[ALPHA] Counter of consistent reads from the watch cache by success and fallback to etcd.",
                &["group", "resource", "success", "fallback"],
            )
            .with_label_values(&[labels[0], labels[1], success, "false"])
        };
        Self {
            waited: metrics::histogram(
                "apiserver_watch_cache_read_wait_seconds",
                "[ALPHA] Seconds that reads wait for the watch cache to become fresh enough, by resource.",
                &LABELS,
                WAIT.to_vec(),
            )
            .with_label_values(&labels),
            consistent: [consistent("false"), consistent("true")],
            lists: indexed(
                "apiserver_cache_list_total",
                "[ALPHA] Number of LIST requests served from the watch cache, by index.",
            ),
            fetched: indexed(
                "apiserver_cache_list_fetched_objects_total",
                "[ALPHA] Number of objects read from the watch cache for LIST requests, by index.",
            ),
            returned: counter(
                "apiserver_cache_list_returned_objects_total",
                "[ALPHA] Number of objects returned for LIST requests from the watch cache.",
            ),
            initial: counter(
                "apiserver_init_events_total",
                "[ALPHA] Number of initial events processed for watches from the watch cache, by resource.",
            ),
        }
    }

    /// A reader has waited for the cache.
    pub fn observe_wait(&self, since: Instant) {
        self.waited.observe(since.elapsed().as_secs_f64());
    }

    /// A list asked for what etcd has now, and got it or did not.
    pub fn observe_consistent_read(&self, success: bool) {
        self.consistent[usize::from(success)].inc();
    }

    /// A list: objects looked at, objects in it.
    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    pub fn observe_list(&self, fetched: usize, returned: usize) {
        self.lists.inc();
        self.fetched.inc_by(fetched as f64);
        self.returned.inc_by(returned as f64);
    }

    /// A watch begins with so many events.
    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    pub fn observe_initial_events(&self, events: usize) {
        if events > 0 {
            self.initial.inc_by(events as f64);
        }
    }
}
