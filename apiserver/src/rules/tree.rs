//! Reading trees: absent, null and wrongly typed values all read as Go's zero value.

use proto::Value;
use proto::quantity::Quantity;
use serde_json::Map;

static NULL: Value = Value::Null;
static EMPTY: Vec<Value> = Vec::new();

/// A field, or null.
pub(crate) fn get<'a>(value: &'a Value, key: &str) -> &'a Value {
    value.get(key).unwrap_or(&NULL)
}

/// A field of nested structs, or null.
pub(crate) fn at<'a>(value: &'a Value, keys: &[&str]) -> &'a Value {
    keys.iter().fold(value, |v, k| get(v, k))
}

/// Present and not null.
pub(crate) fn has(value: &Value, key: &str) -> bool {
    !get(value, key).is_null()
}

/// A text field.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    get(value, key).as_str().unwrap_or_default()
}

/// A whole number field.
pub(crate) fn int(value: &Value, key: &str) -> Option<i64> {
    get(value, key).as_i64()
}

/// A boolean field.
pub(crate) fn flag(value: &Value, key: &str) -> bool {
    get(value, key).as_bool().unwrap_or_default()
}

/// A list field.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    get(value, key).as_array().unwrap_or(&EMPTY)
}

/// A list field with texts.
pub(crate) fn texts<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    list(value, key).iter().filter_map(Value::as_str).collect()
}

/// The entries of a map field.
pub(crate) fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    get(value, key).as_object().into_iter().flat_map(Map::iter)
}

/// A map field is there and has entries.
pub(crate) fn has_entries(value: &Value, key: &str) -> bool {
    entries(value, key).next().is_some()
}

/// A quantity; zero when malformed (decoding refuses those).
pub(crate) fn quantity(value: &Value) -> Quantity {
    let text = match value {
        Value::String(s) => s.clone(),
        Value::Null => "0".to_owned(),
        other => other.to_string(),
    };
    Quantity::parse(&text).unwrap_or_default()
}

/// Equality where absent, null, empty lists and empty maps are the same.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| same(v, y.get(k).unwrap_or(&NULL)))
                && y.iter().all(|(k, v)| x.contains_key(k) || is_empty(v))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        _ => a == b || (is_empty(a) && is_empty(b)),
    }
}

/// Reports whether a value is the zero value of Go.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        Value::String(s) => s.is_empty(),
        Value::Bool(b) => !b,
        Value::Number(_) => false,
    }
}

/// A copy without some fields.
pub(crate) fn without(value: &Value, keys: &[&str]) -> Value {
    let mut copy = value.clone();
    if let Some(map) = copy.as_object_mut() {
        for key in keys {
            map.remove(*key);
        }
    }
    copy
}
