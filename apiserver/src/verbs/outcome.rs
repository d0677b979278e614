//! Result of a write. Of a built-in kind only the encoded bytes are kept while the etcd transaction is in flight, so
//! that requests hold little memory and the next object tree reuses the blocks of the last.

use proto::Value;
use proto::resources::Row;
use shared::status::Status;
use shared::traces;

use super::engine::Engine;
use super::{Reply, Request, accepted, get, table};
use crate::cache::Raw;
use crate::crd;
use crate::machinery::meta;
use crate::storage::codec;

/// An object that was written.
pub enum Outcome {
    /// Stored form, as the caches keep it.
    Stored(Raw),
    /// In the version of the request.
    Tree(Value),
}

impl Outcome {
    /// The object in the version of the request.
    pub fn tree(self, engine: &Engine, row: &Row) -> Result<Value, Status> {
        match self {
            Self::Stored(raw) => get::served(engine, row, &raw),
            Self::Tree(tree) => Ok(tree),
        }
    }

    /// Defaults a custom object as a read would: nulls that were applied are stored, and not shown.
    pub(super) fn defaulted(mut self, row: &Row) -> Self {
        if let (Self::Tree(tree), Some(served)) = (&mut self, crd::version_of(row)) {
            crd::objects::default(served, tree);
        }
        self
    }

    /// The answer in the form the client accepts; what is stored needs less work than its tree.
    pub fn reply(self, engine: &Engine, r: &Request, row: &Row, code: u16) -> Result<Reply, Status> {
        let accepted = accepted(r, false)?;
        if let Self::Stored(raw) = &self
            && let Some(body) = table::stored(row, &accepted, raw)?
        {
            return Ok(Reply::new(code, accepted.format.content_type(), body));
        }
        table::object_reply(engine, r, row, &accepted, code, &self.tree(engine, row)?)
    }
}

/// Part of an object that is kept while its write is in flight.
pub(super) struct PendingWrite {
    bytes: Vec<u8>,
    /// A custom object that is stored in the version of the request is returned as it was made.
    custom: Option<Value>,
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

    /// Re-encodes the object without managed fields.
    pub(super) async fn without_managed_fields(self, engine: &Engine, row: &Row) -> Result<Self, Status> {
        let unreadable = |e: codec::CodecError| Status::internal(&e.to_string());
        let kept = self.custom.map_or_else(|| codec::decode(row, &self.bytes, 0).map_err(unreadable), Ok);
        let mut object = kept?;
        let metadata = meta::metadata(&mut object);
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
        Ok(Self::new(row, engine.encode(row, &object).await?, object))
    }

    /// Traces [`at`](Self::at).
    pub(super) async fn finish_traced(self, engine: &Engine, row: &Row, revision: i64) -> Result<Outcome, Status> {
        let len = self.bytes.len();
        let outcome = self.finish(engine, row, revision).await;
        traces::step_of(if outcome.is_ok() { "decode succeeded" } else { "decode failed" }, "len", len);
        outcome
    }

    /// Builds the result at the revision of the write. An object that is stored in another version is converted there
    /// and back.
    pub(super) async fn finish(self, engine: &Engine, row: &Row, revision: i64) -> Result<Outcome, Status> {
        if let Some(mut object) = self.custom {
            meta::set_text(&mut object, "resourceVersion", &revision.to_string());
            return Ok(Outcome::Tree(object));
        }
        let unreadable = |e: codec::CodecError| Status::internal(&e.to_string());
        if row.custom.is_some() {
            let object = codec::decode(row, &self.bytes, revision).map_err(unreadable)?;
            return engine.in_storage_version(row, object).await.map(Outcome::Tree);
        }
        codec::raw(row, &self.bytes, revision).map(Outcome::Stored).map_err(unreadable)
    }
}
