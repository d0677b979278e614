//! Between the served versions of a kind and the one it is stored in.
//!
//! Most kinds have one version, or versions that are alike. The others are listed here, as pure functions on trees.

mod devices;

use proto::Value;
use serde_json::{Map, json};

/// Converts `object` to another API version of its kind. `apiVersion` is always set to `to`.
pub fn convert(mut object: Value, group: &str, kind: &str, to_group: &str, to_version: &str) -> Value {
    match (group, kind, to_group, to_version) {
        ("events.k8s.io", "Event", "", _) => rename(&mut object, EVENT_NAMES, false),
        ("", "Event", "events.k8s.io", _) => rename(&mut object, EVENT_NAMES, true),
        ("autoscaling", "HorizontalPodAutoscaler", _, "v2") if from(&object) == "autoscaling/v1" => {
            autoscaler_to_v2(&mut object)
        }
        ("autoscaling", "HorizontalPodAutoscaler", _, "v1") if from(&object) == "autoscaling/v2" => {
            autoscaler_to_v1(&mut object)
        }
        ("resource.k8s.io", _, _, _) if from(&object) == "resource.k8s.io/v1beta1" => {
            devices::from_v1beta1(&mut object, kind)
        }
        ("resource.k8s.io", _, _, "v1beta1") => devices::to_v1beta1(&mut object, kind),
        _ => {}
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::String(group_version(to_group, to_version)));
    }
    object
}

fn from(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or("")
}

/// `group/version`, or `version` for the core group.
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Names in core v1 and in events.k8s.io/v1.
const EVENT_NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename(object: &mut Value, names: &[(&str, &str)], forward: bool) {
    let Some(map) = object.as_object_mut() else { return };
    for (core, events) in names {
        let (old, new) = if forward { (core, events) } else { (events, core) };
        if let Some(v) = map.remove(*old) {
            map.insert((*new).to_owned(), v);
        }
    }
}

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

fn take_annotation(object: &mut Value, key: &str) -> Option<Value> {
    let annotations = object.pointer_mut("/metadata/annotations")?.as_object_mut()?;
    let text = annotations.remove(key)?;
    if annotations.is_empty() {
        object.pointer_mut("/metadata")?.as_object_mut()?.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}

fn annotate(object: &mut Value, key: &str, value: &Value) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(a) = meta.entry("annotations").or_insert_with(|| Value::Object(Map::new())).as_object_mut()
    {
        a.insert(key.to_owned(), Value::String(value.to_string()));
    }
}

fn is_cpu_utilization(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric["resource"]["name"] == "cpu"
}

/// v1 knows one CPU target; everything else of v2 travels in annotations.
fn autoscaler_to_v2(object: &mut Value) {
    let mut metrics: Vec<Value> =
        take_annotation(object, METRICS).and_then(|v| v.as_array().cloned()).unwrap_or_default();
    let conditions = take_annotation(object, CONDITIONS);
    let current = take_annotation(object, CURRENT_METRICS);
    let behavior = take_annotation(object, BEHAVIOR);
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage").filter(|v| !v.is_null()) {
            metrics.insert(
                0,
                json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": target}}}),
            );
        }
        if !metrics.is_empty() {
            spec.insert("metrics".to_owned(), Value::Array(metrics));
        }
        if let Some(b) = behavior {
            spec.insert("behavior".to_owned(), b);
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let mut list: Vec<Value> = current.and_then(|v| v.as_array().cloned()).unwrap_or_default();
        if let Some(now) = status.remove("currentCPUUtilizationPercentage").filter(|v| !v.is_null()) {
            list.insert(
                0,
                json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": now}}}),
            );
        }
        if !list.is_empty() {
            status.insert("currentMetrics".to_owned(), Value::Array(list));
        }
        if let Some(c) = conditions {
            status.insert("conditions".to_owned(), c);
        }
    }
}

fn autoscaler_to_v1(object: &mut Value) {
    let mut notes: Vec<(&str, Value)> = Vec::new();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let mut rest = Vec::new();
        for m in spec.remove("metrics").and_then(|v| v.as_array().cloned()).unwrap_or_default() {
            let target = &m["resource"]["target"]["averageUtilization"];
            if is_cpu_utilization(&m) && !target.is_null() && !spec.contains_key("targetCPUUtilizationPercentage") {
                spec.insert("targetCPUUtilizationPercentage".to_owned(), target.clone());
            } else {
                rest.push(m);
            }
        }
        if !rest.is_empty() {
            notes.push((METRICS, Value::Array(rest)));
        }
        if let Some(b) = spec.remove("behavior") {
            notes.push((BEHAVIOR, b));
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        let mut rest = Vec::new();
        for m in status.remove("currentMetrics").and_then(|v| v.as_array().cloned()).unwrap_or_default() {
            let now = &m["resource"]["current"]["averageUtilization"];
            if is_cpu_utilization(&m) && !now.is_null() && !status.contains_key("currentCPUUtilizationPercentage") {
                status.insert("currentCPUUtilizationPercentage".to_owned(), now.clone());
            } else {
                rest.push(m);
            }
        }
        if !rest.is_empty() {
            notes.push((CURRENT_METRICS, Value::Array(rest)));
        }
        if let Some(c) = status.remove("conditions") {
            notes.push((CONDITIONS, c));
        }
    }
    for (key, value) in notes {
        annotate(object, key, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_change_names_and_back() {
        let core =
            json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "p"}, "message": "m", "count": 2});
        let ev = convert(core.clone(), "", "Event", "events.k8s.io", "v1");
        assert_eq!(
            ev,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "p"}, "note": "m", "deprecatedCount": 2})
        );
        assert_eq!(convert(ev, "events.k8s.io", "Event", "", "v1"), core);
    }

    #[test]
    fn autoscalers_keep_everything() {
        let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
            {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 50}}}]}, "status": {"desiredReplicas": 1}});
        let v1 = convert(v2.clone(), "autoscaling", "HorizontalPodAutoscaler", "autoscaling", "v1");
        assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 80);
        assert!(v1["metadata"]["annotations"][METRICS].is_string());
        assert_eq!(convert(v1, "autoscaling", "HorizontalPodAutoscaler", "autoscaling", "v2"), v2);
    }
}
