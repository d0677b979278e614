//! The difference of two statuses as a strategic merge patch. Pure.
//! Answers for `PatchPodStatus` and `PatchNodeStatus` of upstream.

use serde_json::{Map, Value, json};

/// Ways to patch a list of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// A value that is replaced as a whole.
    Atomic,
    /// Element by element; the key names the element.
    ByKey(&'static str),
    /// Elements with a key, of which those that are not named have to go.
    Replace,
}

/// The patch that turns `old` into `new`, or none when they are equal. Fields that only `old` has are removed if
/// `owned` says so.
pub fn diff(old: &Value, new: &Value, lists: &[(&str, List)], owned: impl Fn(&str) -> bool) -> Option<Value> {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let mut patch = Map::new();
    for (name, value) in new {
        let before = old.get(name);
        if before == Some(value) {
            continue;
        }
        let kind = lists.iter().find(|(list, _)| list == name).map_or(List::Atomic, |(_, kind)| *kind);
        match (kind, before.and_then(Value::as_array), value.as_array()) {
            (List::ByKey(key), before, Some(after)) => {
                let changed = elements(before.map_or(&[], Vec::as_slice), after, key);
                if !changed.is_empty() {
                    patch.insert(name.clone(), Value::Array(changed));
                }
            }
            (List::Replace, Some(before), Some(after)) if !before.is_empty() => {
                let mut all = after.clone();
                all.push(json!({"$patch": "replace"}));
                patch.insert(name.clone(), Value::Array(all));
            }
            _ => {
                let value = match (before, value) {
                    (Some(Value::Object(before)), Value::Object(after)) => object(before, after),
                    _ => value.clone(),
                };
                patch.insert(name.clone(), value);
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name) && owned(name)) {
        patch.insert(name.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Maps merge: what is gone is set to null.
fn object(old: &Map<String, Value>, new: &Map<String, Value>) -> Value {
    let mut patch = Map::new();
    for (name, value) in new {
        match (old.get(name), value) {
            (Some(before), value) if before == value => {}
            (Some(Value::Object(before)), Value::Object(after)) => {
                drop(patch.insert(name.clone(), object(before, after)))
            }
            _ => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// The elements of `new` that differ from those of the same key; fields that are gone are set to null.
fn elements(old: &[Value], new: &[Value], key: &str) -> Vec<Value> {
    let mut changed = Vec::new();
    for element in new {
        let before = old.iter().find(|candidate| candidate.get(key) == element.get(key));
        match (before.and_then(Value::as_object), element.as_object()) {
            // It says itself what becomes of it.
            (Some(_), Some(directive)) if directive.contains_key("$patch") => changed.push(element.clone()),
            (Some(before), Some(after)) if before != after => {
                let Value::Object(mut patch) = object(before, after) else { continue };
                if let Some(name) = after.get(key) {
                    patch.insert(key.to_owned(), name.clone());
                }
                changed.push(Value::Object(patch));
            }
            (None, _) => changed.push(element.clone()),
            _ => {}
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_sent() {
        let lists = [("conditions", List::ByKey("type")), ("podIPs", List::Replace)];
        let own = |name: &str| name != "foreign";
        for (old, new, expected) in [
            (json!({"phase": "Pending"}), json!({"phase": "Pending"}), None),
            (
                json!({"phase": "Pending", "foreign": 1, "reason": "x"}),
                json!({"phase": "Running"}),
                Some(json!({"phase": "Running", "reason": null})),
            ),
            (
                json!({"conditions": [{"type": "Ready", "status": "False", "reason": "r"}, {"type": "Gate", "status": "True"}]}),
                json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "Gate", "status": "True"}]}),
                Some(json!({"conditions": [{"type": "Ready", "status": "True", "reason": null}]})),
            ),
            (json!({}), json!({"podIPs": [{"ip": "1"}]}), Some(json!({"podIPs": [{"ip": "1"}]}))),
            (
                json!({"podIPs": [{"ip": "1"}]}),
                json!({"podIPs": [{"ip": "2"}]}),
                Some(json!({"podIPs": [{"ip": "2"}, {"$patch": "replace"}]})),
            ),
            (
                json!({"capacity": {"a": "1", "b": "2"}}),
                json!({"capacity": {"a": "1"}}),
                Some(json!({"capacity": {"b": null}})),
            ),
        ] {
            assert_eq!(diff(&old, &new, &lists, own), expected, "{old} -> {new}");
        }
    }
}
