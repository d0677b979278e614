//! Placement of pods: node selector and node affinity against labels, tolerations against taints. The scheduler, which
//! evaluates these for every node and pod, compiles them.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration, VolumeNodeAffinity,
};

/// Reports whether a toleration tolerates a taint.
#[must_use]
pub fn tolerates<'a>(t: &'a Toleration, taint: &Taint) -> bool {
    let set = |field: &'a Option<String>| field.as_deref().filter(|text| !text.is_empty());
    if set(&t.effect).is_some_and(|effect| effect != taint.effect) || set(&t.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    let (wanted, value) = (t.value.as_deref().unwrap_or_default(), taint.value.as_deref().unwrap_or_default());
    match t.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => wanted == value,
        "Exists" => true,
        op @ ("Lt" | "Gt") => match (value.parse::<i64>(), wanted.parse::<i64>()) {
            (Ok(value), Ok(bound)) => {
                if op == "Lt" {
                    value < bound
                } else {
                    value > bound
                }
            }
            _ => false,
        },
        _ => false,
    }
}

/// Reports whether every taint that `concerns` selects is tolerated.
#[must_use]
pub fn all_tolerated(taints: &[Taint], tolerations: &[Toleration], concerns: impl Fn(&Taint) -> bool) -> bool {
    taints.iter().filter(|t| concerns(t)).all(|taint| tolerations.iter().any(|t| tolerates(t, taint)))
}

/// Reports whether the node satisfies the pod's nodeSelector and required node affinity.
#[must_use]
pub fn affinity_allows(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let selected = spec.node_selector.iter().flatten().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term_matches(t, node)))
}

/// Reports whether a persistent volume can be used on a node.
#[must_use]
pub fn volume_allows(affinity: &VolumeNodeAffinity, node: &Node) -> bool {
    let required = affinity.required.as_ref();
    required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term_matches(t, node)))
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|r| requirement(r, label(&r.key)))
        && fields.iter().all(|r| r.key == "metadata.name" && requirement(r, node.metadata.name.as_deref()))
}

fn requirement(r: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = r.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|v| values.iter().any(|x| x == v));
    let number = |s: Option<&str>| s.and_then(|v| v.parse::<i64>().ok());
    match r.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(number(values.first().map(String::as_str))).is_some_and(|(a, b)| a > b),
        "Lt" => number(value).zip(number(values.first().map(String::as_str))).is_some_and(|(a, b)| a < b),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tolerations() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoExecute"})).expect("taint");
        for (t, want) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "", "operator": "Exists", "effect": ""}), true),
            (json!({"key": "k", "operator": "Equal"}), false),
            (json!({"key": "k", "operator": "Gt", "value": "1"}), false),
        ] {
            let parsed: Toleration = serde_json::from_value(t.clone()).expect("toleration");
            assert_eq!(tolerates(&parsed, &taint), want, "{t}");
        }
    }

    #[test]
    fn selectors_and_required_affinity() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"disk": "ssd", "cpus": "8"}}}))
                .expect("node");
        let affinity = |terms: serde_json::Value| json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        for (spec, want) in [
            (json!({"containers": []}), true),
            (json!({"containers": [], "nodeSelector": {"disk": "ssd"}}), true),
            (json!({"containers": [], "nodeSelector": {"disk": "hdd"}}), false),
            (affinity(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}])), true),
            (affinity(json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}])), false),
            (affinity(json!([{"matchExpressions": [{"key": "cpus", "operator": "Gt", "values": ["4"]}]}])), true),
            (affinity(json!([{}])), false),
        ] {
            let parsed: PodSpec = serde_json::from_value(spec.clone()).expect("spec");
            assert_eq!(affinity_allows(&parsed, &node), want, "{spec}");
        }
    }
}
