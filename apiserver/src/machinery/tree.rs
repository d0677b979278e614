//! Reading and writing single fields of an object tree. Nothing here knows a kind.
//!
//! Absent fields read as their zero value, as they do for upstream's Go structs.

use serde_json::{Map, Value};

const NONE: &[Value] = &[];

/// Returns the value at a JSON pointer whose steps are names of fields or indexes. Unlike [`Value::pointer`] it knows
/// no escapes, and so allocates nothing: every write looks at a hundred fields.
pub fn find<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(object, |value, step| match value {
        Value::Object(fields) => fields.get(step),
        Value::Array(entries) => entries.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// The string at a JSON pointer, or "".
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    find(object, pointer).and_then(Value::as_str).unwrap_or("")
}

/// The list at a JSON pointer, or an empty one.
pub fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    find(object, pointer).and_then(Value::as_array).map_or(NONE, Vec::as_slice)
}

/// The strings of the list at a JSON pointer.
pub fn strings(object: &Value, pointer: &str) -> Vec<String> {
    list(object, pointer).iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// The boolean at a JSON pointer, or false.
pub fn flag(object: &Value, pointer: &str) -> bool {
    find(object, pointer).and_then(Value::as_bool).unwrap_or(false)
}

/// The boolean at a JSON pointer when it is set.
pub fn maybe_flag(object: &Value, pointer: &str) -> Option<bool> {
    find(object, pointer).and_then(Value::as_bool)
}

/// The integer at a JSON pointer when it is set.
pub fn int(object: &Value, pointer: &str) -> Option<i64> {
    find(object, pointer).and_then(Value::as_i64)
}

/// The map at a JSON pointer when there is one.
pub fn map<'a>(object: &'a Value, pointer: &str) -> Option<&'a Map<String, Value>> {
    find(object, pointer).and_then(Value::as_object)
}

/// Reports whether a field is present and not null.
pub fn has(object: &Value, pointer: &str) -> bool {
    find(object, pointer).is_some_and(|v| !v.is_null())
}

/// A label's value.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// An annotation's value.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

/// `metadata.name`, or "".
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// `metadata.namespace`, or "".
pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// The field at a path of names, made (as null) with its parents where absent.
pub fn field<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Value {
    let mut at = object;
    for step in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = match at {
            Value::Object(map) => map.entry((*step).to_owned()).or_insert(Value::Null),
            other => other,
        };
    }
    at
}

/// The map at a path, made where absent.
pub fn map_mut<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    let at = field(object, path);
    if at.is_null() {
        *at = Value::Object(Map::new());
    }
    at.as_object_mut()
}

/// The list at a path, made where absent.
pub fn list_mut<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Vec<Value>> {
    let at = field(object, path);
    if at.is_null() {
        *at = Value::Array(Vec::new());
    }
    at.as_array_mut()
}

/// The list at a path if it is there; never made.
pub fn existing_list_mut<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Vec<Value>> {
    object.pointer_mut(pointer).and_then(Value::as_array_mut)
}

/// The `name` field of a list entry, or "".
pub fn name_field(entry: &Value) -> &str {
    text(entry, "/name")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_the_values_of_json_pointers() {
        let object = json!({"spec": {"a": [{"b": 1}, null], "": 2}});
        for pointer in
            ["", "/spec", "/spec/a/0/b", "/spec/a/1", "/spec/a/2", "/spec/a/x", "/spec/", "/spec/a/0/b/c", "/no"]
        {
            assert_eq!(find(&object, pointer), object.pointer(pointer), "{pointer}");
        }
    }
}
