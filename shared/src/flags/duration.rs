//! Durations as Go writes them: `1h0m0s`, `100ms`, `1.5s`.

use std::time::Duration;

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Error of parsing a duration; the wording is Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DurationError(String);

fn wrong(text: &str) -> DurationError {
    DurationError(format!("time: invalid duration {}", crate::status::go_quote(text)))
}

/// Nanoseconds of a duration text.
pub fn parse_nanos(text: &str) -> Result<i64, DurationError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(wrong(text));
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let whole_len = digits(rest);
        let (whole, after) = rest.split_at(whole_len);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(tail) => tail.split_at(digits(tail)),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(wrong(text));
        }
        let unit_len = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, tail) = after.split_at(unit_len);
        if unit.is_empty() {
            return Err(DurationError(format!("time: missing unit in duration {}", crate::status::go_quote(text))));
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let quote = crate::status::go_quote;
            return Err(DurationError(format!("time: unknown unit {} in duration {}", quote(unit), quote(text))));
        };
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong(text))? };
        total = total.saturating_add(whole.saturating_mul(u128::from(*scale)));
        // Digits below a nanosecond do not count.
        let kept = &fraction[..fraction.len().min(18)];
        if !kept.is_empty() {
            let value: u128 = kept.parse().map_err(|_| wrong(text))?;
            let shift = 10u128.pow(u32::try_from(kept.len()).unwrap_or(0));
            total = total.saturating_add(value * u128::from(*scale) / shift);
        }
        rest = tail;
    }
    let limit = u128::from(i64::MAX.unsigned_abs()) + u128::from(negative);
    if total > limit {
        return Err(wrong(text));
    }
    let value = i128::try_from(total).map_err(|_| wrong(text))?;
    i64::try_from(if negative { -value } else { value }).map_err(|_| wrong(text))
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// A duration text; a negative one is zero.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    parse_nanos(text).map(|n| Duration::from_nanos(u64::try_from(n).unwrap_or(0)))
}

/// Formats nanoseconds like Go's `time.Duration`.
pub fn format_nanos(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let decimal = |value: u64, unit: u64, width: usize| {
        let text = format!("{}.{:0width$}", value / unit, value % unit);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match n {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{n}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", decimal(n, 1_000, 3)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", decimal(n, 1_000_000, 6)),
        _ => {
            let seconds = decimal(n % 60_000_000_000, 1_000_000_000, 9);
            let minutes = n / 60_000_000_000;
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, m) => format!("{sign}{m}m{seconds}s"),
                (h, m) => format!("{sign}{h}h{m}m{seconds}s"),
            }
        }
    }
}

/// Formats a duration like Go's `time.Duration`.
pub fn format_duration(duration: Duration) -> String {
    format_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for (text, nanos, canonical) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("5s", 5_000_000_000, "5s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("100ms", 100_000_000, "100ms"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("-2m", -120_000_000_000, "-2m0s"),
            (".5h", 1_800_000_000_000, "30m0s"),
            ("3us", 3_000, "3µs"),
            ("1500µs", 1_500_000, "1.5ms"),
            ("7ns", 7, "7ns"),
        ] {
            assert_eq!(parse_nanos(text), Ok(nanos), "{text}");
            assert_eq!(format_nanos(nanos), canonical, "{text}");
        }
    }

    #[test]
    fn refusals() {
        for (text, want) in [
            ("", r#"time: invalid duration """#),
            ("5", r#"time: missing unit in duration "5""#),
            ("5x", r#"time: unknown unit "x" in duration "5x""#),
            ("x", r#"time: invalid duration "x""#),
            ("9999999h", r#"time: invalid duration "9999999h""#),
        ] {
            assert_eq!(parse_nanos(text).map_err(|e| e.to_string()), Err(want.to_owned()), "{text}");
        }
    }
}
