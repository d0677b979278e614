//! Subresources that are written like their object, and the door to those that are not.

use std::sync::Arc;

use proto::resources::Row;
use proto::{Value, schema};
use serde_json::json;
use shared::status::{Status, field};

use super::engine::Engine;
use super::{Reply, Request, Route, get, namespace_of, patch, reply_object, scale, target, write};
use crate::admission::Operation;
use crate::machinery::meta;
use crate::machinery::query::{OptionsKind, WriteOptions};
use crate::negotiate;
use crate::registry::core::{binding, eviction};

/// Runs a request for a subresource.
pub async fn dispatch(engine: &Arc<Engine>, r: &Request, route: &Route) -> Result<Reply, Status> {
    let row = &route.row;
    let Some(sub) = route.subresource() else { return Err(Status::generic_not_found()) };
    match &*sub.name {
        "scale" => return scale::dispatch(engine, r, row).await,
        "binding" => return bind(engine, r, row).await,
        "eviction" => return eviction::evict(engine, r, row).await,
        "token" => return token(engine, r, row).await,
        _ => {}
    }
    let name = &*sub.name;
    match r.info.verb.as_str() {
        "get" => get::get(engine, r, row).await,
        "update" => write::update(engine, r, row, name).await,
        "patch" => patch::patch(engine, r, row, name).await,
        _ => Err(Status::generic_method_not_allowed()),
    }
}

/// `Success` of a create that stores nothing under its own name.
pub fn created(r: &Request) -> Result<Reply, Status> {
    let accepted = super::accepted(r, false)?;
    let tree = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema::kind("", "v1", "Status"), &tree);
    Ok(Reply::new(201, accepted.format.content_type(), body))
}

/// Creates of kinds that are computed, and of `bindings`.
pub async fn create_virtual(
    engine: &Arc<Engine>,
    r: &Request,
    row: &Row,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Reply, Status> {
    let namespace = namespace_of(&r.info, row);
    write::check_namespace(&mut object, namespace)?;
    if row.plural == "bindings" {
        let pods = &engine.rows.storage("", "pods").ok_or_else(Status::generic_not_found)?;
        let name = meta::text(&object, "name").to_owned();
        return bind_to(engine, r, pods, &name, object, options).await;
    }
    let mut t = target(r, row, "", options, "CreateOptions");
    engine.admit_and_validate(&mut t, Operation::Create, Some(&mut object), None).await?;
    let Some(virtuals) = engine.virtuals.get() else { return Err(Status::generic_method_not_allowed()) };
    match virtuals.create(&r.user, row, namespace, object).await {
        Some(answer) => reply_object(engine, r, row, 201, &answer?),
        None => Err(Status::generic_method_not_allowed()),
    }
}

async fn bind(engine: &Arc<Engine>, r: &Request, row: &Row) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    let mut object = write::body_of_kind(r, ("", "v1", "Binding"), &options)?.object;
    write::check_namespace(&mut object, &r.info.namespace)?;
    bind_to(engine, r, row, &r.info.name, object, &options).await
}

async fn bind_to(
    engine: &Arc<Engine>,
    r: &Request,
    row: &Row,
    name: &str,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Reply, Status> {
    let mut t = target(r, row, "binding", options, "CreateOptions");
    t.name = name;
    engine.admit(&mut t, Operation::Create, Some(&mut object), None).await?;
    if meta::text(&object, "name") != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    binding::check(&object)?;
    engine.validate_admission(&mut t, Operation::Create, Some(&mut object), None).await?;
    let key = engine.key(row, &r.info.namespace, name);
    let mut assign = |pod: &mut Value| binding::assign(pod, &object, &key, engine.policy.binding);
    engine.modify(row, &r.info.namespace, name, options.dry_run, &mut assign).await?;
    created(r)
}

async fn token(engine: &Arc<Engine>, r: &Request, row: &Row) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    let mut object = write::body_of_kind(r, ("authentication.k8s.io", "v1", "TokenRequest"), &options)?.object;
    write::check_namespace(&mut object, &r.info.namespace)?;
    let mut t = target(r, row, "token", &options, "CreateOptions");
    engine.admit(&mut t, Operation::Create, Some(&mut object), None).await?;
    let said = meta::text(&object, "name");
    if !said.is_empty() && said != r.info.name {
        let path = field::Path::of(&["metadata", "name"]);
        let error = field::Error::invalid(path, said, "must match the service account name if specified");
        return Err(Status::invalid("authentication.k8s.io", "TokenRequest", &r.info.name, [error]));
    }
    let Some((account, _)) = engine.read(row, &r.info.namespace, &r.info.name).await? else {
        return Err(Status::not_found(&row.group, &row.plural, &r.info.name));
    };
    let Some(issuer) = engine.tokens.get() else { return Err(Status::generic_not_found()) };
    issuer.complete(&account, &mut object)?;
    engine.validate_admission(&mut t, Operation::Create, Some(&mut object), None).await?;
    let issued = issuer.issue(&account, object).await?;
    let credential = ("authentication.kubernetes.io/issued-credential-id".to_owned(), issued.credential);
    r.recorder.annotate([credential].into());
    Ok(reply_object(engine, r, row, 201, &issued.object)?.warn(issued.warnings))
}
