//! `status` of a job: counters that fit, conditions that are not taken back.

use proto::Value;
use shared::status::field::{Error, Path};

use super::indexes::{self, Intervals};
use crate::validation::tree::{flag, get, has, int, list, same, text};
use crate::validation::workloads::counts;

/// A changed status. Rules about a part hold once that part changes.
pub(in crate::validation) fn update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let (status, before, path) = (get(new, "status"), get(old, "status"), Path::new("status"));
    counts(status, &["active", "succeeded", "failed", "ready", "terminating"], &path, out);
    uncounted(status, &path.child("uncountedTerminatedPods"), out);
    conditions(status, before, &path, out);
    times(new, old, &path, out);
    finished(status, before, &path, out);
    listed(new, old, &path, out);
    for key in ["failed", "succeeded"] {
        let (now, was) = (int(status, key).unwrap_or_default(), int(before, key).unwrap_or_default());
        if now < was && (key == "failed" || !elastic(new)) {
            out.push(Error::invalid(path.child(key), now, &format!("cannot decrease the {key} counter")));
        }
    }
}

/// An indexed job as wide as it is long may shrink.
fn elastic(job: &Value) -> bool {
    let spec = get(job, "spec");
    text(spec, "completionMode") == "Indexed" && same(get(spec, "completions"), get(spec, "parallelism"))
}

fn uncounted(status: &Value, path: &Path, out: &mut Vec<Error>) {
    let mut seen = Vec::new();
    for key in ["succeeded", "failed"] {
        for (i, id) in list(get(status, "uncountedTerminatedPods"), key).iter().enumerate() {
            let (path, id) = (path.child(key).index(i), id.as_str().unwrap_or_default());
            if id.is_empty() {
                out.push(Error::invalid(path, id, "must not be empty"));
            } else if seen.contains(&id) {
                out.push(Error::duplicate(path, id));
            } else {
                seen.push(id);
            }
        }
    }
}

fn is(status: &Value, kind: &str) -> bool {
    list(status, "conditions").iter().any(|c| text(c, "type") == kind && text(c, "status") == "True")
}

fn conditions(status: &Value, before: &Value, path: &Path, out: &mut Vec<Error>) {
    const TOGETHER: [(&str, &str, &str); 4] = [
        ("Complete", "Failed", "cannot set Complete=True and Failed=true conditions"),
        ("Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"),
        ("SuccessCriteriaMet", "Failed", "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        ("SuccessCriteriaMet", "FailureTarget", "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
    ];
    let path = path.child("conditions");
    for (a, b, why) in TOGETHER {
        if is(status, a) && is(status, b) && !(is(before, a) && is(before, b)) {
            out.push(Error::unfit(&path, why));
        }
    }
    let without = [
        ("Failed", "FailureTarget", "cannot set Failed=True condition without the FailureTarget=true condition"),
        (
            "Complete",
            "SuccessCriteriaMet",
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
    ];
    for (kind, first, why) in without {
        if is(status, kind) && !is(before, kind) && !is(status, first) {
            out.push(Error::unfit(&path, why));
        }
    }
    for kind in ["Complete", "Failed", "FailureTarget"] {
        if is(before, kind) && !is(status, kind) {
            out.push(Error::unfit(&path, &format!("cannot disable the terminal {kind}=True condition")));
        }
    }
    if is(before, "SuccessCriteriaMet") && !is(status, "SuccessCriteriaMet") {
        out.push(Error::unfit(&path, "cannot disable the SuccessCriteriaMet=True condition"));
    }
    if is(before, "Complete") && !is(before, "SuccessCriteriaMet") && is(status, "SuccessCriteriaMet") {
        let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        out.push(Error::unfit(&path, why));
    }
}

fn times(new: &Value, old: &Value, path: &Path, out: &mut Vec<Error>) {
    let (status, before) = (get(new, "status"), get(old, "status"));
    let (start, completion) = (get(status, "startTime"), get(status, "completionTime"));
    let (started, completed) = (get(before, "startTime"), get(before, "completionTime"));
    if completion != completed || is(status, "Complete") != is(before, "Complete") {
        if !completion.is_null() && !is(status, "Complete") {
            let why = "cannot set completionTime when there is no Complete=True condition";
            out.push(Error::invalid(path.child("completionTime"), completion.clone(), why));
        }
        if completion.is_null() && is(status, "Complete") {
            out.push(Error::required(path.child("completionTime"), "completionTime is required for Complete jobs"));
        }
        // Times are texts of one form and order like them.
        if let (Some(start), Some(end)) = (start.as_str(), completion.as_str())
            && end < start
        {
            let why = "completionTime cannot be set before startTime";
            out.push(Error::invalid(path.child("completionTime"), end, why));
        }
        if !completed.is_null() && !completion.is_null() && completion != completed {
            let why = "completionTime cannot be mutated";
            out.push(Error::invalid(path.child("completionTime"), completion.clone(), why));
        }
    }
    if !started.is_null() && start != started && !flag(get(new, "spec"), "suspend") {
        out.push(Error::required(path.child("startTime"), "startTime cannot be removed for unsuspended job"));
    }
}

/// A job that just ended has nothing left running.
fn finished(status: &Value, before: &Value, path: &Path, out: &mut Vec<Error>) {
    let over = |s: &Value| is(s, "Complete") || is(s, "Failed");
    if !over(status) || over(before) {
        let (ready, active) = (int(status, "ready").unwrap_or_default(), int(status, "active").unwrap_or_default());
        if ready > active && get(status, "ready") != get(before, "ready") {
            out.push(Error::invalid(path.child("ready"), ready, "cannot set more ready pods than active"));
        }
        return;
    }
    for (key, why) in [
        ("active", "active>0 is invalid for finished job"),
        ("terminating", "terminating>0 is invalid for finished job"),
    ] {
        if let Some(count) = int(status, key).filter(|c| *c > 0) {
            out.push(Error::invalid(path.child(key), count, why));
        }
    }
    if !has(status, "startTime") {
        out.push(Error::required(path.child("startTime"), "startTime is required for finished job"));
    }
    let uncounted = get(status, "uncountedTerminatedPods");
    if ["succeeded", "failed"].iter().any(|k| !list(uncounted, k).is_empty()) {
        let why = "uncountedTerminatedPods needs to be empty for finished job";
        out.push(Error::invalid(path.child("uncountedTerminatedPods"), uncounted.clone(), why));
    }
}

/// The indexes that are through.
fn listed(new: &Value, old: &Value, path: &Path, out: &mut Vec<Error>) {
    let (spec, status, before) = (get(new, "spec"), get(new, "status"), get(old, "status"));
    let indexed = text(spec, "completionMode") == "Indexed";
    let completions = int(spec, "completions").unwrap_or_default();
    let mut read: Vec<Intervals> = Vec::new();
    for key in ["completedIndexes", "failedIndexes"] {
        let value = text(status, key);
        if get(status, key) == get(before, key) {
            read.extend(indexes::parse(value, completions));
            continue;
        }
        let path = path.child(key);
        if !indexed {
            if key == "completedIndexes" && !value.is_empty() {
                let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
                out.push(Error::invalid(&path, value, why));
            }
        } else {
            match indexes::parse(value, completions) {
                Ok(all) => read.push(all),
                Err(e) => out.push(Error::invalid(&path, value, &format!("error parsing {key}: {e}"))),
            }
        }
        if key == "failedIndexes" && has(status, key) && !has(spec, "backoffLimitPerIndex") {
            let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            out.push(Error::invalid(&path, value, why));
        }
    }
    if let [completed, failed] = &read[..]
        && let Some(i) = indexes::overlap(completed, failed)
        && !same(status, before)
    {
        let why = format!("failedIndexes and completedIndexes overlap at index: {i}");
        out.push(Error::invalid(path.child("failedIndexes"), text(status, "failedIndexes"), &why));
    }
}
