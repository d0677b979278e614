//! Metrics of answers that pods share, under the names of upstream's opportunistic batching. Answers for upstream's
//! `OpportunisticBatch`.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{Counter, CounterVec, Histogram, HistogramVec};
use shared::metrics::{counter, exponential, histogram};

static BATCH_ATTEMPTS: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_batch_attempts_total",
        "Number of decisions by whether answers of an equal pod were used.",
        &["profile", "result"],
    )
});

static BATCH_FLUSHED: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_batch_cache_flushed_total",
        "Number of times that remembered answers could not be used, by reason.",
        &["profile", "reason"],
    )
});

static NODE_HINT_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_get_node_hint_duration_seconds",
        "Latency of looking for remembered answers.",
        &["hinted", "profile"],
        exponential(0.00001, 2.0, 12),
    )
});

static STORE_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_store_schedule_results_duration_seconds",
        "Latency of remembering answers.",
        &["profile"],
        exponential(0.00001, 2.0, 12),
    )
});

/// Reason why remembered answers cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// A plugin has something to say that only this pod can be told.
    NotBatchable,
    /// The answers are not this pod's.
    Incompatible,
}

/// Use of remembered answers in one profile (upstream's opportunistic batching).
///
/// HOT: once per decision, so the series are looked up once.
#[derive(Debug)]
pub struct Batch {
    used: Counter,
    unused: Counter,
    flushed: [Counter; 2],
    hint: Histogram,
    no_hint: Histogram,
    stored: Histogram,
}

impl Batch {
    /// The series of a profile.
    pub fn of(profile: &str) -> Self {
        let attempts = |result: &str| BATCH_ATTEMPTS.with_label_values(&[profile, result]);
        let flushed = |reason: &str| BATCH_FLUSHED.with_label_values(&[profile, reason]);
        let hint = |hinted: &str| NODE_HINT_SECONDS.with_label_values(&[hinted, profile]);
        Self {
            used: attempts("hint_used"),
            unused: attempts("no_hint"),
            flushed: [flushed("pod_not_batchable"), flushed("pod_incompatible")],
            hint: hint("hint"),
            no_hint: hint("no_hint"),
            stored: STORE_SECONDS.with_label_values(&[profile]),
        }
    }

    /// Notes that answers were there, and how long it took to see so.
    pub fn used(&self, took: Duration) {
        self.used.inc();
        self.hint.observe(took.as_secs_f64());
    }

    /// Notes that there were none.
    pub fn unused(&self, took: Duration, why: Option<Flushed>) {
        self.unused.inc();
        self.no_hint.observe(took.as_secs_f64());
        if let Some(why) = why {
            self.flushed[usize::from(why == Flushed::Incompatible)].inc();
        }
    }

    /// Notes how long it took to remember answers.
    pub fn stored(&self, took: Duration) {
        self.stored.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Point, volume_stage_failed};
    use super::*;

    /// Names and labels as upstream registers them when batching is on.
    #[test]
    fn batching_and_stages_have_upstreams_series() {
        let batch = Batch::of("test-profile");
        batch.used(Duration::ZERO);
        batch.unused(Duration::ZERO, Some(Flushed::NotBatchable));
        batch.stored(Duration::ZERO);
        volume_stage_failed("predicate");
        let text = shared::metrics::gather();
        for series in [
            r#"scheduler_batch_attempts_total{profile="test-profile",result="hint_used"} 1"#,
            r#"scheduler_batch_attempts_total{profile="test-profile",result="no_hint"} 1"#,
            r#"scheduler_batch_cache_flushed_total{profile="test-profile",reason="pod_not_batchable"} 1"#,
            r#"scheduler_get_node_hint_duration_seconds_count{hinted="no_hint",profile="test-profile"} 1"#,
            r#"scheduler_store_schedule_results_duration_seconds_count{profile="test-profile"} 1"#,
            r#"scheduler_volume_scheduling_stage_error_total{operation="predicate"}"#,
        ] {
            assert!(text.contains(series), "{series}");
        }
        let points = [Point::PreBindPreFlight, Point::Unreserve, Point::Sign].map(Point::name);
        assert_eq!(points, ["PreBindPreFlight", "Unreserve", "Sign"]);
    }
}
