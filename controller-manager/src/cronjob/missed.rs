//! Start that is due, and the number of starts that were missed since the last one. Answers for upstream's
//! `mostRecentScheduleTime`, `nextScheduleTime`.
//!
//! Times that were missed are estimated from the distance of the first two, as upstream does it: then a schedule that
//! slept for years costs no more than one that slept for a minute. For schedules without a regular distance the estimate
//! may lead past the last time; that one is given up.

use std::time::Duration;

use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::jiff::Timestamp;
use shared::cron::Schedule;

use crate::engine::object;

/// More missed times than this are complained about.
const TOO_MANY: i64 = 100;
/// Clocks need not agree to the last millisecond.
const SLACK: Duration = Duration::from_millis(100);
/// Error of a schedule that no time satisfies.
pub const NEVER: &str = "time difference between two schedules is less than 1 second";

/// Number of starts that were missed, besides one that is just due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// None.
    None,
    /// Some.
    Few,
    /// More than can be an accident.
    Many,
}

/// The latest time that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    /// Begin of the search.
    pub since: Timestamp,
    /// The time, if there is one.
    pub due: Option<Timestamp>,
    /// Other starts that were missed.
    pub missed: Missed,
}

/// Since when starts are looked for; with its `deadline` a cron job looks no further back than that.
fn since(cron: &CronJob, now: Timestamp, deadline: bool) -> Timestamp {
    let last = cron.status.as_ref().and_then(|s| s.last_schedule_time.as_ref()).map(|t| t.0);
    let from = last.unwrap_or_else(|| object::created(&cron.metadata));
    let limit = cron.spec.as_ref().and_then(|s| s.starting_deadline_seconds).filter(|_| deadline);
    let earliest = limit.and_then(|limit| Timestamp::from_second(now.as_second().saturating_sub(limit)).ok());
    earliest.map_or(from, |earliest| from.max(earliest))
}

/// The latest time since the last start that has passed; an error when no time satisfies the schedule.
pub fn recent(
    cron: &CronJob,
    schedule: &Schedule,
    zone: &TimeZone,
    now: Timestamp,
    deadline: bool,
) -> Result<Recent, &'static str> {
    let since = since(cron, now, deadline);
    let found = |due, missed| Ok(Recent { since, due, missed });
    let Some(first) = schedule.next(since, zone) else { return Err(NEVER) };
    if now < first {
        return found(None, Missed::None);
    }
    let Some(second) = schedule.next(first, zone) else { return Err(NEVER) };
    if now < second {
        return found(Some(first), Missed::None);
    }
    let step = second.as_second() - first.as_second();
    if step < 1 {
        return Err(NEVER);
    }
    let count = (now.as_second() - first.as_second()) / step + 1;
    let mut at = Timestamp::from_second(first.as_second() + (count - 2) * step).ok();
    let mut due = None;
    while let Some(next) = at.and_then(|at| schedule.next(at, zone)).filter(|t| *t <= now) {
        due = Some(next);
        at = due;
    }
    found(due, if count > TOO_MANY { Missed::Many } else { Missed::Few })
}

/// Returns the time until the next start.
#[must_use]
pub fn until_next(cron: &CronJob, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Duration> {
    let from = match recent(cron, schedule, zone, now, false) {
        Ok(Recent { due: Some(due), .. }) => due,
        Ok(Recent { since, missed: Missed::None, .. }) => since,
        // Where nothing is known of the last time the next one counts from now.
        Ok(_) | Err(_) => now,
    };
    let next = schedule.next(from, zone)?;
    Some((Duration::try_from(next.duration_since(now)).unwrap_or_default()) + SLACK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Made on Thursday at ten.
    fn cron(last: Option<&str>, deadline: Option<i64>) -> CronJob {
        serde_json::from_value(json!({"metadata": {"name": "c", "creationTimestamp": "2016-05-19T10:00:00Z"},
            "spec": {"schedule": "", "jobTemplate": {}, "startingDeadlineSeconds": deadline},
            "status": {"lastScheduleTime": last}}))
        .expect("cron job")
    }

    fn at(text: &str) -> Timestamp {
        format!("2016-05-{text}Z").parse().expect("time")
    }

    #[test]
    fn what_is_due() {
        use Missed::{Few, Many, None as Nothing};
        let half = Some("2016-05-19T10:30:00Z");
        let (hourly, complex, mornings) = ("0 * * * *", "30 6-16/4 * * 1-5", "30 10,11,12 * * 1-5");
        let cases = [
            ("not yet", hourly, None, None, "19T10:00:10", None, Nothing),
            ("the first", hourly, None, None, "19T11:00:00", Some("19T11:00:00"), Nothing),
            ("the latest of some", hourly, Some("2016-05-19T10:00:00Z"), None, "19T15:30:00", Some("19T15:00:00"), Few),
            ("every minute of hours", "* * * * *", None, None, "19T12:00:30", Some("19T12:00:00"), Many),
            ("before the deadline only", hourly, None, Some(1800), "19T15:10:00", Some("19T15:00:00"), Nothing),
            ("nothing within the deadline", hourly, None, Some(60), "19T15:10:00", None, Nothing),
            ("of an irregular schedule", complex, half, None, "20T10:31:00", Some("20T10:30:00"), Few),
            ("after a longer pause of such", complex, half, None, "23T10:31:00", Some("23T10:30:00"), Few),
            ("past the last of such it is given up", mornings, half, None, "20T16:30:00", None, Few),
            (
                "at a fixed distance",
                "@every 1h",
                Some("2016-05-19T10:59:00Z"),
                None,
                "19T17:10:00",
                Some("19T16:59:00"),
                Few,
            ),
        ];
        for (name, spec, last, deadline, now, due, missed) in cases {
            let schedule = Schedule::parse(spec).expect(spec);
            let got = recent(&cron(last, deadline), &schedule, &TimeZone::UTC, at(now), true).expect(name);
            assert_eq!((got.due, got.missed), (due.map(at), missed), "{name}");
        }
        let never = Schedule::parse("59 23 31 2 *").expect("schedule");
        assert_eq!(recent(&cron(None, None), &never, &TimeZone::UTC, at("19T11:00:00"), true), Err(NEVER));
    }

    #[test]
    fn when_to_look_again() {
        let cases = [
            ("from now", "0 * * * *", None, "19T10:20:00", 2400),
            ("the deadline is of no interest", "0 * * * *", Some("2016-05-19T10:00:00Z"), "19T11:30:00", 1800),
            (
                "a fixed distance counts from the last time",
                "@every 1h",
                Some("2016-05-19T10:15:00Z"),
                "19T11:20:00",
                3300,
            ),
            (
                "after one that was given up",
                "30 10,11,12 * * 1-5",
                Some("2016-05-19T10:30:00Z"),
                "20T16:30:00",
                237_600,
            ),
        ];
        for (name, spec, last, now, want) in cases {
            let schedule = Schedule::parse(spec).expect(spec);
            let got = until_next(&cron(last, Some(10)), &schedule, &TimeZone::UTC, at(now));
            assert_eq!(got, Some(Duration::from_secs(want) + SLACK), "{name}");
        }
    }
}
