//! Metrics of the job controller.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::batch::v1::{Job, JobStatus};

use super::failure_policy::{Verdict, ruled};
use super::finalizer::tracked;
use super::indexes::{self, IndexSet};
use super::per_index;
use super::plan::Did;
use crate::engine::clock;
use crate::engine::metrics::{add, count, observe};
use crate::engine::pod::Pod;
use crate::engine::pods;

fn mode(job: &Job) -> &'static str {
    if indexes::indexed(job) { "Indexed" } else { "NonIndexed" }
}

/// A job was looked at.
pub(super) fn synced(job: &Job, did: Did, ok: bool, started: Instant) {
    let action = match did {
        Did::Reconciled => "reconciling",
        Did::Tracking => "tracking",
        Did::PodsCreated => "pods_created",
        Did::PodsDeleted => "pods_deleted",
    };
    let labels = [action, mode(job), if ok { "success" } else { "error" }];
    count("job_controller_job_syncs_total", &labels);
    let took = clock::instant().saturating_duration_since(started).as_secs_f64();
    observe("job_controller_job_sync_duration_seconds", &labels, took);
}

/// Pods were made, or not, in a round that ends with this status.
pub(super) fn created(job: &Job, status: Option<&JobStatus>, made: usize, not_made: usize) {
    let replaces = job.spec.as_ref().and_then(|s| s.pod_replacement_policy.as_deref());
    let status = status.or(job.status.as_ref());
    let terminating = status.and_then(|s| s.terminating).unwrap_or(0) > 0;
    let waiting = status.and_then(|s| s.uncounted_terminated_pods.as_ref()?.failed.as_ref());
    let failed = status.and_then(|s| s.failed).unwrap_or(0) > 0 || waiting.is_some_and(|w| !w.is_empty());
    let reason = match replaces {
        Some("Failed") if failed => "recreate_failed",
        _ if failed || terminating => "recreate_terminating_or_failed",
        _ => "new",
    };
    add("job_controller_job_pods_creation_total", &[reason, "succeeded"], made);
    add("job_controller_job_pods_creation_total", &[reason, "failed"], not_made);
}

/// Failed pods were counted, or not, as the job's policy has it.
pub(super) fn judged(job: &Job, ended: &[Arc<Pod>]) {
    let Some(spec) = job.spec.as_ref().filter(|s| s.pod_failure_policy.is_some()) else { return };
    let last = spec.completions.unwrap_or(0);
    let counts = |p: &Pod| !indexes::indexed(job) || indexes::of(p).is_some_and(|i| i < last);
    for pod in ended.iter().filter(|p| pods::phase(p) == "Failed" && counts(p)) {
        let action = match ruled(job, pod) {
            None => continue,
            Some(Verdict::Counts) => "Count",
            Some(Verdict::Ignored) => "Ignore",
            Some(Verdict::FailsIndex) => "FailIndex",
            Some(Verdict::FailsJob(_)) => "FailJob",
        };
        count("job_controller_pod_failures_handled_by_failure_policy_total", &[action]);
    }
}

/// A pod with the job's finalizer ended, or lost the finalizer after that.
pub(super) fn tracking(old: Option<&Pod>, new: &Pod) {
    let ended = |p: &Pod| pods::finished(p) && tracked(p);
    let name = "job_controller_terminated_pods_tracking_finalizer_total";
    match old {
        None if ended(new) => count(name, &["add"]),
        Some(old) if !ended(old) && ended(new) => count(name, &["add"]),
        Some(old) if ended(old) && !tracked(new) => count(name, &["delete"]),
        _ => {}
    }
}

/// A status has replaced the job's.
pub(super) fn stored(job: &Job, new: &JobStatus) {
    let old = job.status.clone().unwrap_or_default();
    let grown = |a: Option<i32>, b: Option<i32>| usize::try_from(b.unwrap_or(0) - a.unwrap_or(0)).unwrap_or(0);
    let mut succeeded = grown(old.succeeded, new.succeeded);
    if indexes::indexed(job) {
        let limit = if per_index::limit(job).is_some() { "perIndex" } else { "global" };
        let all = job.spec.as_ref().and_then(|s| s.completions).unwrap_or(0);
        let read = |text: Option<&String>| IndexSet::parse(text.map(String::as_str).unwrap_or_default(), all);
        let more = |a: Option<&String>, b: Option<&String>| read(b).len() - read(b).common(&read(a));
        // Indexes that are gone, because the job became smaller, make up for no new ones.
        succeeded = more(old.completed_indexes.as_ref(), new.completed_indexes.as_ref());
        let name = "job_controller_job_finished_indexes_total";
        add(name, &[limit, "succeeded"], succeeded);
        add(name, &[limit, "failed"], more(old.failed_indexes.as_ref(), new.failed_indexes.as_ref()));
    }
    let pods = "job_controller_job_pods_finished_total";
    add(pods, &[mode(job), "succeeded"], succeeded);
    add(pods, &[mode(job), "failed"], grown(old.failed, new.failed));
    if let Some((result, reason)) = end(new) {
        count("job_controller_jobs_finished_total", &[mode(job), reason, result]);
    }
}

/// Returns the condition and the reason with which a job has ended.
fn end(status: &JobStatus) -> Option<(&'static str, &str)> {
    let result = |kind: &str| match kind {
        "Complete" => Some("succeeded"),
        "Failed" => Some("failed"),
        _ => None,
    };
    let mut conditions = status.conditions.iter().flatten();
    conditions.find_map(|c| Some((result(&c.type_)?, c.reason.as_deref().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ends() {
        for (target, kind, reason, want) in [
            ("SuccessCriteriaMet", "Complete", "CompletionsReached", "succeeded"),
            ("SuccessCriteriaMet", "Complete", "SuccessPolicy", "succeeded"),
            ("FailureTarget", "Failed", "BackoffLimitExceeded", "failed"),
            ("FailureTarget", "Failed", "PodFailurePolicy", "failed"),
        ] {
            let both = [target, kind].map(|kind| json!({"type": kind, "status": "True", "reason": reason}));
            let of = |conditions: &[serde_json::Value]| -> JobStatus {
                serde_json::from_value(json!({"conditions": conditions})).expect("status")
            };
            assert_eq!(end(&of(&both)), Some((want, reason)));
            assert_eq!(end(&of(&both[..1])), None, "{target} alone is no end");
        }
    }
}
