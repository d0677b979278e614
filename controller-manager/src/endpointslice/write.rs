//! Writes of slices, and how they are carried out: by this controller and by the one that mirrors.

use std::sync::Arc;

use serde_json::json;
use shared::informer::Cached as _;

use super::slice::Slice;
use super::tracker::Tracker;
use crate::engine::action::Action;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::Key;
use crate::engine::rest::RestError;

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A slice that was not there.
    Create(Slice),
    /// A slice as it is to be, in the version it was seen in.
    Update(Slice),
    /// A slice that goes.
    Delete(Arc<Slice>),
    /// Something to say.
    Tell(Box<Action>),
}

impl Write {
    /// Whether a slice is written or goes.
    #[must_use]
    pub fn changes(&self) -> bool {
        !matches!(self, Self::Tell(_))
    }
}

/// Counts what is about to be written under the name of a metric.
pub fn count(metric: &str, writes: &[Write]) {
    for write in writes {
        match write {
            Write::Create(_) => metrics::count(metric, &["create"]),
            Write::Update(_) => metrics::count(metric, &["update"]),
            Write::Delete(_) => metrics::count(metric, &["delete"]),
            Write::Tell(_) => {}
        }
    }
}

/// A write that the server did not take.
#[derive(Debug)]
pub struct Failed {
    /// What was to be done, as messages say it.
    pub what: String,
    /// Why it was not.
    pub error: RestError,
}

impl Failed {
    /// Whether there is nothing to be done about it: the namespace takes no new objects any more.
    #[must_use]
    pub fn for_good(&self) -> bool {
        self.error.namespace_terminating()
    }
}

/// Carries out what was planned for `key`, remembering each write in `tracker`.
///
/// # Errors
/// The first write that the server did not take.
pub async fn carry_out(executor: &Executor, tracker: &Tracker, key: &Key, writes: Vec<Write>) -> Result<(), Failed> {
    let named = |verb: &str, slice: &Slice| format!("{verb} {} EndpointSlice", slice.meta().name());
    // What is rare is in boxes: it is larger than the rest.
    for write in writes {
        match write {
            Write::Create(slice) => {
                let path = Slice::collection_path(Some(slice.meta().namespace()));
                let made = executor.rest.send_packed("POST", &path, slice.body()).await;
                let failed = |error| Failed { what: "create EndpointSlice".to_owned(), error };
                tracker.wrote(key, made.map_err(failed)?);
            }
            Write::Update(slice) => {
                let put = executor.rest.send_packed("PUT", &slice.path(), slice.body()).await;
                tracker.wrote(key, put.map_err(|error| Failed { what: named("update", &slice), error })?);
            }
            Write::Delete(slice) => {
                let options = json!({"preconditions": {"uid": slice.meta().uid()}});
                let deleted = Box::pin(executor.one(Action::Delete { path: slice.path(), options })).await;
                deleted.map_err(|error| Failed { what: named("delete", &slice), error })?;
                tracker.deleted(key, slice.meta().uid());
            }
            // Events are not waited for.
            Write::Tell(event) => drop(Box::pin(executor.one(*event)).await),
        }
    }
    Ok(())
}
