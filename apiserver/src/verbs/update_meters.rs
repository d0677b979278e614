//! Metrics of the comparison that finds no-op updates, under upstream's name.

use std::sync::LazyLock;
use std::time::Instant;

use proto::Value;
use proto::merge::apply::{self, Compared};
use shared::metrics::{self, Histogram};

/// By what came of it.
static SECONDS: LazyLock<[Histogram; 3]> = LazyLock::new(|| {
    ["equal_objects", "unequal_objects_fast", "unequal_objects_slow"].map(|path| {
        metrics::histogram(
            "apiserver_request_timestamp_comparison_time",
            "[ALPHA] Seconds spent comparing an object with its stored state, to skip no-op updates.",
            &["code_path"],
            vec![0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0],
        )
        .with_label_values(&[path])
    })
});

/// A write that changes nothing but the times of its owners changes nothing.
pub(super) fn keep_timestamps(new: &mut Value, old: &Value) {
    let since = Instant::now();
    let seconds = match apply::keep_timestamps(new, old) {
        Compared::Equal => &SECONDS[0],
        Compared::Different => &SECONDS[1],
        Compared::OthersOwn => &SECONDS[2],
    };
    seconds.observe(since.elapsed().as_secs_f64());
}
