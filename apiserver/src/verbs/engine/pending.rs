//! Encoding of an object that is written, and its result once it was.

use proto::Value;
use proto::resources::Row;
use shared::status::Status;
use shared::traces;

use super::super::outcome::{PendingWrite, WriteOutcome};
use super::Engine;
use crate::cache::Raw;
use crate::machinery::meta;
use crate::registry::behavior;
use crate::storage::codec;

impl WriteOutcome {
    /// The object in the version of the request.
    pub fn tree(self, engine: &Engine, row: &Row) -> Result<Value, Status> {
        match self {
            Self::Stored(raw) => engine.served(row, &raw),
            Self::Tree(tree) => Ok(tree),
        }
    }
}

impl Engine {
    /// Encodes an object into a pending write, and traces the step.
    pub(super) async fn encode_pending(&self, storage: &Row, object: Value) -> Result<PendingWrite, Status> {
        traces::step("About to Encode");
        let bytes = self.encode(storage, &object).await?;
        traces::step_of("Encode succeeded", "len", bytes.len());
        Ok(PendingWrite::new(storage, bytes, object))
    }

    /// Re-encodes the object without managed fields.
    pub(super) async fn without_managed_fields(
        &self,
        pending: PendingWrite,
        row: &Row,
    ) -> Result<PendingWrite, Status> {
        let unreadable = |e: codec::CodecError| Status::internal(&e.to_string());
        let kept = pending.tree.map_or_else(|| codec::decode(row, &pending.bytes, 0).map_err(unreadable), Ok);
        let mut object = kept?;
        let metadata = meta::metadata(&mut object);
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
        Ok(PendingWrite::new(row, self.encode(row, &object).await?, object))
    }

    /// Traces [`finish`](Self::finish).
    pub(super) async fn finish_traced(
        &self,
        pending: PendingWrite,
        row: &Row,
        revision: i64,
    ) -> Result<WriteOutcome, Status> {
        let len = pending.bytes().len();
        let outcome = self.finish(pending, row, revision).await;
        traces::step_of(if outcome.is_ok() { "decode succeeded" } else { "decode failed" }, "len", len);
        outcome
    }

    /// Builds the result at the revision of the write. An object that is stored in another version is converted there
    /// and back.
    pub(super) async fn finish(&self, pending: PendingWrite, row: &Row, revision: i64) -> Result<WriteOutcome, Status> {
        if let Some(mut object) = pending.tree {
            meta::set_text(&mut object, "resourceVersion", &revision.to_string());
            return Ok(WriteOutcome::Tree(object));
        }
        let unreadable = |e: codec::CodecError| Status::internal(&e.to_string());
        if behavior(row).keeps_trees() {
            let object = codec::decode(row, &pending.bytes, revision).map_err(unreadable)?;
            return self.in_storage_version(row, object).await.map(WriteOutcome::Tree);
        }
        codec::raw(row, &pending.bytes, revision).map(WriteOutcome::Stored).map_err(unreadable)
    }

    /// The tree of cached bytes in the version of the request's row.
    pub fn served(&self, row: &Row, raw: &Raw) -> Result<Value, Status> {
        let tree = codec::value(&row.storage(), raw).map_err(|e| Status::internal(&e.to_string()))?;
        Ok(self.to_served(row, tree))
    }
}
