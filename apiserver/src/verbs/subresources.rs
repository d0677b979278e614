//! Subresources that are written like their object, and the door to those that are not.

use std::sync::Arc;

use futures::future::LocalBoxFuture;
use proto::resources::Row;
use proto::{Value, schema};
use serde_json::json;
use shared::status::Status;

use super::engine::Engine;
use super::{Reply, Request, Route, get, namespace_of, patch, reply_object, scale, target, write};
use crate::admission::Operation;
use crate::machinery::query::WriteOptions;
use crate::negotiate;

/// An action that runs.
pub type Acting<'a> = LocalBoxFuture<'a, Result<Reply, Status>>;

/// REST storages of subresources and kinds that are actions rather than objects; given when the engine is assembled.
pub trait Actions: Send + Sync {
    /// Runs a request for a subresource that is an action; `None` for any other.
    fn subresource<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        r: &'a Request,
        row: &'a Row,
        subresource: &str,
    ) -> Option<Acting<'a>>;

    /// Runs a create of a kind that is an action, whose `object` it takes; `None` for any other.
    fn create<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        r: &'a Request,
        row: &Row,
        object: &mut Value,
        options: &'a WriteOptions,
    ) -> Option<Acting<'a>>;
}

/// Runs a request for a subresource.
pub async fn dispatch(engine: &Arc<Engine>, r: &Request, route: &Route) -> Result<Reply, Status> {
    let row = &route.row;
    let Some(sub) = route.subresource() else { return Err(Status::generic_not_found()) };
    if &*sub.name == "scale" {
        return scale::dispatch(engine, r, row).await;
    }
    let name = &*sub.name;
    if let Some(acting) = engine.actions.subresource(engine, r, row, name) {
        return acting.await;
    }
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

/// Creates of kinds that are computed or are actions.
pub async fn create_virtual(
    engine: &Arc<Engine>,
    r: &Request,
    row: &Row,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Reply, Status> {
    let namespace = namespace_of(&r.info, row);
    write::check_namespace(&mut object, namespace)?;
    if let Some(acting) = engine.actions.create(engine, r, row, &mut object, options) {
        return acting.await;
    }
    let mut t = target(r, row, "", options, "CreateOptions");
    engine.admit_and_validate(&mut t, Operation::Create, Some(&mut object), None).await?;
    let Some(virtuals) = engine.virtuals.get() else { return Err(Status::generic_method_not_allowed()) };
    match virtuals.create(&r.user, row, namespace, object).await {
        Some(answer) => reply_object(engine, r, row, 201, &answer?),
        None => Err(Status::generic_method_not_allowed()),
    }
}
