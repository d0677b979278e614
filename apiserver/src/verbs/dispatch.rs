//! Choice of the verb for a request, with what is refused before its body is read. Answers for upstream's
//! `registerResourceHandlers`.

use std::sync::Arc;

use bytes::Bytes;
use proto::resources::{Resource, Row};
use shared::status::Status;

use super::engine::Engine;
use super::request::not_acceptable;
use super::{Reply, Route, VerbRequest, component_status, delete, get, list, patch, route, subresources, watch, write};
use crate::machinery::GroupResource;
use crate::negotiate::{self, Format, Media, NotAcceptable};
use crate::registry::behavior;
use crate::registry::core::component_status::COMPONENT_STATUSES;

/// Rejects a `Content-Type` or `Accept` that is not served (415, 406) before any work; invalid options of a list (400)
/// take precedence.
fn check_media_types(engine: &Engine, r: &mut VerbRequest, route: &Route) -> Result<(), Status> {
    let row = &route.row;
    if r.info.verb == "patch" {
        patch::check_type(r, row)?;
    }
    if behavior(row).has_protobuf() && !negotiate::names_any(r.media.bodies(), r.accept.as_deref()) {
        return Err(not_acceptable(r, NotAcceptable::Format));
    }
    let asked = match r.info.verb.as_str() {
        "list" => Some(list::ListVerb::List),
        "watch" => Some(list::ListVerb::Watch(engine.policy.watch_lists)),
        _ => None,
    };
    check_accept(r, route).map_err(|refused| {
        let wrong = asked.and_then(|asked| list::selection(&r.query, row, asked).err());
        wrong.unwrap_or(refused)
    })?;
    if matches!(r.info.verb.as_str(), "create" | "update") {
        let format = r.sent_body().format()?;
        if format == Format::Protobuf && speaks_no_protobuf(r, row) {
            return Err(Status::unsupported_media_type(r.media.bodies()));
        }
    }
    Ok(())
}

/// Objects may have no protobuf form; their scales have.
fn speaks_no_protobuf(r: &VerbRequest, row: &Row) -> bool {
    !behavior(row).has_protobuf() && r.info.subresource != "scale"
}

/// Rejects an `Accept` that is not served (406).
fn check_accept(r: &mut VerbRequest, route: &Route) -> Result<(), Status> {
    let row = &route.row;
    if speaks_no_protobuf(r, row) {
        r.accept = without_protobuf(r.media, r.accept.take())?;
    }
    if route.subresource().map_or(&row.verbs, |s| &s.verbs).iter().all(|verb| verb == "create") {
        r.accept = without_table(r.media, r.accept.take())?;
    }
    let parsed = negotiate::parse(r.media, r.accept.as_deref(), r.info.verb == "watch");
    parsed.map(drop).map_err(|why| not_acceptable(r, why))
}

/// Runs a request for a resource. Its body is not read before it is known that something can be done with it.
pub async fn dispatch(
    engine: &Arc<Engine>,
    mut r: VerbRequest,
    body: impl Future<Output = Result<Bytes, Status>>,
) -> Result<Reply, Status> {
    if r.info.verb == "create" {
        reject_while_terminating(engine, &r)?;
    }
    let route = route(&engine.rows, &r.info, &r.method)?;
    let (deprecated, removed) = behavior(&route.row).deprecation(&route.row).unzip();
    let early = behavior(&route.row).warns_first();
    if early {
        r.recorder.add_warnings(deprecated.clone());
    }
    check_media_types(engine, &mut r, &route)?;
    if deprecated.is_some() {
        count_deprecated(&route.row, &r.info.subresource, &removed.unwrap_or_default());
    }
    if !early {
        r.recorder.add_warnings(deprecated.clone());
    }
    r.body = body.await?;
    let mut reply = perform(engine, &r, &route).await?;
    reply.warnings.splice(..0, deprecated);
    Ok(reply)
}

/// An `Accept` header without protobuf for objects that have no such form; their metadata has.
fn without_protobuf(media: Media, accept: Option<String>) -> Result<Option<String>, Status> {
    let plain = |clause: &str| clause.contains("application/vnd.kubernetes.protobuf") && !clause.contains("as=");
    without(accept, plain, media.bodies())
}

/// Removes tables from an `Accept` header: reviews and other create-only resources have none.
fn without_table(media: Media, accept: Option<String>) -> Result<Option<String>, Status> {
    without(accept, |clause| clause.contains("as=Table"), media.bodies())
}

/// An `Accept` header without the clauses that a resource cannot meet; the failure names those it could.
fn without(accept: Option<String>, cannot: impl Fn(&str) -> bool, offered: &[&str]) -> Result<Option<String>, Status> {
    let Some(text) = accept else { return Ok(None) };
    let left: Vec<&str> = text.split(',').filter(|clause| !cannot(clause)).collect();
    if left.is_empty() && !text.trim().is_empty() {
        return Err(Status::not_acceptable(offered));
    }
    Ok(Some(left.join(",")))
}

/// Refuses creates of a resource that is going away.
fn reject_while_terminating(engine: &Engine, r: &VerbRequest) -> Result<(), Status> {
    let row = engine.rows.find(&r.info.api_group, &r.info.api_version, &r.info.resource);
    row.and_then(|row| behavior(&row).refuses_creates()).map_or(Ok(()), Err)
}

/// Operators look for those who still ask for old resources.
fn count_deprecated(row: &Resource, subresource: &str, removed: &str) {
    let requested = shared::metrics::gauge(
        "apiserver_requested_deprecated_apis",
        "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
        &["group", "version", "resource", "subresource", "removed_release"],
    );
    requested.with_label_values(&[&row.group, &row.version, &row.plural, subresource, removed]).set(1.0);
}

async fn perform(engine: &Arc<Engine>, r: &VerbRequest, route: &Route) -> Result<Reply, Status> {
    if route.subresource().is_some() {
        return subresources::dispatch(engine, r, route).await;
    }
    match (r.info.verb.as_str(), GroupResource::of(&route.row)) {
        ("get", COMPONENT_STATUSES) => return component_status::get(engine, r, &route.row).await,
        ("list", COMPONENT_STATUSES) => return component_status::list(engine, r, &route.row).await,
        _ => {}
    }
    match r.info.verb.as_str() {
        "get" => get::get(engine, r, &route.row).await,
        "list" => list::list(engine, r, &route.row).await,
        "watch" => watch::watch(engine, r, &route.row).await,
        "create" => write::create(engine, r, &route.row).await,
        "update" => write::update(engine, r, &route.row, "").await,
        "patch" => patch::patch(engine, r, &route.row, "").await,
        "delete" => delete::delete(engine, r, &route.row).await,
        "deletecollection" => delete::delete_collection(engine, r, &route.row).await,
        _ => Err(Status::generic_method_not_allowed()),
    }
}
