//! Formats of values in table cells.

use jiff::Timestamp;
use proto::Value;
use proto::selector::Selector;

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

/// In place of the present: ages are left open, to be filled in by [`fill_in`].
pub(super) const OPEN: Timestamp = Timestamp::MAX;

fn age(at: i64, now: Timestamp) -> String {
    // Whole seconds of both ends, as the sub-second part is not stored.
    duration((now.as_millisecond() - at).div_euclid(1000))
}

/// Age of a time in an object.
pub(super) fn since(v: Option<&Value>, now: Timestamp) -> String {
    match time(v) {
        Some(t) if now == OPEN => format!("\u{1}{}\u{2}", t.as_millisecond()),
        Some(t) => age(t.as_millisecond(), now),
        None => "<unknown>".to_owned(),
    }
}

/// Writes JSON text with the ages in it that were left open.
pub(super) fn fill_in(json: &[u8], now: Timestamp, out: &mut Vec<u8>) {
    // Both marks as JSON has them.
    let (open, close) = (br"\u0001", br"\u0002");
    let find = |from: usize, mark: &[u8]| json[from..].windows(mark.len()).position(|w| w == mark).map(|at| from + at);
    let mut done = 0;
    while let Some(start) = find(done, open) {
        let digits = start + open.len();
        let end = find(digits, close);
        let at = end.and_then(|end| std::str::from_utf8(&json[digits..end]).ok()?.parse().ok());
        let (Some(end), Some(at)) = (end, at) else {
            // Somebody's own text.
            out.extend_from_slice(&json[done..digits]);
            done = digits;
            continue;
        };
        out.extend_from_slice(&json[done..start]);
        out.extend_from_slice(age(at, now).as_bytes());
        done = end + close.len();
    }
    out.extend_from_slice(&json[done..]);
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
    fn open_ages_are_filled_in() {
        let now = Timestamp::from_second(1000).expect("a time");
        let since = |t: &str| since(Some(&Value::from(t)), OPEN);
        let cells =
            serde_json::json!(["a", since("1970-01-01T00:00:00Z"), "3 (", "\u{1}x", since("1970-01-01T00:16:30Z")]);
        let (mut text, mut out) = (Vec::new(), Vec::new());
        proto::json::encode_any(&cells, &mut text);
        fill_in(&text, now, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), r#"["a","16m","3 (","\u0001x","10s"]"#);
    }

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
