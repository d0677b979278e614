//! DELETE of one object or of a collection. Answers for upstream's `DeleteResource`, `DeleteCollection`.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use proto::json::{self, Strictness};
use proto::resources::Row;
use proto::{Value, protobuf, schema};
use serde_json::json;
use shared::status::{Status, field};
use shared::traces;

use super::corrupt_objects;
use super::engine::{DeleteOptions, Deleted, Engine, WriteTarget};
use super::list;
use super::table::Include;
use super::{Reply, VerbRequest, accepted, namespace_of, reply_object};
use crate::cache::Entry;
use crate::machinery::GroupResource;
use crate::machinery::meta::{self, Propagation};
use crate::machinery::query::{Query, WriteOptions, check_dry_run};
use crate::negotiate::{self, Format, RequestBody};
use crate::registry::batch::job::JOBS;

/// The options of a request. What of them was sent is written down in a version of upstream's own.
fn request_options(engine: &Engine, r: &VerbRequest) -> Result<DeleteOptions, Status> {
    if !r.body.is_empty() {
        let sent = from_body(r.sent_body())?;
        if r.info.verb == "delete" {
            traces::step("Decoded delete options");
        }
        r.recorder.record_other(|| {
            let mut tree = sent;
            tree["kind"] = "DeleteOptions".into();
            tree["apiVersion"] = "meta.k8s.io/__internal".into();
            Some(tree)
        });
        if r.info.verb == "delete" {
            traces::step("Recorded the audit event");
        }
    }
    options(r.sent_body(), &r.query, engine.policy.deletes_corrupt)
}

/// Reads the options from the body or, without one, from the query. `unread`: that of deleting objects unread counts.
pub fn options(sent: RequestBody<'_>, query: &Query, unread: bool) -> Result<DeleteOptions, Status> {
    let mut tree = if sent.body.is_empty() { from_query(query)? } else { from_body(sent)? };
    if let Some(fields) = tree.as_object_mut().filter(|_| !unread) {
        fields.remove(corrupt_objects::OPTION);
    }
    check(&tree)
}

fn from_query(query: &Query) -> Result<Value, Status> {
    let mut tree = json!({});
    if let Some(n) = query.int("gracePeriodSeconds")? {
        tree["gracePeriodSeconds"] = Value::from(n);
    }
    if let Some(b) = query.maybe_flag("orphanDependents") {
        tree["orphanDependents"] = Value::from(b);
    }
    if let Some(p) = query.get("propagationPolicy") {
        tree["propagationPolicy"] = Value::from(p);
    }
    if let Some(b) = query.maybe_flag(corrupt_objects::OPTION) {
        tree[corrupt_objects::OPTION] = Value::from(b);
    }
    let dry = query.all("dryRun");
    if !dry.is_empty() {
        tree["dryRun"] = Value::from(dry);
    }
    Ok(tree)
}

fn from_body(sent: RequestBody<'_>) -> Result<Value, Status> {
    let body = sent.body;
    let bad = |e: String| Status::bad_request(&e);
    let schema = schema::message("k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions")
        .ok_or_else(|| Status::internal("no DeleteOptions"))?;
    let wrong_kind = |version: &str, kind: &str| {
        let version = if version.is_empty() { "meta.k8s.io/v1" } else { version };
        Status::bad_request(&format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
        ))
    };
    match sent.format()? {
        Format::Protobuf => {
            let e = protobuf::unwrap(body).map_err(|e| bad(e.to_string()))?;
            if !matches!(&*e.kind, "DeleteOptions" | "") {
                return Err(wrong_kind(&e.api_version, &e.kind));
            }
            protobuf::decode(schema, e.raw).map_err(|e| bad(e.to_string()))
        }
        format => {
            let (text, _) = negotiate::json_text(format, body).map_err(|e| bad(e.to_string()))?;
            let (version, kind) =
                json::type_meta(&text).map_err(|e| bad(format!("couldn't get version/kind; json parse error: {e}")))?;
            if !matches!(kind.as_str(), "DeleteOptions" | "") {
                return Err(wrong_kind(&version, &kind));
            }
            json::decode(schema, &text, Strictness::Ignore).map(|d| d.value).map_err(|e| bad(e.to_string()))
        }
    }
}

fn check(tree: &Value) -> Result<DeleteOptions, Status> {
    let mut errors = Vec::new();
    let dry: Vec<String> =
        tree["dryRun"].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect();
    let policy = tree["propagationPolicy"].as_str();
    let orphan = tree["orphanDependents"].as_bool();
    let path = || field::Path::new("propagationPolicy");
    if let (Some(_), Some(p)) = (orphan, policy) {
        errors.push(field::Error::invalid(path(), p, "orphanDependents and deletionPropagation cannot be both set"));
    }
    if let Some(p) = policy.filter(|p| !matches!(*p, "Foreground" | "Background" | "Orphan")) {
        errors.push(field::Error::not_supported(path(), p, &["Foreground", "Background", "Orphan", "nil"]));
    }
    check_dry_run(&dry, &mut errors);
    errors.extend(corrupt_objects::check(tree));
    if !errors.is_empty() {
        return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", errors));
    }
    let propagation = match (policy, orphan) {
        (Some("Foreground"), _) => Some(Propagation::Foreground),
        (Some("Orphan"), _) | (_, Some(true)) => Some(Propagation::Orphan),
        (Some("Background"), _) | (_, Some(false)) => Some(Propagation::Background),
        _ => None,
    };
    let precondition = |key: &str| tree["preconditions"][key].as_str().map(str::to_owned);
    Ok(DeleteOptions {
        dry_run: dry.iter().any(|d| d == "All"),
        grace_period_seconds: tree["gracePeriodSeconds"].as_i64(),
        propagation,
        cascades: orphan == Some(false),
        uid: precondition("uid"),
        resource_version: precondition("resourceVersion"),
        unread: tree[corrupt_objects::OPTION] == true,
    })
}

/// Options as admission sees them.
pub fn options_object(o: &DeleteOptions) -> Value {
    let mut tree = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
    if let Some(n) = o.grace_period_seconds {
        tree["gracePeriodSeconds"] = Value::from(n);
    }
    if o.dry_run {
        tree["dryRun"] = json!(["All"]);
    }
    if let Some(p) = o.propagation {
        tree["propagationPolicy"] = Value::from(match p {
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
            _ => "Background",
        });
    }
    if o.unread {
        tree[corrupt_objects::OPTION] = Value::from(true);
    }
    tree
}

/// Warning for clients that delete a job without a propagation policy.
const JOB_PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set \
     propagationPolicy=Orphan to suppress this warning";

/// Warnings for a delete without a propagation policy, given before anything is looked at.
fn left_open(options: &DeleteOptions, row: &Row) -> Vec<String> {
    let jobs = GroupResource::of(row) == JOBS;
    if jobs && options.propagation.is_none() { vec![JOB_PODS_STAY.to_owned()] } else { Vec::new() }
}

/// DELETE of one object.
pub async fn delete(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let options = request_options(engine, r)?;
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let mut t = WriteTarget::new(row, (namespace_of(&r.info, row), &r.info.name), &r.user, &write);
    (t.options_object, t.recorder) = (options_object(&options), r.recorder.clone());
    if options.unread {
        let reply = corrupt_objects::delete(engine, r, &mut t).await?;
        return Ok(reply.warn(std::mem::take(&mut t.warnings)));
    }
    t.warnings = left_open(&options, row);
    traces::step("About to delete object from database");
    let deleted = engine.delete(&mut t, &options).await;
    let deleted = r.recorder.keep_warnings(deleted, &t.warnings)?;
    traces::step("Object deleted from database");
    Ok(outcome(engine, r, row, deleted, options.cascades)?.warn(t.warnings))
}

/// Response to a delete: the object while it exists or where clients expect it, else a `Status`.
fn outcome(engine: &Engine, r: &VerbRequest, row: &Row, deleted: Deleted, cascades: bool) -> Result<Reply, Status> {
    if !deleted.gone || row.returns_deleted {
        // Old clients that ask for dependents to go are told that it takes a while.
        let code = if cascades && !deleted.gone { 202 } else { 200 };
        return reply_object(engine, r, row, code, &engine.to_served(row, deleted.object));
    }
    let accepted = accepted(r, false)?;
    let mut details = json!({"name": meta::text(&deleted.object, "name"), "kind": row.plural, "uid": meta::text(&deleted.object, "uid")});
    if !row.group.is_empty() {
        details["group"] = Value::from(&*row.group);
    }
    let tree = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema::kind("", "v1", "Status"), &tree);
    Ok(Reply::new(200, accepted.format.content_type(), body))
}

/// DELETE of all objects that match.
pub async fn delete_collection(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let selection = list::selection(&r.query, row, list::ListVerb::List)?;
    let options = request_options(engine, r)?;
    if options.unread {
        return Err(corrupt_objects::refuse_collection());
    }
    let found = list::requested(engine, r, row, &selection).await?;
    let mut warnings = left_open(&options, row);
    let all = found.items.iter().map(|entry| delete_entry(engine, r, row, &options, entry));
    let mut all = futures::stream::iter(all).buffered(engine.policy.delete_workers);
    while let Some(warned) = all.try_next().await? {
        warnings.extend(warned);
    }
    drop(all);
    let accepted = accepted(r, false)?;
    Ok(list::reply(engine, r, row, &accepted, Include::Metadata, found)?.warn(warnings))
}

/// Deletes an object of a collection; the warnings for the client.
async fn delete_entry(
    engine: &Engine,
    r: &VerbRequest,
    row: &Row,
    options: &DeleteOptions,
    entry: &Entry,
) -> Result<Vec<String>, Status> {
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let mut t = WriteTarget::new(row, (entry.namespace(), entry.name()), &r.user, &write);
    (t.options_object, t.recorder, t.of_collection) = (options_object(options), r.recorder.clone(), true);
    match engine.delete(&mut t, options).await {
        // Gone already.
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(t.warnings),
    }
}
