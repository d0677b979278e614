//! Starts jobs by the clock. Answers for upstream's `pkg/controller/cronjob` (`ControllerV2`).

pub mod missed;
pub mod plan;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use shared::informer::{Event, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::plan::Snapshot;
use crate::engine::action::{Action, join, object_path};
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::indices::BY_CONTROLLER;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

/// Time for which past jobs that could not be deleted are left alone.
const KEPT_FOR: Duration = Duration::from_secs(30);

struct CronJobs {
    executor: Executor,
    crons: Store<CronJob>,
    jobs: Store<Job>,
}

/// Wire the CronJob controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (crons, jobs) = (cx.informer::<CronJob>(), cx.owned::<Job>());
        let queue: Queue<Key> = Queue::new("cronjob");
        let this = Arc::new(CronJobs {
            executor: cx.executor("cronjob-controller", "cronjob-controller"),
            crons: crons.store(),
            jobs: jobs.store(),
        });
        let wake = queue.clone();
        crons.add_handler(move |event: &Event<CronJob>| {
            let key = Key::of(&event.object().metadata);
            match event {
                Event::Updated { old, new } => match plan::look_at(old, new, &TimeZone::system(), clock::now()) {
                    Some(after) if !after.is_zero() => wake.add_after(key, after),
                    Some(_) => wake.add(key),
                    None => {}
                },
                _ => wake.add(key),
            }
        });
        owned::watch_children(&jobs, cx.selectors(), queue.clone(), |_: &CronJob, _: &Job| false);
        worker::run(cx, "cronjob", cx.settings().workers.cron_job, &queue, &this, |s, key| async move {
            s.sync(&key).await
        });
        Ok(Started::Yes)
    })
}

impl CronJobs {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(cron) = self.crons.get(&key.namespace, &key.name) else { return Ok(None) };
        let mut jobs = self.jobs.by_index(BY_CONTROLLER, object::uid(&cron.metadata));
        jobs.extend(self.unseen(&cron, &jobs).await?);
        jobs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let snapshot = Snapshot { cron, jobs, local: TimeZone::system() };
        let decision = plan::plan(&snapshot, clock::now());
        let about = object::reference::<CronJob>(&snapshot.cron.metadata);
        let mut status = decision.status;
        self.carry_out(&about, decision.actions).await?;
        let mut started = Ok(());
        if let Some((job, due)) = decision.start {
            match self.start(&about, &snapshot.cron, &job, due).await {
                Ok(None) => {}
                Ok(Some(made)) => {
                    status.active.get_or_insert_default().push(plan::active_reference(&made));
                    status.last_schedule_time = Some(object::seconds(due));
                }
                Err(e) => started = Err(e),
            }
        }
        // What became of other jobs is written down although this one could not be started.
        let kept = self.carry_out(&about, decision.past).await.is_err();
        if snapshot.cron.status.as_ref() != Some(&status)
            && (snapshot.cron.status.is_some() || status != Default::default())
        {
            let mut copy = CronJob::clone(&snapshot.cron);
            copy.status = Some(status);
            self.executor.one(Action::update_status(&copy)).await?;
        }
        let again = decision.again.into_iter().chain(kept.then_some(KEPT_FOR)).min();
        started.map(|()| again)
    }

    /// Deletions and what is said of them.
    async fn carry_out(&self, about: &ObjectReference, actions: Vec<Action>) -> Result<(), RestError> {
        let (mut failure, mut skip) = (None, false);
        for action in actions {
            let deletes = matches!(action, Action::Delete { .. });
            if !deletes && std::mem::take(&mut skip) {
                continue;
            }
            let Err(e) = self.executor.one(action).await else { continue };
            skip = deletes;
            self.executor.events.say(about, true, "FailedDelete", format!("Deleted job: {e}"));
            failure.get_or_insert(e);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Start a job. None when its name is that of somebody else's, or its namespace goes.
    async fn start(
        &self,
        about: &ObjectReference,
        cron: &CronJob,
        job: &Job,
        due: Timestamp,
    ) -> Result<Option<Job>, RestError> {
        match self.create(job).await {
            Ok(made) => {
                let text = format!("Created job {}", object::name(&made.metadata));
                self.executor.events.say(about, false, "SuccessfulCreate", text);
                let skew = object::created(&made.metadata).duration_since(due).as_secs_f64();
                metrics::observe("cronjob_controller_job_creation_skew_duration_seconds", &[], skew);
                Ok(Some(made))
            }
            Err(e) if e.namespace_terminating() => Ok(None),
            Err(e) if e.already_exists() => {
                // Started before its status could be stored, or another's job: either way it is not started again.
                let there = self.executor.rest.get(&object_path::<Job>(&job.metadata)).await?;
                let there: Job = from_tree(&there).map_err(RestError::other)?;
                let owner = object::controller_of(&there.metadata).map(|r| &r.uid);
                Ok(Some(there.clone()).filter(|_| owner == cron.metadata.uid.as_ref() && owner.is_some()))
            }
            Err(e) => {
                self.executor.events.say(about, true, "FailedCreate", format!("Error creating job: {e}"));
                Err(e)
            }
        }
    }

    /// Active jobs that the cache does not show: one that was just started is not missing.
    async fn unseen(&self, cron: &CronJob, jobs: &[Arc<Job>]) -> Result<Vec<Arc<Job>>, RestError> {
        let mut found = Vec::new();
        for name in plan::unknown(cron, jobs) {
            let path = join(&Job::url_path(&(), cron.metadata.namespace.as_deref()), name);
            match self.executor.rest.get(&path).await {
                Ok(live) => found.push(Arc::new(from_tree(&live).map_err(RestError::other)?)),
                Err(e) if e.not_found() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    async fn create(&self, job: &Job) -> Result<Job, RestError> {
        let Action::Create { path, body } = Action::create(job) else { return Err(RestError::other("not a creation")) };
        from_tree(&self.executor.rest.post_whole(&path, &body).await?).map_err(RestError::other)
    }
}
