//! The loop every controller shares: take a key, work on it, put it back if that failed.

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use shared::workqueue::Queue;

use super::context::Context;
use super::executor::Outcome;
use super::rest::RestError;

/// What a look at a key came to: nothing more, again after a time, or an error (again with back-off).
pub type Synced = Result<Option<Duration>, RestError>;

impl From<Outcome> for Synced {
    fn from(outcome: Outcome) -> Self {
        match outcome.failure {
            Some(f) => Err(f.error),
            None => Ok(outcome.requeue),
        }
    }
}

/// Start `workers` loops over `queue` once the caches are filled; they end with the term of leadership.
pub fn run<T, S, F, Fut>(cx: &Context, name: &'static str, workers: usize, queue: &Queue<T>, state: &Arc<S>, sync: F)
where
    T: Clone + Eq + Hash + std::fmt::Debug + Send + Sync + 'static,
    S: Send + Sync + 'static,
    F: Fn(Arc<S>, T) -> Fut + Copy + Send + Sync + 'static,
    Fut: Future<Output = Synced> + Send + 'static,
{
    for _ in 0..workers {
        let (cx2, queue, state) = (cx.clone(), queue.clone(), Arc::clone(state));
        cx.spawn(name, async move {
            if !cx2.factory().wait_synced().await {
                return;
            }
            while let Some(key) = queue.get().await {
                match sync(Arc::clone(&state), key.clone()).await {
                    Ok(again) => {
                        queue.forget(&key);
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
                queue.done(&key);
            }
        });
    }
    let (cx2, queue) = (cx.clone(), queue.clone());
    cx.spawn(name, async move {
        cx2.shutdown().wait().await;
        queue.shut_down();
    });
}
