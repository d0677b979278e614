//! Result of a write. Of a built-in kind only the encoded bytes are kept while the etcd transaction is in flight, so
//! that requests hold little memory and the next object tree reuses the blocks of the last.

use proto::Value;
use proto::resources::Row;

use crate::cache::Raw;
use crate::crd;

/// An object that was written.
pub enum WriteOutcome {
    /// Stored form, as the caches keep it.
    Stored(Raw),
    /// In the version of the request.
    Tree(Value),
}

impl WriteOutcome {
    /// Defaults a custom object as a read would: nulls that were applied are stored, and not shown.
    pub(super) fn defaulted(mut self, row: &Row) -> Self {
        if let (Self::Tree(tree), Some(served)) = (&mut self, crd::version_of(row)) {
            crd::objects::default(served, tree);
        }
        self
    }
}

/// Part of an object that is kept while its write is in flight.
pub(super) struct PendingWrite {
    pub(super) bytes: Vec<u8>,
    /// A custom object that is stored in the version of the request is returned as it was made.
    pub(super) custom: Option<Value>,
}

impl PendingWrite {
    /// `bytes` are what the object was encoded to.
    pub(super) fn new(row: &Row, bytes: Vec<u8>, object: Value) -> Self {
        Self { bytes, custom: (row.custom.is_some() && row.is_storage()).then_some(object) }
    }

    /// Bytes that etcd stores.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
