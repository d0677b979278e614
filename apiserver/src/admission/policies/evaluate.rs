//! What a policy says about a request under one parameter. Pure but for the questions it asks the authorisers.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use shared::cel;

use super::super::asker::Asker;
use super::super::{NOTHING, measure};
use crate::access::tree;
use crate::expressions::{self, Dialect, EXHAUSTED, Scope, Wanted};

/// What is judged.
pub(super) struct Matter {
    pub(super) request: Value,
    pub(super) object: Value,
    pub(super) old: Value,
    pub(super) namespace: Option<Arc<Value>>,
    pub(super) asker: Asker,
}

/// What one validation found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) message: String,
    pub(super) reason: String,
    /// The place of the validation in its policy.
    pub(super) at: usize,
}

/// An annotation for the audit log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    Publish(String, String),
    /// It could not be evaluated, and that refuses the request.
    Broken(String),
}

/// Everything a policy says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) findings: Vec<Finding>,
    /// What could not be evaluated and does not matter.
    pub(super) overlooked: Vec<String>,
    pub(super) annotations: Vec<Annotation>,
}

/// Whether what cannot be evaluated is overlooked.
pub(super) fn fails_open(policy: &Value) -> bool {
    tree::text(policy, "/spec/failurePolicy") == "Ignore"
}

/// The values a policy's expressions are about.
pub(super) fn scope<'a>(dialect: Dialect, matter: &'a Matter, parameter: &'a Value) -> Scope<'a> {
    let mut scope = Scope::new(
        dialect,
        &[
            ("request", &matter.request),
            ("object", &matter.object),
            ("oldObject", &matter.old),
            ("params", parameter),
            ("namespaceObject", matter.namespace.as_deref().unwrap_or(NOTHING)),
        ],
    );
    matter.asker.name_in(&mut scope);
    scope
}

/// Whether a policy has parameters.
pub(super) fn has_parameters(policy: &Value) -> bool {
    policy.pointer("/spec/paramKind").is_some_and(Value::is_object)
}

/// Whether a policy's match conditions let the request come before it. One that does not care about failures is not
/// asked when they cannot be evaluated.
pub(super) fn conditions_hold(
    policy: &Value,
    scope: &mut Scope<'_>,
    kind: &str,
    operation: &str,
) -> Result<bool, String> {
    let (conditions, since) = (tree::list(policy, "/spec/matchConditions"), Instant::now());
    let held = expressions::hold(conditions, scope);
    measure::conditions([tree::name(policy), "policy", kind, operation], conditions, since, &held);
    match held {
        Err(_) if fails_open(policy) => Ok(false),
        answer => answer,
    }
}

/// From here on expressions may name a policy's variables.
pub(super) fn define_variables(policy: &Value, scope: &mut Scope<'_>) {
    scope.with_variables();
    for variable in tree::list(policy, "/spec/variables") {
        scope.define(tree::name_field(variable), tree::text(variable, "/expression"));
    }
}

/// The judgement of a policy.
pub(super) fn evaluate(policy: &Value, matter: &Matter, parameter: &Value) -> Judgement {
    let params = has_parameters(policy);
    let mut scope = scope(Dialect::Policy { params }, matter, parameter);
    let open = fails_open(policy);
    let broken = |message: String, at: usize| Finding { message, reason: "Invalid".to_owned(), at };
    let mut judgement = Judgement::default();
    match conditions_hold(policy, &mut scope, "validate", tree::text(&matter.request, "/operation")) {
        Ok(true) => {}
        Ok(false) => return judgement,
        Err(why) => {
            judgement.findings.push(broken(why, 0));
            return judgement;
        }
    }
    define_variables(policy, &mut scope);
    for (at, validation) in tree::list(policy, "/spec/validations").iter().enumerate() {
        let expression = tree::text(validation, "/expression").trim();
        match scope.judge(expression) {
            Ok(true) => {}
            Ok(false) => judgement.findings.push(Finding {
                message: message(validation, expression, &mut scope),
                reason: match tree::text(validation, "/reason") {
                    "" => "Invalid".to_owned(),
                    reason => reason.to_owned(),
                },
                at,
            }),
            Err(why) if open => judgement.overlooked.push(why),
            Err(why) => judgement.findings.push(broken(why, at)),
        }
    }
    if scope.is_exhausted() {
        return exhausted(open, broken);
    }
    // Notes have means of their own.
    scope.spend_from(cel::RUNTIME_BUDGET);
    for annotation in tree::list(policy, "/spec/auditAnnotations") {
        match scope.text(tree::text(annotation, "/valueExpression").trim(), Wanted::TextOrNull) {
            Ok(Some(value)) if !value.trim().is_empty() => {
                let key = tree::text(annotation, "/key").to_owned();
                judgement.annotations.push(Annotation::Publish(key, value.trim().to_owned()));
            }
            Ok(_) => {}
            Err(_) if open => {}
            Err(why) => judgement.annotations.push(Annotation::Broken(why)),
        }
    }
    if scope.is_exhausted() { exhausted(open, broken) } else { judgement }
}

/// The judgement where the means to find one were spent: nothing of what was found counts.
fn exhausted(open: bool, broken: impl Fn(String, usize) -> Finding) -> Judgement {
    let why = EXHAUSTED.to_owned();
    match open {
        true => Judgement { overlooked: vec![why], ..Judgement::default() },
        false => Judgement { findings: vec![broken(why, 0)], ..Judgement::default() },
    }
}

/// The text a validation gives for its failure.
fn message(validation: &Value, expression: &str, scope: &mut Scope<'_>) -> String {
    let computed = match tree::text(validation, "/messageExpression") {
        "" => None,
        text => scope.text(text, Wanted::Text).ok().flatten(),
    };
    let usable =
        |text: &String| !text.trim().is_empty() && !text.contains('\n') && text.len() <= shared::cel::MAX_MESSAGE;
    match (computed.filter(usable), tree::text(validation, "/message").trim()) {
        (Some(text), _) => text.trim().to_owned(),
        (None, "") => format!("failed expression: {expression}"),
        (None, text) => text.to_owned(),
    }
}
