//! ValidatingAdmissionPolicy: rules written as expressions, bound to requests and parameters. Judged in process.

mod evaluate;
mod params;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::{Value, json};
use shared::metrics;
use shared::status::Status;

use super::asker::Asker;
use super::matching::{self, Scene, Shown};
use super::{Attributes, NOTHING, Plugin};
use crate::access::tree;
use crate::api::Reader;
use crate::authz::Authorization;
use crate::registry::Rows;
use evaluate::{Annotation, Finding, Judgement, Matter};

const GROUP: &str = "admissionregistration.k8s.io";
/// Longest value of an audit annotation, in bytes.
const LONGEST_VALUE: usize = 10 * 1024;
/// Requests that are questions and change nothing: policies are not asked about them.
const QUESTIONS: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// The plugin.
pub struct ValidatingPolicies {
    reader: Arc<dyn Reader>,
    rows: Rows,
    authorization: Arc<Authorization>,
}

/// A refusal: the policy, the binding when it is to blame, the text and the reason.
struct Refusal {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: String,
}

/// What all policies came to.
#[derive(Default)]
struct Verdict {
    refusals: Vec<Refusal>,
    warnings: Vec<String>,
    /// Failures to be noted in the audit log.
    failures: Vec<Value>,
    /// Annotations the policies ask for: distinct values by key.
    annotations: BTreeMap<String, Vec<String>>,
}

#[async_trait]
impl Plugin for ValidatingPolicies {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        if a.resource.group == GROUP || QUESTIONS.iter().any(|(group, plural)| a.of(group, plural)) {
            return Ok(());
        }
        let mut bindings = self.reader.list(GROUP, "validatingadmissionpolicybindings", None);
        if bindings.is_empty() {
            return Ok(());
        }
        let order = |b: &Value| (tree::text(b, "/spec/policyName").to_owned(), tree::name(b).to_owned());
        bindings.sort_by_cached_key(|b| order(b));
        let verdict = self.judge(a, &bindings)?;
        a.warnings.extend(verdict.warnings);
        if !verdict.failures.is_empty() {
            let text = Value::Array(verdict.failures).to_string();
            a.annotations.insert("validation.policy.admission.k8s.io/validation_failure".to_owned(), text);
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
    pub fn new(reader: Arc<dyn Reader>, rows: Rows, authorization: Arc<Authorization>) -> Self {
        Self { reader, rows, authorization }
    }

    fn judge(&self, a: &Attributes<'_>, bindings: &[Arc<Value>]) -> Result<Verdict, Status> {
        let scene = Scene::of(a, self.reader.as_ref(), &self.rows);
        let mut verdict = Verdict::default();
        for binding in bindings {
            let name = tree::text(binding, "/spec/policyName");
            let Some(policy) = self.reader.get(GROUP, "validatingadmissionpolicies", "", name) else { continue };
            let Some(shown) = matched(&scene, policy.pointer("/spec/matchConstraints"))? else { continue };
            if let Some(more) = binding.pointer("/spec/matchResources").filter(|m| m.is_object())
                && matched(&scene, Some(more))?.is_none()
            {
                continue;
            }
            let parameters = match params::find(self.reader.as_ref(), &self.rows, a, &policy, binding) {
                Ok(parameters) => parameters,
                Err(why) if evaluate::fails_open(&policy) => {
                    tracing::warn!(policy = name, why, "a policy could not be configured, failing open");
                    continue;
                }
                Err(why) => {
                    verdict.refusals.push(Refusal {
                        policy: name.to_owned(),
                        binding: Some(tree::name(binding).to_owned()),
                        message: format!("failed to configure binding: {why}"),
                        reason: "Invalid".to_owned(),
                    });
                    continue;
                }
            };
            let matter = self.matter(a, &scene, &shown);
            for parameter in &parameters {
                let since = Instant::now();
                let judgement = evaluate::evaluate(&policy, &matter, parameter);
                verdict.take(&policy, binding, judgement, since);
            }
        }
        Ok(verdict)
    }

    fn matter(&self, a: &Attributes<'_>, scene: &Scene<'_>, shown: &Shown) -> Matter {
        let mut request = matching::request(shown, a);
        let [object, old] = ["object", "oldObject"].map(|field| request[field].take());
        if let Some(fields) = request.as_object_mut() {
            fields.remove("object");
            fields.remove("oldObject");
        }
        let asker = Asker::of(&self.authorization, a);
        // A namespace is not in itself.
        let namespace = if a.of("", "namespaces") { None } else { scene.namespace.clone() };
        Matter { request, object, old, namespace, asker }
    }
}

impl Verdict {
    fn take(&mut self, policy: &Value, binding: &Value, judgement: Judgement, since: Instant) {
        let (name, bound) = (tree::name(policy), tree::name(binding));
        let actions = tree::strings(binding, "/spec/validationActions");
        if judgement.findings.is_empty() && judgement.asked {
            measure(name, bound, "allow", "no_error", since);
        }
        for Finding { message, reason, at, broken } in judgement.findings {
            for action in &actions {
                let fault = if broken { "invalid_error" } else { "no_error" };
                measure(name, bound, &action.to_lowercase(), fault, since);
                match action.as_str() {
                    "Deny" => self.refusals.push(Refusal {
                        policy: name.to_owned(),
                        binding: Some(bound.to_owned()),
                        message: message.clone(),
                        reason: reason.clone(),
                    }),
                    "Warn" => self.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{bound}': {message}"
                    )),
                    _ => self.failures.push(json!({"message": message, "policy": name, "binding": bound,
                        "expressionIndex": at, "validationActions": actions})),
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
                Annotation::Broken(message) => self.refusals.push(Refusal {
                    policy: name.to_owned(),
                    binding: Some(bound.to_owned()),
                    message,
                    reason: "Invalid".to_owned(),
                }),
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
fn measure(policy: &str, binding: &str, action: &str, fault: &str, since: Instant) {
    let labels = ["policy", "policy_binding", "error_type", "enforcement_action"];
    let values = [policy, binding, fault, action];
    metrics::counter(
        "apiserver_validating_admission_policy_check_total",
        "Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.",
        &labels,
    )
    .with_label_values(&values)
    .inc();
    metrics::histogram(
        "apiserver_validating_admission_policy_check_duration_seconds",
        "Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding and enforcement action taken.",
        &labels,
        vec![0.000_000_5, 0.001, 0.01, 0.1, 1.0],
    )
    .with_label_values(&values)
    .observe(since.elapsed().as_secs_f64());
}

/// Whether match constraints cover the request, and in which version.
fn matched(scene: &Scene<'_>, constraints: Option<&Value>) -> Result<Option<Shown>, Status> {
    let constraints = constraints.unwrap_or(NOTHING);
    let policy = tree::text(constraints, "/matchPolicy");
    if !scene.selected(constraints)?
        || scene.by_rules(tree::list(constraints, "/excludeResourceRules"), policy).is_some()
    {
        return Ok(None);
    }
    let rules = tree::list(constraints, "/resourceRules");
    if rules.is_empty() {
        // A binding that only selects leaves the choice of resources to its policy.
        return Ok(Some(scene.own()));
    }
    Ok(scene.by_rules(rules, policy))
}

impl Refusal {
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

#[cfg(test)]
mod tests;
