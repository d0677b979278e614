//! Cron schedules: five fields, names, ranges, steps, and the @-words.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// How far ahead a next time is looked for, in days.
const HORIZON: usize = 5 * 366;

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

/// When a job is due.
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

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    /// Read a schedule.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError("empty spec string".into()));
        }
        if let Some(word) = text.strip_prefix('@') {
            return Self::word(text, word);
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts.as_slice() else {
            return Err(ScheduleError(format!("expected exactly 5 fields, found {}: {parts:?}", parts.len())));
        };
        let mut weekday = field(weekday, 0, 7, &DAYS, 0)?;
        if weekday.bits & (1 << 7) != 0 {
            weekday.bits = (weekday.bits | 1) & !(1 << 7);
        }
        Ok(Self::Fields(Box::new(Fields {
            minute: field(minute, 0, 59, &[], 0)?,
            hour: field(hour, 0, 23, &[], 0)?,
            day: field(day, 1, 31, &[], 0)?,
            month: field(month, 1, 12, &MONTHS, 1)?,
            weekday,
        })))
    }

    /// Read a schedule and the zone that may stand before it, as in `TZ=Asia/Tokyo 0 9 * * *`.
    pub fn parse_zoned(text: &str) -> Result<(Self, Option<TimeZone>), ScheduleError> {
        let zoned = ["TZ=", "CRON_TZ="].iter().find_map(|prefix| text.strip_prefix(prefix));
        let Some((name, rest)) = zoned.and_then(|z| z.split_once(' ')) else { return Ok((Self::parse(text)?, None)) };
        let zone = TimeZone::get(name)
            .map_err(|_| ScheduleError(format!("provided bad location {name}: unknown time zone {name}")))?;
        Ok((Self::parse(rest.trim())?, Some(zone)))
    }

    fn word(text: &str, word: &str) -> Result<Self, ScheduleError> {
        let spec = match word {
            "yearly" | "annually" => "0 0 1 1 *",
            "monthly" => "0 0 1 * *",
            "weekly" => "0 0 * * 0",
            "daily" | "midnight" => "0 0 * * *",
            "hourly" => "0 * * * *",
            _ => {
                let every = word.strip_prefix("every ").and_then(|d| shared::flags::parse_duration(d).ok());
                let every = every.ok_or_else(|| ScheduleError(format!("unrecognized descriptor: {text}")))?;
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

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let from: DateTime = after.to_zoned(zone.clone()).datetime();
        let mut date = from.date();
        for _ in 0..HORIZON {
            if self.selects(date) {
                for hour in (0..24).filter(|h| self.hour.has(*h)) {
                    for minute in (0..60).filter(|m| self.minute.has(*m)) {
                        let time = Time::new(hour, minute, 0, 0).ok()?;
                        let at = DateTime::from_parts(date, time);
                        if date == from.date() && at <= from {
                            continue;
                        }
                        let found = at.to_zoned(zone.clone()).ok()?;
                        // A time that the clock skips does not happen.
                        if found.datetime() == at && found.timestamp() > after {
                            return Some(found.timestamp());
                        }
                    }
                }
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    /// A day is selected by both its fields, or by either when both are restricted.
    fn selects(&self, date: Date) -> bool {
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        let either = if self.day.star || self.weekday.star { day && weekday } else { day || weekday };
        self.month.has(date.month()) && either
    }
}

fn field(text: &str, min: i64, max: i64, names: &[&str], first_name: i64) -> Result<Field, ScheduleError> {
    let mut out = Field { bits: 0, star: false };
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (range, step) = part.split_once('/').map_or((part, None), |(r, s)| (r, Some(s)));
        let number = |t: &str| -> Result<i64, ScheduleError> {
            let named = names.iter().position(|n| n.eq_ignore_ascii_case(t));
            match named {
                Some(i) => Ok(i64::try_from(i).unwrap_or(0) + first_name),
                None => t.parse().map_err(|_| {
                    ScheduleError(format!(
                        "failed to parse int from {t}: strconv.Atoi: parsing \"{t}\": invalid syntax"
                    ))
                }),
            }
        };
        let (from, mut to) = match range {
            "*" | "?" => {
                out.star |= step.is_none();
                (min, if names == DAYS { 6 } else { max })
            }
            _ => match range.split_once('-') {
                Some((a, b)) => (number(a)?, number(b)?),
                None => (number(range)?, number(range)?),
            },
        };
        let step = match step {
            None => 1,
            Some(s) => {
                if !range.contains('-') && range != "*" && range != "?" {
                    to = max;
                }
                number(s)?
            }
        };
        if from < min {
            return Err(ScheduleError(format!("beginning of range ({from}) below minimum ({min}): {part}")));
        }
        if to > max {
            return Err(ScheduleError(format!("end of range ({to}) above maximum ({max}): {part}")));
        }
        if from > to {
            return Err(ScheduleError(format!("beginning of range ({from}) beyond end of range ({to}): {part}")));
        }
        let step = usize::try_from(step)
            .ok()
            .filter(|s| *s > 0)
            .ok_or_else(|| ScheduleError(format!("step of range should be a positive number: {part}")))?;
        for n in (from..=to).step_by(step) {
            out.bits |= 1 << n;
        }
    }
    Ok(out)
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
            ("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("0 0 13 * FRI", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
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

    #[test]
    fn time_zones() {
        let zone = TimeZone::get("Europe/Berlin").expect("zone");
        let daily = Schedule::parse("30 2 * * *").expect("schedule");
        let after = |t: &str| daily.next(t.parse().expect("time"), &zone).map(|t| t.to_string());
        assert_eq!(after("2026-01-01T00:00:00Z").as_deref(), Some("2026-01-01T01:30:00Z"));
        assert_eq!(
            after("2026-03-28T20:00:00Z").as_deref(),
            Some("2026-03-30T00:30:00Z"),
            "02:30 is skipped that night"
        );
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
            ("* * * *", "expected exactly 5 fields, found 4: [\"*\", \"*\", \"*\", \"*\"]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@often", "unrecognized descriptor: @often"),
        ] {
            assert_eq!(Schedule::parse(spec).unwrap_err().to_string(), want);
        }
    }
}
