//! Metrics of watches, under upstream's names. Each watch looks up its own series once, when it starts.

use std::sync::LazyLock;
use std::time::Instant;

use proto::resources::Resource;
use shared::metrics::{self, Counter, CounterVec, Histogram, HistogramVec};

/// Seconds until the end of the state.
const LISTED: [f64; 17] = [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];

struct Families {
    events: CounterVec,
    sizes: HistogramVec,
    listed: HistogramVec,
}

static FAMILIES: LazyLock<Families> = LazyLock::new(|| {
    let labels = ["group", "version", "resource"];
    Families {
        events: metrics::counter(
            "apiserver_watch_events_total",
            "[ALPHA] Number of events sent in watches, by group, version and resource.",
            &labels,
        ),
        sizes: metrics::histogram(
            "apiserver_watch_events_sizes",
            "[ALPHA] Size of events sent in watches in bytes, by group, version and resource.",
            &labels,
            metrics::exponential(1024.0, 2.0, 8),
        ),
        listed: metrics::histogram(
            "apiserver_watch_list_duration_seconds",
            "[ALPHA] Seconds from a WATCH request with initial events to the bookmark that ends them, by resource.",
            &["group", "version", "resource", "scope"],
            LISTED.to_vec(),
        ),
    }
});

/// Metrics of one watch.
pub(super) struct WatchMetrics {
    events: Counter,
    sizes: Histogram,
    listed: Option<(Histogram, Instant)>,
}

impl WatchMetrics {
    /// Of a watch of some scope, which begins with the state or does not.
    pub(super) fn new(row: &Resource, scope: &str, since: Option<Instant>) -> Self {
        let [group, version, resource] = [&*row.group, &*row.version, &*row.plural];
        Self {
            events: FAMILIES.events.with_label_values(&[group, version, resource]),
            sizes: FAMILIES.sizes.with_label_values(&[group, version, resource]),
            listed: since.map(|at| (FAMILIES.listed.with_label_values(&[group, version, resource, scope]), at)),
        }
    }

    /// An event of so many bytes, to be counted with others.
    #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
    pub(super) fn sized(&self, bytes: usize) {
        self.sizes.observe(bytes as f64);
    }

    /// So many events.
    pub(super) fn events(&self, count: u32) {
        self.events.inc_by(f64::from(count));
    }

    /// The client knows all of the state.
    pub(super) fn listed(&mut self) {
        if let Some((seconds, since)) = self.listed.take() {
            seconds.observe(since.elapsed().as_secs_f64());
        }
    }
}
