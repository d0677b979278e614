//! Starts jobs by the clock.

pub mod plan;
pub mod schedule;

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::Resource as _;
use shared::informer::Store;
use shared::types::from_tree;
use shared::workqueue::Queue;

use self::plan::Snapshot;
use crate::engine::action::{Action, join};
use crate::engine::clock;
use crate::engine::context::{BY_CONTROLLER, Context};
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::owned;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

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
        owned::watch(&crons, &queue);
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
        if let Some(f) = self.executor.run(key, None, decision.actions).await.failure {
            return Err(f.error);
        }
        if let Some((job, due)) = decision.start {
            let name = object::name(&job.metadata).to_owned();
            let made = match self.create(&job).await {
                Ok(made) => made,
                Err(e) if e.namespace_terminating() => return Ok(decision.again),
                Err(e) if e.already_exists() => {
                    // Started before its status could be stored, or another's job: either way it is not started again.
                    let there =
                        self.executor.rest.get(&crate::engine::action::object_path::<Job>(&job.metadata)).await?;
                    let there: Job = from_tree(&there).map_err(RestError::other)?;
                    let ours = object::controller_of(&there.metadata)
                        .is_some_and(|r| Some(&r.uid) == snapshot.cron.metadata.uid.as_ref());
                    if !ours {
                        return Ok(decision.again);
                    }
                    there
                }
                Err(e) => {
                    let text = format!("Error creating job: {e}");
                    self.executor.events.say(&about, true, "FailedCreate", text);
                    return Err(e);
                }
            };
            self.executor.events.say(&about, false, "SuccessfulCreate", format!("Created job {name}"));
            status.active.get_or_insert_default().push(plan::active_reference(&made));
            status.last_schedule_time = Some(object::seconds(due));
            let skew = clock::now().duration_since(due).as_secs_f64();
            metrics::observe("cronjob_controller_job_creation_skew_duration_seconds", &[], skew);
        }
        if snapshot.cron.status.as_ref() != Some(&status)
            && (snapshot.cron.status.is_some() || status != Default::default())
        {
            let mut copy = CronJob::clone(&snapshot.cron);
            copy.status = Some(status);
            self.executor.one(Action::update_status(&copy)).await?;
        }
        Ok(decision.again)
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
