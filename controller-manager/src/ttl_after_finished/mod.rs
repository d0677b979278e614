//! Deletes finished jobs when their time is over. Answers for upstream's `pkg/controller/ttlafterfinished`.
//!
//! In: jobs. Out: jobs deleted with what they own. The server is asked once more before one goes, for its time may have
//! been changed.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use shared::informer::{Event, Store};
use shared::types::from_tree;
use shared::workqueue::Queue;

use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::metrics;
use crate::engine::object::{self, Key};
use crate::engine::registry::Started;
use crate::engine::rest::RestError;
use crate::engine::worker::{self, Synced};

struct Expired {
    executor: Executor,
    jobs: Store<Job>,
}

/// Wire the TTL-after-finished controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let jobs = cx.owned::<Job>();
        let queue: Queue<Key> = Queue::new("ttl_jobs_to_delete");
        let this = Arc::new(Expired {
            executor: cx.executor("ttl-after-finished-controller", "ttl-after-finished-controller"),
            jobs: jobs.store(),
        });
        let wake = queue.clone();
        jobs.add_handler(move |event: &Event<Job>| {
            let job = event.object();
            if !matches!(event, Event::Deleted(_)) && left(job, clock::now()).is_some() {
                wake.add(Key::of(&job.metadata));
            }
        });
        worker::run(
            cx,
            "ttl-after-finished",
            cx.settings().workers.ttl_after_finished,
            &queue,
            &this,
            |s, key| async move { s.sync(&key).await },
        );
        Ok(Started::Yes)
    })
}

/// Returns when a finished job with a time to live expires; None when it does not.
fn due(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if object::deleting(&job.metadata) {
        return None;
    }
    let ended = job
        .status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")?;
    let at = ended.last_transition_time.as_ref()?.0.as_second() + i64::from(ttl);
    Timestamp::from_second(at).ok()
}

/// Returns the time that a finished job with a time to live has left; None when it does not expire.
#[must_use]
pub fn left(job: &Job, now: Timestamp) -> Option<Duration> {
    let due = due(job)?;
    Some(Duration::from_secs(u64::try_from(due.as_second() - now.as_second()).unwrap_or(0)))
}

impl Expired {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(job) = self.jobs.get(&key.namespace, &key.name) else { return Ok(None) };
        match left(&job, clock::now()) {
            None => return Ok(None),
            Some(d) if !d.is_zero() => return Ok(Some(d)),
            Some(_) => {}
        }
        // The cache may be old: the time to live could have been prolonged.
        let live = match self.executor.rest.get(&crate::engine::action::object_path::<Job>(&job.metadata)).await {
            Err(e) if e.not_found() => return Ok(None),
            other => other?,
        };
        let live: Job = from_tree(&live).map_err(RestError::other)?;
        match left(&live, clock::now()) {
            None => Ok(None),
            Some(d) if !d.is_zero() => Ok(Some(d)),
            Some(_) => {
                let options = json!({"propagationPolicy": "Foreground", "preconditions": {"uid": live.metadata.uid}});
                self.executor.one(Action::delete_with::<Job>(&live.metadata, options)).await?;
                if let Some(due) = due(&live) {
                    let late = clock::now().duration_since(due).as_secs_f64();
                    metrics::observe("ttl_after_finished_controller_job_deletion_duration_seconds", &[], late);
                }
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left() {
        let now = "2026-01-01T00:01:00Z".parse().expect("time");
        for (ttl, kind, want) in [
            (Some(90), "Complete", Some(30)),
            (Some(0), "Failed", Some(0)),
            (Some(90), "Suspended", None),
            (None, "Complete", None),
        ] {
            let job: Job = serde_json::from_value(json!({"spec": {"template": {}, "ttlSecondsAfterFinished": ttl},
                "status": {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
            .expect("job");
            assert_eq!(left(&job, now), want.map(Duration::from_secs), "{ttl:?} {kind}");
        }
    }
}
