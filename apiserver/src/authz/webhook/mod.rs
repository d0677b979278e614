//! The Webhook authoriser: asks a server through SubjectAccessReview. Answers are remembered for a while, failures that
//! may pass are tried again, and what a failure means in the end is configured. Answers for upstream's
//! `plugin/pkg/authorizer/webhook` (`WebhookAuthorizer`).

mod review;

use std::collections::HashMap;

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus::{CounterVec, HistogramVec};
use serde_json::Value;
use sha2::{Digest, Sha256};
use shared::authz::{Attributes, Decision};
use shared::client::{Remote, RemoteError, Reply};
use shared::metrics;
use shared::status::field::aggregate;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::expressions::{Dialect, EvaluationError, Scope};
use crate::machinery::tree;

/// Answers remembered.
const CACHE: usize = 8192;
/// Requests with more text than this are not remembered.
const LONGEST_KEY: usize = 10_000;
/// Tries, and the pause after the first.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Configuration of one webhook.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// For metrics.
    pub name: String,
    /// `v1` or `v1beta1`.
    pub version: String,
    /// Lifetime of a cached permission; zero: not cached.
    pub authorized_ttl: Duration,
    /// Lifetime of any other cached decision.
    pub unauthorized_ttl: Duration,
    /// For one try.
    pub timeout: Duration,
    /// Decision on failure: Deny or NoOpinion.
    pub on_error: Decision,
    /// Expressions that must all be true, else the webhook is not asked.
    pub conditions: Vec<String>,
}

type WebhookDecision = (Decision, String);

#[derive(Clone)]
struct Counters {
    evaluations: CounterVec,
    duration: HistogramVec,
    fail_open: CounterVec,
    condition_errors: CounterVec,
    condition_exclusions: CounterVec,
    condition_duration: HistogramVec,
}

impl Counters {
    fn new() -> Self {
        let by_result = ["name", "result"];
        let by_type = ["name", "type"];
        Self {
            evaluations: metrics::counter(
                "apiserver_authorization_webhook_evaluations_total",
                "[ALPHA] Round-trips to authorization webhooks.",
                &by_result,
            ),
            duration: metrics::histogram(
                "apiserver_authorization_webhook_duration_seconds",
                "[ALPHA] Request latency in seconds.",
                &by_result,
                metrics::default_buckets(),
            ),
            fail_open: metrics::counter(
                "apiserver_authorization_webhook_evaluations_fail_open_total",
                "[ALPHA] NoOpinion results due to webhook timeout or error.",
                &by_result,
            ),
            condition_errors: metrics::counter(
                "apiserver_authorization_match_condition_evaluation_errors_total",
                "[ALPHA] Total number of errors when an authorization webhook encounters a match condition error split by authorizer type and name.",
                &by_type,
            ),
            condition_exclusions: metrics::counter(
                "apiserver_authorization_match_condition_exclusions_total",
                "[ALPHA] Total number of exclusions when an authorization webhook is skipped because match conditions exclude it.",
                &by_type,
            ),
            condition_duration: metrics::histogram(
                "apiserver_authorization_match_condition_evaluation_seconds",
                "[ALPHA] Authorization match condition evaluation time in seconds, split by authorizer type and name.",
                &by_type,
                vec![0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
            ),
        }
    }
}

/// The authoriser.
pub struct Webhook {
    remote: Remote,
    options: Options,
    known: Mutex<HashMap<[u8; 32], (WebhookDecision, Instant)>>,
    counters: Counters,
}

/// Error of a webhook that is to decide a request.
#[derive(Debug, thiserror::Error)]
enum WebhookFailure {
    /// Match conditions that cannot be evaluated.
    #[error("{}", aggregate(&.0.iter().map(|why| format!("cel evaluation error: {why}")).collect::<Vec<_>>()))]
    Conditions(Vec<EvaluationError>),
    /// No answer.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A refusal to answer.
    #[error("{text}")]
    Refused {
        /// Text of client-go for the answer.
        text: String,
        /// Another try may help.
        passing: bool,
    },
    /// An answer that is no JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// An answer without a status. Such a one decides nothing; it must not be taken for one that does.
    #[error("webhook subject access review returned no status")]
    NoStatus,
}

impl WebhookFailure {
    /// Reports whether another try may help.
    fn may_pass(&self) -> bool {
        match self {
            Self::Remote(RemoteError::Connection { reset, .. }) => *reset,
            Self::Refused { passing, .. } => *passing,
            _ => false,
        }
    }
}

impl Webhook {
    /// Over a server.
    pub fn new(remote: Remote, options: Options) -> Self {
        Self { remote, options, known: Mutex::default(), counters: Counters::new() }
    }

    /// The answer, and what went wrong.
    pub async fn decide(&self, request: &Attributes) -> (WebhookDecision, Option<String>) {
        match self.concerned(request) {
            Ok(true) => {}
            Ok(false) => return ((Decision::NoOpinion, String::new()), None),
            Err(why) => return (self.failed(), Some(why.to_string())),
        }
        let spec = review::spec(request);
        let text = spec.to_string();
        let key: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        if let Some((answer, until)) = self.known.lock().get(&key)
            && *until > Instant::now()
        {
            return (answer.clone(), None);
        }
        let body = Bytes::from(review::review(spec, &self.options.version).to_string());
        let status = match self.post_review(body).await {
            Ok(status) => status,
            Err(why) => {
                tracing::error!(webhook = self.options.name, error = %why, "Failed to make webhook authorizer request");
                return (self.failed(), Some(why.to_string()));
            }
        };
        let reason = tree::text(&status, "/reason").to_owned();
        let (allowed, denied) = (tree::flag(&status, "/allowed"), tree::flag(&status, "/denied"));
        if allowed && denied {
            let why = "webhook subject access review returned both allow and deny response";
            return ((Decision::Deny, reason), Some(why.to_owned()));
        }
        let decision = match (allowed, denied) {
            (true, _) => Decision::Allow,
            (_, true) => Decision::Deny,
            _ => Decision::NoOpinion,
        };
        let ttl = if allowed { self.options.authorized_ttl } else { self.options.unauthorized_ttl };
        if !ttl.is_zero() && text.len() <= LONGEST_KEY {
            self.remember(key, (decision, reason.clone()), ttl);
        }
        ((decision, reason), None)
    }

    fn failed(&self) -> WebhookDecision {
        (self.options.on_error, String::new())
    }

    /// Reports whether the match conditions select this request. One that is false wins over one that fails.
    fn concerned(&self, request: &Attributes) -> Result<bool, WebhookFailure> {
        if self.options.conditions.is_empty() {
            return Ok(true);
        }
        let labels = [self.options.name.as_str(), "Webhook"];
        let started = Instant::now();
        let seen = review::for_conditions(request);
        let mut scope = Scope::new(Dialect::Review, &[("request", &seen)]);
        let mut errors = Vec::new();
        let mut wanted = true;
        for expression in &self.options.conditions {
            match scope.evaluate_bool(expression) {
                Ok(true) => {}
                Ok(false) => {
                    wanted = false;
                    break;
                }
                Err(why) => errors.push(why),
            }
        }
        self.counters.condition_duration.with_label_values(&labels).observe(started.elapsed().as_secs_f64());
        if !wanted {
            self.counters.condition_exclusions.with_label_values(&labels).inc();
            return Ok(false);
        }
        if errors.is_empty() {
            return Ok(true);
        }
        self.counters.condition_errors.with_label_values(&labels).inc();
        Err(WebhookFailure::Conditions(errors))
    }

    /// The status of the answered review.
    async fn post_review(&self, body: Bytes) -> Result<Value, WebhookFailure> {
        let mut backoff = Backoff::of_webhook(PAUSE);
        let mut left = TRIES;
        loop {
            left -= 1;
            let started = Instant::now();
            let outcome = self.ask_once(body.clone()).await;
            let result = match &outcome {
                Ok(_) => "success",
                Err(WebhookFailure::Remote(RemoteError::Deadline(_))) => "timeout",
                Err(_) => "error",
            };
            let labels = [self.options.name.as_str(), result];
            if left > 0 && outcome.as_ref().is_err_and(WebhookFailure::may_pass) {
                backoff.wait().await;
                continue;
            }
            self.counters.evaluations.with_label_values(&labels).inc();
            self.counters.duration.with_label_values(&labels).observe(started.elapsed().as_secs_f64());
            if outcome.is_err() && self.options.on_error == Decision::NoOpinion {
                self.counters.fail_open.with_label_values(&labels).inc();
            }
            return outcome;
        }
    }

    async fn ask_once(&self, body: Bytes) -> Result<Value, WebhookFailure> {
        status_of(&self.remote.post(body, self.options.timeout).await?)
    }

    fn remember(&self, key: [u8; 32], answer: WebhookDecision, ttl: Duration) {
        let now = Instant::now();
        let mut known = self.known.lock();
        if known.len() >= CACHE {
            known.retain(|_, (_, until)| *until > now);
        }
        if known.len() >= CACHE
            && let Some(oldest) = known.iter().min_by_key(|(_, (_, until))| *until).map(|(k, _)| *k)
        {
            known.remove(&oldest);
        }
        known.insert(key, (answer, now + ttl));
    }
}

fn status_of(reply: &Reply) -> Result<Value, WebhookFailure> {
    if !reply.is_success() {
        return Err(WebhookFailure::Refused { text: reply.failure(), passing: reply.may_pass() });
    }
    let mut review: Value = serde_json::from_slice(&reply.body)?;
    match review.get_mut("status").map(Value::take) {
        Some(status @ Value::Object(_)) => Ok(status),
        _ => Err(WebhookFailure::NoStatus),
    }
}

#[cfg(test)]
mod tests;
