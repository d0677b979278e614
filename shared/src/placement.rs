//! Placement of pods: node selector and node affinity against labels, tolerations against taints. The scheduler, which
//! evaluates these for every node and pod, compiles them.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration, VolumeNodeAffinity,
};

/// Feature gate that lets tolerations compare numbers, by `Gt` and `Lt`.
pub const COMPARES: &str = "TaintTolerationComparisonOperators";

/// Reports whether a toleration tolerates a taint. Where `compares` is false, [`COMPARES`] is off. Answers for upstream's
/// `Toleration.ToleratesTaint`.
#[must_use]
pub fn tolerates<'a>(t: &'a Toleration, taint: &Taint, compares: bool) -> bool {
    let set = |field: &'a Option<String>| field.as_deref().filter(|text| !text.is_empty());
    if set(&t.effect).is_some_and(|effect| effect != taint.effect) || set(&t.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    let text = |value: &'a Option<String>| value.as_deref().unwrap_or_default();
    value_tolerates(text(&t.operator), text(&t.value), taint.value.as_deref().unwrap_or_default(), compares)
}

/// Reports whether the operator and the value of a toleration tolerate the value of a taint.
#[must_use]
pub fn value_tolerates(operator: &str, wanted: &str, value: &str, compares: bool) -> bool {
    let numbers = || decimal(value).zip(decimal(wanted));
    match operator {
        "" | "Equal" => wanted == value,
        "Exists" => true,
        "Gt" if compares => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" if compares => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Reads a whole number that is written as short as can be: without a plus, leading zeros or a minus before zero. Answers
/// for upstream's `IsDecimalInteger` with `ParseInt`.
#[must_use]
pub fn decimal(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.starts_with(['0', '+']) && text != "0" {
        return None;
    }
    text.parse().ok()
}

/// Reports whether every taint that `concerns` selects is tolerated; `compares` as in [`tolerates`].
#[must_use]
pub fn all_tolerated(
    taints: &[Taint],
    tolerations: &[Toleration],
    compares: bool,
    concerns: impl Fn(&Taint) -> bool,
) -> bool {
    taints.iter().filter(|t| concerns(t)).all(|taint| tolerations.iter().any(|t| tolerates(t, taint, compares)))
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
            assert_eq!(tolerates(&parsed, &taint, true), want, "{t}");
        }
    }

    #[test]
    fn numbers_are_written_as_people_write_them() {
        for (text, want) in [
            ("0", Some(0)),
            ("5", Some(5)),
            ("-5", Some(-5)),
            ("10", Some(10)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("05", None),
            ("-05", None),
            ("+5", None),
            ("-+5", None),
            ("--5", None),
            (" 5", None),
            ("5 ", None),
            ("5.0", None),
            ("0x5", None),
            ("1_0", None),
            ("x", None),
        ] {
            assert_eq!(decimal(text), want, "{text:?}");
        }
    }

    #[test]
    fn tolerations_compare_numbers_by_their_gate() {
        let toleration = |op: &str, value: &str| Toleration {
            key: Some("k".into()),
            operator: Some(op.into()),
            value: Some(value.into()),
            ..Toleration::default()
        };
        for (op, wanted, value, want) in [
            ("Gt", "5", Some("6"), true),
            ("Gt", "5", Some("5"), false),
            ("Lt", "5", Some("4"), true),
            ("Lt", "5", Some("5"), false),
            ("Lt", "-1", Some("-2"), true),
            ("Gt", "-1", Some("0"), true),
            ("Gt", "05", Some("6"), false),
            ("Gt", "+5", Some("6"), false),
            ("Gt", "5", Some("06"), false),
            ("Gt", "5", Some("+6"), false),
            ("Gt", "5", Some("x"), false),
            ("Gt", "5", None, false),
            ("Gt", "", Some("6"), false),
            ("Lt", "99999999999999999999", Some("6"), false),
            ("gt", "5", Some("6"), false),
        ] {
            let taint = Taint { key: "k".into(), value: value.map(Into::into), ..Taint::default() };
            assert_eq!(tolerates(&toleration(op, wanted), &taint, true), want, "{op} {wanted} {value:?}");
            assert!(!tolerates(&toleration(op, wanted), &taint, false), "{op} {wanted} {value:?}: the gate is off");
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
