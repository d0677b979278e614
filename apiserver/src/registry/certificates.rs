//! Certificate signing requests record who asked; approval is a subresource of its own.

use proto::Value;
use serde_json::{Map, json};

use super::strategy::{StrategyCx, restore};

/// Requester fields come from the authenticated user, never from the body.
pub(super) fn prepare_create(object: &mut Value, cx: &StrategyCx<'_>) {
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

/// A write of `status`: the decision stays as it was made.
pub(super) fn prepare_status(new: &mut Value, old: &Value) {
    let listed = |o: &Value| o.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let decided = |c: &Value| matches!(c["type"].as_str(), Some("Approved" | "Denied"));
    let before = listed(old);
    let now = crate::registry::meta::now();
    let mut conditions: Vec<Value> = before.iter().filter(|c| decided(c)).cloned().collect();
    for mut c in listed(new).into_iter().filter(|c| !decided(c)) {
        if c["lastUpdateTime"].is_null() {
            c["lastUpdateTime"] = json!(now);
        }
        if c["lastTransitionTime"].is_null() {
            let same = before.iter().find(|o| o["type"] == c["type"] && o["status"] == c["status"]);
            c["lastTransitionTime"] = same.map_or_else(|| json!(now), |o| o["lastTransitionTime"].clone());
        }
        conditions.push(c);
    }
    if !conditions.is_empty() {
        new["status"]["conditions"] = Value::Array(conditions);
    }
}

/// A write of `approval`: only Approved, Denied and their times change.
pub fn approval(new: &mut Value, old: &Value) {
    let decisions = |o: &Value| -> Vec<Value> {
        o.pointer("/status/conditions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice).to_vec()
    };
    let is_decision = |c: &Value| matches!(c["type"].as_str(), Some("Approved" | "Denied"));
    let mut conditions: Vec<Value> = decisions(old).into_iter().filter(|c| !is_decision(c)).collect();
    let now = crate::registry::meta::now();
    for mut c in decisions(new).into_iter().filter(|c| is_decision(c)) {
        for key in ["lastUpdateTime", "lastTransitionTime"] {
            if c[key].is_null() {
                c[key] = json!(now);
            }
        }
        conditions.push(c);
    }
    restore(new, old, "spec");
    restore(new, old, "status");
    if !conditions.is_empty() {
        new["status"]["conditions"] = Value::Array(conditions);
    }
}
