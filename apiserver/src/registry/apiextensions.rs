//! Custom resource definitions: a new one has stored nothing but its storage version. Answers for upstream's
//! `apiextensions-apiserver/pkg/registry/customresourcedefinition`.

pub(crate) mod custom_resource_definition;

use proto::Value;
use serde_json::json;

use super::strategy::StrategyCx;
use crate::machinery::meta;
use crate::machinery::tree;

/// Keeps a definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Sets a condition; the time moves with its status alone. True when anything changed.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) -> bool {
    let state = tree::field(object, &["status", "conditions"]);
    if !state.is_array() {
        *state = json!([]);
    }
    let Some(list) = state.as_array_mut() else { return false };
    let new = |time: &Value| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time});
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(there) => {
            let time = if there["status"] == status { there["lastTransitionTime"].clone() } else { json!(now) };
            let wanted = new(&time);
            let changed = *there != wanted;
            *there = wanted;
            changed
        }
        None => {
            list.push(new(&json!(now)));
            true
        }
    }
}

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
