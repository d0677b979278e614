//! Custom resource definitions: a new one has stored nothing but its storage version. Answers for upstream's
//! `apiextensions-apiserver/pkg/registry/customresourcedefinition`.

use proto::Value;
use serde_json::json;

use super::meta;
use super::strategy::StrategyCx;
use crate::crd::controller::FINALIZER;
use crate::crd::set_condition;
use crate::machinery::tree;

/// Starts the list of versions that etcd may hold.
pub(super) fn prepare_create(object: &mut Value, _: &mut StrategyCx<'_>) {
    let versions = object.pointer("/spec/versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let stored = versions.iter().find(|v| v["storage"] == true).map(|v| [&v["name"]]);
    object["status"] =
        json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
}

/// A version that becomes the stored one is stored from now on.
pub(super) fn prepare_update(object: &mut Value, _: &Value) {
    let stored = tree::list(object, "/spec/versions").iter().find(|v| v["storage"] == true).map(|v| v["name"].clone());
    let Some(stored) = stored else { return };
    let list = tree::field(object, &["status", "storedVersions"]);
    match list.as_array_mut() {
        Some(list) if !list.contains(&stored) => list.push(stored),
        Some(_) => {}
        None => *list = json!([stored]),
    }
}

/// A definition stays until its clean-up has begun; from then on its finalizer keeps it.
pub(super) fn is_held(object: &Value) -> bool {
    !tree::list(object, "/status/conditions").iter().any(|c| c["type"] == "Terminating")
}

/// The clean-up begins.
pub(super) fn terminate(object: &mut Value) {
    let finalizers = tree::list_mut(object, &["metadata", "finalizers"]);
    if let Some(list) = finalizers
        && !list.iter().any(|f| f == FINALIZER)
    {
        list.push(json!(FINALIZER));
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(object, "Terminating", "True", "InstanceDeletionPending", message, &meta::now());
}
