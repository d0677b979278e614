//! Rows, etcd and caches, as allocators and repair loops use them.

use std::sync::Arc;

use proto::resources::Resource;

use crate::cache::CacheRegistry;
use crate::rows::Rows;
use crate::storage::Store;

/// Storage of the objects that say what is allocated; shared with the engine.
pub(crate) struct AllocationStorage {
    /// Resources that are served.
    pub(crate) rows: Rows,
    /// etcd.
    pub(crate) store: Store,
    /// Caches.
    pub(crate) caches: Arc<CacheRegistry>,
}

impl AllocationStorage {
    /// The key of an object at cluster scope.
    pub(super) fn key(&self, row: &Resource, name: &str) -> String {
        format!("{}/{name}", self.store.key(&row.etcd_prefix))
    }
}
