//! The caches' metrics, under upstream's names; they are counted where it costs nothing and shown when somebody asks.

use prometheus::{CounterVec, GaugeVec};
use shared::metrics;

use super::CacheRegistry;
use super::state::RING;

/// Metrics of the watch caches.
pub struct Metrics {
    received: CounterVec,
    dispatched: CounterVec,
    initialized: CounterVec,
    stored: CounterVec,
    terminated: CounterVec,
    unreadable: CounterVec,
    size: GaugeVec,
    capacity: GaugeVec,
    revision: GaugeVec,
}

impl Default for Metrics {
    fn default() -> Self {
        const LABELS: [&str; 2] = ["group", "resource"];
        Self {
            received: metrics::counter(
                "apiserver_watch_cache_events_received_total",
                "[ALPHA] Counter of events received in watch cache broken by resource type.",
                &LABELS,
            ),
            dispatched: metrics::counter(
                "apiserver_watch_cache_events_dispatched_total",
                "[ALPHA] Counter of events dispatched in watch cache broken by resource type.",
                &LABELS,
            ),
            initialized: metrics::counter(
                "apiserver_watch_cache_initializations_total",
                "[ALPHA] Counter of watch cache initializations broken by resource type.",
                &LABELS,
            ),
            stored: metrics::counter(
                "apiserver_storage_events_received_total",
                "[ALPHA] Number of events received from etcd, by resource.",
                &LABELS,
            ),
            terminated: metrics::counter(
                "apiserver_terminated_watchers_total",
                "[ALPHA] Number of watches terminated because of an unresponsive watcher, by resource.",
                &LABELS,
            ),
            unreadable: metrics::counter(
                "apiserver_storage_decode_errors_total",
                "[ALPHA] Number of objects from etcd that could not be decoded, by resource.",
                &LABELS,
            ),
            size: metrics::gauge(
                "apiserver_resource_size_estimate_bytes",
                "[ALPHA] Estimated size of the stored objects in bytes, by resource.",
                &LABELS,
            ),
            capacity: metrics::gauge(
                "watch_cache_capacity",
                "[ALPHA] Event capacity of the watch cache, by resource.",
                &LABELS,
            ),
            revision: metrics::gauge(
                "apiserver_watch_cache_resource_version",
                "[ALPHA] Current resource version of watch cache broken by resource type.",
                &LABELS,
            ),
        }
    }
}

impl Metrics {
    /// Takes over what the caches have counted; what objects take is known where lists cost by it.
    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    pub fn publish(&self, caches: &CacheRegistry, sizes: bool) {
        for tally in caches.stats() {
            let labels: [&str; 2] = [&tally.row.group, &tally.row.plural];
            let counted = [
                (&self.received, tally.received),
                (&self.dispatched, tally.received),
                (&self.stored, tally.received),
                (&self.initialized, tally.initialized),
            ];
            // What goes wrong shows where it did.
            let wrong = [(&self.terminated, tally.terminated), (&self.unreadable, tally.unreadable)];
            for (counter, value) in counted.into_iter().chain(wrong.into_iter().filter(|(_, count)| *count > 0)) {
                let counter = counter.with_label_values(&labels);
                // A cache that was forgotten begins anew, and so does what it counts.
                if (value as f64) < counter.get() {
                    counter.reset();
                }
                counter.inc_by(value as f64 - counter.get());
            }
            if sizes {
                self.size.with_label_values(&labels).set(tally.bytes as f64);
            }
            self.capacity.with_label_values(&labels).set(RING as f64);
            self.revision.with_label_values(&labels).set(tally.revision as f64);
        }
    }
}
