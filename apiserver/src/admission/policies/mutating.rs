//! MutatingAdmissionPolicy: policies that change objects, by configurations that are merged and by JSON patches.
//! Answers for upstream's `pkg/admission/plugin/policy/mutating` (`dispatchInvocations`).

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use proto::json::{Strictness, decode_touched};
use proto::merge::{apply, json_patch};
use proto::schema::Message;
use serde_json::Value;
use shared::cel::{self, Fuel};
use shared::metrics;
use shared::status::Status;

use super::super::reinvocation::ReinvocationPlugin;
use super::super::views::Views;
use super::super::{Attributes, Plugin};
use super::error::PolicyEvaluationError;
use super::evaluate::{self, EvaluationInput};
use super::{Bound, MUTATING, Policies, PolicyError, WebhookDeps};
use crate::expressions::{Dialect, ResultType};
use crate::machinery::tree;
use crate::registry::behavior;

/// The plugin.
pub(crate) struct MutatingPolicies(Policies);

/// Mutation of a policy.
#[derive(Debug, PartialEq)]
enum PolicyMutation {
    /// Fields to merge into the object.
    Configuration(Value),
    /// JSON patch operations.
    Patch(Value),
}

/// Failure of a mutation.
enum MutationFailure {
    /// The policy's fault: its failure policy says what follows.
    Policy(PolicyEvaluationError),
    /// The request fails whatever the policy says.
    Request(Box<Status>),
}

impl From<PolicyEvaluationError> for MutationFailure {
    fn from(why: PolicyEvaluationError) -> Self {
        Self::Policy(why)
    }
}

impl From<Status> for MutationFailure {
    fn from(status: Status) -> Self {
        Self::Request(Box::new(status))
    }
}

/// A refusal: the message and the reason.
struct PolicyRefusal {
    message: String,
    reason: &'static str,
}

#[async_trait]
impl Plugin for MutatingPolicies {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let (all, namespace) = self.0.bound(a).await?;
        if all.is_empty() {
            return Ok(());
        }
        let object = a.object.as_deref();
        a.reinvocation.begin(ReinvocationPlugin::Policies, object);
        // What cannot be configured is told before what fails.
        let (mut usable, mut refusals) = (Vec::new(), Vec::new());
        let mut views = self.0.views();
        for bound in &all {
            let unshown = views.show_version(&bound.shown, a).await.err().map(|why| PolicyError::Policy(why.message));
            match (&unshown, &bound.parameters) {
                (Some(why), _) | (None, Err(why)) => refusals.extend(misconfigured(bound, why)),
                (None, Ok(parameters)) => usable.extend(parameters.iter().map(|parameter| (bound, parameter))),
            }
        }
        let mut acted = false;
        for (bound, parameter) in usable {
            views.show_version(&bound.shown, a).await.map_err(|why| unconverted(&why))?;
            acted |= self.invoke(bound, parameter, namespace.as_ref(), (&mut views, a), &mut refusals)?;
        }
        if acted {
            // As upstream has it: a mutation that changes nothing counts as one.
            a.reinvocation.request_again(ReinvocationPlugin::Policies);
        }
        views.commit_mutation(a).await.map_err(|why| unconverted(&why))?;
        let object = a.object.as_deref();
        a.reinvocation.end(ReinvocationPlugin::Policies, object);
        match refused(a, &refusals) {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }
}

impl MutatingPolicies {
    /// Policies from the cache.
    pub(crate) fn new(means: WebhookDeps) -> Self {
        Self(Policies { means, plurals: MUTATING })
    }

    /// Asks one policy under one parameter: its mutations one after the other, each about what the one before it left.
    /// Whether one of them came to something.
    fn invoke(
        &self,
        bound: &Bound,
        parameter: &Value,
        namespace: Option<&Arc<Value>>,
        (views, a): (&mut Views<'_>, &mut Attributes<'_>),
        refusals: &mut Vec<PolicyRefusal>,
    ) -> Result<bool, Status> {
        let policy = &bound.policy;
        let mut matter = self.0.matter(a, views, namespace.cloned());
        match evaluate::conditions_hold(policy, &matter, parameter, "admit") {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => {
                refusals.push(failed(bound, &why.into()));
                return Ok(false);
            }
        }
        let id = format!(
            "{}/{}/{}/{}",
            tree::name(policy),
            tree::name(&bound.binding),
            tree::namespace(parameter),
            tree::name(parameter)
        );
        if !a.reinvocation.is_called(ReinvocationPlugin::Policies, &id) {
            return Ok(false);
        }
        let (mut changed, mut acted) = (false, false);
        for mutation in tree::list(policy, "/spec/mutations") {
            if a.object.is_none() {
                continue;
            }
            let since = Instant::now();
            let outcome = change(policy, mutation, &matter, parameter)
                .map_err(MutationFailure::Policy)
                .and_then(|change| self.apply(bound, change, (views, a)));
            measure(bound, &outcome, since);
            acted |= outcome.is_ok();
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    changed = true;
                    matter = self.0.matter(a, views, namespace.cloned());
                }
                Err(MutationFailure::Request(status)) => return Err(*status),
                Err(MutationFailure::Policy(_)) if evaluate::fails_open(policy) => {}
                Err(MutationFailure::Policy(why)) => refusals.push(failed(bound, &why)),
            }
        }
        let willing = tree::text(policy, "/spec/reinvocationPolicy") == "IfNeeded";
        a.reinvocation.record_call(ReinvocationPlugin::Policies, &id, changed, willing);
        Ok(acted)
    }

    /// Makes a change; whether the object is another one then.
    fn apply(
        &self,
        bound: &Bound,
        change: PolicyMutation,
        (views, a): (&mut Views<'_>, &mut Attributes<'_>),
    ) -> Result<bool, MutationFailure> {
        let shown = &bound.shown;
        let row = self.0.means.rows.find(&shown.group, &shown.version, &shown.plural);
        let typed = !behavior(a.resource).has_open_bodies();
        views.amend(a, |object| {
            let own = proto::schema::kind_of(tree::text(object, "/apiVersion"), tree::text(object, "/kind"));
            let schema = own.or_else(|| row.as_ref().and_then(|r| r.schema())).ok_or_else(|| {
                MutationFailure::from(Status::service_unavailable(&format!(
                    "Resource kind {}/{}, Kind={} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available.",
                    shown.group, shown.version, shown.kind
                )))
            })?;
            match change {
                PolicyMutation::Configuration(config) => configure(schema, object, config).map_err(MutationFailure::Policy),
                PolicyMutation::Patch(patch) => self::patch(schema, typed, object, patch),
            }
        })
    }
}

/// Evaluates a mutation of a request.
fn change(
    policy: &Value,
    mutation: &Value,
    matter: &EvaluationInput,
    parameter: &Value,
) -> Result<PolicyMutation, PolicyEvaluationError> {
    let dialect = Dialect::Mutation { params: evaluate::has_parameters(policy) };
    let mut scope = evaluate::stage(policy, dialect, matter, parameter, true);
    let patches = tree::text(mutation, "/patchType") == "JSONPatch";
    let (field, wanted) = match patches {
        true => ("/jsonPatch/expression", ResultType::Patches),
        false => ("/applyConfiguration/expression", ResultType::Object),
    };
    let value = scope.run(tree::text(mutation, field), wanted)?;
    let mut problems = Vec::new();
    if patches {
        for operation in value.items().iter().flat_map(|items| items.iter()) {
            if let Some(object @ cel::Value::Made(made)) = operation.field("value").as_ref() {
                check_names(object, &made.name, &mut problems);
            }
        }
    } else {
        check_names(&value, "Object", &mut problems);
    }
    if !problems.is_empty() {
        return Err(PolicyEvaluationError::TypeNames(problems));
    }
    if !patches && !has_text_keys(&value) {
        return Err(PolicyEvaluationError::Keys);
    }
    let tree = value.tree(&mut Fuel::default());
    Ok(match patches {
        true => PolicyMutation::Patch(tree.map_err(PolicyEvaluationError::PatchValue)?),
        false => PolicyMutation::Configuration(tree.map_err(PolicyEvaluationError::ConfigurationValue)?),
    })
}

/// Objects are to be named after the fields they stand in: `Object.spec.template`. Lists and maps between them have no
/// names.
fn check_names(value: &cel::Value<'_>, place: &str, problems: &mut Vec<String>) {
    if let cel::Value::Made(made) = value {
        if *made.name != *place {
            problems.push(format!(
                "unexpected type name {:?}, expected {place:?}, which matches field name path from root Object type",
                made.name
            ));
        }
        for (field, inner) in &made.fields {
            check_names(inner, &format!("{place}.{field}"), problems);
        }
        return;
    }
    // What is part of a request holds nothing an expression made.
    if let cel::Value::List(items) = value {
        items.iter().for_each(|item| check_names(item, place, problems));
    } else if let cel::Value::Map(_) = value {
        value.entries().iter().flatten().for_each(|(_, item)| check_names(item, place, problems));
    }
}

/// Reports whether maps in the fields of an object have text keys, as JSON's do.
fn has_text_keys(value: &cel::Value<'_>) -> bool {
    match value {
        cel::Value::Made(made) => made.fields.values().all(has_text_keys),
        cel::Value::Map(map) => map.entries.keys().all(|key| matches!(key, cel::Key::String(_))),
        _ => true,
    }
}

fn configure(schema: &Message, object: &mut Value, mut config: Value) -> Result<(), PolicyEvaluationError> {
    for field in ["apiVersion", "kind"] {
        config[field] = object[field].clone();
    }
    *object = apply::configure(schema, object, &config).map_err(PolicyEvaluationError::Configuration)?;
    Ok(())
}

fn patch(schema: &Message, typed: bool, object: &mut Value, mut patch: Value) -> Result<(), MutationFailure> {
    let failed = |e: json_patch::Error| MutationFailure::Policy(PolicyEvaluationError::Patch(e));
    let (api_version, kind) = (object["apiVersion"].clone(), object["kind"].clone());
    // An operation that names no place means the whole.
    for operation in patch.as_array_mut().into_iter().flatten() {
        if operation["path"].is_null() {
            operation["path"] = "".into();
        }
    }
    match json_patch::Patch::decode(patch).map_err(failed)?.apply(object) {
        Ok(()) => {}
        // A patch whose test fails is not meant for this object.
        Err(json_patch::Error::Test(_)) => return Ok(()),
        Err(why) => return Err(failed(why)),
    }
    if typed {
        settle_kind(object, api_version, kind)?;
        decode_touched(schema, object, &Value::Null, Strictness::Strict)
            .map_err(|e| Status::internal(&e.to_string()))?;
    }
    Ok(())
}

/// An object that does not say what it is, is what it was; one that says it were something else must be of a kind.
fn settle_kind(object: &mut Value, api_version: Value, kind: Value) -> Result<(), Status> {
    for (field, was) in [("apiVersion", api_version), ("kind", kind)] {
        if tree::text(object, &format!("/{field}")).is_empty() {
            object[field] = was;
        }
    }
    let (api_version, kind) = (tree::text(object, "/apiVersion"), tree::text(object, "/kind"));
    if proto::schema::kind_of(api_version, kind).is_some() {
        return Ok(());
    }
    let scheme = "pkg/runtime/scheme.go:111";
    let why = format!("no kind {kind:?} is registered for version {api_version:?} in scheme {scheme:?}");
    Err(Status::internal(&why))
}

fn misconfigured(bound: &Bound, why: &PolicyError) -> Option<PolicyRefusal> {
    let refusal = || PolicyRefusal { message: denied(bound, why.binding(bound), &why.message()), reason: "Forbidden" };
    (!evaluate::fails_open(&bound.policy)).then(refusal)
}

/// Error for a mutated object that cannot be converted back to the version of the request.
fn unconverted(why: &Status) -> Status {
    Status::internal(&format!("failed to convert object: {}", why.message))
}

fn failed(bound: &Bound, why: &PolicyEvaluationError) -> PolicyRefusal {
    PolicyRefusal { message: denied(bound, Some(tree::name(&bound.binding)), &why.to_string()), reason: "Invalid" }
}

fn denied(bound: &Bound, binding: Option<&str>, why: &str) -> String {
    let policy = tree::name(&bound.policy);
    match binding {
        Some(binding) => format!("policy '{policy}' with binding '{binding}' denied request: {why}"),
        None => format!("policy {policy:?} denied request: {why}"),
    }
}

/// The first refusal speaks; all are told as causes.
fn refused(a: &Attributes<'_>, refusals: &[PolicyRefusal]) -> Option<Status> {
    let first = refusals.first()?;
    let mut status = a.forbidden("admission request denied by policy");
    status.message.clone_from(&first.message);
    first.reason.clone_into(&mut status.reason);
    for refusal in refusals {
        status.add_cause("", &refusal.message, "");
    }
    Some(status)
}

/// Counts a mutation and how long it took.
fn measure(bound: &Bound, outcome: &Result<bool, MutationFailure>, since: Instant) {
    let fault = match outcome {
        Ok(_) => "no_error",
        Err(MutationFailure::Policy(why)) => why.error_type(),
        Err(MutationFailure::Request(_)) => PolicyEvaluationError::INVALID,
    };
    let labels = ["policy", "policy_binding", "error_type"];
    let values = [tree::name(&bound.policy), tree::name(&bound.binding), fault];
    metrics::counter(
        "apiserver_mutating_admission_policy_check_total",
        "[ALPHA] Mutation admission policy check total, labeled by policy and further identified by binding.",
        &labels,
    )
    .with_label_values(&values)
    .inc();
    metrics::histogram(
        "apiserver_mutating_admission_policy_check_duration_seconds",
        "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, labeled by policy and binding.",
        &labels,
        vec![0.000_000_5, 0.001, 0.01, 0.1, 1.0],
    )
    .with_label_values(&values)
    .observe(since.elapsed().as_secs_f64());
}

#[cfg(test)]
mod tests;
