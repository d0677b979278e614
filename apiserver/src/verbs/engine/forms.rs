//! Between what etcd holds and what writes work on: bytes and trees, versions of a kind.

use std::sync::Arc;

use proto::Value;
use proto::resources::Row;
use shared::status::Status;

use super::Engine;
use crate::cache::{Entry, Raw};
use crate::crd;
use crate::registry::behavior;
use crate::storage::{Stored, codec};

impl Engine {
    /// Reads a stored object in the version writes of the row work in.
    pub(super) async fn decode(&self, row: &Row, stored: &Stored) -> Result<Value, Status> {
        let object = codec::decode(row, &stored.value, stored.revision).map_err(|e| self.decode_error(stored, &e))?;
        self.in_storage_version(row, object).await
    }

    /// An object as read, in the version writes of the row work in.
    pub(in crate::verbs) async fn in_storage_version(&self, row: &Row, object: Value) -> Result<Value, Status> {
        if !behavior(row).changes_version(row) {
            return Ok(object);
        }
        let mut converted = crd::convert::to(&*self.caller, row, vec![object]).await?;
        Ok(converted.pop().unwrap_or_default())
    }

    /// Encodes an object as etcd stores it.
    pub(in crate::verbs) async fn encode(&self, row: &Row, object: &Value) -> Result<Vec<u8>, Status> {
        let failed = |e: codec::CodecError| Status::internal(&e.to_string());
        if !behavior(row).is_converted_to_store(row, object) {
            return codec::encode(row, object, self.policy.media).map_err(failed);
        }
        let storage = row.storage();
        let converted = crd::convert::to(&*self.caller, &storage, vec![object.clone()]).await?;
        codec::encode(&storage, converted.first().unwrap_or(object), self.policy.media).map_err(failed)
    }

    /// Entries in a row's version, converted where caches keep another.
    pub async fn in_version(&self, row: &Row, entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
        if !behavior(row).changes_version(row) || entries.is_empty() {
            return Ok(entries);
        }
        let failed = |e: codec::CodecError| Status::internal(&e.to_string());
        let trees = entries.iter().map(|e| codec::value(row, &e.raw)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let converted = crd::convert::to(&*self.caller, row, trees).await?;
        let entry = |(old, tree): (Arc<Entry>, Value)| {
            let raw = Raw::Json(tree.to_string().into());
            Arc::new(Entry::from_tree(row, &old.key, raw, &tree, old.revision))
        };
        Ok(entries.into_iter().zip(converted).map(entry).collect())
    }

    /// From the request's version to the storage row's.
    pub fn to_storage(&self, row: &Row, object: Value) -> Value {
        let behavior = behavior(row);
        if behavior.is_served_as_kept(row) {
            return object;
        }
        behavior.convert(object, (&row.group, &row.kind), &row.storage())
    }

    /// From the storage row's version to the request's.
    pub fn to_served(&self, row: &Row, object: Value) -> Value {
        let behavior = behavior(row);
        if behavior.is_served_as_kept(row) {
            return object;
        }
        let storage = row.storage();
        behavior.convert(object, (&storage.group, &storage.kind), row)
    }
}
