//! Tables as clients print them: columns, and ages in cells.
//!
//! Answers for `TableColumnDefinition` of upstream's `apimachinery` and for its `util/duration`.

use jiff::Timestamp;
use proto::Value;
use serde::Deserialize;

/// Column of a table.
#[derive(Debug, Deserialize)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `date`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// `name` for the column that identifies the object.
    pub format: String,
    /// Help text.
    #[serde(default)]
    pub description: String,
    /// Greater than zero: only in wide output.
    pub priority: i32,
}

/// A length of time as upstream shortens it.
pub(crate) fn duration(seconds: i64) -> String {
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
pub(crate) fn time(v: Option<&Value>) -> Option<Timestamp> {
    v.and_then(Value::as_str).and_then(|t| t.parse().ok())
}

/// In place of the present: ages are left open, to be filled in by [`fill_in`].
pub(crate) const OPEN: Timestamp = Timestamp::MAX;

fn age(at: i64, now: Timestamp) -> String {
    // Whole seconds of both ends, as the sub-second part is not stored.
    duration((now.as_millisecond() - at).div_euclid(1000))
}

/// Age of a time in an object.
pub(crate) fn since(v: Option<&Value>, now: Timestamp) -> String {
    match time(v) {
        Some(t) if now == OPEN => format!("\u{1}{}\u{2}", t.as_millisecond()),
        Some(t) => age(t.as_millisecond(), now),
        None => "<unknown>".to_owned(),
    }
}

/// Writes JSON text with the ages in it that were left open.
pub(crate) fn fill_in(json: &[u8], now: Timestamp, out: &mut Vec<u8>) {
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
