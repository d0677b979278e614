//! LIST: from the cache when it is as fresh as asked, from etcd when an older revision is. Answers for upstream's
//! `ListResource`, `Cacher.GetList`.
//!
//! Hot path: with JSON or protobuf of the stored version, the answer is a concatenation of encoded objects.

mod body;
mod encode;
mod found;
mod meters;
mod options;
mod token;

use std::sync::Arc;

pub use body::{CHUNK, COMPRESS_FROM};
pub(super) use encode::put;
pub use encode::reply;
pub use found::{ListResult, collect, requested, scope};
pub use options::{ListVerb, begins_with_state, selection};
use proto::resources::Row;
use shared::status::Status;

use super::engine::Engine;
use super::table::Include;
use super::{Reply, VerbRequest, accepted};
use crate::negotiate::ObjectForm;

/// The verb.
pub async fn list(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let accepted = accepted(r, false)?;
    let include = Include::read(&r.query);
    let selection = selection(&r.query, row, ListVerb::List)?;
    if !row.is_stored() {
        options::read(&r.query, "", true)?;
        let empty = ListResult { items: Vec::new(), revision: engine.caches.progress(row).processed(), rest: None };
        return reply(engine, r, row, &accepted, include.unwrap_or(Include::Metadata), empty);
    }
    let found = requested(engine, r, row, &selection).await?;
    let include = if matches!(accepted.shape, ObjectForm::Table(_)) { include? } else { Include::Metadata };
    reply(engine, r, row, &accepted, include, found)
}
