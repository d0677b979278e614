//! Revision up to which the caches have followed one etcd cluster. Answers for upstream's
//! `ConditionalProgressRequester`, `waitUntilFreshAndBlock`.
//!
//! The watch of the [`super::CacheRegistry`] sees every revision, so a cache is as new as revision R when an event at R
//! or later was seen. A consistent read asks etcd for its revision (one read of no data, shared by all readers that
//! wait at that moment) and waits for the caches to get there.

use std::cell::RefCell;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::storage::{self, Store};

/// Longest wait of a consistent read for the caches to catch up.
const CATCH_UP: Duration = Duration::from_secs(3);
/// Readers that may wait for one revision read.
const READERS: usize = 4096;

/// Readers that wait for etcd's revision.
pub struct RevisionRequests(mpsc::Receiver<oneshot::Sender<i64>>);

/// Channel of requests for the current revision.
type RevisionRequester = mpsc::Sender<oneshot::Sender<i64>>;

thread_local! {
    /// The request channels of this thread's readers, each beside the global one it stands for.
    static NEAR: RefCell<Vec<(RevisionRequester, RevisionRequester)>> = const { RefCell::new(Vec::new()) };
}

/// Revision up to which the caches have followed one etcd cluster, with its waiters.
pub struct Progress {
    pub(super) store: Store,
    processed: watch::Sender<i64>,
    asks: RevisionRequester,
}

impl Progress {
    /// Of nothing yet.
    pub(super) fn new(store: Store) -> (Self, RevisionRequests) {
        let (asks, receiver) = mpsc::channel(READERS);
        (Self { store, processed: watch::Sender::new(0), asks }, RevisionRequests(receiver))
    }

    /// The revision up to which all changes are in the caches; 0 before the first, and while history is lost.
    pub fn processed(&self) -> i64 {
        *self.processed.borrow()
    }

    /// All changes up to a revision are in the caches.
    pub(super) fn set(&self, revision: i64) {
        self.processed.send_replace(revision);
    }

    /// Advances the progress to a revision; does nothing when the caches are ahead of it.
    pub(super) fn advance(&self, revision: i64) {
        self.processed.send_if_modified(|r| std::mem::replace(r, (*r).max(revision)) < revision);
    }

    /// Reports whether etcd is known to have compacted a revision.
    pub fn is_compacted(&self, revision: i64) -> bool {
        revision < self.store.compacted()
    }

    /// Fails with [`storage::Error::Compacted`] when etcd no longer knows what was at a revision.
    pub async fn check_not_compacted(&self, revision: i64) -> Result<(), storage::Error> {
        self.store.check_not_compacted(revision).await
    }

    /// Waits until changes are followed.
    pub(super) async fn wait_started(&self) {
        // The sender lives in self: waiting cannot fail.
        let _ = self.processed.subscribe().wait_for(|r| *r > 0).await;
    }

    /// Waits until the caches are as new as etcd is now. Returns the revision reached.
    pub async fn catch_up(&self) -> Result<i64, storage::Error> {
        let (tell, told) = oneshot::channel();
        let near =
            NEAR.with_borrow(|near| near.iter().find(|(of, _)| of.same_channel(&self.asks)).map(|(_, n)| n.clone()));
        if near.as_ref().unwrap_or(&self.asks).send(tell).await.is_err() {
            return Err(storage::Error::Timeout);
        }
        let revision = told.await.map_err(|_| storage::Error::Timeout)?;
        self.wait_until(revision, CATCH_UP).await?;
        Ok(self.processed())
    }

    /// Waits until the caches have reached a revision.
    pub async fn wait_until(&self, revision: i64, patience: Duration) -> Result<(), storage::Error> {
        if self.processed() >= revision {
            return Ok(());
        }
        let mut processed = self.processed.subscribe();
        match tokio::time::timeout(patience, processed.wait_for(|r| *r >= revision)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(storage::Error::Timeout),
        }
    }

    /// Answers the readers of this thread on this thread, until dropped.
    pub(super) async fn serve_thread_local(&self) {
        let (asks, receiver) = mpsc::channel(READERS);
        NEAR.with_borrow_mut(|near| {
            near.retain(|(of, _)| !of.same_channel(&self.asks));
            near.push((self.asks.clone(), asks));
        });
        self.serve_requests(RevisionRequests(receiver)).await;
    }

    /// Answers readers with etcd's revision, one read for all who wait.
    pub(super) async fn serve_requests(&self, mut asks: RevisionRequests) {
        let mut waiting = Vec::new();
        while asks.0.recv_many(&mut waiting, READERS).await > 0 {
            match self.store.revision().await {
                Ok(revision) => waiting.drain(..).for_each(|w| {
                    // A reader that went away needs no answer.
                    let _ = w.send(revision);
                }),
                Err(error) => {
                    tracing::warn!(%error, "Failed to read the current revision of etcd");
                    waiting.clear();
                }
            }
        }
    }
}
