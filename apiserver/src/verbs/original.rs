//! The original state of a write: the object as the watch cache knows it, which costs nothing but may be stale, or as
//! etcd has it. A write is conditional on the revision it started from, so a stale original is detected; any other
//! failure on a stale one (a conflict, a refusal, nothing to change) is repeated on etcd's state, as upstream's
//! `GuaranteedUpdate` does.

use std::sync::Arc;

use proto::Value;
use proto::resources::Resource;
use shared::status::Status;

use crate::cache::Entry;
use crate::storage::{Stored, codec};

pub(super) enum OriginalState {
    Cached(Arc<Entry>),
    Stored(Stored),
}

impl OriginalState {
    pub(super) fn revision(&self) -> i64 {
        match self {
            Self::Cached(e) => e.revision,
            Self::Stored(s) => s.revision,
        }
    }

    pub(super) fn lease(&self) -> i64 {
        match self {
            Self::Cached(e) => e.lease,
            Self::Stored(s) => s.lease,
        }
    }

    /// Reports whether the state was read from etcd.
    pub(super) fn is_current(&self) -> bool {
        matches!(self, Self::Stored(_))
    }

    /// The object in the storage row's version.
    pub(super) fn tree(&self, storage: &Resource) -> Result<Value, Status> {
        let tree = match self {
            Self::Cached(e) => codec::value(storage, &e.raw),
            Self::Stored(s) => codec::decode(storage, &s.value, s.revision),
        };
        tree.map_err(|e| Status::internal(&e.to_string()))
    }

    /// Writing these bytes would change nothing.
    pub(super) fn holds(&self, storage: &Resource, bytes: &[u8]) -> bool {
        match self {
            Self::Cached(e) => !e.stale && codec::is_stored_as(storage, &e.raw, bytes),
            Self::Stored(s) => !s.stale && s.value == bytes,
        }
    }
}

/// Reasons to repeat a round of an update.
pub(super) enum Retry {
    /// Somebody else wrote; this is what is there now.
    Conflict(Option<Stored>),
    /// The result depends on whether the original state is current.
    StaleCache,
    /// None, for storage failed: nobody knows whether the object was written.
    Failed(Box<Status>),
}
