//! Work around the writes of a kind beyond its strategy, and the guard of what it took for a write.
//!
//! Answers for `BeginCreate`, `BeginUpdate` and `AfterDelete` of upstream's generic registry `Store`. The hook is given
//! when the engine is assembled: the engine knows no kind that has one.

use futures::future::BoxFuture;
use proto::Value;
use proto::resources::Resource;
use shared::run::TaskGroup;
use shared::status::Status;

use super::Engine;

/// Work that gives something back; nothing happens before it is awaited.
pub type Release = BoxFuture<'static, ()>;
/// Work that completes an object before it is validated and takes what it needs.
pub type Begin<'a> = BoxFuture<'a, Result<Reservation, Status>>;

/// Work around writes. Methods answer `None` for kinds that need none.
pub trait WriteHook: Send + Sync {
    /// Completes a new object, and takes what it needs.
    fn begin_create<'a>(&'a self, row: &Resource, object: &'a mut Value, dry_run: bool) -> Option<Begin<'a>>;

    /// Completes a changed object or subresource, and takes what it needs more than the old one.
    fn begin_update<'a>(
        &'a self,
        of: (&Resource, &str),
        new: &'a mut Value,
        old: &'a Value,
        dry_run: bool,
    ) -> Option<Begin<'a>>;

    /// Gives back what the old object has and the new one has not; to be awaited once the new one is written.
    fn surplus(&self, row: &Resource, new: &Value, old: &Value) -> Option<Release>;

    /// Gives back what a deleted object had, and deletes what belongs to it.
    fn after_delete<'a>(&'a self, engine: &'a Engine, row: &Resource, object: &'a Value) -> Option<BoxFuture<'a, ()>>;

    /// Shows in metrics how much is taken.
    fn publish(&self);
}

/// Guard of what was taken for one write. It is given back unless the write was made or may have been: by
/// [`settle`](Self::settle), or in the background where the request is dropped halfway.
#[derive(Default)]
#[must_use = "what was taken is given back when this is dropped"]
pub struct Reservation {
    held: Option<(TaskGroup, Release)>,
    sent: bool,
}

impl Reservation {
    /// Holds what `release` gives back; a task of `tasks` does so.
    pub fn new(tasks: TaskGroup, release: Release) -> Self {
        Self { held: Some((tasks, release)), sent: false }
    }

    /// The write is sent: from here on only the store's refusal shows that it was not made. One that may have been made
    /// keeps what it took, and repair loops find what nobody has.
    pub(super) fn sent(&mut self) {
        self.sent = true;
    }

    /// The store refused the write.
    pub(super) fn refused(&mut self) {
        self.sent = false;
    }

    /// Gives back what was taken for a write that was not made, and waits for that.
    pub async fn settle(mut self) {
        if let Some(releasing) = self.release() {
            // A task that is aborted at shutdown leaves the rest to repair loops.
            let _ = releasing.await;
        }
    }

    fn release(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        let (tasks, release) = self.held.take().filter(|_| !self.sent)?;
        // Without a runtime the process is going down.
        tokio::runtime::Handle::try_current().ok()?;
        Some(tasks.spawn("release-reservation", release))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        drop(self.release());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn reservation(tasks: &TaskGroup) -> (Reservation, Arc<AtomicUsize>) {
        let released = Arc::new(AtomicUsize::new(0));
        let counted = released.clone();
        let release = async move {
            tokio::task::yield_now().await;
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (Reservation::new(tasks.clone(), Box::pin(release)), released)
    }

    #[tokio::test]
    async fn settling_gives_back_once_what_no_write_used() {
        let tasks = TaskGroup::default();
        let (unsent, released) = reservation(&tasks);
        unsent.settle().await;
        assert_eq!(released.load(Ordering::Relaxed), 1);
        let (mut refused, released) = reservation(&tasks);
        refused.sent();
        refused.refused();
        refused.settle().await;
        assert_eq!(released.load(Ordering::Relaxed), 1);
        assert!(tasks.is_empty());
    }

    #[tokio::test]
    async fn a_write_that_may_have_been_made_keeps_what_it_took() {
        let tasks = TaskGroup::default();
        let (mut sent, released) = reservation(&tasks);
        sent.sent();
        sent.settle().await;
        let (mut dropped, also) = reservation(&tasks);
        dropped.sent();
        drop(dropped);
        assert_eq!((tasks.len(), released.load(Ordering::Relaxed), also.load(Ordering::Relaxed)), (0, 0, 0));
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_gives_back_in_the_background() {
        let tasks = TaskGroup::default();
        let (unsent, released) = reservation(&tasks);
        drop(unsent);
        tasks.drain(std::time::Duration::from_secs(5)).await;
        assert_eq!(released.load(Ordering::Relaxed), 1);
    }
}
