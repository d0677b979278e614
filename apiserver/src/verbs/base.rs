//! What a write begins with: the object as the cache knows it, which costs nothing but may be a moment old, or as etcd
//! says. A write is conditional on the revision it began with, so an old beginning is found out; what else seems wrong
//! with one (a conflict, a refusal, nothing to change) is judged again on what etcd says.

use std::sync::Arc;

use proto::Value;
use proto::resources::Resource;
use shared::status::Status;

use crate::cache::Entry;
use crate::storage::{Stored, codec};

pub(super) enum Base {
    Cached(Arc<Entry>),
    Stored(Stored),
}

impl Base {
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

    /// It is what etcd said.
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

/// Why a round has to be repeated.
pub(super) enum Again {
    /// Somebody else wrote; this is what is there now.
    Lost(Option<Stored>),
    /// It depends on whether the beginning is what etcd has.
    Unsure,
}
