//! The quality of service class of a pod. Answers for upstream's `GetPodQOS`.

use proto::Value;
use proto::quantity::Quantity;

use crate::rules::tree::{at, has, list, quantity};

/// The resources that decide.
const NAMES: [&str; 2] = ["cpu", "memory"];

/// The class of a spec with its defaults. A pod that says something of its resources as a whole, and be it that it says
/// nothing, speaks for its containers.
pub fn qos_class(spec: &Value) -> &'static str {
    let all: Vec<&Value> = match has(spec, "resources") {
        true => vec![spec],
        false => ["containers", "initContainers"].iter().flat_map(|kind| list(spec, kind)).collect(),
    };
    let amount = |of: &Value, kind: &str, name: &str| -> Quantity { quantity(at(of, &["resources", kind, name])) };
    let is_set = |of: &Value, kind: &str, name: &str| amount(of, kind, name).sign() > 0;
    let set = |of: &Value| NAMES.iter().any(|n| is_set(of, "requests", n) || is_set(of, "limits", n));
    if !all.iter().any(|of| set(of)) {
        return "BestEffort";
    }
    let fixed = |of: &Value, n: &str| is_set(of, "limits", n) && amount(of, "requests", n) == amount(of, "limits", n);
    match all.iter().all(|of| NAMES.iter().all(|n| fixed(of, n))) {
        true => "Guaranteed",
        false => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}});
        let nothing = || json!({});
        let table = [
            (nothing(), None, "BestEffort"),
            (json!({"requests": {"cpu": "0"}}), None, "BestEffort"),
            (full.clone(), None, "Guaranteed"),
            (json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}), None, "Burstable"),
            (json!({"requests": {"memory": "1Gi"}}), None, "Burstable"),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0", "memory": "1Gi"}}),
                None,
                "Burstable",
            ),
            (full.clone(), Some(nothing()), "BestEffort"),
            (nothing(), Some(full), "Guaranteed"),
            (nothing(), Some(json!({"requests": {"cpu": "1"}})), "Burstable"),
        ];
        for (resources, whole, class) in table {
            let mut spec = json!({"containers": [{"name": "c", "resources": resources}]});
            if let Some(whole) = whole {
                spec["resources"] = whole;
            }
            assert_eq!(qos_class(&spec), class, "{spec}");
        }
    }
}
