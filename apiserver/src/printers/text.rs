//! Formats of values in table cells.

use jiff::Timestamp;
use proto::Value;
use proto::selector::Selector;

pub(super) use crate::machinery::table::{duration, since, time};
pub(super) use crate::machinery::tree::{flag, list, text};

/// The string at a pointer, or a stand-in.
pub(super) fn text_or<'a>(object: &'a Value, pointer: &str, absent: &'a str) -> &'a str {
    match text(object, pointer) {
        "" => absent,
        t => t,
    }
}

/// The integer at a pointer, or 0.
pub(super) fn int(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// Number of entries of the map at a pointer.
pub(super) fn size(object: &Value, pointer: &str) -> usize {
    object.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

/// The status of a condition, or "".
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    list(object, "/status/conditions").iter().find(|c| c["type"] == kind).map_or("", |c| text(c, "/status"))
}

/// `k=v,k=v` of a map, `<none>` when empty.
pub(super) fn labels(map: Option<&Value>) -> String {
    let pairs: Vec<String> = map
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")))
        .collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// A label selector object in text form.
pub(super) fn selector(object: Option<&Value>) -> String {
    match Selector::from_object(object) {
        Ok(s) if object.is_some_and(|o| !o.is_null()) && !s.is_empty() => s.to_string(),
        Ok(_) => "<none>".to_owned(),
        Err(_) => "<error>".to_owned(),
    }
}

/// The first items of a list and how many there are more.
pub(super) fn some(items: &[String], max: usize, separator: &str) -> String {
    let shown = items[..items.len().min(max)].join(separator);
    if items.len() > max { format!("{shown} + {} more...", items.len() - max) } else { shown }
}

/// `RWO,ROX,…`, each once, in upstream's order.
pub(super) fn access_modes(modes: &[Value]) -> String {
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let found: Vec<&str> = short.iter().filter(|(long, _)| modes.iter().any(|m| m == long)).map(|(_, s)| *s).collect();
    found.join(",")
}

/// Names and images of containers.
pub(super) fn containers(object: &Value, pointer: &str) -> (String, String) {
    let all = list(object, pointer);
    let join = |key: &str| all.iter().map(|c| text(c, key)).collect::<Vec<_>>().join(",");
    (join("/name"), join("/image"))
}

/// The object's name; a bookmark's has none.
pub(super) fn name(object: &Value) -> Value {
    object["metadata"]["name"].as_str().unwrap_or("").into()
}

/// The object's age.
pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    Value::from(since(object.pointer("/metadata/creationTimestamp"), now))
}
