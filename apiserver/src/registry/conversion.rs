//! Between the served versions of a kind and the one it is stored in.
//!
//! Most kinds have one version, or versions that are alike. The others are listed here, as pure functions on trees.

pub(super) mod autoscaler;
mod definitions;
mod devices;

use proto::Value;
use proto::resources::group_version;

/// Converts `object` to another API version of its kind. `apiVersion` is always set to `to`.
pub fn convert(mut object: Value, group: &str, kind: &str, to_group: &str, to_version: &str) -> Value {
    match (group, kind, to_group, to_version) {
        ("events.k8s.io", "Event", "", _) => rename(&mut object, EVENT_NAMES, false),
        ("", "Event", "events.k8s.io", _) => rename(&mut object, EVENT_NAMES, true),
        ("autoscaling", "HorizontalPodAutoscaler", _, "v2") if from(&object) == "autoscaling/v1" => {
            autoscaler::to_v2(&mut object)
        }
        ("autoscaling", "HorizontalPodAutoscaler", _, "v1") if from(&object) == "autoscaling/v2" => {
            autoscaler::to_v1(&mut object)
        }
        ("resource.k8s.io", _, _, _) if from(&object) == "resource.k8s.io/v1beta1" => {
            devices::from_v1beta1(&mut object, kind)
        }
        ("resource.k8s.io", _, _, "v1beta1") => devices::to_v1beta1(&mut object, kind),
        ("apiextensions.k8s.io", "CustomResourceDefinition", _, "v1beta1") => definitions::to_v1beta1(&mut object),
        ("apiextensions.k8s.io", "CustomResourceDefinition", ..) if from(&object) == "apiextensions.k8s.io/v1beta1" => {
            definitions::from_v1beta1(&mut object);
        }
        _ => {}
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::String(group_version(to_group, to_version)));
    }
    object
}

/// Whether objects of a kind are stored in a version that is described nowhere else.
pub fn is_stored_only(group: &str, kind: &str, version: &str) -> bool {
    (group, kind, version) == ("apiextensions.k8s.io", "CustomResourceDefinition", "v1beta1")
}

fn from(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or("")
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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
}
