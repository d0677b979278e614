//! Evaluation of one policy on a request with one parameter. Pure but for the authorizer. Answers for upstream's
//! `pkg/admission/plugin/policy/validating` (`validator.Validate`).

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use shared::cel;

use super::super::request_authorizer::RequestAuthorizer;
use super::super::{NOTHING, measure};
use super::error::PolicyEvaluationError;
use crate::expressions::{self, Dialect, EvaluationError, ResultType, Scope};
use crate::machinery::tree;

/// Variables of a request that expressions see.
pub(super) struct EvaluationInput {
    pub(super) request: Value,
    pub(super) object: Value,
    pub(super) old: Value,
    pub(super) namespace: Option<Arc<Value>>,
    pub(super) asker: RequestAuthorizer,
}

/// Failed validation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FailedValidation {
    pub(super) message: String,
    pub(super) reason: String,
    /// Kind of failure in metrics.
    pub(super) error_type: &'static str,
    /// The place of the validation in its policy.
    pub(super) at: usize,
}

/// An annotation for the audit log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    Publish(String, String),
    /// The expression could not be evaluated, and the failure policy is `Fail`.
    Broken(PolicyEvaluationError),
}

/// Result of a policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyResult {
    pub(super) findings: Vec<FailedValidation>,
    /// Evaluation errors under the failure policy `Ignore`.
    pub(super) overlooked: Vec<PolicyEvaluationError>,
    pub(super) annotations: Vec<Annotation>,
}

/// Reports whether the failure policy is `Ignore`.
pub(super) fn fails_open(policy: &Value) -> bool {
    tree::text(policy, "/spec/failurePolicy") == "Ignore"
}

/// The values a policy's expressions are about, all but the authorisers.
fn scope<'a>(dialect: Dialect, matter: &'a EvaluationInput, parameter: &'a Value) -> Scope<'a> {
    let namespace = matter.namespace.as_deref().unwrap_or(NOTHING);
    let values = [
        ("request", &matter.request),
        ("object", &matter.object),
        ("oldObject", &matter.old),
        ("params", parameter),
        ("namespaceObject", namespace),
    ];
    Scope::new(dialect, &values)
}

/// Builds the scope of a policy's expressions, with its variables and, where expressions may use it, the authorizer.
pub(super) fn stage<'a>(
    policy: &Value,
    dialect: Dialect,
    matter: &'a EvaluationInput,
    parameter: &'a Value,
    asks: bool,
) -> Scope<'a> {
    let mut scope = scope(dialect, matter, parameter);
    if asks {
        matter.asker.name_in(&mut scope);
    }
    scope.with_variables();
    for variable in tree::list(policy, "/spec/variables") {
        scope.define(tree::name_field(variable), tree::text(variable, "/expression"));
    }
    scope
}

/// Reports whether a policy has parameters.
pub(super) fn has_parameters(policy: &Value) -> bool {
    policy.pointer("/spec/paramKind").is_some_and(Value::is_object)
}

/// Reports whether a policy's match conditions hold. They see the request in its own version, and no namespace. An
/// error under the failure policy `Ignore` skips the policy.
pub(super) fn conditions_hold(
    policy: &Value,
    matter: &EvaluationInput,
    parameter: &Value,
    kind: &str,
) -> Result<bool, EvaluationError> {
    let (conditions, since) = (tree::list(policy, "/spec/matchConditions"), Instant::now());
    if conditions.is_empty() {
        return Ok(true);
    }
    let mut request = matter.request.clone();
    request["resource"] = request["requestResource"].clone();
    let mut scope = scope(dialect_of(policy), matter, parameter);
    scope.set("request", cel::Value::of(&request));
    scope.set("namespaceObject", cel::Value::Null);
    matter.asker.name_in(&mut scope);
    let held = expressions::conditions_hold(conditions, &mut scope);
    let operation = tree::text(&matter.request, "/operation");
    measure::conditions([tree::name(policy), "policy", kind, operation], conditions, since, &held);
    match held {
        Err(_) if fails_open(policy) => Ok(false),
        answer => answer,
    }
}

fn dialect_of(policy: &Value) -> Dialect {
    Dialect::Policy { params: has_parameters(policy) }
}

/// Result of a validation expression.
type ValidationResult = Result<bool, EvaluationError>;

/// The judgement of a policy.
pub(super) fn evaluate(policy: &Value, matter: &EvaluationInput, parameter: &Value) -> PolicyResult {
    let open = fails_open(policy);
    match conditions_hold(policy, matter, parameter, "validate") {
        Ok(true) => {}
        Ok(false) => return PolicyResult::default(),
        Err(why) => return PolicyResult { findings: vec![broken(&why.into(), 0)], ..PolicyResult::default() },
    }
    let validations = tree::list(policy, "/spec/validations");
    let mut scope = stage(policy, dialect_of(policy), matter, parameter, true);
    let mut verdicts: Vec<ValidationResult> = Vec::with_capacity(validations.len());
    for validation in validations {
        verdicts.push(scope.evaluate_bool(tree::text(validation, "/expression")));
        if scope.is_exhausted() {
            return exhausted(open);
        }
    }
    let messages = messages(policy, matter, parameter, &verdicts, scope.remaining_budget());
    let mut judgement = PolicyResult::default();
    for (at, (validation, verdict)) in validations.iter().zip(verdicts).enumerate() {
        let why = match (verdict, &messages) {
            (Err(why), _) => why.into(),
            (Ok(_), Err(why)) => PolicyEvaluationError::Message(why.clone()),
            (Ok(true), Ok(_)) => continue,
            (Ok(false), Ok(computed)) => {
                let reason = Some(tree::text(validation, "/reason")).filter(|r| !r.is_empty()).unwrap_or("Invalid");
                let message = message(validation, computed[at].as_deref());
                judgement.findings.push(FailedValidation {
                    message,
                    reason: reason.to_owned(),
                    error_type: PolicyEvaluationError::INVALID,
                    at,
                });
                continue;
            }
        };
        match open {
            true => judgement.overlooked.push(why),
            false => judgement.findings.push(broken(&why, at)),
        }
    }
    let annotations = tree::list(policy, "/spec/auditAnnotations");
    if annotations.is_empty() {
        return judgement;
    }
    // Notes have means of their own.
    let mut scope = stage(policy, dialect_of(policy), matter, parameter, false);
    for annotation in annotations {
        let text = scope.text(tree::text(annotation, "/valueExpression"), ResultType::TextOrNull);
        if scope.is_exhausted() {
            return exhausted(open);
        }
        match text {
            Ok(Some(value)) if !value.trim().is_empty() => {
                let key = tree::text(annotation, "/key").to_owned();
                judgement.annotations.push(Annotation::Publish(key, value.trim().to_owned()));
            }
            Ok(_) => {}
            Err(_) if open => {}
            Err(why) => judgement.annotations.push(Annotation::Broken(why.into())),
        }
    }
    judgement
}

fn broken(why: &PolicyEvaluationError, at: usize) -> FailedValidation {
    FailedValidation { message: why.to_string(), reason: "Invalid".to_owned(), error_type: why.error_type(), at }
}

/// The texts that validations compute, from what they left to spend.
///
/// Upstream computes those of validations that hold, too. That is to be noticed only where all of them can cost more
/// than is left, and only then it is done.
fn messages(
    policy: &Value,
    matter: &EvaluationInput,
    parameter: &Value,
    verdicts: &[ValidationResult],
    left: u64,
) -> Result<Vec<Option<String>>, EvaluationError> {
    let expressions: Vec<&str> =
        tree::list(policy, "/spec/validations").iter().map(|v| tree::text(v, "/messageExpression")).collect();
    let steps = tree::list(policy, "/spec/variables").len() + expressions.iter().filter(|e| !e.is_empty()).count();
    let may_exhaust = steps as u64 * cel::PER_CALL_LIMIT > left;
    let asked = |at: usize| !expressions[at].is_empty() && (may_exhaust || verdicts[at] == Ok(false));
    let mut computed = vec![None; expressions.len()];
    if !(0..expressions.len()).any(asked) {
        return Ok(computed);
    }
    let mut scope = stage(policy, dialect_of(policy), matter, parameter, false);
    scope.spend_from(left);
    for at in (0..expressions.len()).filter(|at| asked(*at)) {
        computed[at] = scope.text(expressions[at], ResultType::Text).ok().flatten();
        if scope.is_exhausted() {
            return Err(EvaluationError::Exhausted);
        }
    }
    Ok(computed)
}

/// The judgement where the means to find one were spent: nothing of what was found counts.
fn exhausted(open: bool) -> PolicyResult {
    let why = PolicyEvaluationError::from(EvaluationError::Exhausted);
    match open {
        true => PolicyResult { overlooked: vec![why], ..PolicyResult::default() },
        false => PolicyResult { findings: vec![broken(&why, 0)], ..PolicyResult::default() },
    }
}

/// The text a validation gives for its failure.
fn message(validation: &Value, computed: Option<&str>) -> String {
    let usable = |text: &&str| !text.is_empty() && !text.contains('\n') && text.len() <= cel::MAX_MESSAGE;
    match (computed.map(str::trim).filter(usable), tree::text(validation, "/message").trim()) {
        (Some(text), _) => text.to_owned(),
        (None, "") => format!("failed expression: {}", tree::text(validation, "/expression").trim()),
        (None, text) => text.to_owned(),
    }
}
