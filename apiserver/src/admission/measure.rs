//! Upstream's metrics of admission: how long steps, plugins and webhooks took, and what webhooks came to. Answers for
//! upstream's `pkg/admission/metrics`.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proto::Value;
use shared::metrics::{self, HistogramVec, SummaryVec};

use super::Operation;

const BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const CONDITION_BUCKETS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
/// Labels of match conditions.
const LABELS: [&str; 4] = ["name", "kind", "type", "operation"];
/// Codes above this are counted as it.
const HIGHEST_CODE: u16 = 600;

fn word(rejected: bool) -> &'static str {
    if rejected { "true" } else { "false" }
}

/// A whole round: `admit` or `validate`.
pub(super) fn step(kind: &str, operation: Operation, since: Instant, rejected: bool) {
    static SECONDS: OnceLock<HistogramVec> = OnceLock::new();
    let seconds = SECONDS.get_or_init(|| {
        metrics::histogram(
            "apiserver_admission_step_admission_duration_seconds",
            "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
            &["type", "operation", "rejected"],
            BUCKETS.to_vec(),
        )
    });
    static SUMMARY: OnceLock<SummaryVec> = OnceLock::new();
    let summary = SUMMARY.get_or_init(|| {
        metrics::summary(
            "apiserver_admission_step_admission_duration_seconds_summary",
            "[ALPHA] Admission sub-step latency summary in seconds, by operation and kind of step (validate or admit).",
            &["type", "operation", "rejected"],
        )
    });
    let (labels, took) = ([kind, operation.as_str(), word(rejected)], since.elapsed().as_secs_f64());
    seconds.with_label_values(&labels).observe(took);
    summary.with_label_values(&labels).observe(took);
}

/// One plugin in a round.
pub(super) fn plugin(name: &str, kind: &str, operation: Operation, since: Instant, rejected: bool) {
    static SECONDS: OnceLock<HistogramVec> = OnceLock::new();
    let seconds = SECONDS.get_or_init(|| {
        metrics::histogram(
            "apiserver_admission_controller_admission_duration_seconds",
            "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
            &["name", "type", "operation", "rejected"],
            BUCKETS.to_vec(),
        )
    });
    seconds.with_label_values(&[name, kind, operation.as_str(), word(rejected)]).observe(since.elapsed().as_secs_f64());
}

/// One webhook: its code is that of its answer or of the failure, 0 where there is none.
pub(super) fn webhook(name: &str, kind: &str, operation: Operation, took: Duration, rejected: bool, code: u16) {
    metrics::histogram(
        "apiserver_admission_webhook_admission_duration_seconds",
        "[STABLE] Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
        &["name", "type", "operation", "rejected"],
        WEBHOOK_BUCKETS.to_vec(),
    )
    .with_label_values(&[name, kind, operation.as_str(), word(rejected)])
    .observe(took.as_secs_f64());
    let code = code.min(HIGHEST_CODE).to_string();
    metrics::counter(
        "apiserver_admission_webhook_request_total",
        "[ALPHA] Admission webhook request total, identified by name and broken out for each admission type (validating or mutating) and operation. Additional labels specify whether the request was rejected or not and an HTTP status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
        &["name", "type", "operation", "code", "rejected"],
    )
    .with_label_values(&[name, kind, operation.as_str(), &code, word(rejected)])
    .inc();
}

/// A webhook refused a request, or could not be asked.
pub(super) fn rejection(name: &str, kind: &str, operation: Operation, why: &str, code: u16) {
    let code = code.min(HIGHEST_CODE).to_string();
    metrics::counter(
        "apiserver_admission_webhook_rejection_count",
        "[ALPHA] Admission webhook rejection count, identified by name and broken out for each admission type (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
        &["name", "type", "operation", "error_type", "rejection_code"],
    )
    .with_label_values(&[name, kind, operation.as_str(), why, &code])
    .inc();
}

/// A webhook could not be asked, and that was overlooked.
pub(super) fn fail_open(name: &str, kind: &str) {
    metrics::counter(
        "apiserver_admission_webhook_fail_open_count",
        "[ALPHA] Admission webhook fail open count, identified by name and broken out for each admission type (validating or mutating).",
        &["name", "type"],
    )
    .with_label_values(&[name, kind])
    .inc();
}

/// Match conditions of a webhook or a policy were looked at; `of` is which of the two, `kind` the round.
pub(super) fn conditions<E>(
    [name, of, kind, operation]: [&str; 4],
    conditions: &[Value],
    since: Instant,
    outcome: &Result<bool, E>,
) {
    if conditions.is_empty() {
        return;
    }
    let labels = [name, of, kind, operation];
    metrics::histogram(
        "apiserver_admission_match_condition_evaluation_seconds",
        "[ALPHA] Admission match condition evaluation time in seconds, identified by name and broken out for each kind containing matchConditions (webhook or policy), operation and type (validating or admit).",
        &LABELS,
        CONDITION_BUCKETS.to_vec(),
    )
    .with_label_values(&labels)
    .observe(since.elapsed().as_secs_f64());
    if outcome.is_err() {
        metrics::counter(
            "apiserver_admission_match_condition_evaluation_errors_total",
            "[ALPHA] Admission match condition evaluation errors count, identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
            &LABELS,
        )
        .with_label_values(&labels)
        .inc();
    }
}

/// Somebody was not asked, for his match conditions: whose they are, of which kind, in which round.
pub(super) fn exclusion([name, of, kind, operation]: [&str; 4]) {
    metrics::counter(
        "apiserver_admission_match_condition_exclusions_total",
        "[ALPHA] Admission match condition evaluation exclusions count, identified by name of resource containing the match condition and broken out for each kind containing matchConditions (webhook or policy), operation and admission type (validate or admit).",
        &LABELS,
    )
    .with_label_values(&[name, of, kind, operation])
    .inc();
}
