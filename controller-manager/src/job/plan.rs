//! Run pods to completion. A pod is counted exactly once: its finalizer keeps it until the count is stored.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, ObjectReference, Pod};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::failure_policy::{Verdict, judge};
use super::indexes;
use crate::engine::action::{Action, PatchKind};
use crate::engine::{object, pods};

/// Keeps a pod until its end is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// No more than this many creations or deletions in one go.
const BURST: i32 = 500;
/// No more than this many pods wait to be counted at once.
const UNCOUNTED: usize = 500;

/// What the decision rests on.
#[derive(Debug)]
pub struct Snapshot {
    /// The job.
    pub job: Arc<Job>,
    /// The pods it owns.
    pub pods: Vec<Arc<Pod>>,
    /// Pods whose finalizer was taken off although the cache still shows it.
    pub released: HashSet<String>,
    /// Whether earlier creations and deletions have been seen.
    pub settled: bool,
    /// How long new pods have to wait because of earlier failures.
    pub backoff: Duration,
}

/// What to do, and the status to store after it.
#[derive(Debug, Default)]
pub struct Decision {
    /// Writes other than the status.
    pub actions: Vec<Action>,
    /// The status to store, if it changed.
    pub status: Option<JobStatus>,
    /// Pods that finished and are counted for the first time.
    pub finished: Vec<Arc<Pod>>,
    /// Events that belong to the stored status: only when it is stored are they true.
    pub events: Vec<Action>,
}

/// Whether the job has come to its end.
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

/// Whether the pod still carries the finalizer.
#[must_use]
pub fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

/// Take the finalizer off a pod.
#[must_use]
pub fn release(pod: &Pod) -> Action {
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER], "uid": pod.metadata.uid}});
    Action::patch::<Pod>(&pod.metadata, PatchKind::Strategic, patch)
}

/// Decide.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Decision {
    let Some(spec) = s.job.spec.as_ref() else { return Decision::default() };
    let managed_elsewhere = spec.managed_by.as_deref().is_some_and(|m| m != "kubernetes.io/job-controller");
    if managed_elsewhere || finished(&s.job) {
        return Decision::default();
    }
    Round::new(s, spec, now).run()
}

struct Round<'a> {
    s: &'a Snapshot,
    spec: &'a JobSpec,
    now: Timestamp,
    about: ObjectReference,
    status: JobStatus,
    out: Decision,
    /// Uids in the stored status that are not in the counters yet.
    counting: HashSet<String>,
    again: Option<Duration>,
}

impl<'a> Round<'a> {
    fn new(s: &'a Snapshot, spec: &'a JobSpec, now: Timestamp) -> Self {
        let status = s.job.status.clone().unwrap_or_default();
        let about = object::reference::<Job>(&s.job.metadata);
        Self { s, spec, now, about, status, out: Decision::default(), counting: HashSet::new(), again: None }
    }

    fn tracked(&self, pod: &Pod) -> bool {
        tracked(pod) && !self.s.released.contains(object::uid(&pod.metadata))
    }

    /// Terminating pods count as failed, unless only failed ones are to be replaced: then their end is waited for.
    fn failed(&self, pod: &Pod) -> bool {
        if pods::phase(pod) == "Failed" {
            return true;
        }
        let wait =
            self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some();
        !wait && object::deleting(&pod.metadata) && pods::phase(pod) != "Succeeded"
    }

    fn run(mut self) -> Decision {
        self.count_released();
        let suspended = self.spec.suspend == Some(true);
        if self.status.start_time.is_none() && !suspended {
            self.status.start_time = Some(object::seconds(self.now));
        }
        let fails_job = self.note_ended();
        let active: Vec<&Arc<Pod>> = self.s.pods.iter().filter(|p| pods::active(p)).collect();
        let ready = active.iter().filter(|p| pods::ready(p)).count();
        let terminating = self.s.pods.iter().filter(|p| pods::terminating(p)).count();
        let (succeeded, failed) = self.totals();
        self.judge_failure(fails_job, failed);
        let mut running = i32::try_from(active.len()).unwrap_or(i32::MAX);
        let target =
            condition(Some(&self.status), "FailureTarget") || condition(Some(&self.status), "SuccessCriteriaMet");
        if target {
            self.delete(&active, active.len());
            running = 0;
        } else if self.s.settled && !object::deleting(&self.s.job.metadata) {
            running = self.manage(&active, running, terminating, succeeded, suspended);
            let enough = self.spec.completions.map_or(succeeded > 0, |c| succeeded >= c);
            if enough && running == 0 && !suspended || (self.spec.completions == Some(0)) {
                self.target("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods");
            }
        }
        self.suspension(suspended);
        self.status.active = Some(running).filter(|n| *n > 0);
        self.status.ready = Some(i32::try_from(ready).unwrap_or(0));
        self.status.terminating = Some(i32::try_from(terminating).unwrap_or(0));
        self.release_counted();
        if running == 0 && active.is_empty() {
            self.conclude(terminating);
        }
        let status = Some(self.status).filter(|n| self.s.job.status.as_ref() != Some(n));
        self.out.actions.extend(self.again.map(Action::RequeueAfter));
        Decision { status, ..self.out }
    }

    /// Pods in the stored list whose finalizer is gone: into the counters.
    fn count_released(&mut self) {
        let uncounted = self.status.uncounted_terminated_pods.take().unwrap_or_default();
        let still: HashSet<&str> =
            self.s.pods.iter().filter(|p| self.tracked(p)).map(|p| object::uid(&p.metadata)).collect();
        let (s_keep, s_done): (Vec<_>, Vec<_>) =
            uncounted.succeeded.unwrap_or_default().into_iter().partition(|u| still.contains(u.as_str()));
        let (f_keep, f_done): (Vec<_>, Vec<_>) =
            uncounted.failed.unwrap_or_default().into_iter().partition(|u| still.contains(u.as_str()));
        let add = |n: &mut Option<i32>, by: usize| {
            let total = n.unwrap_or(0) + i32::try_from(by).unwrap_or(0);
            *n = Some(total).filter(|t| *t > 0);
        };
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

    /// Pods that ended since the last look: into the list of those to count. Returns why the job fails, if it does.
    fn note_ended(&mut self) -> Option<String> {
        let mut fails_job = None;
        let mut indexes = self.completed_indexes();
        let completions = self.spec.completions.unwrap_or(0);
        let dying =
            condition(Some(&self.status), "FailureTarget") || condition(Some(&self.status), "SuccessCriteriaMet");
        for pod in &self.s.pods {
            let uid = object::uid(&pod.metadata);
            if !self.tracked(pod) || self.counting.contains(uid) {
                continue;
            }
            if self.counting.len() >= UNCOUNTED {
                break;
            }
            let succeeded = pods::phase(pod) == "Succeeded";
            let failed = self.failed(pod) || (dying && object::deleting(&pod.metadata) && !succeeded);
            if succeeded {
                if let Some(set) = indexes.as_mut() {
                    // Only the first success of an index counts; later ones are let go as they are.
                    if indexes::of(pod).is_none_or(|i| i >= completions || !set.insert(i)) {
                        self.out.actions.push(release(pod));
                        continue;
                    }
                }
                self.list(|u| &mut u.succeeded, uid);
            } else if failed {
                match judge(&self.s.job, pod) {
                    Verdict::Ignored if pods::phase(pod) == "Failed" => {
                        self.out.actions.push(release(pod));
                        continue;
                    }
                    Verdict::FailsJob(why) => {
                        fails_job.get_or_insert(why);
                    }
                    _ => {}
                }
                self.list(|u| &mut u.failed, uid);
            } else {
                continue;
            }
            self.out.finished.push(Arc::clone(pod));
        }
        if let Some(set) = indexes {
            self.status.completed_indexes = Some(indexes::format(&set)).filter(|t| !t.is_empty());
            self.status.succeeded = i32::try_from(set.len()).ok().filter(|n| *n > 0);
        }
        fails_job
    }

    fn list(&mut self, which: impl Fn(&mut UncountedTerminatedPods) -> &mut Option<Vec<String>>, uid: &str) {
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        which(uncounted).get_or_insert_default().push(uid.to_owned());
    }

    fn completed_indexes(&self) -> Option<BTreeSet<i32>> {
        indexes::indexed(&self.s.job).then(|| {
            indexes::parse(
                self.status.completed_indexes.as_deref().unwrap_or_default(),
                self.spec.completions.unwrap_or(0),
            )
        })
    }

    /// Successes and failures, counted or about to be.
    fn totals(&self) -> (i32, i32) {
        let u = self.status.uncounted_terminated_pods.as_ref();
        let len = |v: Option<&Vec<String>>| v.map_or(0, |v| i32::try_from(v.len()).unwrap_or(i32::MAX));
        let waiting = if indexes::indexed(&self.s.job) { 0 } else { len(u.and_then(|u| u.succeeded.as_ref())) };
        (
            self.status.succeeded.unwrap_or(0) + waiting,
            self.status.failed.unwrap_or(0) + len(u.and_then(|u| u.failed.as_ref())),
        )
    }

    fn judge_failure(&mut self, fails_job: Option<String>, failed: i32) {
        if condition(Some(&self.status), "FailureTarget") || condition(Some(&self.status), "SuccessCriteriaMet") {
            return;
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if let Some(why) = fails_job {
            self.target("FailureTarget", "PodFailurePolicy", &why);
        } else if failed > limit || self.restarted_too_often(limit) {
            self.target("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit");
        } else if let Some(left) = self.deadline() {
            if left.is_zero() {
                self.target("FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline");
            } else {
                self.look_again(left);
            }
        }
    }

    fn restarted_too_often(&self, limit: i32) -> bool {
        let on_failure =
            self.spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
        if !on_failure {
            return false;
        }
        let running = self.s.pods.iter().filter(|p| matches!(pods::phase(p), "Running" | "Pending"));
        let restarts: i32 = running
            .flat_map(|p| p.status.iter())
            .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()))
            .map(|c| c.restart_count)
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn deadline(&self) -> Option<Duration> {
        let limit = self.spec.active_deadline_seconds?;
        if self.spec.suspend == Some(true) {
            return None;
        }
        let start = self.status.start_time.as_ref()?.0;
        let left = start.as_second() + limit - self.now.as_second();
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }

    fn look_again(&mut self, after: Duration) {
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

    /// Create what is missing and delete what is too much; how many are active then.
    fn manage(
        &mut self,
        active: &[&Arc<Pod>],
        running: i32,
        terminating: usize,
        succeeded: i32,
        suspended: bool,
    ) -> i32 {
        if suspended {
            self.delete(active, active.len());
            return 0;
        }
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0);
        let want = match self.spec.completions {
            None if succeeded > 0 => running.min(parallelism),
            None => parallelism,
            Some(c) => (c - succeeded).max(0).min(parallelism),
        };
        if running > want {
            let surplus = (running - want).min(BURST);
            self.delete(active, usize::try_from(surplus).unwrap_or(0));
            return running - surplus;
        }
        let waits =
            self.spec.pod_replacement_policy.as_deref() == Some("Failed") || self.spec.pod_failure_policy.is_some();
        let busy = if waits { i32::try_from(terminating).unwrap_or(0) } else { 0 };
        let missing = (want - running - busy).min(BURST);
        if missing <= 0 {
            return running;
        }
        if !self.s.backoff.is_zero() {
            self.look_again(self.s.backoff);
            return running;
        }
        running + self.create(missing, active)
    }

    fn create(&mut self, missing: i32, active: &[&Arc<Pod>]) -> i32 {
        let owner = object::controller_ref::<Job>(&self.s.job.metadata);
        let namespace = object::namespace(&self.s.job.metadata);
        let mut base = pods::from_template(&self.spec.template, namespace, &owner);
        base.metadata.finalizers.get_or_insert_default().push(FINALIZER.into());
        let mut made = 0;
        let push = |actions: &mut Vec<Action>, pod: Pod, about: &ObjectReference| {
            actions.push(Action::CreatePod { pod: Box::new(pod), parent: about.clone() });
        };
        let Some(done) = self.completed_indexes() else {
            for _ in 0..missing {
                push(&mut self.out.actions, base.clone(), &self.about);
                made += 1;
            }
            return made;
        };
        let mut taken: BTreeSet<i32> = active.iter().filter_map(|p| indexes::of(p)).collect();
        if self.spec.pod_replacement_policy.as_deref() == Some("Failed") {
            taken.extend(self.s.pods.iter().filter(|p| pods::terminating(p)).filter_map(|p| indexes::of(p)));
        }
        for index in 0..self.spec.completions.unwrap_or(0) {
            if made >= missing {
                break;
            }
            if done.contains(&index) || taken.contains(&index) {
                continue;
            }
            push(&mut self.out.actions, with_index(&base, object::name(&self.s.job.metadata), index), &self.about);
            made += 1;
        }
        made
    }

    /// Delete up to `count` active pods: those least advanced first, doubles of an index before others.
    fn delete(&mut self, active: &[&Arc<Pod>], count: usize) {
        let mut order: Vec<&Arc<Pod>> = active.to_vec();
        let crowding = std::collections::HashMap::new();
        order.sort_by(|a, b| pods::deletion_order(a, b, &crowding, self.now));
        for pod in order.into_iter().take(count) {
            self.out.actions.push(Action::DeletePod {
                namespace: object::namespace(&pod.metadata).to_owned(),
                name: object::name(&pod.metadata).to_owned(),
                uid: object::uid(&pod.metadata).to_owned(),
                parent: self.about.clone(),
            });
        }
    }

    fn suspension(&mut self, suspended: bool) {
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
        // The clock of the deadline starts anew.
        self.status.start_time = if suspended { None } else { Some(object::seconds(self.now)) };
    }

    /// Pods that the stored status lists: their finalizer may go. So may those of a job being deleted.
    fn release_counted(&mut self) {
        let stored = self.s.job.status.as_ref().and_then(|s| s.uncounted_terminated_pods.clone()).unwrap_or_default();
        let stored: HashSet<String> =
            stored.succeeded.into_iter().flatten().chain(stored.failed.into_iter().flatten()).collect();
        let dying = object::deleting(&self.s.job.metadata);
        for pod in &self.s.pods {
            let listed = stored.contains(object::uid(&pod.metadata));
            if self.tracked(pod) && (listed || (dying && object::deleting(&pod.metadata))) {
                self.out.actions.push(release(pod));
            }
        }
    }

    /// All is over and counted: the final condition.
    fn conclude(&mut self, terminating: usize) {
        let u = self.status.uncounted_terminated_pods.as_ref();
        let waiting = u.is_some_and(|u| u.succeeded.is_some() || u.failed.is_some());
        if terminating > 0 || waiting {
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
                self.out.events.push(Action::normal(&self.about, "Completed", "Job completed".into()));
            } else {
                let reason = match reason.as_str() {
                    "PodFailurePolicy" => "PodFailurePolicy",
                    "DeadlineExceeded" => "DeadlineExceeded",
                    _ => "BackoffLimitExceeded",
                };
                self.out.events.push(Action::warning(&self.about, reason, message));
            }
            return;
        }
    }
}

/// The pod of one completion index: it learns its index from a label, an annotation, its name and its environment.
fn with_index(base: &Pod, job: &str, index: i32) -> Pod {
    let mut pod = base.clone();
    pod.metadata.generate_name = Some(format!("{job}-{index}-"));
    pod.metadata.annotations.get_or_insert_default().insert(indexes::INDEX.into(), index.to_string());
    pod.metadata.labels.get_or_insert_default().insert(indexes::INDEX.into(), index.to_string());
    if let Some(spec) = pod.spec.as_mut() {
        spec.hostname = Some(format!("{job}-{index}"));
        let variable = EnvVar {
            name: "JOB_COMPLETION_INDEX".into(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: format!("metadata.labels['{}']", indexes::INDEX),
                    api_version: None,
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        };
        for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            let env = c.env.get_or_insert_default();
            if !env.iter().any(|e| e.name == variable.name) {
                env.push(variable.clone());
            }
        }
    }
    pod
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
