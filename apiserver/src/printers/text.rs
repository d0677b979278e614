//! How values read in a cell.

use jiff::Timestamp;
use proto::Value;
use proto::selector::Selector;

pub(super) use crate::access::tree::{flag, list, text};

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

/// A length of time as upstream shortens it.
pub(super) fn duration(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let pair = |a: i64, au: &str, b: i64, bu: &str| if b == 0 { format!("{a}{au}") } else { format!("{a}{au}{b}{bu}") };
    match seconds {
        s if s < -1 => "<invalid>".to_owned(),
        s if s < 0 => "0s".to_owned(),
        s if s < 120 => format!("{s}s"),
        s if minutes < 10 => pair(minutes, "m", s % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => pair(hours / 24, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => pair(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// A time in a tree.
pub(super) fn time(v: Option<&Value>) -> Option<Timestamp> {
    v.and_then(Value::as_str).and_then(|t| t.parse().ok())
}

/// How long ago a time in a tree is.
pub(super) fn since(v: Option<&Value>, now: Timestamp) -> String {
    match time(v) {
        // Whole seconds of both ends, as the sub-second part is not stored.
        Some(t) => duration((now.as_millisecond() - t.as_millisecond()).div_euclid(1000)),
        None => "<unknown>".to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (seconds, want) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600, "8h"),
            (48 * 3600, "2d"),
            (49 * 3600, "2d1h"),
            (24 * 3600 * 8, "8d"),
            (24 * 3600 * 365 * 2, "2y"),
            (24 * 3600 * (365 * 2 + 3), "2y3d"),
            (24 * 3600 * 365 * 9, "9y"),
        ] {
            assert_eq!(duration(seconds), want);
        }
    }
}
