//! Eviction: a delete that asks the pod's disruption budget first, and says in the pod why it goes. Answers for
//! upstream's `EvictionREST.Create`, `checkAndDecrement`, `canIgnorePDB`.

use std::sync::Arc;

use proto::Value;
use proto::resources::Row;
use proto::selector::Selector;
use serde_json::json;
use shared::status::{Cause, Details, Status, field};

use super::conditions;
use crate::admission::Operation;
use crate::api::Pipeline as _;
use crate::machinery::identity;
use crate::machinery::meta;
use crate::machinery::query::{OptionsKind, Query, WriteOptions};
use crate::negotiate::RequestBody;
use crate::registry::core::pod::PODS;
use crate::registry::policy::pod_disruption_budget::POD_DISRUPTION_BUDGETS;
use crate::storage::codec;
use crate::verbs::delete::{self, options_object};
use crate::verbs::engine::{DeleteOptions, Engine, WriteTarget};
use crate::verbs::preconditions::check_preconditions;
use crate::verbs::select::Selection;
use crate::verbs::{InProcess, Reply, VerbRequest, corrupt_objects, list, subresources, target, write};

/// Most pods a budget may have in flight.
const MAX_DISRUPTED: usize = 2000;
/// Number of conflicting writes that are retried.
const ROUNDS: usize = 20;
/// The budget's condition.
const ALLOWED: &str = "DisruptionAllowed";

fn too_many(cause: String, retry_after_seconds: i32) -> Status {
    let causes = vec![Cause { reason: "DisruptionBudget".to_owned(), message: cause, field: String::new() }];
    let mut status =
        Status::failure(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.");
    status.details = Some(Details { causes, retry_after_seconds, ..Details::default() });
    status
}

fn in_process(budget: &str) -> Status {
    too_many(format!("The disruption budget {budget} is still being processed by the server."), 10)
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        || !pod["metadata"]["deletionTimestamp"].is_null()
}

/// A pod that is not running counts for no budget.
fn ignores_budget(pod: &Value) -> bool {
    has_ended(pod) || pod["status"]["phase"] == "Pending"
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn number(budget: &Value, key: &str) -> i64 {
    budget["status"][key].as_i64().unwrap_or(0)
}

/// True when the budget's policy lets unhealthy pods go without asking.
fn may_go_unhealthy(budget: &Value, pod: &Value) -> bool {
    if is_ready(pod) {
        return false;
    }
    let (healthy, desired) = (number(budget, "currentHealthy"), number(budget, "desiredHealthy"));
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" || (healthy >= desired && desired > 0)
}

/// Explains why a budget allows no disruption now.
fn why_not(budget: &Value, name: &str) -> String {
    let (needs, has) = (number(budget, "desiredHealthy"), number(budget, "currentHealthy"));
    let conditions = budget["status"]["conditions"].as_array().into_iter().flatten();
    let mut refused = conditions.filter(|c| c["type"] == ALLOWED && c["status"] == "False");
    let text = |c: &Value, key: &str| c[key].as_str().unwrap_or_default().to_owned();
    let said =
        refused.next().map(|c| (text(c, "reason"), text(c, "message"))).filter(|(_, message)| !message.is_empty());
    match said {
        Some((reason, message)) if reason == "SyncFailed" => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        ),
        _ if has <= needs => format!("The disruption budget {name} needs {needs} healthy pods and has {has} currently"),
        Some((reason, message)) => {
            format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}")
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

/// Takes one disruption from a budget.
fn use_disruption(budget: &mut Value, pod: &str, now: &str) -> Result<(), Status> {
    let name = meta::text(budget, "name").to_owned();
    // Upstream names the resource so.
    let forbidden = |why: &str| Status::forbidden("policy", "poddisruptionbudget", &name, why);
    if number(budget, "observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(in_process(&name));
    }
    let allowed = number(budget, "disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if budget["status"]["disruptedPods"].as_object().is_some_and(|m| m.len() > MAX_DISRUPTED) {
        return Err(forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller"));
    }
    if allowed == 0 {
        return Err(too_many(why_not(budget, &name), 0));
    }
    budget["status"]["disruptionsAllowed"] = Value::from(allowed - 1);
    if allowed == 1 {
        let observed = number(budget, "observedGeneration");
        conditions::refuse(&mut budget["status"], (ALLOWED, "InsufficientPods"), observed, now);
    }
    budget["status"]["disruptedPods"][pod] = json!(now);
    Ok(())
}

async fn budgets_of(engine: &Arc<Engine>, row: &Row, namespace: &str, pod: &Value) -> Result<Vec<Value>, Status> {
    let found = list::collect(engine, row, namespace, &Selection::everything()).await?;
    let labels = pod["metadata"].get("labels");
    let trees = found.items.iter().filter_map(|e| codec::value(row, &e.raw).ok());
    Ok(trees.filter(|b| Selector::from_object(b["spec"].get("selector")).is_ok_and(|s| s.matches(labels))).collect())
}

/// The eviction's options for the delete, with what the request says of dry runs.
fn options_of(eviction: &Value, r: &VerbRequest, asked: &WriteOptions) -> Result<DeleteOptions, Status> {
    let Some(given) = eviction.get("deleteOptions").filter(|d| d.is_object()) else {
        return Ok(DeleteOptions { dry_run: asked.dry_run, ..DeleteOptions::default() });
    };
    if given[corrupt_objects::OPTION] == true {
        let path = field::Path::of(&["deleteOptions", corrupt_objects::OPTION]);
        let why = "can not be set for pod eviction, try after removing the option";
        return Err(Status::invalid("policy", "Eviction", &r.info.name, [field::Error::invalid(path, true, why)]));
    }
    let body = serde_json::to_vec(given).unwrap_or_default();
    let sent = RequestBody { media: r.media, content_type: "application/json", body: &body };
    let mut options = delete::options(sent, &Query::default(), false)?;
    options.dry_run |= asked.dry_run;
    Ok(options)
}

/// The verb.
pub(super) async fn evict(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    let mut eviction = write::body_of_kind(r, ("policy", "v1", "Eviction"), &options)?.object;
    let (namespace, name) = (&r.info.namespace, &r.info.name);
    write::check_namespace(&mut eviction, namespace)?;
    let mut t = target(r, row, "eviction", &options, "CreateOptions");
    engine.admit(&mut t, Operation::Create, Some(&mut eviction), None).await?;
    if meta::text(&eviction, "name") != name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let asked = options_of(&eviction, r, &options)?;
    engine.validate_admission(&mut t, Operation::Create, Some(&mut eviction), None).await?;
    for _ in 0..ROUNDS {
        let Some((pod, _)) = engine.read(row, namespace, name).await? else {
            return Err(PODS.not_found(name));
        };
        if !ignores_budget(&pod) {
            ask_and_delete(engine, r, row, &pod, asked.clone()).await?;
            return subresources::created(r);
        }
        let mut options = asked.clone();
        if !has_ended(&pod) {
            // By the time it is deleted it might count.
            options.resource_version.get_or_insert_with(|| meta::text(&pod, "resourceVersion").to_owned());
        }
        match mark_and_delete(engine, r, row, &pod, options).await {
            Err(e) if e.is_conflict() && asked.resource_version.is_none() => {}
            outcome => {
                outcome?;
                return subresources::created(r);
            }
        }
    }
    Err(Status::stale(PODS.group, PODS.plural, name))
}

/// Deletes a pod that counts, if its budget lets it go.
async fn ask_and_delete(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    row: &Row,
    pod: &Value,
    mut options: DeleteOptions,
) -> Result<(), Status> {
    let budgets = &engine.rows.storage(POD_DISRUPTION_BUDGETS).ok_or_else(Status::generic_not_found)?;
    let all = budgets_of(engine, budgets, &r.info.namespace, pod).await?;
    match all.as_slice() {
        [] => mark_and_delete(engine, r, row, pod, options).await,
        [budget] if may_go_unhealthy(budget, pod) => {
            let own_revision = options.resource_version.is_some();
            // It may go as it is now: it might become ready.
            options.resource_version = Some(meta::text(pod, "resourceVersion").to_owned());
            let done = mark_and_delete(engine, r, row, pod, options).await;
            let changed = done.as_ref().is_err_and(Status::is_conflict) && !own_revision;
            if changed { Err(in_process(meta::text(budget, "name"))) } else { done }
        }
        [budget] => {
            ask(engine, budgets, budget, meta::text(pod, "name"), options.dry_run).await?;
            mark_and_delete(engine, r, row, pod, options).await
        }
        _ => Err(Status::unknown(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

/// Takes one disruption from a budget, and stores that.
async fn ask(engine: &Arc<Engine>, row: &Row, budget: &Value, pod: &str, dry_run: bool) -> Result<(), Status> {
    let (namespace, name) = (meta::text(budget, "namespace"), meta::text(budget, "name"));
    let mut budget = budget.clone();
    for _ in 0..ROUNDS {
        use_disruption(&mut budget, pod, &meta::now())?;
        if dry_run {
            return Ok(());
        }
        match InProcess::over(engine.clone()).update(&identity::server_user(), row, "status", budget).await {
            Err(e) if e.is_conflict() => {}
            outcome => return outcome.map(|_| ()),
        }
        let there = engine.read(row, namespace, name).await?;
        budget = there.ok_or_else(|| POD_DISRUPTION_BUDGETS.not_found(name))?.0;
    }
    Err(Status::timeout(&format!("couldn't update PodDisruptionBudget {name:?} due to conflicts"), 10))
}

/// Says in the pod why it goes, and deletes it. To admission that is not a delete: it was asked about the eviction.
async fn mark_and_delete(
    engine: &Arc<Engine>,
    r: &VerbRequest,
    row: &Row,
    pod: &Value,
    mut options: DeleteOptions,
) -> Result<(), Status> {
    let (namespace, name) = (&r.info.namespace, &r.info.name);
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let mut t = WriteTarget::new(row, (namespace, name), &r.user, &write);
    (t.options_object, t.admitted) = (options_object(&options), true);
    if !options.dry_run && !conditions::is_evicted(pod) {
        let mut mark = |pod: &mut Value| {
            check_preconditions(&t, &options, pod)?;
            conditions::evicted(pod);
            Ok(())
        };
        let marked = engine.modify(row, namespace, name, false, &mut mark).await?;
        if let Some(revision) = &mut options.resource_version {
            meta::text(&marked, "resourceVersion").clone_into(revision);
        }
    }
    engine.delete(&mut t, &options).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(e: Status) -> String {
        e.details.map(|d| d.causes[0].message.clone()).unwrap_or_default()
    }

    fn budget(allowed: i64, status: Value) -> Value {
        let mut b = json!({"metadata": {"name": "b", "generation": 2}, "status": {
            "disruptionsAllowed": allowed, "observedGeneration": 2, "desiredHealthy": 1, "currentHealthy": 1}});
        for (key, value) in status.as_object().into_iter().flatten() {
            b["status"][key] = value.clone();
        }
        b
    }

    #[test]
    fn budgets() {
        let mut b = budget(1, json!({}));
        assert!(use_disruption(&mut b, "p", "t").is_ok());
        let wanted = json!([{"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "observedGeneration": 2, "lastTransitionTime": "t"}]);
        assert_eq!((&b["status"]["disruptionsAllowed"], &b["status"]["conditions"]), (&json!(0), &wanted));
        assert_eq!(
            cause(use_disruption(&mut b, "q", "t").expect_err("used up")),
            "The disruption budget b needs 1 healthy pods and has 1 currently"
        );
        let stale = use_disruption(&mut budget(1, json!({"observedGeneration": 1})), "p", "t").expect_err("stale");
        assert_eq!(stale.retry_after(), Some(10));
        assert_eq!(
            use_disruption(&mut budget(-1, json!({})), "p", "t").expect_err("negative").message,
            "poddisruptionbudget.policy \"b\" is forbidden: pdb disruptions allowed is negative"
        );
    }

    #[test]
    fn a_budget_says_why_not() {
        let of = |reason: &str, message: &str| json!([{"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": message}]);
        for (healthy, conditions, said) in [
            (2, of("SyncFailed", "m"), "does not allow evicting pods currently because it failed sync: m"),
            (1, of("Other", "m"), "needs 1 healthy pods and has 1 currently"),
            (2, of("Other", "m"), "does not allow evicting pods currently (Other): m"),
            (2, of("Other", ""), "does not allow evicting pods currently"),
            (2, json!([]), "does not allow evicting pods currently"),
        ] {
            let mut b = budget(0, json!({"currentHealthy": healthy, "conditions": conditions}));
            assert_eq!(
                cause(use_disruption(&mut b, "p", "t").expect_err("nothing")),
                format!("The disruption budget b {said}")
            );
        }
    }
}
