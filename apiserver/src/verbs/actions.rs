//! Port of the storages that stand above the engine. Answers for upstream's `rest.NamedCreater`.

use std::sync::Arc;

use futures::future::LocalBoxFuture;
use proto::Value;
use proto::resources::Row;
use shared::status::Status;

use super::engine::Engine;
use super::{Reply, VerbRequest};
use crate::machinery::query::WriteOptions;

/// An action that runs.
pub type Acting<'a> = LocalBoxFuture<'a, Result<Reply, Status>>;

/// REST storages of subresources and kinds that are actions rather than objects; given when the engine is assembled.
pub trait Actions: Send + Sync {
    /// Runs a request for a subresource that is an action; `None` for any other.
    fn subresource<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        r: &'a VerbRequest,
        row: &'a Row,
        subresource: &str,
    ) -> Option<Acting<'a>>;

    /// Runs a create of a kind that is an action, whose `object` it takes; `None` for any other.
    fn create<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        r: &'a VerbRequest,
        row: &Row,
        object: &mut Value,
        options: &'a WriteOptions,
    ) -> Option<Acting<'a>>;
}
