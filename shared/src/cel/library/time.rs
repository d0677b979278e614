//! Moments and spans.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::{Args, Entry, ONE, function, int, method};
use crate::cel::Error;
use crate::cel::value::{Answer, Value};

/// Rows of one getter: of a moment, and of a moment in a zone.
macro_rules! getter {
    ($name:literal, $run:path) => {
        [method($name, "timestamp", "int", ONE, $run), method($name, "timestamp, string", "int", ONE, $run)]
    };
}

const fn rows() -> [Entry; 28] {
    let [a, b] = getter!("getFullYear", year);
    let [c, d] = getter!("getMonth", month);
    let [e, f] = getter!("getDate", date);
    let [g, h] = getter!("getDayOfMonth", day_of_month);
    let [i, j] = getter!("getDayOfWeek", day_of_week);
    let [k, l] = getter!("getDayOfYear", day_of_year);
    let [m, n] = getter!("getHours", hours);
    let [o, p] = getter!("getMinutes", minutes);
    let [q, r] = getter!("getSeconds", seconds);
    let [s, t] = getter!("getMilliseconds", milliseconds);
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        n,
        o,
        p,
        q,
        r,
        s,
        t,
        method("getHours", "duration", "int", ONE, hours),
        method("getMinutes", "duration", "int", ONE, minutes),
        method("getSeconds", "duration", "int", ONE, seconds),
        method("getMilliseconds", "duration", "int", ONE, milliseconds),
        function("timestamp", "timestamp", "timestamp", ONE, to_timestamp),
        function("timestamp", "string", "timestamp", ONE, to_timestamp),
        function("timestamp", "int", "timestamp", ONE, to_timestamp),
        function("duration", "duration", "duration", ONE, to_duration),
    ]
}

const ROWS: [Entry; 28] = rows();
pub(super) const TABLE: &[Entry] = &ROWS;
pub(super) const MORE: &[Entry] = &[
    function("duration", "string", "duration", ONE, to_duration),
    function("duration", "int", "duration", ONE, to_duration),
];

/// A moment as RFC 3339 writes it, within the years 1 to 9999.
#[must_use]
pub fn timestamp(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    // What else the reader of dates takes (a space for the `T`, no zone) is no RFC 3339.
    let shape = bytes.len() >= 20 && bytes[10] == b'T' && bytes[4] == b'-' && bytes[13] == b':' && bytes[16] == b':';
    let zoned = text.ends_with('Z') || text.len() > 25 - 6 && matches!(bytes[bytes.len() - 6], b'+' | b'-');
    (shape && zoned).then(|| text.parse().ok()).flatten()
}

/// A span as Go writes it, in nanoseconds.
#[must_use]
pub fn duration(text: &str) -> Option<i64> {
    crate::flags::parse_nanos(text).ok()
}

/// As RFC 3339, in UTC.
pub(in crate::cel) fn print_time(t: &Timestamp) -> String {
    t.to_string()
}

/// In seconds.
pub(in crate::cel) fn print_span(nanos: i64) -> String {
    let (sign, n) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (whole, rest) = (n / 1_000_000_000, n % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{whole}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{whole}.{}s", fraction.trim_end_matches('0'))
}

fn to_timestamp<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Timestamp(t) => Ok(Value::Timestamp(*t)),
        Value::Int(n) => Timestamp::from_second(*n).map(Value::Timestamp).map_err(|_| Error::new("timestamp overflow")),
        Value::String(s) => timestamp(s).map(Value::Timestamp).ok_or_else(|| {
            Error::new(format!(
                "parsing time {} as \"2006-01-02T15:04:05Z07:00\": cannot parse",
                crate::status::go_quote(s)
            ))
        }),
        _ => Err(Error::overload()),
    }
}

fn to_duration<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Duration(n) | Value::Int(n) => Ok(Value::Duration(*n)),
        Value::String(s) => duration(s)
            .map(Value::Duration)
            .ok_or_else(|| Error::new(format!("time: invalid duration {}", crate::status::go_quote(s)))),
        _ => Err(Error::overload()),
    }
}

/// `+02:00` or the name of a zone.
fn zone(name: &str) -> Result<TimeZone, Error> {
    let unknown = || Error::new(format!("unknown time zone {name}"));
    let Some((hours, minutes)) = name.split_once(':') else {
        return if name == "UTC" { Ok(TimeZone::UTC) } else { TimeZone::get(name).map_err(|_| unknown()) };
    };
    let negative = hours.starts_with('-');
    let hours: i32 = hours.trim_start_matches(['+', '-']).parse().map_err(|_| unknown())?;
    let minutes: i32 = minutes.parse().map_err(|_| unknown())?;
    if hours > 23 || !(0..60).contains(&minutes) {
        return Err(unknown());
    }
    let seconds = (hours * 60 + minutes) * 60;
    let offset = jiff::tz::Offset::from_seconds(if negative { -seconds } else { seconds }).map_err(|_| unknown())?;
    Ok(TimeZone::fixed(offset))
}

fn zoned(args: &Args<'_, '_>) -> Result<Zoned, Error> {
    let Value::Timestamp(t) = args.get(0)? else { return Err(Error::overload()) };
    let zone = if args.len() > 1 { zone(args.text(1)?)? } else { TimeZone::UTC };
    Ok(t.to_zoned(zone))
}

fn day(args: &Args<'_, '_>) -> Result<Date, Error> {
    zoned(args).map(|z| z.date())
}

fn year<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(day(args)?.year().into())
}

fn month<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(i64::from(day(args)?.month()) - 1)
}

fn date<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(day(args)?.day().into())
}

fn day_of_month<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(i64::from(day(args)?.day()) - 1)
}

fn day_of_week<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(day(args)?.weekday().to_sunday_zero_offset().into())
}

fn day_of_year<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    int(i64::from(day(args)?.day_of_year()) - 1)
}

/// Of a span, how many there are in it; of a moment, its part.
fn part<'a>(args: &Args<'_, 'a>, nanos: i64, of: impl Fn(&Zoned) -> i64) -> Answer<'a> {
    match args.get(0)? {
        Value::Duration(n) => int(n / nanos),
        _ => int(of(&zoned(args)?)),
    }
}

fn hours<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 3_600_000_000_000, |z| z.hour().into())
}

fn minutes<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 60_000_000_000, |z| z.minute().into())
}

fn seconds<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 1_000_000_000, |z| z.second().into())
}

/// The whole span in milliseconds; the part of the second of a moment.
fn milliseconds<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 1_000_000, |z| z.millisecond().into())
}
