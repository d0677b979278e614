//! Runs pods to completion. Answers for upstream's `pkg/controller/job`.

pub mod backoff;
pub mod failure_policy;
pub mod finalizer;
pub mod indexes;
mod manage;
mod metrics;
pub mod per_index;
pub mod plan;
mod released;
pub mod success_policy;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use parking_lot::Mutex;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::backoff::BackoffRecord;
use self::plan::Snapshot;
use self::released::Released;
use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::expect::Expectations;
use crate::engine::object::{self, Key};
use crate::engine::owned::{self, Paced, PodWatch};
use crate::engine::pod::Pod;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct Jobs {
    executor: Executor,
    /// A suspended job loses its start time.
    forgets_start: bool,
    jobs: Store<Job>,
    pods: Store<Pod>,
    expectations: Arc<Expectations>,
    /// Failures of each job, with the uid of the job that had that name.
    failures: Mutex<HashMap<Key, (String, BackoffRecord)>>,
    released: Released,
}

fn selects(job: &Job, pod: &Pod) -> bool {
    let selector = job.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| object::selects(s, pod.metadata.labels.as_deref()))
}

/// Wire the Job controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (jobs, pods) = (cx.owned::<Job>(), cx.pods());
        let (base, most) = (Duration::from_secs(1), Duration::from_mins(1));
        let queue: Queue<Key> = Queue::with_backoff("job", base, most);
        let orphans: Queue<Key> = Queue::with_backoff("job_orphan_pod", base, most);
        let expectations = Arc::new(Expectations::default());
        let this = Arc::new(Jobs {
            executor: cx.executor("job-controller", "job-controller"),
            forgets_start: cx.gate("MutableSchedulingDirectivesForSuspendedJobs"),
            jobs: jobs.store(),
            pods: pods.store(),
            expectations: Arc::clone(&expectations),
            failures: Mutex::default(),
            released: Released::default(),
        });
        let (wake, watcher, lost) = (queue.clone(), Arc::clone(&this), orphans.clone());
        jobs.add_handler(move |event: &Event<Job>| {
            let job = event.object();
            wake.add(Key::of(&job.metadata));
            if let (Event::Added(_), Some(by)) = (event, plan::managed_elsewhere(job)) {
                crate::engine::metrics::count("job_controller_jobs_by_external_controller_total", &[by]);
            }
            if plan::finished(job) || matches!(event, Event::Deleted(_)) {
                // Pods that outlived their job would otherwise never lose its finalizer.
                for pod in watcher.pods.by_index(crate::engine::indices::BY_CONTROLLER, object::uid(&job.metadata)) {
                    if finalizer::tracked(&pod) {
                        lost.add(Key::of(&pod.metadata));
                    }
                }
            }
        });
        let (watcher, lost) = (Arc::clone(&this), orphans.clone());
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = event.object();
            match event {
                Event::Added(new) => metrics::tracking(None, new),
                Event::Updated { old, new } => metrics::tracking(Some(old), new),
                Event::Deleted(_) => {}
            }
            if !matches!(event, Event::Deleted(_)) && finalizer::tracked(pod) && watcher.unowned(pod) {
                lost.add(Key::of(&pod.metadata));
            }
        });
        PodWatch { sets: cx.selectors(), paced: Paced::new(&queue), expectations, selects }.listen(&pods);
        worker::run(cx, "job", cx.settings().workers.job, &queue, &this, |s, key| async move { s.sync(&key).await });
        worker::run(cx, "job", 1, &orphans, &this, |s, key| async move { s.sync_orphan(&key).await });
        Ok(Started::Yes)
    })
}

impl Jobs {
    /// Reports whether no running job looks after a tracked pod.
    fn unowned(&self, pod: &Pod) -> bool {
        let owner = object::controller_of(&pod.metadata);
        let job = owner.and_then(|r| owned::resolve(&self.jobs, object::namespace(&pod.metadata), r));
        finalizer::abandoned(pod, job.as_deref())
    }

    async fn sync_orphan(&self, key: &Key) -> Synced {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(None) };
        if !finalizer::tracked(&pod) || !self.unowned(&pod) {
            return Ok(None);
        }
        match self.executor.one(finalizer::release(&pod)).await {
            Err(e) if e.not_found() || e.invalid() || e.conflict() => Ok(None),
            other => other.map(|()| None),
        }
    }

    async fn sync(&self, key: &Key) -> Synced {
        let Some(job) = self.jobs.get(&key.namespace, &key.name) else {
            self.expectations.forget(key);
            self.failures.lock().remove(key);
            self.released.forget(key);
            return Ok(None);
        };
        let uid = object::uid(&job.metadata).to_owned();
        if let Some(by) = plan::managed_elsewhere(&job) {
            tracing::trace!(%key, by, "the job is another controller's");
            return Ok(None);
        }
        if plan::finished(&job) {
            self.failures.lock().remove(key);
            return Ok(None);
        }
        let unmet = self.expectations.of(key, &uid).unmet(clock::instant());
        let candidates = owned::candidates(&self.pods, &key.namespace, &uid);
        let selects = |p: &Pod| selects(&job, p);
        let pods =
            owned::settle_with(&self.executor.rest, &*job, selects, candidates, Some(finalizer::FINALIZER)).await?;
        let pods: Vec<Arc<Pod>> = pods.into_iter().map(finalizer::as_adopted).collect();
        let now = clock::now();
        let record = self.failures.lock().get(key).filter(|(of, _)| *of == uid).map(|(_, record)| *record);
        let record = record.unwrap_or_default();
        let released = self.released.still_shown(key, &pods);
        let backoff = record.remaining(now);
        let (settled, forgets_start) = (unmet.is_none(), self.forgets_start);
        let first = Snapshot { job, pods, released, settled, backoff, forgets_start };
        let decision = plan::plan(&first, now);
        let (job, decision, record) = if decision.finished.is_empty() {
            (first.job, decision, record)
        } else {
            // What just failed delays its own replacement.
            let record = record.with(decision.finished.iter().map(AsRef::as_ref));
            let again = Snapshot { backoff: record.remaining(now), ..first };
            let decision = plan::plan(&again, now);
            (again.job, decision, record)
        };
        let (started, did) = (clock::instant(), decision.did);
        let synced = self.carry_out(key, &job, decision, (uid, record)).await;
        metrics::synced(&job, did, synced.is_ok(), started);
        synced.map(|again| [again, unmet].into_iter().flatten().min())
    }

    async fn carry_out(
        &self,
        key: &Key,
        job: &Job,
        decision: plan::JobDecision,
        (uid, record): (String, BackoffRecord),
    ) -> Synced {
        let (letting_go, rest): (Vec<Action>, Vec<Action>) =
            decision.actions.into_iter().partition(|a| matches!(a, Action::Patch { .. }));
        for action in letting_go {
            let pod = match &action {
                Action::Patch { body, .. } => body["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
                _ => String::new(),
            };
            self.released.begin(key, &pod);
            if let Err(e) = self.executor.one(action).await {
                self.released.failed(key, &pod);
                // The watch tells that it is gone, or has told already.
                if !e.not_found() {
                    return Err(e);
                }
            }
        }
        let wanted = rest.iter().filter(|a| matches!(a, Action::CreatePod { .. })).count();
        let outcome = self.executor.run(key, Some(&self.expectations), rest).await;
        let made = wanted.saturating_sub(outcome.uncreated);
        metrics::created(job, decision.status.as_ref(), made, outcome.uncreated);
        if let Some(mut status) = decision.status {
            if outcome.uncreated > 0 {
                status.active = status.active.map(|n| n - plan::count(outcome.uncreated)).filter(|n| *n > 0);
            }
            let copy = Job { status: Some(status.clone()), ..job.clone() };
            // Counters must build on what is stored: on a conflict everything is decided anew.
            let Action::Update { path, body } = Action::update_status(&copy) else { return Ok(None) };
            self.executor.rest.put(&path, &body).await?;
            metrics::stored(job, &status);
            metrics::judged(job, &decision.finished);
            for event in decision.events {
                self.executor.one(event).await?;
            }
        }
        if !decision.finished.is_empty() {
            self.failures.lock().insert(key.clone(), (uid, record));
        }
        outcome.into()
    }
}
