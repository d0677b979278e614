//! Subresources that are written like their object, and the door to those that are not.

use std::sync::Arc;

use proto::schema;
use serde_json::json;
use shared::status::Status;

use super::engine::Engine;
use super::{Reply, Route, VerbRequest, get, patch, scale, write};
use crate::negotiate;

/// Runs a request for a subresource.
pub async fn dispatch(engine: &Arc<Engine>, r: &VerbRequest, route: &Route) -> Result<Reply, Status> {
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
pub fn created(r: &VerbRequest) -> Result<Reply, Status> {
    let accepted = super::accepted(r, false)?;
    let tree = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    let body = negotiate::envelope(accepted.format, accepted.pretty, schema::kind("", "v1", "Status"), &tree);
    Ok(Reply::new(201, accepted.format.content_type(), body))
}
