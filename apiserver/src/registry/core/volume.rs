//! Volumes and claims start out pending.

use proto::Value;
use serde_json::json;

use crate::registry::strategy::StrategyCx;

/// See the module.
pub(in crate::registry) fn prepare_create(object: &mut Value, _: &StrategyCx<'_>) {
    object["status"] = json!({"phase": "Pending"});
}

/// A volume also says since when.
pub(in crate::registry) fn prepare_create_volume(object: &mut Value, _: &StrategyCx<'_>) {
    object["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": crate::registry::meta::now()});
}
