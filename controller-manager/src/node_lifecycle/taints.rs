//! The taints that follow from a node's conditions, and the labels that follow from its labels. Answers for upstream's
//! `doNoScheduleTaintingPass`, `reconcileNodeLabels`.

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::engine::action::{Action, PatchKind, body};
use crate::engine::{nodes, object};

/// On nodes that say that they are not ready.
pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// On nodes that say nothing.
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Reports whether a node that is not ready has a NoExecute taint.
pub(super) fn evicts(node: &Node) -> bool {
    nodes::taints(node).iter().any(|t| t.effect == "NoExecute" && (t.key == NOT_READY || t.key == UNREACHABLE))
}

/// The taints that follow from conditions; None if the node has them already.
pub(super) fn desired_taints(node: &Node, ready: Option<&str>, evict: bool, now: Timestamp) -> Option<Vec<Taint>> {
    let is = |kind: &str| nodes::condition(node, kind).is_some_and(|c| c.status == "True");
    let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true);
    let mut want: Vec<(&str, &str)> = Vec::new();
    let failing = match ready {
        Some("False") => Some(NOT_READY),
        Some("Unknown") => Some(UNREACHABLE),
        _ => None,
    };
    want.extend(failing.map(|k| (k, "NoSchedule")));
    for (kind, key) in [
        ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
        ("DiskPressure", "node.kubernetes.io/disk-pressure"),
        ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
        ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ] {
        want.extend(is(kind).then_some((key, "NoSchedule")));
    }
    want.extend(unschedulable.then_some(("node.kubernetes.io/unschedulable", "NoSchedule")));
    want.extend(failing.filter(|_| evict).map(|k| (k, "NoExecute")));
    let ours = |t: &Taint| match t.effect.as_str() {
        "NoExecute" => t.key == NOT_READY || t.key == UNREACHABLE,
        "NoSchedule" => {
            [NOT_READY, UNREACHABLE].contains(&t.key.as_str())
                || [
                    "node.kubernetes.io/memory-pressure",
                    "node.kubernetes.io/disk-pressure",
                    "node.kubernetes.io/network-unavailable",
                    "node.kubernetes.io/pid-pressure",
                    "node.kubernetes.io/unschedulable",
                ]
                .contains(&t.key.as_str())
        }
        _ => false,
    };
    let have = nodes::taints(node);
    let mut out: Vec<Taint> =
        have.iter().filter(|t| !ours(t) || want.contains(&(t.key.as_str(), t.effect.as_str()))).cloned().collect();
    for (key, effect) in want {
        if !out.iter().any(|t| t.key == key && t.effect == effect) {
            out.push(Taint {
                key: key.into(),
                effect: effect.into(),
                value: None,
                time_added: Some(object::seconds(now)),
            });
        }
    }
    (out != have).then_some(out)
}

/// The write that gives a node these taints.
pub(super) fn taint_patch(node: &Node, taints: &[Taint]) -> Action {
    let taints = if taints.is_empty() { serde_json::Value::Null } else { body(&taints) };
    Action::patch::<Node>(
        &node.metadata,
        PatchKind::Merge,
        json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}}),
    )
}

/// The old beta labels are kept equal to the stable ones.
pub(super) fn missing_labels(node: &Node) -> Option<Action> {
    let mut labels = serde_json::Map::new();
    for (stable, beta) in
        [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")]
    {
        let value = object::label(&node.metadata, stable);
        if value.is_some() && object::label(&node.metadata, beta) != value {
            labels.insert(beta.into(), json!(value));
        }
    }
    (!labels.is_empty())
        .then(|| Action::patch::<Node>(&node.metadata, PatchKind::Strategic, json!({"metadata": {"labels": labels}})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_cordon_become_taints() {
        let pressed = json!([{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"},
            {"type": "MemoryPressure", "status": "False"}, {"type": "PIDPressure", "status": "Unknown"}]);
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let registered = json!([{"key": NOT_READY, "effect": "NoSchedule"}]);
        let mine = json!([{"key": "mine", "effect": "NoSchedule"}]);
        for (why, unschedulable, taints, conditions, want) in [
            ("pressure and cordon", true, mine.clone(), pressed, Some("mine disk-pressure unschedulable")),
            ("nothing to change", false, mine, ready.clone(), None),
            ("ready", false, registered.clone(), ready, Some("")),
            ("it says nothing of readiness", false, registered, json!([]), Some("")),
        ] {
            let node: Node = serde_json::from_value(json!({"metadata": {"name": "a"},
                "spec": {"unschedulable": unschedulable, "taints": taints}, "status": {"conditions": conditions}}))
            .expect("node");
            let ready = nodes::condition(&node, "Ready").map(|c| c.status.as_str());
            let got = desired_taints(&node, ready, false, Timestamp::UNIX_EPOCH);
            let keys = |taints: Vec<Taint>| {
                let keys: Vec<_> =
                    taints.iter().map(|t| t.key.trim_start_matches("node.kubernetes.io/").to_owned()).collect();
                keys.join(" ")
            };
            assert_eq!(got.map(keys).as_deref(), want, "{why}");
        }
    }
}
