//! Text forms of scalar types: times, durations, base64. Error texts are Go's, since clients see them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

const TIME_LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
const MICRO_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Bytes as text; what is not UTF-8 is replaced.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    // Nearly all are, and to see that is several times as fast as to replace.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// A float as Go's `%v` prints it: the shortest digits, with an exponent below a ten-thousandth and from a million on.
pub fn float<F: std::fmt::Display + std::fmt::LowerExp>(value: &F) -> String {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Seconds since the epoch and nanoseconds.
pub(crate) type Instant = (i64, i32);

/// Errors of reading a time, in the words of Go's `time.Parse`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TimeError {
    /// The text has another form than the layout.
    #[error("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}")]
    Form {
        /// The whole text.
        text: String,
        /// The layout, in Go's manner.
        layout: &'static str,
        /// Text that is left.
        rest: String,
        /// Element of the layout that should come next.
        element: String,
    },
    /// A part of the time, as Go names it, is too large or too small.
    #[error("parsing time {text:?}: {part} out of range")]
    OutOfRange {
        /// The whole text.
        text: String,
        /// The part: `month`.
        part: &'static str,
    },
    /// Something follows the time.
    #[error("parsing time {text:?}: extra text: {rest:?}")]
    ExtraText {
        /// The whole text.
        text: String,
        /// Text that follows.
        rest: String,
    },
}

/// Text that is not base64, in the words of Go's `base64.CorruptInputError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("illegal base64 data at input byte {at}")]
pub struct Base64Error {
    /// Bytes before the first wrong one.
    at: usize,
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y - era * 400;
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z - era * 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

struct TimeParser<'a> {
    whole: &'a str,
    rest: &'a str,
    layout: &'static str,
}

impl<'a> TimeParser<'a> {
    fn fail(&self, element: &str) -> TimeError {
        let (text, rest) = (self.whole.to_owned(), self.rest.to_owned());
        TimeError::Form { text, layout: self.layout, rest, element: element.to_owned() }
    }

    fn range(&self, part: &'static str) -> TimeError {
        TimeError::OutOfRange { text: self.whole.to_owned(), part }
    }

    fn digits(&mut self, count: usize, element: &str) -> Result<i64, TimeError> {
        let digits = self.rest.as_bytes().get(..count).filter(|b| b.iter().all(u8::is_ascii_digit));
        let Some(digits) = digits else { return Err(self.fail(element)) };
        let value = digits.iter().fold(0, |n, d| n * 10 + i64::from(d - b'0'));
        self.rest = &self.rest[count..];
        Ok(value)
    }

    fn literal(&mut self, text: &str) -> Result<(), TimeError> {
        self.rest = self.rest.strip_prefix(text).ok_or_else(|| self.fail(text))?;
        Ok(())
    }

    fn fraction(&mut self) -> i32 {
        let bytes = self.rest.as_bytes();
        if bytes.len() < 2 || !matches!(bytes[0], b'.' | b',') || !bytes[1].is_ascii_digit() {
            return 0;
        }
        let len = bytes[1..].iter().take_while(|b| b.is_ascii_digit()).count();
        let mut nanos = 0;
        for i in 0..9 {
            nanos = nanos * 10 + if i < len { i32::from(bytes[1 + i] - b'0') } else { 0 };
        }
        self.rest = &self.rest[1 + len..];
        nanos
    }

    fn zone(&mut self) -> Result<i64, TimeError> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let b = self.rest.as_bytes();
        let shaped = b.len() >= 6
            && matches!(b[0], b'+' | b'-')
            && b[3] == b':'
            && [b[1], b[2], b[4], b[5]].iter().all(u8::is_ascii_digit);
        if !shaped {
            return Err(self.fail("Z07:00"));
        }
        let two = |i: usize| i64::from(b[i] - b'0') * 10 + i64::from(b[i + 1] - b'0');
        let (hours, minutes) = (two(1), two(4));
        if hours > 24 {
            return Err(self.range("time zone offset hour"));
        }
        if minutes >= 60 {
            return Err(self.range("time zone offset minute"));
        }
        let offset = hours * 3600 + minutes * 60;
        let offset = if b[0] == b'-' { -offset } else { offset };
        self.rest = &self.rest[6..];
        Ok(offset)
    }
}

/// RFC 3339 to an instant. `micro` asks for exactly six fractional digits.
pub(crate) fn parse_time(text: &str, micro: bool) -> Result<Instant, TimeError> {
    let mut p = TimeParser { whole: text, rest: text, layout: if micro { MICRO_LAYOUT } else { TIME_LAYOUT } };
    let year = p.digits(4, "2006")?;
    p.literal("-")?;
    let month = p.digits(2, "01")?;
    if !(1..=12).contains(&month) {
        return Err(p.range("month"));
    }
    p.literal("-")?;
    let day = p.digits(2, "02")?;
    p.literal("T")?;
    let hour = p.digits(2, "15")?;
    if hour >= 24 {
        return Err(p.range("hour"));
    }
    p.literal(":")?;
    let minute = p.digits(2, "04")?;
    if minute >= 60 {
        return Err(p.range("minute"));
    }
    p.literal(":")?;
    let second = p.digits(2, "05")?;
    if second >= 60 {
        return Err(p.range("second"));
    }
    let mut nanos = 0;
    if micro {
        let b = p.rest.as_bytes();
        if b.len() < 7 || b[0] != b'.' || !b[1..7].iter().all(u8::is_ascii_digit) {
            return Err(p.fail(".000000"));
        }
        for d in &b[1..7] {
            nanos = nanos * 10 + i32::from(d - b'0');
        }
        nanos *= 1000;
        p.rest = &p.rest[7..];
    } else {
        p.fraction();
    }
    let offset = p.zone()?;
    if !p.rest.is_empty() {
        return Err(TimeError::ExtraText { text: text.to_owned(), rest: p.rest.to_owned() });
    }
    if day < 1 || day > days_in(year, month) {
        return Err(p.range("day"));
    }
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Ok((seconds, nanos))
}

/// An instant as RFC 3339 in UTC; None when the year has no four digits.
pub(crate) fn format_time((seconds, nanos): Instant, micro: bool) -> Option<String> {
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    if !(0..=9999).contains(&year) || seconds.unsigned_abs() > 1 << 40 {
        return None;
    }
    let rest = seconds.rem_euclid(86_400);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    let fraction = if micro { format!(".{:06}", nanos.clamp(0, 999_999_999) / 1000) } else { String::new() };
    Some(format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}{fraction}Z"))
}

/// Seconds since the epoch as RFC 3339 in UTC, with as many digits of a second as it takes.
pub(crate) fn unix_time(seconds: f64) -> Option<String> {
    if !seconds.is_finite() || seconds.abs() >= 1e12 {
        return None;
    }
    let whole = seconds.floor();
    #[allow(clippy::cast_possible_truncation, reason = "both are small")]
    let (second, nanos) = (whole as i64, ((seconds - whole) * 1e9) as i32);
    let text = format_time((second, 0), false)?;
    let fraction = format!(".{nanos:09}");
    let fraction = if nanos == 0 { "" } else { fraction.trim_end_matches('0') };
    Some(format!("{}{fraction}Z", text.trim_end_matches('Z')))
}

/// Standard base64 with Go's error text; line breaks are ignored.
pub(crate) fn decode_base64(text: &str) -> Result<Vec<u8>, Base64Error> {
    let decoded = if text.contains(['\r', '\n']) {
        STANDARD.decode(text.replace(['\r', '\n'], ""))
    } else {
        STANDARD.decode(text)
    };
    decoded.map_err(|_| {
        let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'\r' | b'\n');
        let at = text.bytes().position(|b| !valid(b)).unwrap_or(text.len() / 4 * 4);
        Base64Error { at }
    })
}

/// Standard base64.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip() {
        assert_eq!(parse_time("2023-11-14T23:13:20+01:00", false), Ok((1_700_000_000, 0)));
        assert_eq!(format_time((1_700_000_000, 0), false).as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!(parse_time("2023-11-14T22:13:20.123456Z", true), Ok((1_700_000_000, 123_456_000)));
        assert_eq!(format_time((1_700_000_000, 123_456_000), true).as_deref(), Some("2023-11-14T22:13:20.123456Z"));
        assert!(parse_time("2023-02-29T00:00:00Z", false).is_err());
    }
}
