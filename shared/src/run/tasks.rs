//! Named tasks that are waited for at the end. Nothing in this product is spawned outside such a group.
//!
//! A task that panics ends the process, as an unrecovered panic of a goroutine does upstream: whoever watches over the
//! process starts it again, where it would otherwise go on without that task.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::TaskTracker;

use super::Shutdown;
use super::watchdog::Watched;

#[derive(Default)]
struct GroupState {
    tracker: TaskTracker,
    next: AtomicU64,
    running: Mutex<HashMap<u64, (&'static str, Option<AbortHandle>)>>,
}

/// A group of tasks. Cheap to clone.
#[derive(Clone, Default)]
pub struct TaskGroup(Arc<GroupState>);

/// Exit code of Go programs that panic.
const PANICKED: i32 = 2;

struct Leaving(Arc<GroupState>, u64);

impl Drop for Leaving {
    fn drop(&mut self) {
        let left = self.0.running.lock().remove(&self.1);
        if std::thread::panicking() {
            let task = left.map_or("", |(name, _)| name);
            tracing::error!(task, "Task panicked, exiting");
            std::process::exit(PANICKED);
        }
    }
}

/// The message of a caught panic, where it is text.
pub fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// A caught panic; its text is the panic's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Panic {
    message: String,
}

/// Runs work that belongs to one object or key, so that its panic belongs to that one, too: the process goes on.
///
/// # Errors
/// [`Panic`].
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panic::of)
}

/// Does as [`contained`] for work that waits.
///
/// # Errors
/// [`Panic`].
pub async fn contained_async<T>(work: impl Future<Output = T>) -> Result<T, Panic> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(Panic::of)
}

impl Panic {
    fn of(payload: Box<dyn Any + Send>) -> Self {
        Self { message: panic_text(&*payload).unwrap_or("unknown panic").to_owned() }
    }
}

impl TaskGroup {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a task under a name. It must end by itself once its shutdown is triggered.
    ///
    /// The future is boxed: the runtime's part of a task then exists once in the binary, not once for each future.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.start(name, Box::pin(future))
    }

    /// Starts a task that may be dropped wherever it waits, which it is on shutdown.
    pub fn spawn_until(
        &self,
        shutdown: &Shutdown,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let token = shutdown.token().clone();
        self.spawn(name, async move {
            let _ = token.run_until_cancelled_owned(work).await;
        })
    }

    fn start(&self, name: &'static str, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.running.lock().insert(id, (name, None));
        let leaving = Leaving(Arc::clone(&self.0), id);
        let watched = Watched::new(name, future);
        let handle = self.0.tracker.spawn(async move {
            let _leaving = leaving;
            watched.await;
        });
        if let Some(entry) = self.0.running.lock().get_mut(&id) {
            entry.1 = Some(handle.abort_handle());
        }
        handle
    }

    /// Number of running tasks.
    pub fn len(&self) -> usize {
        self.0.running.lock().len()
    }

    /// Reports whether no task runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of those that run.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.0.running.lock().values().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }

    /// Waits for all of them. Those that are not done by the deadline are named in a warning and aborted, and the
    /// answer is false.
    pub async fn drain(&self, deadline: Duration) -> bool {
        self.0.tracker.close();
        let ended = tokio::time::timeout(deadline, self.0.tracker.wait()).await.is_ok();
        if !ended {
            tracing::warn!(tasks = self.names().join(","), "Tasks did not stop in time");
            for (_, handle) in self.0.running.lock().values() {
                if let Some(handle) = handle {
                    handle.abort();
                }
            }
        }
        self.0.tracker.reopen();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drain_waits_and_then_aborts() {
        let group = TaskGroup::new();
        group.spawn("quick", async {});
        let slow = group.spawn("slow", std::future::pending::<()>());
        assert!(!group.drain(Duration::from_secs(1)).await);
        assert!(slow.await.is_err_and(|e| e.is_cancelled()));
        assert!(group.is_empty());
        assert!(group.drain(Duration::from_secs(1)).await);
    }

    #[tokio::test]
    async fn work_ends_by_itself_or_with_the_shutdown() {
        let (group, shutdown) = (TaskGroup::new(), Shutdown::new());
        group.spawn_until(&shutdown, "short", async {}).await.expect("not aborted");
        let long = group.spawn_until(&shutdown, "long", std::future::pending());
        assert!(!long.is_finished());
        shutdown.trigger();
        long.await.expect("not aborted");
        assert!(group.is_empty());
    }
}
