//! Writes of slices, and how they are carried out: by this controller and by the one that mirrors.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Resource as _;

use super::tracker::Tracker;
use crate::engine::action::{Action, object_path};
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::rest::RestError;

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A slice that was not there.
    Create(EndpointSlice),
    /// A slice as it is to be, in the version it was seen in.
    Update(EndpointSlice),
    /// A slice that goes.
    Delete(Arc<EndpointSlice>),
    /// Something to say.
    Tell(Action),
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

/// Carries out what was planned for `key`, remembering each write in `tracker`.
///
/// # Errors
/// The first write that the server did not take.
pub async fn carry_out(executor: &Executor, tracker: &Tracker, key: &Key, writes: Vec<Write>) -> Result<(), RestError> {
    for write in writes {
        match write {
            Write::Create(slice) => {
                let path = EndpointSlice::url_path(&(), slice.metadata.namespace.as_deref());
                tracker.wrote(key, executor.rest.send("POST", &path, &slice).await?);
            }
            Write::Update(slice) => {
                let path = object_path::<EndpointSlice>(&slice.metadata);
                tracker.wrote(key, executor.rest.send("PUT", &path, &slice).await?);
            }
            Write::Delete(slice) => {
                executor.one(Action::delete::<EndpointSlice>(&slice.metadata)).await?;
                tracker.deleted(key, object::uid(&slice.metadata));
            }
            Write::Tell(event) => executor.one(event).await?,
        }
    }
    Ok(())
}
