//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

/// Applies a patch: objects merge, `null` removes, everything else replaces.
pub fn apply(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (key, value) in patch {
        match value {
            Value::Null => {
                map.remove(&key);
            }
            value @ Value::Object(_) => apply(map.entry(key).or_insert(Value::Null), value),
            mut value => {
                // Upstream's library leaves what comes in place of an object as it is.
                if !map.get(&key).is_some_and(Value::is_object) {
                    prune(&mut value);
                }
                map.insert(key, value);
            }
        }
    }
}

/// Takes away what is null in the objects of lists, as it is taken away everywhere else.
fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(prune);
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

/// The patch that turns `from` into `to`.
#[must_use]
pub fn diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(a), Value::Object(b)) = (from, to) else { return to.clone() };
    let mut patch = Map::new();
    for (key, value) in b {
        match a.get(key) {
            Some(old) if old == value => {}
            Some(old @ Value::Object(_)) if value.is_object() => {
                patch.insert(key.clone(), diff(old, value));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in a.keys().filter(|k| !b.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rfc_7386_examples() {
        let table = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!(["a"]), json!(["c"]), json!(["c"])),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            // Of lists the document says nothing; upstream's library has it so.
            (
                json!({"a": [1]}),
                json!({"a": [null, {"b": null, "c": [{"d": null}]}]}),
                json!({"a": [null, {"c": [{}]}]}),
            ),
            (json!({"a": {}}), json!({"a": [{"b": null}]}), json!({"a": [{"b": null}]})),
        ];
        for (mut target, patch, want) in table {
            apply(&mut target, patch.clone());
            assert_eq!(target, want, "{patch}");
        }
    }

    #[test]
    fn a_difference_applies() {
        let from = json!({"a": {"x": 1, "y": 2}, "b": 1});
        let to = json!({"a": {"x": 1, "z": 3}, "c": [1]});
        let mut target = from.clone();
        let patch = diff(&from, &to);
        assert_eq!(patch, json!({"a": {"z": 3, "y": null}, "c": [1], "b": null}));
        apply(&mut target, patch);
        assert_eq!(target, to);
    }
}
