//! Jobs and cron jobs.

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::pod;
use super::selectors::{label_selector, picks, template_labels};
use super::tree::{at, flag, get, has, int, list, same, text};
use super::workloads::counts;
use super::{cron, names};

const MAX_INDEXED_PARALLELISM: i64 = 100_000;

/// A job.
pub(super) fn job(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    job_spec(spec, &path, out);
    let selector = get(spec, "selector");
    if selector.is_null() {
        out.push(Error::required(path.child("selector"), ""));
    } else {
        label_selector(selector, &path.child("selector"), out);
    }
    let labels = template_labels(get(spec, "template"));
    if !selector.is_null() && !picks(selector, labels) {
        let path = path.child("template").child("metadata").child("labels");
        out.push(Error::invalid(path, labels.clone(), "`selector` does not match template `labels`"));
    }
}

fn job_spec(spec: &Value, path: &Path, out: &mut Vec<Error>) {
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
    let mode = text(spec, "completionMode");
    match mode {
        "" | "NonIndexed" => {
            for key in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if has(spec, key) {
                    let message = "requires indexed completion mode";
                    out.push(Error::invalid(path.child(key), get(spec, key).clone(), message));
                }
            }
        }
        "Indexed" => {
            if !has(spec, "completions") {
                out.push(Error::required(path.child("completions"), "when completion mode is Indexed"));
            }
            if let Some(parallel) = int(spec, "parallelism").filter(|p| *p > MAX_INDEXED_PARALLELISM) {
                let message =
                    format!("must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed");
                out.push(Error::invalid(path.child("parallelism"), parallel, &message));
            }
        }
        other => out.push(Error::not_supported(path.child("completionMode"), other, &["NonIndexed", "Indexed"])),
    }
    let template_path = path.child("template");
    pod::template(get(spec, "template"), &template_path, out);
    let policy = text(at(spec, &["template", "spec"]), "restartPolicy");
    let policy_path = template_path.child("spec").child("restartPolicy");
    match policy {
        "Always" => out.push(Error::required(&policy_path, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" | "Never" | "" => {}
        other => out.push(Error::not_supported(&policy_path, other, &["OnFailure", "Never"])),
    }
    let failures = get(spec, "podFailurePolicy");
    if !failures.is_null() {
        if policy != "Never" {
            let message = "only \"Never\" is supported when podFailurePolicy is specified";
            out.push(Error::invalid(&policy_path, policy, message));
        }
        failure_policy(failures, &path.child("podFailurePolicy"), out);
    }
    let replacement = text(spec, "podReplacementPolicy");
    match replacement {
        "" | "TerminatingOrFailed" | "Failed" => {
            if !failures.is_null() && replacement == "TerminatingOrFailed" {
                let supported = ["Failed"];
                out.push(Error::not_supported(path.child("podReplacementPolicy"), replacement, &supported));
            }
        }
        other => {
            let supported = ["Failed", "TerminatingOrFailed"];
            out.push(Error::not_supported(path.child("podReplacementPolicy"), other, &supported));
        }
    }
}

fn failure_policy(policy: &Value, path: &Path, out: &mut Vec<Error>) {
    let rules = list(policy, "rules");
    if rules.len() > 20 {
        out.push(Error::too_many(path.child("rules"), rules.len(), 20));
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(i);
        let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
        match text(rule, "action") {
            "" => out.push(Error::required(
                path.child("action"),
                "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
            )),
            action if actions.contains(&action) => {}
            other => out.push(Error::not_supported(path.child("action"), other, &actions)),
        }
        let codes = get(rule, "onExitCodes");
        match (codes.is_null(), list(rule, "onPodConditions").is_empty()) {
            (true, true) => {
                out.push(Error::invalid(&path, "", "specifying one of OnExitCodes and OnPodConditions is required"))
            }
            (false, false) => {
                out.push(Error::invalid(&path, "", "specifying both OnExitCodes and OnPodConditions is not supported"));
            }
            _ => {}
        }
        if !codes.is_null() {
            let path = path.child("onExitCodes");
            if !matches!(text(codes, "operator"), "In" | "NotIn") {
                out.push(Error::not_supported(path.child("operator"), text(codes, "operator"), &["In", "NotIn"]));
            }
            if list(codes, "values").is_empty() {
                out.push(Error::invalid(
                    path.child("values"),
                    get(codes, "values").clone(),
                    "at least one value is required",
                ));
            }
        }
    }
}

/// What may change on a job.
pub(super) fn job_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let (spec, before, path) = (get(new, "spec"), get(old, "spec"), Path::new("spec"));
    let elastic = text(spec, "completionMode") == "Indexed"
        && get(spec, "completions") == get(spec, "parallelism")
        && has(before, "completions");
    if !elastic {
        immutable(get(spec, "completions"), get(before, "completions"), &path.child("completions"), out);
    }
    immutable(get(spec, "selector"), get(before, "selector"), &path.child("selector"), out);
    let mut template = get(before, "template").clone();
    if flag(before, "suspend") && at(old, &["status", "startTime"]).is_null() {
        loosen(&mut template, get(spec, "template"));
    }
    if !same(get(spec, "template"), &template) {
        let template = get(spec, "template");
        let mut error = Error::invalid(path.child("template"), template.clone(), "field is immutable");
        error.shown = super::internal::template(template);
        out.push(error);
    }
    for key in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(get(spec, key), get(before, key), &path.child(key), out);
    }
}

/// A suspended job that never ran may change where its pods will run.
fn loosen(template: &mut Value, new: &Value) {
    for (holder, keys) in [
        ("metadata", &["labels", "annotations"][..]),
        ("spec", &["nodeSelector", "affinity", "tolerations", "schedulingGates"]),
    ] {
        let Some(map) = template.get_mut(holder).and_then(Value::as_object_mut) else { continue };
        for key in keys {
            match get(get(new, holder), key) {
                Value::Null => {
                    map.remove(*key);
                }
                value => {
                    map.insert((*key).to_owned(), value.clone());
                }
            }
        }
    }
}

/// A cron job.
pub(super) fn cron_job(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        out.push(Error::required(path.child("schedule"), ""));
    } else {
        if let Err(e) = cron::check(schedule) {
            out.push(Error::invalid(path.child("schedule"), schedule, &e));
        }
        if schedule.contains("TZ") {
            let message = if has(spec, "timeZone") {
                "cannot use both timeZone field and TZ or CRON_TZ in schedule"
            } else {
                "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
            };
            out.push(Error::invalid(path.child("schedule"), schedule, message));
        }
    }
    counts(spec, &["startingDeadlineSeconds"], &path, out);
    if has(spec, "timeZone") {
        time_zone(text(spec, "timeZone"), &path.child("timeZone"), out);
    }
    match text(spec, "concurrencyPolicy") {
        "" => out.push(Error::required(path.child("concurrencyPolicy"), "")),
        "Allow" | "Forbid" | "Replace" => {}
        other => {
            let supported = ["Allow", "Forbid", "Replace"];
            out.push(Error::not_supported(path.child("concurrencyPolicy"), other, &supported));
        }
    }
    job_spec(at(spec, &["jobTemplate", "spec"]), &path.child("jobTemplate").child("spec"), out);
    counts(spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], &path, out);
    let name = text(get(object, "metadata"), "name");
    if name.len() > 52 {
        out.push(Error::invalid(Path::of(&["metadata", "name"]), name, &names::too_long(52)));
    }
}

fn time_zone(zone: &str, path: &Path, out: &mut Vec<Error>) {
    if zone.is_empty() {
        out.push(Error::invalid(path, zone, "timeZone must be nil or non-empty string"));
    } else if zone.eq_ignore_ascii_case("local") {
        let message = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        out.push(Error::invalid(path, zone, message));
    } else if let Err(e) = cron::check_zone(zone) {
        out.push(Error::invalid(path, zone, &e));
    }
}
