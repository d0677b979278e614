//! Certificate signing requests record who asked; approval is a subresource of its own.

use proto::Value;
use serde_json::{Map, json};

use super::meta::now;
use super::strategy::{StrategyCx, restore};

/// Requester fields come from the authenticated user, never from the body.
pub(super) fn prepare_create(object: &mut Value, cx: &mut StrategyCx<'_>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("username".to_owned(), Value::from(cx.user.name.clone()));
        for key in ["uid", "groups", "extra"] {
            spec.remove(key);
        }
        if !cx.user.uid.is_empty() {
            spec.insert("uid".to_owned(), Value::from(cx.user.uid.clone()));
        }
        if !cx.user.groups.is_empty() {
            spec.insert("groups".to_owned(), Value::from(cx.user.groups.clone()));
        }
        let extra: Map<String, Value> =
            cx.user.extra.iter().map(|(k, v)| (k.clone(), Value::from(v.clone()))).collect();
        if !extra.is_empty() {
            spec.insert("extra".to_owned(), Value::Object(extra));
        }
    }
}

/// The request itself never changes.
pub(super) fn prepare_update(new: &mut Value, old: &Value) {
    restore(new, old, "spec");
}

/// A write of `status`: a decision stays as it was made. To add one or to take one back is refused by validation.
pub(super) fn prepare_status(new: &mut Value, old: &Value) {
    keep(new, old, &["Approved", "Denied"]);
    date(new, old);
}

/// A write of `approval`: only conditions change.
pub fn approval(new: &mut Value, old: &Value) {
    let asked = std::mem::take(&mut new["status"]);
    restore(new, old, "spec");
    new["status"] = old.get("status").cloned().unwrap_or_else(|| json!({}));
    restore(&mut new["status"], &asked, "conditions");
    date(new, old);
}

/// A write of a pod certificate request's `status`: the outcome stays as it was.
pub(super) fn prepare_pod_status(new: &mut Value, old: &Value) {
    keep(new, old, &["Issued", "Denied", "Failed"]);
    date_transitions(new, old);
}

fn conditions(object: &Value) -> &[Value] {
    object.pointer("/status/conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn conditions_mut(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Puts back the stored conditions of some types, where there are as many of a type as before.
fn keep(new: &mut Value, old: &Value, types: &[&str]) {
    for kind in types {
        let stored: Vec<&Value> = conditions(old).iter().filter(|c| c["type"] == *kind).collect();
        if conditions(new).iter().filter(|c| c["type"] == *kind).count() == stored.len() {
            let found = conditions_mut(new).filter(|c| c["type"] == *kind);
            found.zip(stored).for_each(|(condition, stored)| *condition = stored.clone());
        }
    }
}

/// Fills in the times that a client left out.
fn date(new: &mut Value, old: &Value) {
    for condition in conditions_mut(new).filter(|c| c["lastUpdateTime"].is_null()) {
        condition["lastUpdateTime"] = json!(now());
    }
    date_transitions(new, old);
}

/// A condition changed when it first had its status, if nobody says when.
fn date_transitions(new: &mut Value, old: &Value) {
    for condition in conditions_mut(new).filter(|c| c["lastTransitionTime"].is_null()) {
        let same = |c: &&Value| c["type"] == condition["type"] && c["status"] == condition["status"];
        let since = conditions(old).iter().find(same).map(|c| &c["lastTransitionTime"]).filter(|time| !time.is_null());
        condition["lastTransitionTime"] = since.cloned().unwrap_or_else(|| json!(now()));
    }
}
