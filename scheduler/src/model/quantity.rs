//! Reads resource quantities (`100m`, `1Gi`, `1e3`) into the integers that scheduling adds up.
//!
//! Both readers round up, as upstream's `Value` and `MilliValue` do. Unreadable text counts as zero: an object that the
//! API server let through must never stop the scheduler.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The amount in whole units, rounded up.
pub fn value(q: &Quantity) -> i64 {
    scaled(&q.0, 0)
}

/// The amount in thousandths, rounded up.
pub fn milli_value(q: &Quantity) -> i64 {
    scaled(&q.0, 3)
}

fn scaled(text: &str, extra: i32) -> i64 {
    parse(text, extra).unwrap_or(0)
}

/// `text` × 10^`extra`, rounded away from zero and clamped to the range of `i64`.
fn parse(text: &str, extra: i32) -> Option<i64> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (binary, mut exponent) = suffix_scale(suffix)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes().take(18)) {
        mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    exponent = exponent.checked_sub(i32::try_from(fraction.len().min(18)).ok()?)?.checked_add(extra)?;
    let mut amount = mantissa.checked_mul(1_i128.checked_shl(binary)?).unwrap_or(i128::MAX);
    for _ in 0..exponent.clamp(0, 40) {
        amount = amount.saturating_mul(10);
    }
    let mut rounded = false;
    for _ in 0..exponent.clamp(-40, 0).abs() {
        rounded |= amount % 10 != 0;
        amount /= 10;
    }
    if rounded {
        amount = amount.saturating_add(1);
    }
    let clamped = i64::try_from(amount).unwrap_or(i64::MAX);
    Some(if negative { -clamped } else { clamped })
}

/// The power of two and the power of ten that a suffix stands for.
fn suffix_scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => (0, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (text, whole, milli) in [
            ("1", 1, 1000),
            ("100m", 1, 100),
            ("1500m", 2, 1500),
            ("0.5", 1, 500),
            ("1Gi", 1 << 30, (1 << 30) * 1000),
            ("1.5Ki", 1536, 1_536_000),
            ("1e3", 1000, 1_000_000),
            ("2E", 2_000_000_000_000_000_000, i64::MAX),
            ("1n", 1, 1),
            ("-1", -1, -1000),
            ("", 0, 0),
            ("abc", 0, 0),
            ("1..2", 0, 0),
            ("9999999999999999999999", i64::MAX, i64::MAX),
        ] {
            let q = Quantity(text.to_owned());
            assert_eq!(value(&q), whole, "{text}");
            assert_eq!(milli_value(&q), milli, "{text}");
        }
    }
}
