//! Back-off per completion index: every index has a count of failures and a clock of its own. Answers for upstream's
//! `getPodsWithDelayedDeletionPerIndex`.
//!
//! The count travels in an annotation from a failed pod to its replacement, so that nothing is remembered elsewhere:
//! a failed pod keeps its finalizer until the replacement, which carries the new count, exists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod as NewPod;
use k8s_openapi::jiff::Timestamp;

use super::backoff;
use super::failure_policy::{Verdict, judge};
use super::indexes::{self, IndexSet};
use crate::engine::object;
use crate::engine::pod::Pod;

/// Failures of the index that count towards its limit.
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Failures of the index that the pod failure policy ignored; they lengthen the back-off all the same.
const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The limit per index, for jobs that have one.
#[must_use]
pub fn limit(job: &Job) -> Option<i32> {
    job.spec.as_ref().and_then(|s| s.backoff_limit_per_index)
}

/// Reads a number of an annotation; one that nobody could have counted is none.
fn number(pod: &Pod, annotation: &str) -> i32 {
    object::annotation(&pod.metadata, annotation).and_then(|v| v.parse().ok()).filter(|n| *n >= 0).unwrap_or(0)
}

fn total(pod: &Pod) -> i32 {
    number(pod, FAILURES).saturating_add(number(pod, IGNORED))
}

/// Reports whether this failed pod was the last that its index may have.
#[must_use]
pub fn exhausts(job: &Job, pod: &Pod) -> bool {
    match judge(job, pod) {
        Verdict::FailsIndex => true,
        Verdict::Ignored => false,
        Verdict::Counts | Verdict::FailsJob(_) => limit(job).is_some_and(|limit| number(pod, FAILURES) >= limit),
    }
}

/// Of failed pods those that must stay until their index has a new pod: the last of each index that is neither
/// `settled` (succeeded, failed for good, or running again).
#[must_use]
pub fn held<'a>(failed: impl Iterator<Item = &'a Arc<Pod>>, settled: &IndexSet) -> BTreeMap<i32, &'a Arc<Pod>> {
    let mut held: BTreeMap<i32, &Arc<Pod>> = BTreeMap::new();
    for pod in failed {
        let Some(index) = indexes::of(pod).filter(|i| !settled.contains(*i)) else { continue };
        let later = |other: &Pod| total(other) <= total(pod) && backoff::ended(other) <= backoff::ended(pod);
        match held.get(&index) {
            Some(other) if !later(other) => {}
            _ => {
                held.insert(index, pod);
            }
        }
    }
    held
}

/// Returns the time that the replacement of a failed pod has to wait.
#[must_use]
pub fn wait(failed: Option<&Arc<Pod>>, now: Timestamp) -> Duration {
    let Some(pod) = failed else { return Duration::ZERO };
    backoff::wait(u32::try_from(total(pod)).unwrap_or(u32::MAX).saturating_add(1), backoff::ended(pod), now)
}

/// Note on a new pod how often its index has failed, given the pod it replaces.
pub fn count_on(new: &mut NewPod, job: &Job, replaced: Option<&Arc<Pod>>) {
    let (mut failures, mut ignored) = replaced.map_or((0, 0), |p| (number(p, FAILURES), number(p, IGNORED)));
    if let Some(pod) = replaced {
        let counter = if judge(job, pod) == Verdict::Ignored { &mut ignored } else { &mut failures };
        *counter = counter.saturating_add(1);
    }
    let notes = new.metadata.annotations.get_or_insert_default();
    notes.insert(FAILURES.into(), failures.to_string());
    if ignored > 0 {
        notes.insert(IGNORED.into(), ignored.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn failed(name: &str, index: i32, failures: i32, at: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "annotations": {indexes::INDEX: index.to_string(), FAILURES: failures.to_string()}},
                "status": {"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": {"terminated": {"exitCode": 3, "finishedAt": at}}}]}}))
            .expect("pod"),
        )
    }

    fn job(policy: Value) -> Job {
        serde_json::from_value(json!({"spec": {"backoffLimitPerIndex": 1, "template": {}, "podFailurePolicy": policy}}))
            .expect("job")
    }

    #[test]
    fn counts_travel_to_the_replacement() {
        let old = failed("a", 0, 1, "2026-01-01T00:00:00Z");
        let ignoring = json!({"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [3]}}]});
        for (policy, want) in [(Value::Null, json!({FAILURES: "2"})), (ignoring, json!({FAILURES: "1", IGNORED: "1"}))]
        {
            let mut new = NewPod::default();
            count_on(&mut new, &job(policy), Some(&old));
            assert_eq!(serde_json::to_value(&new.metadata.annotations).expect("json"), want);
        }
        let mut first = NewPod::default();
        count_on(&mut first, &job(Value::Null), None);
        assert_eq!(serde_json::to_value(&first.metadata.annotations).expect("json"), json!({FAILURES: "0"}));
    }

    #[test]
    fn an_index_is_exhausted_by_its_limit_or_a_rule() {
        let at = "2026-01-01T00:00:00Z";
        assert!(!exhausts(&job(Value::Null), &failed("a", 0, 0, at)), "one failure is allowed");
        assert!(exhausts(&job(Value::Null), &failed("a", 0, 1, at)));
        assert!(!exhausts(&job(Value::Null), &failed("a", 0, -5, at)));
        let mut new = NewPod::default();
        count_on(&mut new, &job(Value::Null), Some(&failed("a", 0, -5, at)));
        let noted = new.metadata.annotations.unwrap_or_default();
        assert_eq!(noted[FAILURES], "1", "less than none is none");
        let rule = json!({"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}}]});
        assert!(exhausts(&job(rule), &failed("a", 0, 0, at)));
    }

    #[test]
    fn the_last_failure_of_each_waiting_index_is_held() {
        let pods = [
            failed("a", 0, 0, "2026-01-01T00:00:00Z"),
            failed("b", 0, 1, "2026-01-01T00:01:00Z"),
            failed("c", 1, 0, "2026-01-01T00:00:00Z"),
        ];
        let got = held(pods.iter(), &IndexSet::from_iter([1]));
        let names: Vec<_> = got.values().map(|p| object::name(&p.metadata)).collect();
        assert_eq!(names, ["b"]);
        let now: Timestamp = "2026-01-01T00:01:05Z".parse().expect("time");
        assert_eq!(wait(got.get(&0).copied(), now), Duration::from_secs(15), "twenty seconds after the second failure");
        assert_eq!(wait(None, now), Duration::ZERO);
    }
}
