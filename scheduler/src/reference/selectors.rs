//! Label selectors, node selectors, tolerations.

use serde_json::Value;

use super::{list, text};

/// One requirement on a value that may be absent.
fn meets(requirement: &Value, value: &Value) -> bool {
    let listed = list(&requirement["values"]).any(|v| v == value);
    let number = |v: &Value| v.as_str().and_then(|s| s.parse::<i64>().ok());
    let compared = |f: fn(i64, i64) -> bool| match (number(value), number(&requirement["values"][0])) {
        (Some(a), Some(b)) => f(a, b),
        _ => false,
    };
    match requirement["operator"].as_str() {
        Some("In") => listed,
        Some("NotIn") => !listed,
        Some("Exists") => !value.is_null(),
        Some("DoesNotExist") => value.is_null(),
        Some("Gt") => compared(|a, b| a > b),
        Some("Lt") => compared(|a, b| a < b),
        _ => false,
    }
}

/// A label selector; an absent one selects nothing, an empty one everything.
pub(super) fn selects(selector: &Value, labels: &Value) -> bool {
    let pairs = selector["matchLabels"].as_object();
    !selector.is_null()
        && pairs.into_iter().flatten().all(|(key, value)| labels[key] == *value)
        && list(&selector["matchExpressions"]).all(|r| meets(r, &labels[text(&r["key"])]))
}

/// Reports whether the selector is empty.
pub(super) fn is_empty(selector: &Value) -> bool {
    selector["matchLabels"].as_object().is_none_or(serde_json::Map::is_empty)
        && list(&selector["matchExpressions"]).next().is_none()
}

/// A node selector term: all of its requirements; one without any selects no node.
pub(super) fn term_selects(term: &Value, node: &Value) -> bool {
    let some = list(&term["matchExpressions"]).chain(list(&term["matchFields"])).next().is_some();
    some && list(&term["matchExpressions"]).all(|r| meets(r, &node["metadata"]["labels"][text(&r["key"])]))
        && list(&term["matchFields"]).all(|r| r["key"] == "metadata.name" && meets(r, &node["metadata"]["name"]))
}

/// `nodeSelectorTerms`: one of them is enough. Absent: every node.
pub(super) fn node_selector_selects(selector: &Value, node: &Value) -> bool {
    selector.is_null() || list(&selector["nodeSelectorTerms"]).any(|t| term_selects(t, node))
}

/// Reports whether one of the tolerations tolerates a taint.
pub(super) fn tolerates<'a>(mut tolerations: impl Iterator<Item = &'a Value>, taint: &Value) -> bool {
    let open = |v: &Value| v.is_null() || v == "";
    tolerations.any(|t| {
        let value = |v: &Value| text(v);
        (open(&t["effect"]) || t["effect"] == taint["effect"])
            && (open(&t["key"]) || t["key"] == taint["key"])
            && (t["operator"] == "Exists" || (!open(&t["key"]) && value(&t["value"]) == value(&taint["value"])))
    })
}
