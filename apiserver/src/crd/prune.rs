//! Pruning and defaulting: what the schema does not know goes, what it has defaults for comes.
//!
//! Answers for upstream's `structural-schema` packages `pruning` and `defaulting`. Pure; recursion follows the tree,
//! whose depth decoding has bounded.

use proto::Value;
use serde_json::Map;

use super::schema::{Additional, Schema};

/// Fields of an object that are its own whatever its schema says.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields of a whole object. Returns their paths, in the order of the tree.
pub(super) fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    prune_at(object, schema, true)
}

/// Removes unknown fields of a value, which may be a whole object. Returns their paths, in the order of the tree.
pub(super) fn prune_at(at: &mut Value, schema: &Schema, whole: bool) -> Vec<String> {
    let mut gone = Vec::new();
    value(at, Some(schema), whole, &mut String::new(), &mut gone);
    gone
}

fn value(at: &mut Value, schema: Option<&Schema>, whole: bool, path: &mut String, gone: &mut Vec<String>) {
    match at {
        Value::Object(map) => object(map, schema, whole, path, gone),
        Value::Array(list) => {
            let items = schema.and_then(|s| s.items.as_deref());
            // Elements of unknown kind inside a place that keeps what it does not know stay as they are.
            if items.is_none() && schema.is_some_and(|s| s.preserve) {
                return;
            }
            for (i, item) in list.iter_mut().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{i}]"));
                value(item, items, items.is_some_and(|s| s.embedded), path, gone);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

fn object(
    map: &mut Map<String, Value>,
    schema: Option<&Schema>,
    whole: bool,
    path: &mut String,
    gone: &mut Vec<String>,
) {
    let preserve = schema.is_some_and(|s| s.preserve);
    map.retain(|key, inner| {
        if whole && OBJECT_FIELDS.contains(&key.as_str()) {
            return true;
        }
        let length = path.len();
        if length > 0 {
            path.push('.');
        }
        path.push_str(key);
        let known = match schema {
            None => false,
            Some(s) => match (s.property(key), &s.additional) {
                (Some(p), _) => {
                    value(inner, Some(p), p.embedded, path, gone);
                    true
                }
                (None, Additional::Schema(p)) => {
                    value(inner, Some(p), p.embedded, path, gone);
                    true
                }
                // What no schema is for is refused where it may not be.
                (None, Additional::Any | Additional::None) => true,
                (None, Additional::Unset) => preserve,
            },
        };
        if !known {
            gone.push(path.clone());
        }
        path.truncate(length);
        known
    });
}

/// Fills in defaults, and drops nulls where null is not a value.
pub(super) fn default(at: &mut Value, schema: &Schema) {
    fill(at, schema);
    drop_nulls(at, schema);
}

/// Fills in defaults.
pub(super) fn fill(at: &mut Value, schema: &Schema) {
    match at {
        Value::Object(map) => {
            for (key, property) in &schema.properties {
                if let Some(default) = &property.default
                    && map.get(&**key).is_none_or(|v| property.drops_null(v))
                {
                    map.insert(key.to_string(), default.clone());
                }
            }
            for (key, inner) in map.iter_mut() {
                if let Some(property) = schema.property(key) {
                    fill(inner, property);
                } else if let Additional::Schema(additional) = &schema.additional {
                    replace_null(inner, additional);
                    fill(inner, additional);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for inner in list {
                replace_null(inner, items);
                fill(inner, items);
            }
        }
        _ => {}
    }
}

fn replace_null(at: &mut Value, schema: &Schema) {
    if schema.drops_null(at)
        && let Some(default) = &schema.default
    {
        *at = default.clone();
    }
}

fn drop_nulls(at: &mut Value, schema: &Schema) {
    match at {
        Value::Object(map) => map.retain(|key, inner| {
            let Some(field) = schema.field(key) else { return true };
            if field.drops_null(inner) {
                return false;
            }
            drop_nulls(inner, field);
            true
        }),
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for inner in list {
                drop_nulls(inner, items);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::compile(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "string", "default": "x"},
                "n": {"type": "string", "nullable": true, "default": "n"},
                "z": {"type": "string"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"k": {"type": "object", "properties": {"y": {"type": "integer", "default": 1}}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"v": {"type": "integer", "default": 7}}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "integer"}}}},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
            }},
        }}))
    }

    #[test]
    fn unknown_fields_are_pruned() {
        let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "x": 1}, "zz": 1, "spec": {
            "a": "b", "q": 1, "free": {"k": {"y": 1, "no": 2}, "u": {"w": 1}}, "map": {"m": {"v": 1, "w": 2}},
            "list": [{"p": 1}, {"p": 2, "r": 3}], "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"x": 1}, "u": 1}}});
        let gone = prune(&mut object, &schema());
        let mut sorted = gone.clone();
        sorted.sort();
        assert_eq!(
            sorted,
            ["spec.free.k.no", "spec.list[1].r", "spec.map.m.w", "spec.pod.spec.x", "spec.pod.u", "spec.q", "zz"]
        );
        assert_eq!(object["spec"]["free"]["u"]["w"], 1);
        assert_eq!(object["metadata"]["x"], 1);
        assert!(prune(&mut object, &schema()).is_empty(), "what is left is known");
    }

    /// Fields that `additionalProperties: false` forbids are refused, not pruned.
    #[test]
    fn refused_fields_are_not_pruned() {
        let closed = json!({"type": "object", "additionalProperties": false, "properties": {"a": {"type": "string"}}});
        let schema = Schema::compile(&json!({"type": "object", "properties": {"spec": closed}}));
        let mut object = json!({"spec": {"a": "x", "b": 1}});
        assert!(prune(&mut object, &schema).is_empty());
        let errors = crate::crd::check::check(&object, None, &schema);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, [r#"spec: Invalid value: "b": spec.b in body is a forbidden property"#]);
    }

    #[test]
    fn defaults_replace_nulls() {
        let mut object = json!({"spec": {"a": null, "n": null, "z": null, "map": {"m": {}}, "free": {"k": {}}}});
        default(&mut object, &schema());
        assert_eq!(object, json!({"spec": {"a": "x", "n": null, "map": {"m": {"v": 7}}, "free": {"k": {"y": 1}}}}));
    }

    /// Trees from a seed, over the schema's names and some it does not know.
    fn tree(seed: &mut u64, depth: usize) -> Value {
        let mut next = |n: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % n
        };
        match next(if depth > 4 { 4 } else { 8 }) {
            0 => Value::Null,
            1 => json!(next(5)),
            2 => json!("t"),
            3 => json!(true),
            4 => (0..next(3)).map(|_| tree(seed, depth + 1)).collect(),
            _ => {
                let names = ["spec", "a", "n", "z", "free", "k", "y", "map", "v", "list", "p", "pod", "metadata", "u"];
                let keys: Vec<usize> = (0..next(6)).map(|_| usize::try_from(next(14)).unwrap_or(0)).collect();
                Value::Object(keys.into_iter().map(|i| (names[i].to_owned(), tree(seed, depth + 1))).collect())
            }
        }
    }

    #[test]
    fn pruning_and_defaulting_are_idempotent() {
        let schema = schema();
        for mut seed in 0..5_000u64 {
            let mut once = tree(&mut seed, 0);
            prune(&mut once, &schema);
            default(&mut once, &schema);
            let mut twice = once.clone();
            assert!(prune(&mut twice, &schema).is_empty(), "{once}");
            default(&mut twice, &schema);
            assert_eq!(once, twice);
        }
    }
}
