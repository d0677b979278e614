//! Reading again only what was touched of a canonical tree.

use serde_json::{Map, Value};

use super::decode::{Decoded, Strictness, decode};
use super::encode::encode_any;
use super::error::DecodeError;
use crate::schema::{Card, Message};

/// Brings a tree into canonical form as if it had been sent, where it is canonical but for what `touched` names: a tree
/// of the same form, in which anything but a member of structs stands for all below it. Costs as much as that.
///
/// # Errors
/// [`DecodeError`] as for the whole tree.
pub fn decode_touched(
    schema: &Message,
    tree: &mut Value,
    touched: &Value,
    strict: Strictness,
) -> Result<Vec<String>, DecodeError> {
    let part = match (&*tree, touched) {
        (Value::Object(map), Value::Object(touched)) => changed_part(schema, map, touched),
        _ => None,
    };
    let mut bytes = Vec::new();
    encode_any(part.as_ref().unwrap_or(tree), &mut bytes);
    let Decoded { value, warnings } = decode(schema, &bytes, strict)?;
    match (part, value, touched) {
        (Some(_), Value::Object(canonical), Value::Object(touched)) => {
            if let Some(map) = tree.as_object_mut() {
                put_back(schema, map, canonical, touched);
            }
        }
        (_, whole, _) => *tree = whole,
    }
    Ok(warnings)
}

/// The struct below a member that may have been touched in parts.
fn struct_below<'m>(schema: &'m Message, name: &str) -> Option<&'m Message> {
    schema.field(name).filter(|f| f.card == Card::Single)?.message()
}

/// Directives of patches say more than which members they are about.
fn directs(touched: &Map<String, Value>) -> bool {
    touched.keys().any(|name| name.starts_with('$'))
}

/// Extracts the touched part of an object; `None` when that cannot be determined.
fn changed_part(schema: &Message, map: &Map<String, Value>, touched: &Map<String, Value>) -> Option<Value> {
    if directs(touched) {
        return None;
    }
    let mut part = Map::new();
    for (name, below) in touched {
        let Some(value) = map.get(name) else { continue };
        let inner = match (struct_below(schema, name), value, below) {
            (Some(inner), Value::Object(map), Value::Object(touched)) => changed_part(inner, map, touched),
            _ => None,
        };
        part.insert(name.clone(), inner.unwrap_or_else(|| value.clone()));
    }
    Some(Value::Object(part))
}

/// Puts the canonical form of [`changed_part`] in its place.
fn put_back(
    schema: &Message,
    map: &mut Map<String, Value>,
    mut canonical: Map<String, Value>,
    touched: &Map<String, Value>,
) {
    for (name, below) in touched {
        match (canonical.remove(name), struct_below(schema, name), map.get_mut(name), below) {
            (Some(Value::Object(canonical)), Some(inner), Some(Value::Object(map)), Value::Object(touched))
                if !directs(touched) =>
            {
                put_back(inner, map, canonical, touched);
            }
            (Some(value), ..) => {
                map.insert(name.clone(), value);
            }
            (None, ..) => {
                map.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::merge::merge_patch;

    #[test]
    fn only_what_is_touched_is_read_again() {
        let schema = crate::schema::kind("", "v1", "Pod").expect("kind");
        let whole = |tree: &Value| {
            let mut tree = tree.clone();
            decode_touched(schema, &mut tree, &Value::Null, Strictness::Warn).map(|warnings| (tree, warnings))
        };
        let old = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}], "restartPolicy": "Always"}});
        let old = whole(&old).expect("a pod").0;
        for patch in [
            json!({"metadata": {"labels": {"a": null, "c": "d"}, "creationTimestamp": null, "nope": 1}}),
            json!({"spec": {"containers": null, "nodeSelector": {}, "hostNetwork": false}, "nope": {}}),
            json!({"spec": null, "status": null}),
            json!({"metadata": null}),
            json!({"status": {"conditions": [], "phase": "", "startTime": "2026-01-01T00:00:00.5Z"}}),
            json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1000m"}}}]}}),
            json!({"spec": {"restartPolicy": 1}}),
        ] {
            let mut new = old.clone();
            merge_patch::apply(&mut new, patch.clone());
            let mut part = new.clone();
            let read = decode_touched(schema, &mut part, &patch, Strictness::Warn).map(|warnings| (part, warnings));
            assert_eq!(read.map_err(|e| e.to_string()), whole(&new).map_err(|e| e.to_string()), "{patch}");
        }
    }
}
