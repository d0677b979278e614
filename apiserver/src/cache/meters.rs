//! The caches' metrics, under upstream's names; they are counted where it costs nothing and shown when somebody asks.

use prometheus::{CounterVec, GaugeVec};
use shared::metrics;

use super::Hub;
use super::state::RING;

/// See the module.
pub struct Meters {
    received: CounterVec,
    dispatched: CounterVec,
    initialized: CounterVec,
    stored: CounterVec,
    capacity: GaugeVec,
    revision: GaugeVec,
}

impl Default for Meters {
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
                "[ALPHA] Events that came from etcd, by resource.",
                &LABELS,
            ),
            capacity: metrics::gauge(
                "watch_cache_capacity",
                "[ALPHA] Changes a watch cache may hold, by resource.",
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

impl Meters {
    /// Takes over what the caches have counted.
    #[allow(clippy::cast_precision_loss)]
    pub fn publish(&self, hub: &Hub) {
        for tally in hub.tallies() {
            let labels: [&str; 2] = [&tally.row.group, &tally.row.plural];
            let counted = [
                (&self.received, tally.received),
                (&self.dispatched, tally.received),
                (&self.stored, tally.received),
                (&self.initialized, tally.initialized),
            ];
            for (counter, value) in counted {
                let counter = counter.with_label_values(&labels);
                // A cache that was forgotten begins anew, and so does what it counts.
                if (value as f64) < counter.get() {
                    counter.reset();
                }
                counter.inc_by(value as f64 - counter.get());
            }
            self.capacity.with_label_values(&labels).set(RING as f64);
            self.revision.with_label_values(&labels).set(tally.revision as f64);
        }
    }
}
