//! Starts of a cron job, whether it may start, and the clean-up of its past jobs. Answers for upstream's `syncCronJob`,
//! `cleanupFinishedJobs`.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use shared::cron::{self, Schedule, ScheduleError};

use super::missed::{self, Missed};
use crate::engine::action::Action;
use crate::engine::object;

/// The annotation with the time a job was due.
pub const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The cron job.
    pub cron: Arc<CronJob>,
    /// The jobs it owns.
    pub jobs: Vec<Arc<Job>>,
    /// The zone of schedules that name none.
    pub local: TimeZone,
}

/// Decision about a cron job.
#[derive(Debug, Default)]
pub struct CronJobDecision {
    /// Events, and deletions of what is replaced, first of all.
    pub actions: Vec<Action>,
    /// The job to start, and the time it was due.
    pub start: Option<(Box<Job>, Timestamp)>,
    /// Deletions of past jobs, once that is done.
    pub past: Vec<Action>,
    /// The status without the job to start.
    pub status: CronJobStatus,
    /// Time until the next look.
    pub again: Option<Duration>,
}

fn condition(job: &Job, kind: &str) -> bool {
    job.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == kind && c.status == "True")
}

fn finished(job: &Job) -> Option<&'static str> {
    ["Complete", "Failed"].into_iter().find(|k| condition(job, k))
}

/// Decide.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> CronJobDecision {
    let Some(spec) = s.cron.spec.as_ref() else { return CronJobDecision::default() };
    let mut d = CronJobDecision { status: s.cron.status.clone().unwrap_or_default(), ..CronJobDecision::default() };
    let about = object::reference::<CronJob>(&s.cron.metadata);
    follow_jobs(s, &about, &mut d);
    d.past = clean_up(s, spec, &about);
    if !object::deleting(&s.cron.metadata) {
        start(s, spec, &about, now, &mut d);
    }
    d.status.active = d.status.active.take().filter(|a| !a.is_empty());
    d
}

/// Returns when a changed cron job is to be looked at: one with another schedule when that is due next, so that what it
/// would have missed is not made up for; any other at once. None when its schedule cannot be read.
#[must_use]
pub fn look_at(old: &CronJob, new: &CronJob, local: &TimeZone, now: Timestamp) -> Option<Duration> {
    let (Some(before), Some(spec)) = (old.spec.as_ref(), new.spec.as_ref()) else { return Some(Duration::ZERO) };
    if before.schedule == spec.schedule && before.time_zone == spec.time_zone {
        return Some(Duration::ZERO);
    }
    let named = spec.time_zone.as_deref().and_then(|name| cron::zone(name).ok());
    let (schedule, zone) = read(spec, named.as_ref(), local).ok()?;
    // A schedule that no time satisfies is complained about at once.
    Some(missed::until_next(new, &schedule, &zone, now).unwrap_or_default())
}

/// The schedule and the zone it is in: its own, else the named one, else the local one.
fn read(spec: &CronJobSpec, named: Option<&TimeZone>, local: &TimeZone) -> Result<(Schedule, TimeZone), ScheduleError> {
    let (schedule, own) = Schedule::parse_zoned(&spec.schedule)?;
    Ok((schedule, own.or_else(|| named.cloned()).unwrap_or_else(|| local.clone())))
}

/// Jobs of the list of active ones that are not among those known.
pub fn unknown<'a>(cron: &'a CronJob, jobs: &'a [Arc<Job>]) -> impl Iterator<Item = &'a str> {
    let active = cron.status.iter().flat_map(|s| s.active.iter().flatten());
    let known = |uid: &Option<String>| jobs.iter().any(|j| j.metadata.uid == *uid);
    active.filter(move |r| !known(&r.uid)).filter_map(|r| r.name.as_deref())
}

/// Returns the time at which the job was due.
fn scheduled(job: &Job) -> Option<Timestamp> {
    object::annotation(&job.metadata, SCHEDULED)?.parse().ok()
}

/// Keep the list of active jobs true.
fn follow_jobs(s: &Snapshot, about: &ObjectReference, d: &mut CronJobDecision) {
    let mut active = d.status.active.take().unwrap_or_default();
    for job in &s.jobs {
        let (name, uid) = (object::name(&job.metadata), object::uid(&job.metadata));
        let listed = active.iter().position(|r| r.uid.as_deref() == Some(uid));
        match (listed, finished(job)) {
            // One that was just started and is not in the stored list yet is expected.
            (None, None) if scheduled(job) > d.status.last_schedule_time.as_ref().map(|t| t.0) => {}
            (None, None) => {
                let text = format!("Saw a job that the controller did not create or forgot: {name}");
                d.actions.push(Action::warning(about, "UnexpectedJob", text));
            }
            (Some(i), Some(end)) => {
                active.remove(i);
                let text = format!("Saw completed job: {name}, condition: {end}");
                d.actions.push(Action::normal(about, "SawCompletedJob", text));
            }
            _ => {}
        }
        if finished(job) == Some("Complete") {
            let ended = job.status.as_ref().and_then(|s| s.completion_time.clone());
            if ended.as_ref().map(|t| t.0) > d.status.last_successful_time.as_ref().map(|t| t.0) {
                d.status.last_successful_time = ended;
            }
        }
    }
    active.retain(|r| {
        let there = s.jobs.iter().any(|j| r.uid.as_deref() == Some(object::uid(&j.metadata)));
        if !there {
            let text = format!("Active job went missing: {}", r.name.as_deref().unwrap_or_default());
            d.actions.push(Action::normal(about, "MissingJob", text));
        }
        there
    });
    d.status.active = Some(active);
}

/// Delete the oldest finished jobs beyond the history limits.
fn clean_up(s: &Snapshot, spec: &CronJobSpec, about: &ObjectReference) -> Vec<Action> {
    let mut actions = Vec::new();
    for (end, limit) in [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)] {
        let Some(limit) = limit.and_then(|n| usize::try_from(n).ok()) else { continue };
        let mut done: Vec<&Arc<Job>> = s.jobs.iter().filter(|j| finished(j) == Some(end)).collect();
        done.sort_by_key(|j| {
            let started = j.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|t| t.0);
            (started.is_none(), started, object::name(&j.metadata))
        });
        let excess = done.len().saturating_sub(limit);
        actions.extend(done[..excess].iter().flat_map(|job| delete(job, about)));
    }
    actions
}

fn delete(job: &Job, about: &ObjectReference) -> [Action; 2] {
    let options = json!({"propagationPolicy": "Background", "preconditions": {"uid": job.metadata.uid}});
    let text = format!("Deleted job {}", object::name(&job.metadata));
    [Action::delete_with::<Job>(&job.metadata, options), Action::normal(about, "SuccessfulDelete", text)]
}

fn start(s: &Snapshot, spec: &CronJobSpec, about: &ObjectReference, now: Timestamp, d: &mut CronJobDecision) {
    let named = match spec.time_zone.as_deref().map(|name| (name, cron::zone(name))) {
        None => None,
        Some((_, Ok(zone))) => Some(zone),
        Some((name, Err(why))) => {
            let text = format!("invalid timeZone: {name:?}: {why}");
            d.actions.push(Action::warning(about, "UnknownTimeZone", text));
            return;
        }
    };
    if spec.suspend == Some(true) {
        return;
    }
    if spec.schedule.contains("TZ") {
        let text = format!(
            "CRON_TZ or TZ used in schedule {:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
            spec.schedule
        );
        d.actions.push(Action::warning(about, "UnsupportedSchedule", text));
    }
    let (schedule, zone) = match read(spec, named.as_ref(), &s.local) {
        Ok(read) => read,
        Err(e) => {
            let text = format!("unparseable schedule: {:?} : {e}", spec.schedule);
            d.actions.push(Action::warning(about, "UnparseableSchedule", text));
            return;
        }
    };
    let recent = match missed::recent(&s.cron, &schedule, &zone, now, true) {
        Ok(recent) => recent,
        Err(why) => {
            let text = format!("invalid schedule: {} : {why}", spec.schedule);
            d.actions.push(Action::warning(about, "InvalidSchedule", text));
            return;
        }
    };
    d.again = missed::until_next(&s.cron, &schedule, &zone, now);
    if recent.due.is_some() && recent.missed == Missed::Many {
        let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        d.actions.push(Action::warning(about, "TooManyMissedTimes", text.into()));
    }
    let due = recent.due;
    let Some(due) = due else { return };
    let too_late = spec.starting_deadline_seconds.is_some_and(|s| due.as_second().saturating_add(s) < now.as_second());
    if too_late {
        let text = format!(
            "Missed scheduled time to start a job: {}",
            due.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S %z")
        );
        d.actions.push(Action::warning(about, "MissSchedule", text));
        return;
    }
    let name = job_name(&s.cron, due);
    let last = d.status.last_schedule_time.as_ref().map(|t| t.0);
    let active = d.status.active.clone().unwrap_or_default();
    if last == Some(due) || active.iter().any(|r| r.name.as_deref() == Some(name.as_str())) {
        return;
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            d.actions.push(Action::normal(about, "JobAlreadyActive", text.into()));
            return;
        }
        Some("Replace") => {
            for r in &active {
                if let Some(job) = s.jobs.iter().find(|j| r.uid.as_deref() == Some(object::uid(&j.metadata))) {
                    d.actions.extend(delete(job, about));
                }
            }
            d.status.active = None;
        }
        _ => {}
    }
    // Only a zone that is named for it shows in the time that is noted on the job.
    let shown = named.unwrap_or(TimeZone::UTC);
    d.start = Some((Box::new(job(&s.cron, spec, name, due, &shown)), due));
}

/// The name of the job for one time: the same however often it is tried.
#[must_use]
pub fn job_name(cron: &CronJob, due: Timestamp) -> String {
    format!("{}-{}", object::name(&cron.metadata), due.as_second() / 60)
}

fn job(cron: &CronJob, spec: &CronJobSpec, name: String, due: Timestamp, zone: &TimeZone) -> Job {
    let template = &spec.job_template;
    let meta = template.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(
        SCHEDULED.into(),
        due.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string().replace("+00:00", "Z"),
    );
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            creation_timestamp: Some(object::seconds(due)),
            owner_references: Some(vec![object::controller_ref::<CronJob>(&cron.metadata)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A job as the list of active jobs names it.
#[must_use]
pub fn active_reference(job: &Job) -> ObjectReference {
    object::reference::<Job>(&job.metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn cron(spec: Value, status: Value) -> Arc<CronJob> {
        let mut v = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "cron", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedule": "*/10 * * * *", "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}},
                "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1},
            "status": status});
        if let (Some(s), Value::Object(e)) = (v["spec"].as_object_mut(), spec) {
            s.extend(e);
        }
        Arc::new(serde_json::from_value(v).expect("cron job"))
    }

    fn job(uid: &str, end: &str, started: &str) -> Arc<Job> {
        let conditions = if end.is_empty() { json!([]) } else { json!([{"type": end, "status": "True"}]) };
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "status": {"startTime": started, "completionTime": started, "conditions": conditions}}))
            .expect("job"),
        )
    }

    fn decide(cron: Arc<CronJob>, jobs: Vec<Arc<Job>>, now: &str) -> CronJobDecision {
        plan(&Snapshot { cron, jobs, local: TimeZone::UTC }, now.parse().expect("time"))
    }

    fn log(d: &CronJobDecision) -> Vec<String> {
        let tell = |a: &Action| match a {
            Action::Delete { path, .. } => format!("delete {}", path.rsplit('/').next().unwrap_or("")),
            Action::Event { reason, .. } => (*reason).to_owned(),
            other => format!("{other:?}"),
        };
        let started = d.start.iter().map(|(j, _)| format!("start {}", object::name(&j.metadata)));
        d.actions.iter().map(tell).chain(started).chain(d.past.iter().map(tell)).collect()
    }

    #[test]
    fn starts_when_due() {
        let active = json!({"lastScheduleTime": "2026-01-01T00:10:00Z", "active": [{"name": "run", "uid": "run"}]});
        let run = || vec![job("run", "", "2026-01-01T00:10:00Z")];
        let cases: Vec<(&str, Arc<CronJob>, Vec<Arc<Job>>, &str, Vec<&str>)> = vec![
            ("not yet", cron(json!({}), json!({})), vec![], "2026-01-01T00:09:59Z", vec![]),
            ("due", cron(json!({}), json!({})), vec![], "2026-01-01T00:10:00Z", vec!["start c-29453770"]),
            (
                "only the latest of those missed",
                cron(json!({}), json!({})),
                vec![],
                "2026-01-01T00:35:00Z",
                vec!["start c-29453790"],
            ),
            (
                "a deadline that no clock reaches",
                cron(json!({"startingDeadlineSeconds": i64::MAX}), json!({})),
                vec![],
                "2026-01-01T00:10:05Z",
                vec!["start c-29453770"],
            ),
            ("suspended", cron(json!({"suspend": true}), json!({})), vec![], "2026-01-01T00:10:00Z", vec![]),
            ("started already", cron(json!({}), active.clone()), run(), "2026-01-01T00:15:00Z", vec![]),
            ("side by side", cron(json!({}), active.clone()), run(), "2026-01-01T00:20:00Z", vec!["start c-29453780"]),
            (
                "not side by side",
                cron(json!({"concurrencyPolicy": "Forbid"}), active.clone()),
                run(),
                "2026-01-01T00:20:00Z",
                vec!["JobAlreadyActive"],
            ),
            (
                "instead",
                cron(json!({"concurrencyPolicy": "Replace"}), active),
                run(),
                "2026-01-01T00:20:00Z",
                vec!["delete run", "SuccessfulDelete", "start c-29453780"],
            ),
            (
                "deadline missed",
                cron(json!({"schedule": "0 * * * *", "startingDeadlineSeconds": 60}), json!({})),
                vec![],
                "2026-01-01T01:02:00Z",
                vec![],
            ),
            (
                "too many",
                cron(json!({"schedule": "* * * * *"}), json!({})),
                vec![],
                "2026-01-01T02:00:00Z",
                vec!["TooManyMissedTimes", "start c-29453880"],
            ),
            (
                "far too many",
                cron(json!({"schedule": "* * * * *"}), json!({})),
                vec![],
                "2027-01-01T00:00:30Z",
                vec!["TooManyMissedTimes", "start c-29979360"],
            ),
            (
                "a bad schedule",
                cron(json!({"schedule": "x"}), json!({})),
                vec![],
                "2026-01-01T01:00:00Z",
                vec!["UnparseableSchedule"],
            ),
            (
                "never",
                cron(json!({"schedule": "59 23 31 2 *"}), json!({})),
                vec![],
                "2026-01-01T01:00:00Z",
                vec!["InvalidSchedule"],
            ),
            (
                "a zone in the schedule",
                cron(json!({"schedule": "CRON_TZ=Asia/Tokyo 30 9 * * *"}), json!({})),
                vec![],
                "2026-01-01T00:30:00Z",
                vec!["UnsupportedSchedule", "start c-29453790"],
            ),
            (
                "a bad zone",
                cron(json!({"timeZone": "No/Where", "suspend": true}), json!({})),
                vec![],
                "2026-01-01T01:00:00Z",
                vec!["UnknownTimeZone"],
            ),
        ];
        for (name, cron, jobs, now, want) in cases {
            assert_eq!(log(&decide(cron, jobs, now)), want, "{name}");
        }
    }

    #[test]
    fn history_and_status() {
        let status = json!({"lastScheduleTime": "2026-01-01T00:30:00Z", "active": [{"name": "b", "uid": "b"}, {"name": "gone", "uid": "gone"}]});
        let jobs = vec![
            job("b", "Complete", "2026-01-01T00:20:00Z"),
            job("a", "Complete", "2026-01-01T00:10:00Z"),
            job("f", "Failed", "2026-01-01T00:00:00Z"),
        ];
        let d = decide(cron(json!({}), status), jobs, "2026-01-01T00:31:00Z");
        assert_eq!(log(&d), ["SawCompletedJob", "MissingJob", "delete a", "SuccessfulDelete"]);
        assert_eq!(
            serde_json::to_value(&d.status).expect("json"),
            json!({"lastScheduleTime": "2026-01-01T00:30:00Z", "lastSuccessfulTime": "2026-01-01T00:20:00Z"})
        );
        assert_eq!(d.again, Some(Duration::from_millis(9 * 60_000 + 100)));
    }

    #[test]
    fn what_another_schedule_would_have_missed_is_not_made_up_for() {
        let daily = cron(json!({"schedule": "0 3 * * *"}), json!({}));
        let now = "2026-01-02T10:00:00Z".parse().expect("time");
        for (name, new, want) in [
            ("another schedule", json!({"schedule": "0 4 * * *"}), Some(18 * 3600)),
            ("another zone", json!({"schedule": "0 3 * * *", "timeZone": "Asia/Tokyo"}), Some(8 * 3600)),
            ("a bad schedule", json!({"schedule": "x"}), None),
        ] {
            let got = look_at(&daily, &cron(new, json!({})), &TimeZone::UTC, now);
            assert_eq!(got, want.map(|s| Duration::from_millis(s * 1000 + 100)), "{name}");
        }
        let suspended = cron(json!({"schedule": "0 3 * * *", "suspend": true}), json!({}));
        assert_eq!(look_at(&daily, &suspended, &TimeZone::UTC, now), Some(Duration::ZERO), "anything else");
    }

    #[test]
    fn an_hour_that_is_there_twice_has_its_jobs_twice() {
        let zone = json!({"schedule": "30 * * * *", "timeZone": "Europe/Berlin"});
        let last = json!({"lastScheduleTime": "2026-10-25T00:30:00Z"});
        for (now, want) in [
            ("2026-10-25T01:29:59Z", None),
            ("2026-10-25T01:30:00Z", Some("2026-10-25T02:30:00+01:00")),
            ("2026-10-25T02:30:00Z", Some("2026-10-25T03:30:00+01:00")),
        ] {
            let d = decide(cron(zone.clone(), last.clone()), vec![], now);
            let noted = d.start.and_then(|(job, _)| job.metadata.annotations?.remove(SCHEDULED));
            assert_eq!(noted.as_deref(), want, "{now}");
        }
    }

    #[test]
    fn a_clock_that_went_back_starts_nothing_twice() {
        let d = decide(
            cron(json!({}), json!({"lastScheduleTime": "2026-01-01T00:10:00Z"})),
            vec![],
            "2026-01-01T00:05:00Z",
        );
        assert_eq!((log(&d), d.again), (vec![], Some(Duration::from_millis(15 * 60_000 + 100))));
    }

    #[test]
    fn active_jobs_that_are_not_known() {
        let c = cron(json!({}), json!({"active": [{"name": "a", "uid": "a"}, {"name": "b", "uid": "b"}]}));
        let jobs = [job("a", "", "2026-01-01T00:10:00Z")];
        assert_eq!(unknown(&c, &jobs).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn what_is_said_of_bad_zones_and_missed_times() {
        let told = |d: &CronJobDecision| match d.actions.as_slice() {
            [Action::Event { message, .. }] => message.clone(),
            other => panic!("{other:?}"),
        };
        let d =
            decide(cron(json!({"timeZone": "No/Where", "suspend": true}), json!({})), vec![], "2026-01-01T00:35:00Z");
        assert_eq!(told(&d), "invalid timeZone: \"No/Where\": unknown time zone No/Where");
        let many = cron(json!({"schedule": "* * * * *"}), json!({}));
        let d = decide(many, vec![], "2026-01-01T02:00:00Z");
        let want = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        assert_eq!(told(&d), want);
    }

    #[test]
    fn the_job_made() {
        let d = decide(cron(json!({"timeZone": "Asia/Tokyo"}), json!({})), vec![], "2026-01-01T00:10:00Z");
        let (job, due) = d.start.expect("a job");
        assert_eq!(due.to_string(), "2026-01-01T00:10:00Z");
        let v = serde_json::to_value(&job).expect("json");
        assert_eq!(v["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(v["metadata"]["annotations"], json!({SCHEDULED: "2026-01-01T09:10:00+09:00"}));
        assert_eq!(v["metadata"]["ownerReferences"][0]["kind"], "CronJob");

        let elsewhere = Snapshot {
            cron: cron(json!({"schedule": "10 9 * * *"}), json!({})),
            jobs: vec![],
            local: TimeZone::get("Asia/Tokyo").expect("zone"),
        };
        let d = plan(&elsewhere, "2026-01-01T00:10:00Z".parse().expect("time"));
        let annotations = d.start.and_then(|(job, _)| job.metadata.annotations).expect("annotations");
        assert_eq!(annotations[SCHEDULED], "2026-01-01T00:10:00Z", "the zone of the machine does not show");
    }
}
