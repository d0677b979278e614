//! Who owns which fields: `metadata.managedFields` after a write.

use proto::Value;
use proto::resources::Resource;
use shared::status::Status;

use super::query::WriteOptions;

/// A new object: everything set belongs to `manager`.
pub fn created(_row: &Resource, _subresource: &str, _object: &mut Value, _manager: &str) {}

/// A changed object: what changed belongs to `manager` now.
pub fn updated(_row: &Resource, _subresource: &str, _old: &Value, _new: &mut Value, _manager: &str) {}

/// Server-side apply.
pub fn applied(_row: &Resource, _subresource: &str, _old: Option<&Value>, _applied: &Value, _options: &WriteOptions) -> Result<(Value, Vec<String>), Status> {
    Err(Status::internal("apply"))
}
