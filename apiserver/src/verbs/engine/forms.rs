//! Between what etcd holds and what writes work on: bytes and trees, versions of a kind.

use std::sync::Arc;

use proto::Value;
use proto::resources::Row;
use shared::status::Status;

use super::Engine;
use crate::cache::{Entry, Raw};
use crate::crd;
use crate::registry::conversion;
use crate::storage::{Stored, codec};

impl Engine {
    /// Reads a stored object in the version writes of the row work in.
    pub(super) async fn decode(&self, row: &Row, stored: &Stored) -> Result<Value, Status> {
        let object = codec::decode(row, &stored.value, stored.revision).map_err(|e| self.decode_error(stored, &e))?;
        self.in_storage_version(row, object).await
    }

    /// An object as read, in the version writes of the row work in.
    pub(in crate::verbs) async fn in_storage_version(&self, row: &Row, object: Value) -> Result<Value, Status> {
        if !crd::changes_version(row) {
            return Ok(object);
        }
        let mut converted = crd::convert::to(&*self.caller, row, vec![object]).await?;
        Ok(converted.pop().unwrap_or_default())
    }

    /// Encodes an object as etcd stores it.
    pub(in crate::verbs) async fn encode(&self, row: &Row, object: &Value) -> Result<Vec<u8>, Status> {
        let failed = |e: codec::CodecError| Status::internal(&e.to_string());
        if row.custom.is_none() || object["apiVersion"] == row.storage_api_version() {
            return codec::encode(row, object, self.policy.media).map_err(failed);
        }
        let storage = row.storage();
        let converted = crd::convert::to(&*self.caller, &storage, vec![object.clone()]).await?;
        codec::encode(&storage, converted.first().unwrap_or(object), self.policy.media).map_err(failed)
    }

    /// Entries of a custom resource in a row's version; everything else as it is.
    pub async fn in_version(&self, row: &Row, entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
        if !crd::changes_version(row) || entries.is_empty() {
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
        // Custom resources are converted where they are read and written.
        if row.custom.is_some() || row.is_storage() {
            return object;
        }
        let s = row.storage();
        conversion::convert(object, &row.group, &row.kind, &s.group, &s.version)
    }

    /// From the storage row's version to the request's.
    pub fn to_served(&self, row: &Row, object: Value) -> Value {
        // Custom resources are converted where they are read and written.
        if row.custom.is_some() || row.is_storage() {
            return object;
        }
        let s = row.storage();
        conversion::convert(object, &s.group, &s.kind, &row.group, &row.version)
    }
}
