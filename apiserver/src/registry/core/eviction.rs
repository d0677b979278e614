//! Eviction: a delete that asks the pod's disruption budget first.

use std::sync::Arc;

use proto::resources::Row;
use proto::selector::Selector;
use proto::{Value, schema};
use serde_json::json;
use shared::status::{Cause, Details, Status};

use crate::negotiate::{self, Expected, Sent};
use crate::registry::meta;
use crate::storage::codec;
use crate::verbs::delete::{self, options_object};
use crate::verbs::engine::{DeleteOptions, Engine, Target};
use crate::verbs::query::{OptionsKind, Query, WriteOptions};
use crate::verbs::select::Selection;
use crate::verbs::{Reply, Request, list, subresources, target};

/// Most pods a budget may have in flight.
const MAX_DISRUPTED: usize = 2000;

fn too_many(cause: String, retry_after_seconds: i32) -> Status {
    let causes = vec![Cause { reason: "DisruptionBudget".to_owned(), message: cause, field: String::new() }];
    let mut status =
        Status::failure(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.");
    status.details = Some(Details { causes, retry_after_seconds, ..Details::default() });
    status
}

/// A pod that is not running counts for no budget.
fn ignores_budget(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
        || !pod["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// True when the budget's policy lets unhealthy pods go without asking.
fn may_go_unhealthy(budget: &Value, pod: &Value) -> bool {
    if is_ready(pod) {
        return false;
    }
    let n = |key: &str| budget["status"][key].as_i64().unwrap_or(0);
    match budget["spec"]["unhealthyPodEvictionPolicy"].as_str() {
        Some("AlwaysAllow") => true,
        _ => n("currentHealthy") >= n("desiredHealthy") && n("desiredHealthy") > 0,
    }
}

/// Takes one disruption from a budget.
fn take(budget: &mut Value, pod: &str) -> Result<(), Status> {
    let name = meta::text(budget, "name").to_owned();
    let n = |b: &Value, key: &str| b["status"][key].as_i64().unwrap_or(0);
    if n(budget, "observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(too_many(format!("The disruption budget {name} is still being processed by the server."), 10));
    }
    let allowed = n(budget, "disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden("policy", "poddisruptionbudgets", &name, "pdb disruptions allowed is negative"));
    }
    if budget["status"]["disruptedPods"].as_object().is_some_and(|m| m.len() > MAX_DISRUPTED) {
        return Err(Status::forbidden(
            "policy",
            "poddisruptionbudgets",
            &name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let (needs, has) = (n(budget, "desiredHealthy"), n(budget, "currentHealthy"));
        return Err(too_many(
            format!("The disruption budget {name} needs {needs} healthy pods and has {has} currently"),
            0,
        ));
    }
    budget["status"]["disruptionsAllowed"] = Value::from(allowed - 1);
    budget["status"]["disruptedPods"][pod] = json!(meta::now());
    Ok(())
}

async fn budgets_of(engine: &Arc<Engine>, row: &Row, namespace: &str, pod: &Value) -> Result<Vec<Value>, Status> {
    let found = list::collect(engine, row, namespace, &Selection::all()).await?;
    let labels = pod["metadata"].get("labels");
    let trees = found.items.iter().filter_map(|e| codec::value(row, &e.raw).ok());
    Ok(trees.filter(|b| Selector::from_object(b["spec"].get("selector")).is_ok_and(|s| s.matches(labels))).collect())
}

/// The verb.
pub async fn evict(engine: &Arc<Engine>, r: &Request, row: &Row) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    let expected = Expected::kind("policy", "v1", "Eviction");
    let mut eviction = negotiate::decode(r.sent(), &expected, options.field_validation)?.object;
    if let Some(s) = schema::kind("policy", "v1", "Eviction") {
        proto::defaulting::apply(s, &mut eviction);
    }
    let (namespace, name) = (&r.info.namespace, &r.info.name);
    if meta::text(&eviction, "name") != name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut t = target(r, row, "eviction", &options, "CreateOptions");
    engine.admit_and_judge(&mut t, crate::admission::Operation::Create, Some(&mut eviction), None).await?;
    let Some((pod, _)) = engine.read(row, namespace, name).await? else {
        return Err(Status::not_found("", "pods", name));
    };
    let mut delete_options = match eviction.get("deleteOptions").filter(|d| d.is_object()) {
        Some(d) => {
            let body = serde_json::to_vec(d).unwrap_or_default();
            let sent = Sent { media: r.media, content_type: "application/json", body: &body };
            delete::options(sent, &Query::default())?
        }
        None => DeleteOptions::default(),
    };
    delete_options.dry_run |= options.dry_run;
    if !ignores_budget(&pod) {
        ask_budget(engine, namespace, &pod, delete_options.dry_run).await?;
        // The budget was asked for this very pod.
        delete_options.uid.get_or_insert_with(|| meta::text(&pod, "uid").to_owned());
    }
    let write = WriteOptions { dry_run: delete_options.dry_run, ..WriteOptions::default() };
    let mut t = Target::new(row, (namespace, name), &r.user, &write);
    t.options_object = options_object(&delete_options);
    engine.delete(&mut t, &delete_options).await?;
    subresources::created(r)
}

async fn ask_budget(engine: &Arc<Engine>, namespace: &str, pod: &Value, dry_run: bool) -> Result<(), Status> {
    let row = &engine.rows.storage("policy", "poddisruptionbudgets").ok_or_else(Status::generic_not_found)?;
    let budgets = budgets_of(engine, row, namespace, pod).await?;
    match budgets.as_slice() {
        [] => Ok(()),
        [budget] if may_go_unhealthy(budget, pod) => Ok(()),
        [budget] => {
            let pod = meta::text(pod, "name").to_owned();
            engine.modify(row, namespace, meta::text(budget, "name"), dry_run, &mut |b| take(b, &pod)).await.map(|_| ())
        }
        _ => Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        let budget = |allowed: i64, observed: i64| {
            json!({"metadata": {"name": "b", "generation": 2}, "status": {
                "disruptionsAllowed": allowed, "observedGeneration": observed, "desiredHealthy": 1, "currentHealthy": 1}})
        };
        let mut b = budget(1, 2);
        assert!(take(&mut b, "p").is_ok());
        assert_eq!(b["status"]["disruptionsAllowed"], 0);
        let e = take(&mut b, "q").expect_err("used up");
        assert_eq!(
            e.details.expect("details").causes[0].message,
            "The disruption budget b needs 1 healthy pods and has 1 currently"
        );
        assert_eq!(take(&mut budget(1, 1), "p").expect_err("stale").retry_after(), Some(10));
    }
}
