//! Texts of values that have none of their own in JSON: bytes, times, spans.

use base64::Engine as _;
use jiff::civil::DateTime;

/// Bytes as JSON writes them.
pub(super) fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Formats a timestamp as RFC 3339, in UTC.
pub(super) fn print_time(t: &DateTime) -> String {
    format!("{t}Z")
}

/// In seconds, as far as a fraction tells them.
pub(super) fn print_span(nanos: i64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    #[expect(clippy::cast_precision_loss, reason = "shown as Go shows seconds")]
    let seconds = whole as f64 + rest as f64 / 1e9;
    format!("{seconds}s")
}
