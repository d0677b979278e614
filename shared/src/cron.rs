//! Cron schedules: five fields, names, ranges, steps, and the @-words. What is refused is refused in the words of the
//! library that upstream uses.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan};

use crate::flags::{parse_duration, parse_integer};

/// Number of years in which the next time is searched.
const YEARS: i16 = 5;
/// In seconds.
const HOUR: i64 = 3600;

/// A set of small numbers, and whether it was written as a star.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    bits: u64,
    star: bool,
}

impl Field {
    fn has(self, n: i8) -> bool {
        u32::try_from(n).is_ok_and(|n| self.bits & (1 << n) != 0)
    }
}

/// Schedule of a cron job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At the minutes that all fields select.
    Fields(Box<Fields>),
    /// At a fixed distance from the last time.
    Every(Duration),
}

/// The five fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

/// The schedule cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

/// Lowest and highest value of a field, and the names of its values.
type Bounds = (i64, i64, &'static [&'static str]);

const MINUTES: Bounds = (0, 59, &[]);
const HOURS: Bounds = (0, 23, &[]);
const DAYS: Bounds = (1, 31, &[]);
const MONTHS: Bounds = (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]);
const WEEKDAYS: Bounds = (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]);

fn refuse<T>(why: String) -> Result<T, ScheduleError> {
    Err(ScheduleError(why))
}

impl Schedule {
    /// Read a schedule.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return refuse("empty spec string".to_owned());
        }
        if text.starts_with('@') {
            return Self::descriptor(text);
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts.as_slice() else {
            return refuse(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
        };
        Ok(Self::Fields(Box::new(Fields {
            minute: field(minute, MINUTES)?,
            hour: field(hour, HOURS)?,
            day: field(day, DAYS)?,
            month: field(month, MONTHS)?,
            weekday: field(weekday, WEEKDAYS)?,
        })))
    }

    /// Read a schedule and the zone that may stand before it, as in `TZ=Asia/Tokyo 0 9 * * *`.
    pub fn parse_zoned(text: &str) -> Result<(Self, Option<TimeZone>), ScheduleError> {
        let Some(zoned) = ["TZ=", "CRON_TZ="].iter().find_map(|prefix| text.strip_prefix(prefix)) else {
            return Ok((Self::parse(text)?, None));
        };
        let Some((name, rest)) = zoned.split_once(' ') else {
            return refuse("missing spec after the time zone".to_owned());
        };
        let zone = zone(name).or_else(|why| refuse(format!("provided bad location {name}: {why}")))?;
        Ok((Self::parse(rest.trim())?, Some(zone)))
    }

    fn descriptor(text: &str) -> Result<Self, ScheduleError> {
        let spec = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ => {
                let Some(every) = text.strip_prefix("@every ") else {
                    return refuse(format!("unrecognized descriptor: {text}"));
                };
                let every = parse_duration(every);
                let every = every.or_else(|why| refuse(format!("failed to parse duration {text}: {why}")))?;
                return Ok(Self::Every(Duration::from_secs(every.as_secs().max(1))));
            }
        };
        Self::parse(spec)
    }

    /// The first time after `after`; None when there is none for years.
    #[must_use]
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Every(d) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*d).ok()
            }
            Self::Fields(f) => f.next(after, zone),
        }
    }
}

/// Units of the search for the next time, from the largest to the smallest.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Month,
    Day,
    Hour,
    Minute,
    Second,
}

impl Unit {
    const ALL: [Self; 5] = [Self::Month, Self::Day, Self::Hour, Self::Minute, Self::Second];

    /// Reports whether the start of this unit may start a larger one.
    fn begins_anew(self, at: DateTime) -> bool {
        match self {
            Self::Month => at.month() == 1,
            Self::Day => at.day() == 1,
            Self::Hour => at.hour() == 0,
            Self::Minute => at.minute() == 0,
            Self::Second => at.second() == 0,
        }
    }
}

/// A moment and what clocks in its zone show. Days and months are counted by the clock; hours and minutes pass, so that
/// an hour which the clock skips is passed over, and one that it shows twice is there twice.
struct Walk<'a> {
    now: Timestamp,
    zone: &'a TimeZone,
}

impl Walk<'_> {
    fn clock(&self) -> DateTime {
        self.zone.to_offset(self.now).to_datetime(self.now)
    }

    /// Go to when the clock shows this. Where it never does, or twice, the answer is that of Go's `time.Date`.
    fn go(&mut self, clock: DateTime) -> Option<()> {
        let guess = Offset::UTC.to_timestamp(clock).ok()?;
        let first = self.zone.to_offset(guess);
        let offset = if first.is_zero() { first } else { self.zone.to_offset(first.to_timestamp(clock).ok()?) };
        self.now = offset.to_timestamp(clock).ok()?;
        Some(())
    }

    fn pass(&mut self, seconds: i64) -> Option<()> {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        Some(())
    }

    /// Back to the begin of the unit.
    fn floor(&mut self, unit: Unit) -> Option<()> {
        let clock = self.clock();
        let midnight = |date: Date| date.to_datetime(Time::midnight());
        match unit {
            Unit::Month => self.go(midnight(clock.date().first_of_month())),
            Unit::Day => self.go(midnight(clock.date())),
            Unit::Hour => self.go(midnight(clock.date()).with().hour(clock.hour()).build().ok()?),
            Unit::Minute => self.pass(-self.now.as_second().rem_euclid(60)),
            Unit::Second => Some(()),
        }
    }

    fn advance(&mut self, unit: Unit) -> Option<()> {
        match unit {
            Unit::Month => {
                // A day that the next month does not have is one of the month after it.
                let clock = self.clock();
                let days = i64::from(clock.day()) - 1;
                self.go(clock.first_of_month().checked_add(1.month()).ok()?.checked_add(days.days()).ok()?)
            }
            Unit::Day => {
                self.go(self.clock().checked_add(1.day()).ok()?)?;
                // Midnight may have been skipped, or be there twice.
                let hour = i64::from(self.clock().hour());
                match hour {
                    0 => Some(()),
                    13.. => self.pass((24 - hour) * HOUR),
                    _ => self.pass(-hour * HOUR),
                }
            }
            Unit::Hour => self.pass(HOUR),
            Unit::Minute => self.pass(60),
            Unit::Second => self.pass(60 - i64::from(self.clock().second())),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut walk = Walk { now: Timestamp::from_second(after.as_second()).ok()?, zone };
        walk.pass(1)?;
        let last_year = walk.clock().year() + YEARS;
        let mut floored = false;
        'again: while walk.clock().year() <= last_year {
            for unit in Unit::ALL {
                while !self.selects(unit, walk.clock()) {
                    if !std::mem::replace(&mut floored, true) {
                        walk.floor(unit)?;
                    }
                    let before = walk.now;
                    walk.advance(unit)?;
                    if walk.now <= before {
                        // A day that the calendar skips leads back to the one before it.
                        walk.pass(24 * HOUR)?;
                    }
                    if unit.begins_anew(walk.clock()) {
                        continue 'again;
                    }
                }
            }
            return Some(walk.now);
        }
        None
    }

    fn selects(&self, unit: Unit, at: DateTime) -> bool {
        match unit {
            Unit::Month => self.month.has(at.month()),
            Unit::Day => self.selects_day(at.date()),
            Unit::Hour => self.hour.has(at.hour()),
            Unit::Minute => self.minute.has(at.minute()),
            Unit::Second => at.second() == 0,
        }
    }

    /// A day is selected by both its fields, or by either when both are restricted.
    fn selects_day(&self, date: Date) -> bool {
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        if self.day.star || self.weekday.star { day && weekday } else { day || weekday }
    }
}

/// Errors of finding a time zone, in the words of Go's `time.LoadLocation`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// No name of a zone: it could name a file elsewhere.
    #[error("time: invalid location name")]
    Name,
    /// There is no zone of this name.
    #[error("unknown time zone {0}")]
    Unknown(String),
}

/// A time zone by its name.
///
/// # Errors
/// There is none of that name.
pub fn zone(name: &str) -> Result<TimeZone, ZoneError> {
    match name {
        "" | "UTC" => Ok(TimeZone::UTC),
        "Local" => Ok(TimeZone::system()),
        name if name.contains("..") || name.starts_with(['/', '\\']) => Err(ZoneError::Name),
        // Names of zones are names of files: small letters are other letters.
        _ => TimeZone::get(name)
            .ok()
            .filter(|zone| zone.iana_name() == Some(name))
            .ok_or_else(|| ZoneError::Unknown(name.to_owned())),
    }
}

fn field(text: &str, bounds: Bounds) -> Result<Field, ScheduleError> {
    let mut out = Field { bits: 0, star: false };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let one = range(part, bounds)?;
        out = Field { bits: out.bits | one.bits, star: out.star | one.star };
    }
    Ok(out)
}

/// `*`, `5`, `1-5`, any of them with a step behind a slash.
fn range(text: &str, (low, high, names): Bounds) -> Result<Field, ScheduleError> {
    let named = |word: &str| match names.iter().position(|name| name.eq_ignore_ascii_case(word)) {
        // Names count from the lowest value.
        Some(at) => Ok(low + i64::try_from(at).unwrap_or_default()),
        None => number(word),
    };
    let (ends, step) = text.split_once('/').map_or((text, None), |(ends, step)| (ends, Some(step)));
    let (first, last) = ends.split_once('-').map_or((ends, None), |(first, last)| (first, Some(last)));
    let mut star = matches!(first, "*" | "?");
    let (start, mut end) = match (star, last) {
        (true, _) => (low, high),
        (false, None) => (named(first)?, named(first)?),
        (false, Some(last)) if last.contains('-') => {
            named(first)?;
            return refuse(format!("too many hyphens: {text}"));
        }
        (false, Some(last)) => (named(first)?, named(last)?),
    };
    let mut every = 1;
    if let Some(step) = step {
        if step.contains('/') {
            return refuse(format!("too many slashes: {text}"));
        }
        every = number(step)?;
        if last.is_none() {
            end = high;
        }
        star &= every <= 1;
    }
    if start < low {
        return refuse(format!("beginning of range ({start}) below minimum ({low}): {text}"));
    }
    if end > high {
        return refuse(format!("end of range ({end}) above maximum ({high}): {text}"));
    }
    if start > end {
        return refuse(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    let Some(every) = usize::try_from(every).ok().filter(|every| *every > 0) else {
        return refuse(format!("step of range should be a positive number: {text}"));
    };
    Ok(Field { bits: (start..=end).step_by(every).fold(0, |bits, n| bits | 1 << n), star })
}

fn number(text: &str) -> Result<i64, ScheduleError> {
    let read = parse_integer(text).or_else(|why| refuse(format!("failed to parse int from {text}: {why}")))?;
    if read < 0 { refuse(format!("negative number ({read}) not allowed: {text}")) } else { Ok(read) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_times() {
        let cases = [
            ("* * * * *", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"),
            ("0 3 * * *", "2026-01-01T04:00:00Z", "2026-01-02T03:00:00Z"),
            ("0 0 * * MON", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z"),
            ("0 0 * * sun-MON", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("0 0 13 * FRI", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("0 0 */1 * FRI", "2026-01-02T12:00:00Z", "2026-01-09T00:00:00Z"),
            ("0 0 */2 * FRI", "2026-01-02T12:00:00Z", "2026-01-03T00:00:00Z"),
            ("0 0 */2 * ?", "2026-01-01T12:00:00Z", "2026-01-03T00:00:00Z"),
            ("30 4 1 feb-mar *", "2026-01-01T00:00:00Z", "2026-02-01T04:30:00Z"),
            ("0 0 29 2 *", "2026-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
            ("@every 90s", "2026-01-01T00:00:00Z", "2026-01-01T00:01:30Z"),
            ("5/20 * * * *", "2026-01-01T00:06:00Z", "2026-01-01T00:25:00Z"),
        ];
        for (spec, after, want) in cases {
            let s = Schedule::parse(spec).expect(spec);
            let got = s.next(after.parse().expect("time"), &TimeZone::UTC);
            assert_eq!(got.map(|t| t.to_string()).as_deref(), Some(want), "{spec}");
        }
        let never = Schedule::parse("0 0 30 2 *").expect("schedule");
        assert_eq!(never.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
    }

    /// Schedules across clock changes match those of the library that upstream uses.
    #[test]
    fn clocks_that_are_changed() {
        for (zone_name, spec, after, want) in [
            ("Europe/Berlin", "*/30 * * * *", "2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-03-28T02:00:00Z", "2026-03-30T00:30:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"),
            ("Europe/Berlin", "0 * * * *", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"),
            ("Europe/Berlin", "*/20 * * * *", "2026-10-25T00:40:00Z", "2026-10-25T01:00:00Z"),
            ("America/New_York", "30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"),
            ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"),
            ("America/Santiago", "0 0 * * *", "2026-09-05T12:00:00Z", "2026-09-07T03:00:00Z"),
            ("Asia/Tokyo", "0 9 * * *", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            // A day that was not there.
            ("Pacific/Apia", "0 12 30 12 *", "2011-12-29T12:00:00Z", "2012-12-29T22:00:00Z"),
        ] {
            let schedule = Schedule::parse(spec).expect(spec);
            let got = schedule.next(after.parse().expect("time"), &zone(zone_name).expect("zone"));
            assert_eq!(got.map(|t| t.to_string()).as_deref(), Some(want), "{zone_name} {spec} {after}");
        }
    }

    #[test]
    fn zones_are_named_exactly() {
        for (name, known) in
            [("UTC", true), ("US/Eastern", true), ("Asia/Tokyo", true), ("asia/tokyo", false), ("No/Where", false)]
        {
            assert_eq!(zone(name).is_ok(), known, "{name}");
        }
        for name in ["../UTC", "/etc/localtime", "\\UTC"] {
            assert_eq!(zone(name), Err(ZoneError::Name));
        }
    }

    #[test]
    fn a_zone_before_the_schedule() {
        let (schedule, zone) = Schedule::parse_zoned("CRON_TZ=Asia/Tokyo  0 9 * * *").expect("schedule");
        let next = schedule.next("2026-01-01T00:00:00Z".parse().expect("time"), &zone.expect("zone"));
        assert_eq!(next.map(|t| t.to_string()).as_deref(), Some("2026-01-02T00:00:00Z"));
        assert_eq!(Schedule::parse_zoned("0 9 * * *").expect("schedule").1, None);
        let bad = Schedule::parse_zoned("TZ=No/Where 0 9 * * *").expect_err("no such zone");
        assert_eq!(bad.to_string(), "provided bad location No/Where: unknown time zone No/Where");
    }

    #[test]
    fn bad_schedules() {
        for (spec, want) in [
            ("", "empty spec string"),
            ("nope", "expected exactly 5 fields, found 1: [nope]"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("0 0 * * 7", "end of range (7) above maximum (6): 7"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("@often", "unrecognized descriptor: @often"),
            ("@every 1", "failed to parse duration @every 1: time: missing unit in duration \"1\""),
        ] {
            assert_eq!(Schedule::parse(spec).unwrap_err().to_string(), want);
        }
    }
}
