//! Metrics of validation and conversion of custom resources, under upstream's names.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use prometheus::Histogram;
use proto::Value;
use proto::resources::Resource;
use shared::metrics;

use crate::machinery::tree;

/// Seconds of a call.
const CALL: [f64; 15] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// Finding out what an update of a custom resource changes.
static RATCHETED: LazyLock<Histogram> = LazyLock::new(|| {
    let help = "[ALPHA] Seconds spent comparing old and new objects for validation ratcheting of custom resources.";
    let buckets = metrics::exponential(1e-5, 4.0, 10);
    metrics::histogram("apiextensions_apiserver_validation_ratcheting_seconds", help, &[], buckets)
        .with_label_values::<&str>(&[])
});

/// Shows what is seldom counted.
pub fn publish() {
    LazyLock::force(&RATCHETED);
}

thread_local! {
    /// Time that went into comparing the object this thread judges.
    static COMPARING: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Compares a part of an object with what it was, or finds what it was.
pub(super) fn timed<T>(compare: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let found = compare();
    COMPARING.set(COMPARING.get() + since.elapsed());
    found
}

/// Judges an update of an object, of which comparing it with what it was is counted.
pub(super) fn ratcheted<T>(judge: impl FnOnce() -> T) -> T {
    COMPARING.set(Duration::ZERO);
    let found = judge();
    RATCHETED.observe(COMPARING.get().as_secs_f64());
    found
}

/// A conversion webhook was asked; `failure` says what was wrong with it, and nothing when all was well.
pub(super) fn called(failure: &str, since: Instant) {
    let labels = [if failure.is_empty() { "success" } else { "failure" }, failure];
    metrics::counter(
        "apiserver_conversion_webhook_request_total",
        "[ALPHA] Number of conversion webhook requests, by result and failure type.",
        &["result", "failure_type"],
    )
    .with_label_values(&labels)
    .inc();
    metrics::histogram(
        "apiserver_conversion_webhook_duration_seconds",
        "[ALPHA] Conversion webhook request duration in seconds, by result and failure type.",
        &["result", "failure_type"],
        CALL.to_vec(),
    )
    .with_label_values(&labels)
    .observe(since.elapsed().as_secs_f64());
}

/// Objects were to be brought from one version of a definition to another by its webhook.
pub(super) fn converted(row: &Resource, from: &Value, since: Instant, succeeded: bool) {
    let from = tree::text(from, "/apiVersion").rsplit('/').next().unwrap_or_default().to_owned();
    let name = format!("{}.{}", row.plural, row.group);
    metrics::histogram(
        "apiserver_crd_conversion_webhook_duration_seconds",
        "[ALPHA] Duration of conversions of custom resources in seconds, by definition, versions and success.",
        &["crd_name", "from_version", "to_version", "succeeded"],
        metrics::exponential(0.001, 2.0, 15),
    )
    .with_label_values(&[name.as_str(), &from, &row.version, if succeeded { "true" } else { "false" }])
    .observe(since.elapsed().as_secs_f64());
}

/// Counts a regeneration of the OpenAPI document of a definition, by reason: `add`, `update` or `remove`.
pub(crate) fn regenerated(definition: &Value, reason: &str) {
    let (name, group) = (tree::name(definition), tree::text(definition, "/spec/group"));
    metrics::counter(
        "apiextensions_openapi_v2_regeneration_count",
        "[ALPHA] Number of OpenAPI v2 regenerations, by definition and reason.",
        &["crd", "reason"],
    )
    .with_label_values(&[name, reason])
    .inc();
    let documents = metrics::counter(
        "apiextensions_openapi_v3_regeneration_count",
        "[ALPHA] Number of OpenAPI v3 regenerations, by group, version, definition and reason.",
        &["group", "version", "crd", "reason"],
    );
    for version in tree::list(definition, "/spec/versions").iter().filter(|v| tree::flag(v, "/served")) {
        documents.with_label_values(&[group, tree::text(version, "/name"), name, reason]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratcheting_comparisons_are_measured() {
        let sum = || RATCHETED.get_sample_sum();
        let before = (RATCHETED.get_sample_count(), sum());
        let pause = Duration::from_millis(2);
        ratcheted(|| std::thread::sleep(pause));
        assert!(sum() - before.1 < pause.as_secs_f64());
        ratcheted(|| timed(|| std::thread::sleep(pause)));
        assert!(sum() - before.1 >= pause.as_secs_f64() && RATCHETED.get_sample_count() >= before.0 + 2);
    }
}
