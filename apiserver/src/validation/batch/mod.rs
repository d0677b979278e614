//! Jobs and cron jobs. Answers for upstream's `ValidateJob`, `ValidateCronJobCreate`.

mod indexes;
mod policies;
pub(crate) mod status;
mod template;

use proto::Value;
use serde_json::Map;
use shared::cron::{self, Schedule};
use shared::status::field::{Error, Path};

use super::fields::{choice, one_of};
use super::meta::immutable;
use super::names::dns1123_label;
use super::networking;
use super::pod;
use super::selectors::{own_selector, picks, template_labels};
use super::tree::{at, flag, get, has, int, same, text};
use super::workloads::counts;
use crate::rules::options::{FieldErrors, ValidationOption};

const MAX_INDEXED_PARALLELISM: i64 = 100_000;
/// Above this many completions, jobs that count failures per index are narrower.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_WHEN_MANY: i64 = 10_000;
const MAX_MANAGER: usize = 63;
/// Names of jobs get a suffix.
const MAX_CRON_NAME: usize = 52;

/// A job.
pub(crate) fn job(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    if !flag(spec, "manualSelector") && has(spec, "selector") {
        generated(object, out);
    }
    selecting(spec, &path, out);
    hosts(object, out);
}

/// The specification of a job, which has a selector; cron jobs give theirs none.
fn selecting(spec: &Value, path: &Path, out: &mut FieldErrors) {
    job_spec(spec, path, out);
    let selector = get(spec, "selector");
    if selector.is_null() {
        out.push(Error::required(path.child("selector"), ""));
    } else {
        own_selector(selector, &path.child("selector"), out);
    }
    let labels = template_labels(get(spec, "template"));
    if picks(selector, labels) == Some(false) {
        let path = path.child("template").child("metadata").child("labels");
        out.push(Error::invalid(path, labels.clone(), "`selector` does not match template `labels`"));
    }
}

/// Pods of indexed jobs have hosts named after the job and the index.
fn hosts(job: &Value, out: &mut FieldErrors) {
    let spec = get(job, "spec");
    let last = int(spec, "completions").filter(|n| *n > 0 && text(spec, "completionMode") == "Indexed");
    let Some(last) = last.map(|n| n - 1) else { return };
    let name = text(get(job, "metadata"), "name");
    let host = format!("{name}-{last}");
    if !dns1123_label(&host).is_empty() {
        let why = format!("will not able to create pod with invalid DNS label: {host}");
        out.push(Error::invalid(Path::of(&["metadata", "name"]), name, &why));
    }
}

const PREFIXED_LABELS: [&str; 2] = ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];

/// Reports whether one of the prefixed labels is missing.
pub(crate) fn lacks_prefixed_labels(labels: &Value) -> bool {
    !PREFIXED_LABELS.iter().all(|key| has(labels, key))
}

/// A job that does not select by itself has the labels and the selector that were made for it, not somebody else's:
/// those of a job that it is a copy of, say. Jobs that are older than the labels with a prefix may do without.
fn generated(job: &Value, out: &mut FieldErrors) {
    let (meta, spec) = (get(job, "metadata"), get(job, "spec"));
    let (uid, name) = (text(meta, "uid"), text(meta, "name"));
    if uid.is_empty() {
        out.push(Error::required(Path::of(&["metadata", "uid"]), ""));
    }
    let labels = template_labels(get(spec, "template"));
    let mut expected = vec![("controller-uid", uid), ("job-name", name)];
    if !out.allows(ValidationOption::UnprefixedJobLabels) {
        expected.extend(PREFIXED_LABELS.into_iter().zip([uid, name]));
    }
    for (key, value) in &expected {
        let path = Path::of(&["spec", "template", "metadata", "labels"]).key(key);
        let why = format!("must be '{value}'");
        if !has(labels, key) {
            out.push(Error::required(path, &why));
        } else if text(labels, key) != *value {
            out.push(Error::invalid(path, labels.clone(), &why));
        }
    }
    let expected: Map<String, Value> = expected.iter().map(|(k, v)| ((*k).to_owned(), Value::from(*v))).collect();
    let selector = get(spec, "selector");
    if picks(selector, &Value::Object(expected)) == Some(false) {
        let path = Path::of(&["spec", "selector"]);
        out.push(Error::invalid(path, selector.clone(), "`selector` not auto-generated"));
    }
}

fn job_spec(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let numbers = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    counts(spec, &numbers, path, out);
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        out.push(Error::required(path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"));
    }
    if has(spec, "managedBy") {
        let (manager, path) = (text(spec, "managedBy"), path.child("managedBy"));
        networking::domain_path(manager, &path, out);
        if manager.len() > MAX_MANAGER {
            out.push(Error::too_long(path, MAX_MANAGER));
        }
    }
    one_of(spec, "completionMode", &["NonIndexed", "Indexed"], path, out);
    indexed(spec, path, out);
    if !has(spec, "completionMode") || text(spec, "completionMode") == "NonIndexed" {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if has(spec, key) {
                let message = "requires indexed completion mode";
                out.push(Error::invalid(path.child(key), get(spec, key).clone(), message));
            }
        }
    }
    let failures = get(spec, "podFailurePolicy");
    if !failures.is_null() {
        policies::failure(spec, path, out);
    }
    policies::success(spec, path, out);
    replacement(spec, &path.child("podReplacementPolicy"), out);
    let template_path = path.child("template");
    pod::template(get(spec, "template"), &template_path, out);
    let policy = text(at(spec, &["template", "spec"]), "restartPolicy");
    let policy_path = template_path.child("spec").child("restartPolicy");
    match policy {
        "Always" | "" => out.push(Error::required(&policy_path, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if !failures.is_null() => {
            let message = "only \"Never\" is supported when podFailurePolicy is specified";
            out.push(Error::invalid(&policy_path, policy, message));
        }
        "OnFailure" | "Never" => {}
        other => out.push(Error::not_supported(&policy_path, other, &["OnFailure", "Never"])),
    }
}

fn indexed(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if text(spec, "completionMode") != "Indexed" {
        return;
    }
    if !has(spec, "completions") {
        out.push(Error::required(path.child("completions"), "when completion mode is Indexed"));
    }
    // That there are none bounds nothing.
    let completions = int(spec, "completions").unwrap_or(i64::MAX);
    let most = |key: &str, bound: i64, why: String, out: &mut FieldErrors| {
        if let Some(value) = int(spec, key).filter(|v| *v > bound) {
            out.push(Error::invalid(path.child(key), value, &why));
        }
    };
    let within = |bound: i64| format!("must be less than or equal to {bound}");
    most(
        "parallelism",
        MAX_INDEXED_PARALLELISM,
        format!("{} when completion mode is Indexed", within(MAX_INDEXED_PARALLELISM)),
        out,
    );
    most("maxFailedIndexes", completions, "must be less than or equal to completions".to_owned(), out);
    most("maxFailedIndexes", MANY_COMPLETIONS, within(MANY_COMPLETIONS), out);
    if completions > MANY_COMPLETIONS && has(spec, "completions") && has(spec, "backoffLimitPerIndex") {
        if !has(spec, "maxFailedIndexes") {
            let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            out.push(Error::required(path.child("maxFailedIndexes"), &why));
        }
        for key in ["parallelism", "maxFailedIndexes"] {
            let why = format!(
                "{} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index",
                within(MAX_WHEN_MANY)
            );
            most(key, MAX_WHEN_MANY, why, out);
        }
    }
}

/// Validates `podReplacementPolicy`.
fn replacement(spec: &Value, path: &Path, out: &mut FieldErrors) {
    if !has(spec, "podReplacementPolicy") {
        return;
    }
    let policy = text(spec, "podReplacementPolicy");
    if has(spec, "podFailurePolicy") {
        if policy != "Failed" {
            out.push(Error::not_supported(path, policy, &["Failed"]));
        }
    } else if !matches!(policy, "Failed" | "TerminatingOrFailed") {
        out.push(Error::not_supported(path, policy, &["Failed", "TerminatingOrFailed"]));
    }
}

/// Validates an update of a job: immutable fields and their exceptions.
pub(crate) fn job_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    selecting(spec, &path, out);
    let elastic = text(spec, "completionMode") == "Indexed"
        && get(spec, "completions") == get(spec, "parallelism")
        && has(before, "completions");
    if !same(get(spec, "completions"), get(before, "completions"))
        && has(before, "completions")
        && has(spec, "completions")
        && text(spec, "completionMode") == "Indexed"
    {
        if !elastic {
            let why = "can only be modified in tandem with spec.parallelism";
            out.push(Error::invalid(path.child("completions"), get(spec, "completions").clone(), why));
        }
    } else {
        immutable(get(spec, "completions"), get(before, "completions"), &path.child("completions"), out);
    }
    immutable(get(spec, "selector"), get(before, "selector"), &path.child("selector"), out);
    template::stays(new, old, &path, out);
    for key in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(get(spec, key), get(before, key), &path.child(key), out);
    }
}

/// A new cron job.
pub(crate) fn cron_job(object: &Value, out: &mut FieldErrors) {
    let spec = get(object, "spec");
    let schedule_path = Path::of(&["spec", "schedule"]);
    let refuse = text(spec, "schedule")
        .contains("TZ")
        .then_some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
    cron_spec(spec, refuse, &schedule_path, true, out);
    let name = text(get(object, "metadata"), "name");
    if name.len() > MAX_CRON_NAME {
        let why = format!("must be no more than {MAX_CRON_NAME} characters");
        out.push(Error::invalid(Path::of(&["metadata", "name"]), name, &why));
    }
}

/// A changed cron job; a zone in its schedule may stay, unless another is named beside it.
pub(crate) fn cron_job_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let zoned = |s: &Value| text(s, "schedule").contains("TZ");
    let refuse = match (zoned(spec), zoned(before), has(spec, "timeZone")) {
        (true, true, true) => Some("cannot use both timeZone field and TZ or CRON_TZ in schedule"),
        (true, false, _) => Some("cannot use TZ or CRON_TZ in schedule, use timeZone field instead"),
        _ => None,
    };
    let changed = get(spec, "timeZone") != get(before, "timeZone");
    cron_spec(spec, refuse, &Path::of(&["spec", "schedule"]), changed, out);
}

fn cron_spec(spec: &Value, refuse: Option<&str>, schedule_path: &Path, zone: bool, out: &mut FieldErrors) {
    let path = Path::new("spec");
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        out.push(Error::required(schedule_path, ""));
    } else {
        if let Err(e) = Schedule::parse_zoned(schedule) {
            out.push(Error::invalid(schedule_path, schedule, &e.to_string()));
        }
        if let Some(why) = refuse {
            out.push(Error::invalid(schedule_path, schedule, why));
        }
    }
    counts(spec, &["startingDeadlineSeconds"], &path, out);
    if has(spec, "timeZone") && zone {
        time_zone(text(spec, "timeZone"), &path.child("timeZone"), out);
    }
    choice(spec, "concurrencyPolicy", &["Allow", "Forbid", "Replace"], &path, out);
    let (job, job_path) = (at(spec, &["jobTemplate", "spec"]), path.child("jobTemplate").child("spec"));
    job_spec(job, &job_path, out);
    if has(job, "selector") {
        let why = "`selector` will be auto-generated";
        out.push(Error::invalid(job_path.child("selector"), get(job, "selector").clone(), why));
    }
    if flag(job, "manualSelector") {
        out.push(Error::not_supported(job_path.child("manualSelector"), true, &["nil", "false"]));
    }
    counts(spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], &path, out);
}

fn time_zone(zone: &str, path: &Path, out: &mut FieldErrors) {
    let part = |p: &str| {
        let fine = |b: u8| b.is_ascii_alphabetic() || b.is_ascii_digit() || b"._+-".contains(&b);
        (1..=14).contains(&p.len()) && !matches!(p, "." | "..") && !p.starts_with('-') && p.bytes().all(fine)
    };
    let mut refuse = |why: &str| out.push(Error::invalid(path, zone, why));
    if zone.is_empty() {
        return refuse("timeZone must be nil or non-empty string");
    }
    if !zone.split('/').all(part) {
        return refuse(&format!("unknown time zone {zone}"));
    }
    if zone.eq_ignore_ascii_case("local") {
        refuse("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
    }
    if let Err(why) = cron::zone(zone) {
        refuse(&why.to_string());
    }
}
