//! Volumes and claims start out pending.

use proto::Value;
use serde_json::json;

use crate::registry::strategy::StrategyCx;

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &StrategyCx<'_>) {
    object["status"] = json!({"phase": "Pending"});
}
