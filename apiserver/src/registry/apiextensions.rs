//! Custom resource definitions: a new one has stored nothing but its storage version.

use proto::Value;
use serde_json::json;

use super::strategy::StrategyCx;

/// Starts the list of versions that etcd may hold.
pub(super) fn prepare_create(object: &mut Value, _: &StrategyCx<'_>) {
    let versions = object.pointer("/spec/versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let stored: Vec<&Value> = versions.iter().filter(|v| v["storage"] == true).map(|v| &v["name"]).collect();
    object["status"] =
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
}
