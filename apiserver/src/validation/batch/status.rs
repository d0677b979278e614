//! `status` of a job: counters that fit, conditions that are not taken back. Answers for upstream's
//! `validateJobStatus`, `ValidateJobStatusUpdate`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::indexes;
use crate::rules::options::FieldErrors;
use crate::rules::tree::{flag, get, has, int, list, same, text};
use crate::validation::workloads::counts;

/// A changed status. Most rules about a part hold once that part changes.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let (status, path) = (get(new, "status"), Path::new("status"));
    counts(status, &["active", "succeeded", "failed", "ready", "terminating"], &path, out);
    uncounted(status, &path.child("uncountedTerminatedPods"), out);
    let change = StatusUpdate { job: new, status, before: get(old, "status"), path: &path };
    change.ending(out);
    change.completion(out);
    change.ways(out);
    change.nothing_left(out);
    change.listed(out);
    change.running(out);
    change.criteria(out);
    change.kept(out);
}

/// An indexed job as wide as it is long may shrink.
fn elastic(job: &Value) -> bool {
    let spec = get(job, "spec");
    text(spec, "completionMode") == "Indexed" && same(get(spec, "completions"), get(spec, "parallelism"))
}

fn uncounted(status: &Value, path: &Path, out: &mut FieldErrors) {
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

fn over(status: &Value) -> bool {
    is(status, "Complete") || is(status, "Failed")
}

/// A status, and what it was.
struct StatusUpdate<'a> {
    job: &'a Value,
    status: &'a Value,
    before: &'a Value,
    path: &'a Path,
}

impl StatusUpdate<'_> {
    fn turned(&self, kind: &str) -> bool {
        is(self.status, kind) != is(self.before, kind)
    }

    fn moved(&self, key: &str) -> bool {
        !same(get(self.status, key), get(self.before, key))
    }

    fn ended(&self) -> bool {
        over(self.status) != over(self.before)
    }

    fn spec(&self) -> &Value {
        get(self.job, "spec")
    }

    /// Conditions that a job cannot have at once.
    fn apart(&self, one: &str, other: &str, out: &mut FieldErrors) {
        if is(self.status, one) && is(self.status, other) {
            let why = format!("cannot set {one}=True and {other}=true conditions");
            out.push(Error::unfit(self.path.child("conditions"), &why));
        }
    }

    fn ending(&self, out: &mut FieldErrors) {
        if self.turned("Complete") || self.turned("Failed") {
            self.apart("Complete", "Failed", out);
        }
        if self.turned("Complete") || self.turned("FailureTarget") {
            self.apart("Complete", "FailureTarget", out);
        }
    }

    fn completion(&self, out: &mut FieldErrors) {
        let (path, completion) = (self.path.child("completionTime"), get(self.status, "completionTime"));
        if self.moved("completionTime") || self.turned("Complete") {
            if !completion.is_null() && !is(self.status, "Complete") {
                let why = "cannot set completionTime when there is no Complete=True condition";
                out.push(Error::invalid(&path, completion.clone(), why));
            }
            if completion.is_null() && is(self.status, "Complete") {
                out.push(Error::required(&path, "completionTime is required for Complete jobs"));
            }
        }
        // Times are texts of one form and order like them.
        if (self.moved("startTime") || self.moved("completionTime"))
            && let (Some(start), Some(end)) = (get(self.status, "startTime").as_str(), completion.as_str())
            && end < start
        {
            out.push(Error::invalid(&path, end, "completionTime cannot be set before startTime"));
        }
    }

    /// Validates transitions to a terminal condition.
    fn ways(&self, out: &mut FieldErrors) {
        let path = self.path.child("conditions");
        // Upstream looks at the indexes, too.
        if (self.turned("Failed") || self.failed_indexes_moved())
            && is(self.status, "Failed")
            && !is(self.status, "FailureTarget")
        {
            let why = "cannot set Failed=True condition without the FailureTarget=true condition";
            out.push(Error::unfit(&path, why));
        }
        if (self.turned("Complete") || self.turned("SuccessCriteriaMet"))
            && is(self.status, "Complete")
            && !is(self.status, "SuccessCriteriaMet")
        {
            let why = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
            out.push(Error::unfit(&path, why));
        }
    }

    /// A job that is over has begun, and nothing of it waits to be counted.
    fn nothing_left(&self, out: &mut FieldErrors) {
        if !over(self.status) {
            return;
        }
        let active = int(self.status, "active").unwrap_or_default();
        if (self.ended() || self.moved_count("active")) && active > 0 {
            out.push(Error::invalid(self.path.child("active"), active, "active>0 is invalid for finished job"));
        }
        let spec = self.spec();
        let idle = flag(spec, "suspend") && int(spec, "completions") == Some(0);
        if (self.ended() || self.moved("startTime")) && !idle && !has(self.status, "startTime") {
            out.push(Error::required(self.path.child("startTime"), "startTime is required for finished job"));
        }
        let uncounted = get(self.status, "uncountedTerminatedPods");
        if (self.ended() || self.moved("uncountedTerminatedPods"))
            && ["succeeded", "failed"].iter().any(|k| !list(uncounted, k).is_empty())
        {
            let why = "uncountedTerminatedPods needs to be empty for finished job";
            out.push(Error::invalid(self.path.child("uncountedTerminatedPods"), uncounted.clone(), why));
        }
    }

    fn moved_count(&self, key: &str) -> bool {
        int(self.status, key).unwrap_or_default() != int(self.before, key).unwrap_or_default()
    }

    /// The indexes that are through.
    fn listed(&self, out: &mut FieldErrors) {
        let (spec, status) = (self.spec(), self.status);
        let completions = int(spec, "completions");
        let per_index = has(spec, "backoffLimitPerIndex");
        let (completed, failed) = (text(status, "completedIndexes"), text(status, "failedIndexes"));
        let (new_completed, new_failed) = (self.moved("completedIndexes"), self.failed_indexes_moved());
        let check = |key: &str, value: &str, out: &mut FieldErrors| {
            if let Some(Err(e)) = completions.map(|n| indexes::parse(value, n)) {
                out.push(Error::invalid(self.path.child(key), value, &format!("error parsing {key}: {e}")));
            }
        };
        if new_completed {
            check("completedIndexes", completed, out);
        }
        if new_failed && per_index && has(status, "failedIndexes") {
            check("failedIndexes", failed, out);
        }
        if new_completed && !completed.is_empty() && text(spec, "completionMode") != "Indexed" {
            let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
            out.push(Error::invalid(self.path.child("completedIndexes"), completed, why));
        }
        if new_failed && !per_index && has(status, "failedIndexes") {
            let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            out.push(Error::invalid(self.path.child("failedIndexes"), failed, why));
        }
        if (new_completed || new_failed)
            && let Some(n) = completions
            && let Some(i) = indexes::overlap(&indexes::readable(completed, n), &indexes::readable(failed, n))
        {
            let why = format!("failedIndexes and completedIndexes overlap at index: {i}");
            out.push(Error::invalid(self.path.child("failedIndexes"), failed, &why));
        }
    }

    /// An empty list is not the same as none.
    fn failed_indexes_moved(&self) -> bool {
        get(self.status, "failedIndexes") != get(self.before, "failedIndexes")
    }

    fn running(&self, out: &mut FieldErrors) {
        let terminating = int(self.status, "terminating").unwrap_or_default();
        let moved = |key: &str| get(self.status, key) != get(self.before, key);
        if (self.ended() || moved("terminating")) && terminating > 0 && over(self.status) {
            let why = "terminating>0 is invalid for finished job";
            out.push(Error::invalid(self.path.child("terminating"), terminating, why));
        }
        let active = int(self.status, "active").unwrap_or_default();
        if (moved("ready") || self.moved_count("active"))
            && let Some(ready) = int(self.status, "ready").filter(|ready| *ready > active)
        {
            out.push(Error::invalid(self.path.child("ready"), ready, "cannot set more ready pods than active"));
        }
    }

    /// Validates conditions that may not hold together.
    fn criteria(&self, out: &mut FieldErrors) {
        self.apart("SuccessCriteriaMet", "Failed", out);
        self.apart("SuccessCriteriaMet", "FailureTarget", out);
        if has(self.spec(), "successPolicy") && is(self.status, "Complete") && !is(self.status, "SuccessCriteriaMet") {
            let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
            out.push(Error::unfit(self.path.child("conditions"), why));
        }
    }

    /// Validates that terminal conditions are not taken back.
    fn kept(&self, out: &mut FieldErrors) {
        let (status, before, path) = (self.status, self.before, self.path.child("conditions"));
        for kind in ["Failed", "Complete", "FailureTarget"] {
            if is(before, kind) && !is(status, kind) {
                out.push(Error::unfit(&path, &format!("cannot disable the terminal {kind}=True condition")));
            }
        }
        for key in ["failed", "succeeded"] {
            let (now, was) = (int(status, key).unwrap_or_default(), int(before, key).unwrap_or_default());
            if now < was && (key == "failed" || !elastic(self.job)) {
                out.push(Error::invalid(self.path.child(key), now, &format!("cannot decrease the {key} counter")));
            }
        }
        let (completion, completed) = (get(status, "completionTime"), get(before, "completionTime"));
        if !completed.is_null() && !completion.is_null() && completion != completed {
            let why = "completionTime cannot be mutated";
            out.push(Error::invalid(self.path.child("completionTime"), completion.clone(), why));
        }
        let told = |status: &Value, answer: &str| {
            let about = |c: &&Value| text(c, "type") == "Suspended" && text(c, "status") == answer;
            list(status, "conditions").iter().any(|c| about(&c))
        };
        let resumes = told(before, "True") && told(status, "False");
        if has(before, "startTime") && self.moved("startTime") && !resumes && !flag(self.spec(), "suspend") {
            let why = "startTime cannot be removed for unsuspended job";
            out.push(Error::required(self.path.child("startTime"), why));
        }
        if is(before, "SuccessCriteriaMet") && !is(status, "SuccessCriteriaMet") {
            out.push(Error::unfit(&path, "cannot disable the SuccessCriteriaMet=True condition"));
        }
        if is(before, "Complete") && !is(before, "SuccessCriteriaMet") && is(status, "SuccessCriteriaMet") {
            let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            out.push(Error::unfit(&path, why));
        }
    }
}
