//! Run pods to completion. A pod is counted exactly once: its finalizer keeps it until the count is stored. Answers for
//! upstream's `syncJob`, `trackJobStatusAndRemoveFinalizers`.
//!
//! A round first counts what ended, then judges whether the job is over, then (if not) makes or stops pods
//! (`manage.rs`). The end comes in two steps: a target condition is stored, and when all pods are gone and counted,
//! the final one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;

use super::failure_policy::{Verdict, judge};
use super::finalizer::{release, tracked};
use super::indexes::{self, IndexSet};
use super::{per_index, success_policy};
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::{object, pods};

/// No more than this many pods wait to be counted at once.
const UNCOUNTED: usize = 500;

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The job.
    pub job: Arc<Job>,
    /// The pods it owns.
    pub pods: Vec<Arc<Pod>>,
    /// Pods whose finalizer was taken off although the cache still shows it.
    pub released: HashSet<String>,
    /// Earlier creations and deletions have been seen.
    pub settled: bool,
    /// Time that new pods have to wait because of earlier failures.
    pub backoff: Duration,
    /// The job loses its start time when it is suspended.
    pub forgets_start: bool,
}

/// Actions, and the status to store after them.
#[derive(Debug, Default)]
pub struct JobDecision {
    /// Writes other than the status.
    pub actions: Vec<Action>,
    /// The status to store, if it changed.
    pub status: Option<JobStatus>,
    /// Pods that finished and are counted for the first time.
    pub finished: Vec<Arc<Pod>>,
    /// Events that belong to the stored status: only when it is stored are they true.
    pub events: Vec<Action>,
    /// Main action of the round, as the metrics name it.
    pub did: Did,
}

/// The `action` label of the sync metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Did {
    /// Waited, for what was written before or for the end.
    #[default]
    Reconciled,
    /// Left the pods alone: there are as many as there shall be.
    Tracking,
    /// Made pods, or will when their time has come.
    PodsCreated,
    /// Stopped what is too much.
    PodsDeleted,
}

/// Reports whether the job has finished.
#[must_use]
pub fn finished(job: &Job) -> bool {
    condition(job.status.as_ref(), "Complete") || condition(job.status.as_ref(), "Failed")
}

fn condition(status: Option<&JobStatus>, kind: &str) -> bool {
    find(status, kind).is_some_and(|c| c.status == "True")
}

fn find<'a>(status: Option<&'a JobStatus>, kind: &str) -> Option<&'a JobCondition> {
    status?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// The controller that looks after the job, when it is not this one.
#[must_use]
pub fn managed_elsewhere(job: &Job) -> Option<&str> {
    job.spec.as_ref()?.managed_by.as_deref().filter(|m| *m != "kubernetes.io/job-controller")
}

/// Decide.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> JobDecision {
    let Some(spec) = s.job.spec.as_ref() else { return JobDecision::default() };
    if managed_elsewhere(&s.job).is_some() || finished(&s.job) {
        return JobDecision::default();
    }
    if let Some(mode) = spec.completion_mode.as_deref().filter(|m| !matches!(*m, "Indexed" | "NonIndexed")) {
        tracing::debug!(mode, "unknown completion mode");
        let about = object::reference::<Job>(&s.job.metadata);
        let message = "Skipped Job sync because completion mode is unknown".into();
        let actions = vec![Action::warning(&about, "UnknownCompletionMode", message)];
        return JobDecision { actions, ..JobDecision::default() };
    }
    Round::new(s, spec, now).run()
}

/// Reports whether failed pods alone are replaced, and not those that are still stopping.
pub(super) fn waits_for_the_end(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

pub(super) struct Round<'a> {
    pub(super) s: &'a Snapshot,
    pub(super) spec: &'a JobSpec,
    pub(super) now: Timestamp,
    pub(super) about: ObjectReference,
    pub(super) out: JobDecision,
    /// Completion indexes that succeeded, for indexed jobs.
    pub(super) completed: Option<IndexSet>,
    /// Completion indexes that failed for good, for jobs that limit failures per index.
    pub(super) failed: Option<IndexSet>,
    /// Failed pods that stay until their index has a new one.
    pub(super) held: BTreeMap<i32, &'a Arc<Pod>>,
    status: JobStatus,
    /// Uids in the stored status that are not in the counters yet.
    counting: HashSet<String>,
    again: Option<Duration>,
}

impl<'a> Round<'a> {
    fn new(s: &'a Snapshot, spec: &'a JobSpec, now: Timestamp) -> Self {
        Self {
            s,
            spec,
            now,
            about: object::reference::<Job>(&s.job.metadata),
            out: JobDecision::default(),
            completed: None,
            failed: None,
            held: BTreeMap::new(),
            status: s.job.status.clone().unwrap_or_default(),
            counting: HashSet::new(),
            again: None,
        }
    }

    /// Reports whether the pod is still to be counted or let go.
    pub(super) fn tracked(&self, pod: &Pod) -> bool {
        tracked(pod) && !self.s.released.contains(object::uid(&pod.metadata))
    }

    /// Tracked, and not in the stored list of pods to count.
    fn uncounted(&self) -> impl Iterator<Item = &'a Arc<Pod>> {
        let pods = &self.s.pods;
        pods.iter().filter(|p| self.tracked(p) && !self.counting.contains(object::uid(&p.metadata)))
    }

    /// Terminating pods count as failed, unless only failed ones are to be replaced: then their end is waited for.
    fn has_failed(&self, pod: &Pod) -> bool {
        let gone = object::deleting(&pod.metadata) && pods::phase(pod) != "Succeeded";
        pods::phase(pod) == "Failed" || (gone && !waits_for_the_end(self.spec))
    }

    fn indexed(&self) -> bool {
        self.completed.is_some()
    }

    /// Reports whether the pod is one of those that count: of an indexed job only those of its indexes do.
    fn in_range(&self, pod: &Pod) -> bool {
        let completions = self.spec.completions.unwrap_or(0);
        !self.indexed() || indexes::of(pod).is_some_and(|i| i < completions)
    }

    fn targeted(&self) -> bool {
        condition(Some(&self.status), "FailureTarget") || condition(Some(&self.status), "SuccessCriteriaMet")
    }

    fn succeeds(&self) -> bool {
        condition(Some(&self.status), "SuccessCriteriaMet")
    }

    /// Take the finalizer off pods whose end counts neither as a success nor as a failure.
    pub(super) fn let_go_uncounted(&mut self, pods: &[&Arc<Pod>]) {
        let tracked: Vec<Action> = pods.iter().filter(|p| self.tracked(p)).map(|p| release(p)).collect();
        self.out.actions.extend(tracked);
    }

    fn run(mut self) -> JobDecision {
        self.count_released();
        let suspended = self.spec.suspend == Some(true);
        if self.status.start_time.is_none() && !suspended {
            self.status.start_time = Some(object::seconds(self.now));
        }
        let active: Vec<&Arc<Pod>> = self.s.pods.iter().filter(|p| pods::active(p)).collect();
        self.read_indexes(&active);
        let (succeeded, failed) = self.totals();
        if !self.targeted() {
            self.judge(failed);
        }
        let ready = active.iter().filter(|p| pods::ready(p)).count();
        let terminating = self.s.pods.iter().filter(|p| pods::terminating(p)).count();
        let before = self.out.actions.len();
        let mut running = count(active.len());
        if self.targeted() {
            if self.succeeds() {
                self.let_go_uncounted(&active);
            }
            self.stop(active.clone());
            running = 0;
        } else {
            let managed = self.s.settled && !object::deleting(&self.s.job.metadata);
            if managed {
                self.out.did = Did::Tracking;
                running = self.manage(&active, terminating, succeeded, suspended);
            }
            let enough = self.spec.completions.map_or(succeeded > 0, |c| succeeded >= c);
            if enough && running == 0 {
                self.target("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods");
            } else if managed {
                self.suspension(suspended);
            }
        }
        let stopped = self.stopped(before);
        let stopped_ready = active.iter().filter(|p| pods::ready(p) && stopped.contains(object::uid(&p.metadata)));
        let (terminating, ready) = (terminating + stopped.len(), ready - stopped_ready.count());
        self.list_ended();
        self.status.active = Some(running).filter(|n| *n > 0);
        self.status.ready = Some(count(ready));
        self.status.terminating = Some(count(terminating));
        self.release_counted();
        if running == 0 && active.is_empty() && self.s.settled {
            self.conclude(terminating);
        }
        let status = Some(self.status).filter(|n| self.s.job.status.as_ref() != Some(n));
        self.out.actions.extend(self.again.map(Action::RequeueAfter));
        JobDecision { status, ..self.out }
    }

    /// The pods that this round deletes.
    fn stopped(&self, from: usize) -> HashSet<String> {
        let new = self.out.actions.iter().skip(from);
        new.filter_map(|a| if let Action::DeletePod { uid, .. } = a { Some(uid.clone()) } else { None }).collect()
    }

    /// Pods in the stored list whose finalizer is gone: into the counters.
    fn count_released(&mut self) {
        let uncounted = self.status.uncounted_terminated_pods.take().unwrap_or_default();
        let still: HashSet<&str> =
            self.s.pods.iter().filter(|p| self.tracked(p)).map(|p| object::uid(&p.metadata)).collect();
        let split = |list: Option<Vec<String>>| -> (Vec<String>, Vec<String>) {
            list.unwrap_or_default().into_iter().partition(|u| still.contains(u.as_str()))
        };
        let (s_keep, s_done) = split(uncounted.succeeded);
        let (f_keep, f_done) = split(uncounted.failed);
        let add = |n: &mut Option<i32>, by: usize| *n = Some(n.unwrap_or(0) + count(by)).filter(|t| *t > 0);
        if !indexes::indexed(&self.s.job) {
            add(&mut self.status.succeeded, s_done.len());
        }
        add(&mut self.status.failed, f_done.len());
        self.counting = s_keep.iter().chain(&f_keep).cloned().collect();
        self.status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: Some(s_keep).filter(|v| !v.is_empty()),
            failed: Some(f_keep).filter(|v| !v.is_empty()),
        });
    }

    /// Reads the indexes that have succeeded and failed, by the status and by pods that ended since.
    fn read_indexes(&mut self, active: &[&'a Arc<Pod>]) {
        if !indexes::indexed(&self.s.job) {
            return;
        }
        let completions = self.spec.completions.unwrap_or(0);
        let of = |pod: &Pod| indexes::of(pod).filter(|i| *i < completions);
        let stored = |text: &Option<String>| IndexSet::parse(text.as_deref().unwrap_or_default(), completions);
        let done = stored(&self.status.completed_indexes);
        let tracked = || self.s.pods.iter().filter(|p| self.tracked(p));
        let done = done.union(&tracked().filter(|p| pods::phase(p) == "Succeeded").filter_map(|p| of(p)).collect());
        if per_index::limit(&self.s.job).is_some() {
            let last = tracked().filter(|p| self.has_failed(p) && per_index::exhausts(&self.s.job, p));
            let failed = stored(&self.status.failed_indexes).union(&last.filter_map(|p| of(p)).collect());
            let settled = done.union(&failed).union(&active.iter().filter_map(|p| of(p)).collect());
            let ended = self.uncounted().filter(|p| self.has_failed(p) && of(p).is_some());
            self.held = per_index::held(ended, &settled);
            self.failed = Some(failed);
        }
        self.completed = Some(done);
    }

    /// Successes and failures, counted or about to be.
    fn totals(&self) -> (i32, i32) {
        let u = self.status.uncounted_terminated_pods.as_ref();
        let len = |v: Option<&Vec<String>>| v.map_or(0, |v| count(v.len()));
        let new_failed = self
            .uncounted()
            .filter(|p| self.has_failed(p) && self.in_range(p) && judge(&self.s.job, p) != Verdict::Ignored)
            .count();
        let failed = self.status.failed.unwrap_or(0) + len(u.and_then(|u| u.failed.as_ref())) + count(new_failed);
        if let Some(done) = &self.completed {
            return (count(done.len()), failed);
        }
        let new = self.uncounted().filter(|p| pods::phase(p) == "Succeeded").count();
        let waiting = len(u.and_then(|u| u.succeeded.as_ref()));
        (self.status.succeeded.unwrap_or(0) + waiting + count(new), failed)
    }

    /// Decides whether the job is over, and why.
    fn judge(&mut self, failed: i32) {
        let by_policy = self.s.pods.iter().filter(|p| self.has_failed(p)).find_map(|p| match judge(&self.s.job, p) {
            Verdict::FailsJob(why) => Some(why),
            _ => None,
        });
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if let Some(why) = by_policy {
            return self.target("FailureTarget", "PodFailurePolicy", &why);
        }
        if failed > limit || self.restarted_too_often(limit) {
            let message = "Job has reached the specified backoff limit";
            return self.target("FailureTarget", "BackoffLimitExceeded", message);
        }
        if let Some(left) = self.deadline() {
            if left.is_zero() {
                let message = "Job was active longer than specified deadline";
                return self.target("FailureTarget", "DeadlineExceeded", message);
            }
            self.look_again(left);
        }
        let Some(done) = &self.completed else { return };
        let completions = self.spec.completions.unwrap_or(0);
        if let Some(lost) = &self.failed {
            if self.spec.max_failed_indexes.is_some_and(|max| count(lost.len()) > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return self.target("FailureTarget", "MaxFailedIndexesExceeded", message);
            }
            if !lost.is_empty() && count(lost.len() + done.len()) >= completions {
                return self.target("FailureTarget", "FailedIndexes", "Job has failed indexes");
            }
        }
        if let Some(message) = success_policy::met(self.spec.success_policy.as_ref(), completions, done) {
            self.target("SuccessCriteriaMet", "SuccessPolicy", &message);
        }
    }

    fn restarted_too_often(&self, limit: i32) -> bool {
        let on_failure =
            self.spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
        if !on_failure {
            return false;
        }
        let running = self.s.pods.iter().filter(|p| matches!(pods::phase(p), "Running" | "Pending"));
        let restarts: i64 = running
            .flat_map(|p| p.status.iter())
            .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()))
            .map(|c| i64::from(c.restart_count))
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit.into() }
    }

    fn deadline(&self) -> Option<Duration> {
        let limit = self.spec.active_deadline_seconds?;
        if self.spec.suspend == Some(true) {
            return None;
        }
        let start = self.status.start_time.as_ref()?.0;
        let left = start.as_second().saturating_add(limit).saturating_sub(self.now.as_second());
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }

    pub(super) fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |a| a.min(after)));
    }

    fn target(&mut self, kind: &str, reason: &str, message: &str) {
        let c = self.fresh(kind, "True", reason, message);
        self.status.conditions.get_or_insert_default().push(c);
    }

    fn fresh(&self, kind: &str, status: &str, reason: &str, message: &str) -> JobCondition {
        JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(object::seconds(self.now)),
            last_transition_time: Some(object::seconds(self.now)),
        }
    }

    fn suspension(&mut self, suspended: bool) {
        if suspended && self.s.forgets_start {
            self.status.start_time = None;
        }
        let was = condition(Some(&self.status), "Suspended");
        if suspended == was || (!suspended && find(Some(&self.status), "Suspended").is_none()) {
            return;
        }
        let (status, reason, message) =
            if suspended { ("True", "JobSuspended", "Job suspended") } else { ("False", "JobResumed", "Job resumed") };
        let fresh = self.fresh("Suspended", status, reason, message);
        let conditions = self.status.conditions.get_or_insert_default();
        match conditions.iter_mut().find(|c| c.type_ == "Suspended") {
            Some(c) => *c = fresh,
            None => conditions.push(fresh),
        }
        let event = if suspended { "Suspended" } else { "Resumed" };
        self.out.events.push(Action::normal(&self.about, event, message.into()));
        if !suspended {
            // The clock of the deadline starts anew.
            self.status.start_time = Some(object::seconds(self.now));
        }
    }

    /// Pods that ended since the last look: into the list of those to count, or let go if they do not count.
    fn list_ended(&mut self) {
        let over = self.targeted();
        let stored = self.stored_indexes();
        let settled = |p: &Pod| pods::phase(p) == "Succeeded" && indexes::of(p).is_some_and(|i| stored.contains(i));
        let ended: Vec<&Arc<Pod>> = self.uncounted().filter(|p| !settled(p)).collect();
        for pod in ended {
            if self.counting.len() + self.out.finished.len() >= UNCOUNTED {
                break;
            }
            let (uid, succeeded) = (object::uid(&pod.metadata), pods::phase(pod) == "Succeeded");
            let stopped = over && object::deleting(&pod.metadata);
            let failed = self.has_failed(pod) || (stopped && !self.succeeds());
            if stopped && !succeeded && !failed {
                self.out.actions.push(release(pod));
                continue;
            }
            let held = !over && indexes::of(pod).and_then(|i| self.held.get(&i)).is_some_and(|h| Arc::ptr_eq(h, pod));
            if !(succeeded || failed) || held {
                continue;
            }
            self.out.finished.push(Arc::clone(pod));
            if !self.in_range(pod) || (!succeeded && judge(&self.s.job, pod) == Verdict::Ignored) {
                self.out.actions.push(release(pod));
            } else if succeeded && self.indexed() {
                // Its index says all there is to count; the pod waits for the index to be stored.
            } else {
                let u = self.status.uncounted_terminated_pods.get_or_insert_default();
                let list = if succeeded { &mut u.succeeded } else { &mut u.failed };
                list.get_or_insert_default().push(uid.to_owned());
            }
        }
        if let Some(done) = &self.completed {
            self.status.completed_indexes = Some(done.to_string()).filter(|t| !t.is_empty());
            self.status.succeeded = Some(count(done.len())).filter(|n| *n > 0);
            // An empty set is written too: it tells that indexes are limited one by one.
            self.status.failed_indexes = self.failed.as_ref().map(IndexSet::to_string);
        }
    }

    /// The completed indexes of the stored status.
    fn stored_indexes(&self) -> IndexSet {
        let text = self.s.job.status.as_ref().and_then(|s| s.completed_indexes.as_deref());
        let text = text.filter(|_| self.indexed()).unwrap_or_default();
        IndexSet::parse(text, self.spec.completions.unwrap_or(0))
    }

    /// Pods that the stored status accounts for: their finalizer may go. So may those of a job being deleted.
    fn release_counted(&mut self) {
        let stored = self.s.job.status.clone().unwrap_or_default();
        let listed = stored.uncounted_terminated_pods.unwrap_or_default();
        let listed: HashSet<String> =
            listed.succeeded.into_iter().flatten().chain(listed.failed.into_iter().flatten()).collect();
        let done = self.stored_indexes();
        let dying = object::deleting(&self.s.job.metadata);
        let tracked: Vec<&Arc<Pod>> = self.s.pods.iter().filter(|p| self.tracked(p)).collect();
        for pod in tracked {
            let by_index = pods::phase(pod) == "Succeeded" && indexes::of(pod).is_some_and(|i| done.contains(i));
            if listed.contains(object::uid(&pod.metadata)) || by_index || dying {
                self.out.actions.push(release(pod));
            }
        }
    }

    /// All is over and counted: the final condition.
    fn conclude(&mut self, terminating: usize) {
        let u = self.status.uncounted_terminated_pods.as_ref();
        let waiting = u.is_some_and(|u| u.succeeded.is_some() || u.failed.is_some());
        let let_go = self.let_go();
        let stays = |p: &Pod| !let_go.contains(object::uid(&p.metadata));
        let unlisted = self.uncounted().any(|p| pods::finished(p) && self.in_range(p) && stays(p));
        if terminating > 0 || waiting || unlisted {
            return;
        }
        for (target, end) in [("FailureTarget", "Failed"), ("SuccessCriteriaMet", "Complete")] {
            let Some(why) = find(self.s.job.status.as_ref(), target).filter(|c| c.status == "True").cloned() else {
                continue;
            };
            let (reason, message) = (why.reason.unwrap_or_default(), why.message.unwrap_or_default());
            let c = self.fresh(end, "True", &reason, &message);
            self.status.conditions.get_or_insert_default().push(c);
            if end == "Complete" {
                self.status.completion_time = Some(object::seconds(self.now));
                if self.spec.completions.is_some_and(|c| self.status.succeeded.unwrap_or(0) > c) {
                    let message = "Too many succeeded pods running after completion count reached".into();
                    self.out.events.push(Action::warning(&self.about, "TooManySucceededPods", message));
                }
                self.out.events.push(Action::normal(&self.about, "Completed", "Job completed".into()));
            } else {
                let known = ["PodFailurePolicy", "DeadlineExceeded", "MaxFailedIndexesExceeded", "FailedIndexes"];
                let reason = known.into_iter().find(|k| *k == reason).unwrap_or("BackoffLimitExceeded");
                self.out.events.push(Action::warning(&self.about, reason, message));
            }
            return;
        }
    }

    /// The uids of pods whose finalizer is taken off.
    fn let_go(&self) -> HashSet<&str> {
        let patches = self.out.actions.iter().filter_map(|action| match action {
            Action::Patch { body, .. } => Some(body),
            _ => None,
        });
        patches.filter_map(|body| body["metadata"]["uid"].as_str()).collect()
    }
}

/// A number of pods as the API counts them.
pub(super) fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
