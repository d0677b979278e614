//! Conditions that the server itself sets.

use proto::Value;
use serde_json::json;

use crate::machinery::meta;

/// Condition of an evicted pod.
const EVICTED: [(&str, &str); 4] = [
    ("type", "DisruptionTarget"),
    ("status", "True"),
    ("reason", "EvictionByEvictionAPI"),
    ("message", "Eviction API: evicting"),
];

/// Sets a condition: it stands for as long as its status is the same.
fn set(status: &mut Value, mut condition: Value, now: &str) {
    if !status.is_object() {
        *status = json!({});
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(all) = status["conditions"].as_array_mut() else { return };
    condition["lastTransitionTime"] = json!(now);
    match all.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(there) => {
            if there["status"] == condition["status"] {
                condition["lastTransitionTime"] = there["lastTransitionTime"].take();
            }
            *there = condition;
        }
        None => all.push(condition),
    }
}

/// The pod has a node.
pub(super) fn scheduled(pod: &mut Value) {
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null});
    set(&mut pod["status"], condition, &meta::now());
}

/// The pod is evicted.
pub(super) fn evicted(pod: &mut Value) {
    let mut condition = json!({"lastProbeTime": null});
    for (key, value) in EVICTED {
        condition[key] = json!(value);
    }
    set(&mut pod["status"], condition, &meta::now());
}

/// Reports whether a pod has the condition.
pub(super) fn is_evicted(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| EVICTED.iter().all(|(key, value)| c[key] == *value))
}

/// Sets a condition to `False`, with the observed generation and a reason.
pub(super) fn refuse(status: &mut Value, (kind, reason): (&str, &str), observed: i64, now: &str) {
    let condition =
        json!({"type": kind, "status": "False", "observedGeneration": observed, "reason": reason, "message": ""});
    set(status, condition, now);
}
