//! The loop every controller shares: take a key, work on it, put it back if that failed. Answers for upstream's
//! `processNextWorkItem`.

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use shared::run;
use shared::workqueue::Queue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::context::Context;
use super::executor::Outcome;
use super::rest::RestError;

/// Result of a sync: nothing more, again after a time, or an error (again with back-off).
pub type Synced = Result<Option<Duration>, RestError>;

impl From<Outcome> for Synced {
    fn from(outcome: Outcome) -> Self {
        match outcome.failure {
            Some(f) => Err(f.error),
            None => Ok(outcome.requeue),
        }
    }
}

/// Handle the keys of `queue` once the caches are filled, at most `workers` at a time, until the term of leadership
/// ends. A task lives as long as its key is handled, so an idle controller holds none.
pub fn run<T, S, F, Fut>(cx: &Context, name: &'static str, workers: usize, queue: &Queue<T>, state: &Arc<S>, sync: F)
where
    T: Clone + Eq + Hash + std::fmt::Debug + Send + Sync + 'static,
    S: Send + Sync + 'static,
    F: Fn(Arc<S>, T) -> Fut + Copy + Send + Sync + 'static,
    Fut: Future<Output = Synced> + Send + 'static,
{
    let (term, queue, state) = (cx.clone(), queue.clone(), Arc::clone(state));
    cx.spawn(name, async move {
        let free = Arc::new(Semaphore::new(workers));
        if term.factory().wait_synced().await {
            while let Some((permit, key)) = next(&term, &free, &queue).await {
                let (queue, state) = (queue.clone(), Arc::clone(&state));
                term.spawn(name, async move {
                    let work = async { sync(state, key.clone()).await };
                    finish(name, &queue, &key, contained(name, &key, work).await);
                    drop(permit);
                });
            }
        }
        queue.shut_down();
    });
}

/// The next key and the right to work on it; `None` at the end of the term.
async fn next<T>(term: &Context, free: &Arc<Semaphore>, queue: &Queue<T>) -> Option<(OwnedSemaphorePermit, T)>
where
    T: Clone + Eq + Hash + Send + Sync + 'static,
{
    tokio::select! {
        () = term.shutdown().wait() => None,
        next = async { Some((Arc::clone(free).acquire_owned().await.ok()?, queue.get().await?)) } => next,
    }
}

/// Work on a key whose panics belong to that key: it is tried again with back-off, and other keys go on. Answers for
/// `runtime.HandleCrash` in upstream's workers.
async fn contained<T: std::fmt::Debug>(name: &'static str, key: &T, work: impl Future<Output = Synced>) -> Synced {
    run::contained_async(work).await.unwrap_or_else(|panic| {
        tracing::error!(controller = name, ?key, %panic, "Observed a panic");
        Err(RestError::other(format!("observed a panic: {panic}")))
    })
}

fn finish<T>(name: &'static str, queue: &Queue<T>, key: &T, synced: Synced)
where
    T: Clone + Eq + Hash + std::fmt::Debug + Send + Sync + 'static,
{
    match synced {
        Ok(again) => {
            queue.forget(key);
            if let Some(after) = again {
                queue.add_after(key.clone(), after);
            }
        }
        Err(error) => {
            if error.conflict() {
                tracing::debug!(controller = name, ?key, %error, "retrying");
            } else {
                tracing::warn!(controller = name, ?key, %error, "sync failed, retrying");
            }
            queue.add_rate_limited(key.clone());
        }
    }
    queue.done(key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panics_fail_their_key_alone() {
        let failed = contained("test", &"ns/a", async { panic!("index out of bounds") }).await;
        assert_eq!(failed.expect_err("an error").to_string(), "observed a panic: index out of bounds");
        let fine = contained("test", &"ns/b", async { Ok(None) }).await;
        assert_eq!(fine.expect("no error"), None);
    }
}
