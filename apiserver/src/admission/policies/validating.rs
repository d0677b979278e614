//! ValidatingAdmissionPolicy: policies that refuse, warn or note. Answers for upstream's
//! `pkg/admission/plugin/policy/validating` (`dispatcher.Dispatch`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use shared::metrics;
use shared::status::Status;

use super::super::{Attributes, Plugin};
use super::evaluate::{self, Annotation, FailedValidation, PolicyResult};
use super::{Bound, Policies, PolicyError, VALIDATING, WebhookDeps};
use crate::machinery::tree;

/// Longest value of an audit annotation, in bytes.
const LONGEST_VALUE: usize = 10 * 1024;

/// The plugin.
pub(crate) struct ValidatingPolicies(Policies);

/// A refusal: the policy, the binding when it is to blame, the text and the reason.
struct PolicyRefusal {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: String,
}

/// A failure as the audit log has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditedFailure {
    message: String,
    policy: String,
    binding: String,
    expression_index: usize,
    validation_actions: Vec<String>,
}

/// Result of all policies.
#[derive(Default)]
struct PoliciesResult {
    refusals: Vec<PolicyRefusal>,
    warnings: Vec<String>,
    /// Failures to be noted in the audit log.
    failures: Vec<AuditedFailure>,
    /// Annotations the policies ask for: distinct values by key.
    annotations: BTreeMap<String, Vec<String>>,
}

#[async_trait]
impl Plugin for ValidatingPolicies {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let (bound, namespace) = self.0.bound(a).await?;
        if bound.is_empty() {
            return Ok(());
        }
        let verdict = self.evaluate_policies(a, &bound, namespace.as_ref()).await;
        a.warnings.extend(verdict.warnings);
        // Annotations are not overwritten: one failure is noted.
        if let Some(first) = verdict.failures.first() {
            let key = "validation.policy.admission.k8s.io/validation_failure".to_owned();
            a.annotations.entry(key).or_insert_with(|| serde_json::to_string(&[first]).unwrap_or_default());
        }
        for (key, values) in verdict.annotations {
            a.annotations.insert(key, values.join(", "));
        }
        match verdict.refusals.first() {
            Some(refusal) => Err(refusal.status(a)),
            None => Ok(()),
        }
    }
}

impl ValidatingPolicies {
    /// Policies from the cache.
    pub(crate) fn new(means: WebhookDeps) -> Self {
        Self(Policies { means, plurals: VALIDATING })
    }

    async fn evaluate_policies(
        &self,
        a: &mut Attributes<'_>,
        all: &[Bound],
        namespace: Option<&Arc<Value>>,
    ) -> PoliciesResult {
        let mut verdict = PoliciesResult::default();
        let mut views = self.0.views();
        for bound in all {
            let Bound { policy, binding, .. } = bound;
            let name = tree::name(policy);
            let unshown = match &bound.parameters {
                Ok(parameters) if !parameters.is_empty() => views.show_version(&bound.shown, a).await.err(),
                _ => None,
            };
            let unshown =
                unshown.map(|why| PolicyError::Binding(format!("failed to convert object version: {}", why.message)));
            let parameters = match (&bound.parameters, &unshown) {
                (Ok(parameters), None) => parameters,
                (Err(why), _) | (_, Some(why)) if evaluate::fails_open(policy) => {
                    tracing::warn!(policy = name, why = why.message(), "Failed to configure policy, failing open");
                    continue;
                }
                (Err(why), _) | (_, Some(why)) => {
                    verdict.refusals.push(PolicyRefusal {
                        policy: name.to_owned(),
                        binding: why.binding(bound).map(str::to_owned),
                        message: why.message(),
                        reason: "Invalid".to_owned(),
                    });
                    continue;
                }
            };
            let matter = self.0.matter(a, &views, namespace.cloned());
            for parameter in parameters {
                let since = Instant::now();
                let judgement = evaluate::evaluate(policy, &matter, parameter);
                verdict.take(policy, binding, judgement, since);
            }
        }
        verdict
    }
}

impl PoliciesResult {
    fn take(&mut self, policy: &Value, binding: &Value, judgement: PolicyResult, since: Instant) {
        let (name, bound) = (tree::name(policy), tree::name(binding));
        let actions = tree::strings(binding, "/spec/validationActions");
        for why in &judgement.overlooked {
            measure(name, bound, "allow", why.error_type(), since);
        }
        for FailedValidation { message, reason, error_type, at } in judgement.findings {
            for action in &actions {
                measure(name, bound, &action.to_lowercase(), error_type, since);
                match action.as_str() {
                    "Deny" => self.refusals.push(PolicyRefusal {
                        policy: name.to_owned(),
                        binding: Some(bound.to_owned()),
                        message: message.clone(),
                        reason: reason.clone(),
                    }),
                    "Warn" => self.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{bound}': {message}"
                    )),
                    _ => self.failures.push(AuditedFailure {
                        message: message.clone(),
                        policy: name.to_owned(),
                        binding: bound.to_owned(),
                        expression_index: at,
                        validation_actions: actions.clone(),
                    }),
                }
            }
        }
        for annotation in judgement.annotations {
            match annotation {
                Annotation::Publish(key, value) => {
                    let values = self.annotations.entry(format!("{name}/{key}")).or_default();
                    let value = shortened(value);
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Annotation::Broken(why) => {
                    measure(name, bound, "deny", why.error_type(), since);
                    self.refusals.push(PolicyRefusal {
                        policy: name.to_owned(),
                        binding: Some(bound.to_owned()),
                        message: why.to_string(),
                        reason: "Invalid".to_owned(),
                    });
                }
            }
        }
    }
}

fn shortened(mut value: String) -> String {
    let mut end = LONGEST_VALUE.min(value.len());
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value.truncate(end);
    value
}

/// Counts a judgement and how long it took.
fn measure(policy: &str, binding: &str, action: &str, error_type: &str, since: Instant) {
    let labels = ["policy", "policy_binding", "error_type", "enforcement_action"];
    let values = [policy, binding, error_type, action];
    metrics::counter(
        "apiserver_validating_admission_policy_check_total",
        "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.",
        &labels,
    )
    .with_label_values(&values)
    .inc();
    metrics::histogram(
        "apiserver_validating_admission_policy_check_duration_seconds",
        "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.",
        &labels,
        vec![0.000_000_5, 0.001, 0.01, 0.1, 1.0],
    )
    .with_label_values(&values)
    .observe(since.elapsed().as_secs_f64());
}

impl PolicyRefusal {
    fn status(&self, a: &Attributes<'_>) -> Status {
        let who = match &self.binding {
            Some(binding) => format!("ValidatingAdmissionPolicy '{}' with binding '{binding}'", self.policy),
            None => format!("ValidatingAdmissionPolicy '{}'", self.policy),
        };
        let text = format!("{who} denied request: {}", self.message);
        let mut status = a.forbidden(&text);
        status.code = match self.reason.as_str() {
            "Unauthorized" => 401,
            "Forbidden" => 403,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        status.reason.clone_from(&self.reason);
        status.add_cause("", &text, "");
        status
    }
}
