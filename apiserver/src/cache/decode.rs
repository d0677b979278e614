//! Entries of the watch cache made of stored bytes, or of trees at hand. Answers for upstream's `storeElement` of the
//! watch cache.

use proto::Value;
use proto::protobuf;
use proto::resources::Resource;

use super::entry::Entry;
use crate::registry::fields;
use crate::storage::Raw;
use crate::storage::codec::{self, CodecError};

impl Entry {
    /// The cache's record of a stored value. Of protobuf only what requests select by is looked at.
    pub fn from_stored(row: &Resource, key: &str, stored: &[u8], revision: i64) -> Result<Self, CodecError> {
        let (raw, stale) = codec::read(row, stored, revision)?;
        if let Raw::Proto(body) = &raw {
            let schema = codec::served_schema(row)?;
            let table = fields::selectable_fields(&row.group, &row.plural);
            let values = fields::values(table, |pointer| protobuf::lookup(schema, body, pointer));
            let labels = codec::labels(body).ok_or_else(|| CodecError::Protobuf("broken labels".to_owned()))?;
            let labels = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
            let entry = Self::new(key, revision, raw.clone(), labels, values.iter().map(|v| &**v));
            return Ok(entry.stored_as(0, stale));
        }
        let tree = codec::value(row, &raw)?;
        Ok(Self::from_tree(row, key, raw, &tree, revision))
    }

    /// The cache's record of an object whose tree is at hand.
    pub fn from_tree(row: &Resource, key: &str, raw: Raw, tree: &Value, revision: i64) -> Self {
        let labels = tree.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels.into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or(""))).collect();
        let values = fields::of_object(row, tree);
        Self::new(key, revision, raw, labels, values.iter().map(|v| &**v))
    }
}
