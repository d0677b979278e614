//! Metrics of the access filters, under upstream's names.

use std::time::Instant;

use prometheus::{Counter, CounterVec, Histogram, HistogramVec};
use shared::authn::{AuthnError, Identity};
use shared::authz::Decision;
use shared::metrics;

use crate::authz::AuthorizerResult;

/// A count and a duration of one outcome: looked up once.
struct OutcomeMetrics {
    count: Counter,
    seconds: Histogram,
}

impl OutcomeMetrics {
    fn new(counts: &CounterVec, seconds: &HistogramVec, result: &str) -> Self {
        Self { count: counts.with_label_values(&[result]), seconds: seconds.with_label_values(&[result]) }
    }

    fn observe(&self, since: Instant) {
        self.count.inc();
        self.seconds.observe(since.elapsed().as_secs_f64());
    }
}

/// Seconds requests spend in the steps of the chain.
pub(super) struct Filters {
    pub(super) authentication: Histogram,
    pub(super) impersonation: Histogram,
    pub(super) fairness: Histogram,
    pub(super) authorization: Histogram,
}

impl Filters {
    fn new() -> Self {
        let all = metrics::histogram(
            "apiserver_request_filter_duration_seconds",
            "[ALPHA] Request filter latency distribution in seconds, by filter.",
            &["filter"],
            vec![0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0],
        );
        let of = |filter: &str| all.with_label_values(&[filter]);
        Self {
            authentication: of("authentication"),
            impersonation: of("impersonation"),
            fairness: of("priorityandfairness"),
            authorization: of("authorization"),
        }
    }
}

/// Metrics of the access filters.
pub(super) struct Counters {
    pub(super) filters: Filters,
    known: OutcomeMetrics,
    unknown: OutcomeMetrics,
    broken: OutcomeMetrics,
    users: CounterVec,
    allowed: OutcomeMetrics,
    denied: OutcomeMetrics,
    undecided: OutcomeMetrics,
    failed: OutcomeMetrics,
}

impl Counters {
    pub(super) fn new() -> Self {
        let buckets = || metrics::exponential(0.001, 2.0, 15);
        let attempts =
            metrics::counter("authentication_attempts", "[ALPHA] Counter of authenticated attempts.", &["result"]);
        let took = metrics::histogram(
            "authentication_duration_seconds",
            "[ALPHA] Authentication duration in seconds broken out by result.",
            &["result"],
            buckets(),
        );
        let asked = metrics::counter(
            "authorization_attempts_total",
            "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.",
            &["result"],
        );
        let answered = metrics::histogram(
            "authorization_duration_seconds",
            "[ALPHA] Authorization duration in seconds broken out by result.",
            &["result"],
            buckets(),
        );
        Self {
            filters: Filters::new(),
            known: OutcomeMetrics::new(&attempts, &took, "success"),
            unknown: OutcomeMetrics::new(&attempts, &took, "failure"),
            broken: OutcomeMetrics::new(&attempts, &took, "error"),
            users: metrics::counter(
                "authenticated_user_requests",
                "[ALPHA] Counter of authenticated requests broken out by username.",
                &["username"],
            ),
            allowed: OutcomeMetrics::new(&asked, &answered, "allowed"),
            denied: OutcomeMetrics::new(&asked, &answered, "denied"),
            undecided: OutcomeMetrics::new(&asked, &answered, "no-opinion"),
            failed: OutcomeMetrics::new(&asked, &answered, "error"),
        }
    }

    pub(super) fn authenticated(&self, outcome: &Result<Option<Identity>, AuthnError>, since: Instant) {
        match outcome {
            Ok(Some(identity)) => {
                self.known.observe(since);
                self.users.with_label_values(&[kind_of(&identity.user.name)]).inc();
            }
            Ok(None) => self.unknown.observe(since),
            Err(_) => self.broken.observe(since),
        }
    }

    pub(super) fn authorized(&self, verdict: &AuthorizerResult, since: Instant) {
        let outcome = match (verdict.decision, &verdict.error) {
            (Decision::Allow, _) => &self.allowed,
            (_, Some(_)) => &self.failed,
            (Decision::Deny, None) => &self.denied,
            (Decision::NoOpinion, None) => &self.undecided,
        };
        outcome.observe(since);
    }
}

/// Users are many: metrics tell but a few of them apart.
fn kind_of(user: &str) -> &str {
    match user {
        "admin" | "client" | "kube_proxy" | "kubelet" | "system:serviceaccount:kube-system:default" => user,
        name if name.contains('@') => "email_id",
        _ => "other",
    }
}
