//! Horizontal pod autoscalers.

use serde_json::{Value, json};

use super::{Object, child, if_nil, is_empty};

pub(super) fn autoscaler_v1(spec: &mut Object) {
    if_nil(spec, "minReplicas", 1);
    if_nil(spec, "targetCPUUtilizationPercentage", 80);
}

pub(super) fn autoscaler(spec: &mut Object) {
    if_nil(spec, "minReplicas", 1);
    if is_empty(spec, "metrics") {
        let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}});
        spec.insert("metrics".to_owned(), json!([{"type": "Resource", "resource": cpu}]));
    }
    let Some(behavior) = child(spec, "behavior") else { return };
    let up = json!({
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Pods", "value": 4, "periodSeconds": 15},
            {"type": "Percent", "value": 100, "periodSeconds": 15},
        ],
    });
    let down = json!({
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    });
    for (direction, defaults) in [("scaleUp", up), ("scaleDown", down)] {
        if_nil(behavior, direction, Object::new());
        let (Some(rules), Value::Object(defaults)) = (child(behavior, direction), defaults) else { continue };
        for (name, value) in defaults {
            // An empty list of policies is a choice; an absent one is not.
            if_nil(rules, &name, value);
        }
    }
}
