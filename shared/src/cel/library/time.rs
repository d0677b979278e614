//! Moments and spans.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::convert::unreadable;
use super::{Args, Entry, ONE, function, int, method};
use crate::cel::Error;
use crate::cel::value::{Answer, Value};
use crate::cron;

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

/// Unix epoch.
const EPOCH: DateTime = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);
/// The first year there is; the last is the last that a date can have.
const FIRST_YEAR: i16 = 1;

/// A moment as RFC 3339 writes it, within the years 1 to 9999. In UTC: moments as such end some hours before dates do.
#[must_use]
pub fn timestamp(text: &str) -> Option<DateTime> {
    read(text)?.ok().filter(exists)
}

/// Parses a timestamp; an error when it is out of range.
fn read(text: &str) -> Option<Result<DateTime, jiff::Error>> {
    let bytes = text.as_bytes();
    // What else the reader of dates takes (a space for the `T`, no zone) is no RFC 3339.
    let shape = bytes.len() >= 20 && bytes[10] == b'T' && bytes[4] == b'-' && bytes[13] == b':' && bytes[16] == b':';
    let (local, east) = match text.strip_suffix('Z').filter(|_| shape) {
        Some(local) => (local, SignedDuration::ZERO),
        None => {
            let (local, zone) = text.split_at_checked(text.len().checked_sub(6)?).filter(|_| shape)?;
            (local, offset(zone)?)
        }
    };
    // A second that is too many for its minute would be taken for the one before.
    let fits = &bytes[17..19] != b"60";
    Some(local.parse::<DateTime>().ok().filter(|_| fits)?.checked_sub(east))
}

/// `+02:00`; some write 24 hours, or 60 minutes.
fn offset(zone: &str) -> Option<SignedDuration> {
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let two = |text: &str, most: i64| -> Option<i64> {
        let digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|n| digits && *n <= most)
    };
    let east = SignedDuration::from_mins(two(hours, 24)? * 60 + two(minutes, 60)?);
    match zone.as_bytes()[0] {
        b'+' => Some(east),
        b'-' => Some(-east),
        _ => None,
    }
}

/// Reports whether a timestamp is in CEL's range.
pub(super) fn exists(t: &DateTime) -> bool {
    t.year() >= FIRST_YEAR
}

/// So many seconds after the epoch.
pub(in crate::cel) fn at(seconds: i64) -> Option<DateTime> {
    EPOCH.checked_add(SignedDuration::from_secs(seconds)).ok().filter(exists)
}

/// Whole seconds after the epoch.
pub(super) fn seconds_of(t: &DateTime) -> i64 {
    let since = t.duration_since(EPOCH);
    since.as_secs() - i64::from(since.subsec_nanos() < 0)
}

/// A span as Go writes it, in nanoseconds.
#[must_use]
pub fn duration(text: &str) -> Option<i64> {
    crate::flags::parse_nanos(text).ok()
}

fn to_timestamp<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    let overflow = || Error::new("timestamp overflow");
    match args.get(0)? {
        Value::Timestamp(t) => Ok(Value::Timestamp(*t)),
        Value::Int(n) => at(*n).map(Value::Timestamp).ok_or_else(overflow),
        Value::String(s) => match read(s) {
            Some(t) => t.ok().filter(exists).map(Value::Timestamp).ok_or_else(overflow),
            None => Err(unreadable("google.protobuf.Timestamp")),
        },
        _ => Err(Error::overload()),
    }
}

fn to_duration<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    match args.get(0)? {
        Value::Duration(n) => Ok(Value::Duration(*n)),
        Value::Int(_) => Err(Error::new("type conversion error from 'int' to 'google.protobuf.Duration'")),
        Value::String(s) => duration(s).map(Value::Duration).ok_or_else(|| unreadable("google.protobuf.Duration")),
        _ => Err(Error::overload()),
    }
}

/// Offset of a zone from UTC at a timestamp: of one such as `+02:00`, or of a named one.
fn east(name: &str, t: &DateTime) -> Result<SignedDuration, Error> {
    if let Some((hours, minutes)) = name.split_once(':') {
        let (hours, minutes) = (number(hours)?, number(minutes)?);
        let minutes = if name.starts_with('-') { -minutes } else { minutes };
        let all = hours.checked_mul(60).and_then(|h| h.checked_add(minutes)).and_then(|all| all.checked_mul(60));
        return all.map(SignedDuration::from_secs).ok_or_else(|| Error::new("timestamp overflow"));
    }
    let zone = cron::zone(name).map_err(Error::new)?;
    let moment = TimeZone::UTC.to_timestamp(*t).unwrap_or(Timestamp::MAX);
    Ok(SignedDuration::from_secs(zone.to_offset(moment).seconds().into()))
}

fn number(text: &str) -> Result<i64, Error> {
    let quoted = crate::status::go_quote(text);
    text.parse().map_err(|_| Error::new(format!("strconv.Atoi: parsing {quoted}: invalid syntax")))
}

fn local(args: &Args<'_, '_>) -> Result<DateTime, Error> {
    let Value::Timestamp(t) = args.get(0)? else { return Err(Error::overload()) };
    let east = if args.len() > 1 { east(args.text(1)?, t)? } else { SignedDuration::ZERO };
    t.checked_add(east).map_err(|_| Error::new("timestamp overflow"))
}

fn day(args: &Args<'_, '_>) -> Result<Date, Error> {
    local(args).map(DateTime::date)
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
fn part<'a>(args: &Args<'_, 'a>, nanos: i64, of: impl Fn(DateTime) -> i64) -> Answer<'a> {
    match args.get(0)? {
        Value::Duration(n) => int(n / nanos),
        _ => int(of(local(args)?)),
    }
}

fn hours<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 3_600_000_000_000, |t| t.hour().into())
}

fn minutes<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 60_000_000_000, |t| t.minute().into())
}

fn seconds<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 1_000_000_000, |t| t.second().into())
}

/// The whole span in milliseconds; the part of the second of a moment.
fn milliseconds<'a>(args: &mut Args<'_, 'a>) -> Answer<'a> {
    part(args, 1_000_000, |t| t.millisecond().into())
}
