//! Result of a write. Of an object that is not kept as a tree only the encoded bytes are kept while the etcd transaction is in flight, so
//! that requests hold little memory and the next object tree reuses the blocks of the last.

use proto::Value;
use proto::resources::Row;

use crate::cache::Raw;
use crate::registry::behavior;

/// An object that was written.
pub enum WriteOutcome {
    /// Stored form, as the caches keep it.
    Stored(Raw),
    /// In the version of the request.
    Tree(Value),
}

impl WriteOutcome {
    /// Defaults an object that is returned as a tree as a read would.
    pub(super) fn defaulted(mut self, row: &Row) -> Self {
        if let Self::Tree(tree) = &mut self {
            behavior(row).default_written(tree);
        }
        self
    }
}

/// Part of an object that is kept while its write is in flight.
pub(super) struct PendingWrite {
    pub(super) bytes: Vec<u8>,
    /// An object that is kept as a tree, in the version of the request, is returned as it was made.
    pub(super) tree: Option<Value>,
}

impl PendingWrite {
    /// `bytes` are what the object was encoded to.
    pub(super) fn new(row: &Row, bytes: Vec<u8>, object: Value) -> Self {
        Self { bytes, tree: (behavior(row).keeps_trees() && row.is_storage()).then_some(object) }
    }

    /// Bytes that etcd stores.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
