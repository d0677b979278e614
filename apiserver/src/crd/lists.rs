//! Lists whose elements are unique: `x-kubernetes-list-type` `set` and `map`. Answers for upstream's
//! `apiextensions-apiserver/pkg/apiserver/schema/listtype`.

use std::collections::HashSet;

use proto::Value;
use shared::status::field::{Error, Path};

use super::schema::{ListKind, Schema};

/// Elements that are there twice.
pub(super) fn check(value: &Value, schema: &Schema) -> Vec<Error> {
    let mut out = Vec::new();
    at(value, schema, &Path::default(), &mut out);
    out
}

fn at(value: &Value, schema: &Schema, path: &Path, out: &mut Vec<Error>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match schema.property(key) {
                    Some(p) => at(inner, p, &path.child(key), out),
                    None => {
                        if let Some(p) = schema.field(key) {
                            at(inner, p, &path.key(key), out);
                        }
                    }
                }
            }
        }
        Value::Array(list) => {
            unique(list, schema, path, out);
            let Some(items) = &schema.items else { return };
            for (i, inner) in list.iter().enumerate() {
                at(inner, items, &path.index(i), out);
            }
        }
        _ => {}
    }
}

fn unique(list: &[Value], schema: &Schema, path: &Path, out: &mut Vec<Error>) {
    let is_map = matches!(schema.list, ListKind::Map(_));
    if let Some(i) = list.iter().position(|item| is_map && !item.is_object() && !item.is_null()) {
        let why = "must be an object for an array of list-type map";
        out.push(Error::invalid(path.index(i), list[i].clone(), why));
        return;
    }
    let mut seen = HashSet::new();
    let mut told = HashSet::new();
    for (i, item) in list.iter().enumerate() {
        let identity = match &schema.list {
            ListKind::Atomic => return,
            ListKind::Set => item.clone(),
            ListKind::Map(keys) => match item {
                Value::Object(map) => key_of(map, keys),
                _ => Value::Object(serde_json::Map::new()),
            },
        };
        // Trees print the same when they are the same: keys are sorted.
        let text = identity.to_string();
        if !seen.insert(text.clone()) && told.insert(text) {
            out.push(Error::duplicate(path.index(i), identity));
        }
    }
}

fn key_of(item: &serde_json::Map<String, Value>, keys: &[Box<str>]) -> Value {
    keys.iter().filter_map(|k| item.get(&**k).map(|v| (k.to_string(), v.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn doubles() {
        let schema = Schema::compile(&json!({"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"], "items": {"type": "object"}},
            "free": {"type": "array", "items": {"type": "string"}},
        }}));
        let value = json!({"set": ["x", "y", "x", "x"], "map": [{"a": 1, "b": 2, "c": 3}, {"a": 1}, {"a": 1, "b": 2}], "free": ["x", "x"]});
        let got: Vec<String> = check(&value, &schema).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["map[2]: Duplicate value: {\"a\":1,\"b\":2}", "set[2]: Duplicate value: \"x\""]);
        let value = json!({"map": [null, {"c": 1}, null]});
        let got: Vec<String> = check(&value, &schema).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["map[1]: Duplicate value: {}"]);
        let value = json!({"map": [{"a": 1}, {"a": 1}, 5, "x"]});
        let got: Vec<String> = check(&value, &schema).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["map[2]: Invalid value: 5: must be an object for an array of list-type map"]);
    }
}
