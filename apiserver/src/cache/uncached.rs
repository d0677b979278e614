//! Resources without a cache (`--watch-cache=false`, or a size of 0 in `--watch-cache-sizes`): what a request reads of
//! them comes from etcd, and each watch of them is one of etcd's. Answers for upstream's `UndecoratedStorage`.
//!
//! Only requests are served so. What this server itself needs to know of such a resource, it keeps as it does of
//! others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::resources::Row;
use tokio::sync::{Notify, mpsc};

use super::cacher::{Filter, Message, Start, Watch};
use super::entry::{Entry, SharedEvent};
use super::{CacheRegistry, history};
use crate::storage::{self, Caching, Store};

/// Changes that wait for their watch; then etcd waits.
const BUFFER: usize = 100;
/// Objects per page of the state that a watch begins with.
const PAGE: i64 = 500;

/// Resources that are served without a watch cache.
pub(super) struct Uncached {
    caching: Caching,
    /// Resources requested so far, by key prefix, with the number of their objects once it is known.
    counts: Mutex<BTreeMap<String, (Row, Option<usize>)>>,
    /// Another one was asked for.
    another: Notify,
}

impl Uncached {
    pub(super) fn new(caching: Caching) -> Self {
        Self { caching, counts: Mutex::default(), another: Notify::new() }
    }

    pub(super) fn remove(&self, prefix: &str) {
        self.counts.lock().remove(prefix);
    }

    pub(super) fn counts(&self) -> Vec<(Row, usize)> {
        self.counts.lock().values().filter_map(|(row, count)| Some((row.clone(), (*count)?))).collect()
    }
}

impl CacheRegistry {
    /// Reports whether requests for a resource are answered from its cache.
    pub fn is_cached(&self, resource: &Row) -> bool {
        let has = self.uncached.caching.has(resource);
        if !has {
            self.uncached.counts.lock().entry(self.prefix(resource)).or_insert_with(|| {
                self.uncached.another.notify_one();
                (resource.clone(), None)
            });
        }
        has
    }

    /// Counts the objects of resources without a cache, every so often, until dropped.
    pub async fn count_uncached(self: Arc<Self>, every: Duration) {
        loop {
            let all = tokio::time::timeout(every, self.uncached.another.notified()).await.is_err();
            let due = |(prefix, (_, known)): (&String, &(Row, Option<usize>))| {
                (all || known.is_none()).then(|| prefix.clone())
            };
            let prefixes: Vec<String> = self.uncached.counts.lock().iter().filter_map(due).collect();
            for prefix in prefixes {
                let count = self.store.count(&prefix).await.ok().and_then(|count| usize::try_from(count).ok());
                if let (Some(count), Some((_, known))) = (count, self.uncached.counts.lock().get_mut(&prefix)) {
                    *known = Some(count);
                }
            }
        }
    }

    /// The number of objects of a resource without a cache, when it was looked at last.
    pub(super) fn counted(&self, resource: &Row) -> Option<usize> {
        self.uncached.counts.lock().get(&self.prefix(resource))?.1
    }

    /// The revision of the etcd that keeps a resource, agreed by a quorum.
    pub async fn revision(&self, resource: &Row) -> Result<i64, storage::Error> {
        self.progress(resource).store.revision().await
    }

    /// A watch of etcd: of the objects below `scope` that the filter lets through.
    ///
    /// # Errors
    /// History that is gone, or no connection.
    pub async fn watch_etcd(
        &self,
        resource: &Row,
        scope: &str,
        start: Start,
        filter: Filter,
    ) -> Result<Watch, storage::Error> {
        let followed =
            FollowedResource { store: self.store.clone(), resource: resource.clone(), prefix: self.prefix(resource) };
        let prefix = format!("{}{scope}", followed.prefix);
        let (initial, revision) = match start {
            Start::State => followed.state(&prefix, &filter).await?,
            Start::After(after) => match self.progress(resource).store.check_not_compacted(after).await {
                // What has not happened yet is waited for.
                Ok(()) | Err(storage::Error::Future) => (Vec::new(), after),
                Err(error) => return Err(error),
            },
        };
        let stream = self.store.watch_below(&prefix, revision).await?;
        let (sender, receiver) = mpsc::channel(BUFFER);
        // Ends with the watch.
        self.runtime.spawn(followed.forward(stream, filter, sender));
        Ok(Watch { initial, replay: Vec::new(), receiver, revision })
    }
}

/// A resource whose changes are passed on.
struct FollowedResource {
    store: Store,
    resource: Row,
    /// Of all its keys.
    prefix: String,
}

impl FollowedResource {
    /// The objects below a prefix, and the revision they are exact at.
    async fn state(&self, prefix: &str, filter: &Filter) -> Result<(Vec<Arc<Entry>>, i64), storage::Error> {
        let (mut found, mut start, mut revision) = (Vec::new(), prefix.to_owned(), 0);
        loop {
            let page = self.store.page(prefix, &start, PAGE, revision).await?;
            if revision == 0 {
                revision = page.revision;
            }
            for stored in page.items {
                start = format!("{}\0", stored.key);
                match Entry::from_stored(
                    &self.resource,
                    &stored.key[self.prefix.len()..],
                    &stored.value,
                    stored.revision,
                ) {
                    Ok(entry) if filter(&entry) => found.push(Arc::new(entry)),
                    Ok(_) => {}
                    Err(error) => tracing::error!(%error, key = stored.key, "Failed to decode object from etcd"),
                }
            }
            if !page.more {
                return Ok((found, revision));
            }
        }
    }

    /// Until either side ends, or a change cannot be told: its client reads the state again then.
    async fn forward(self, mut stream: storage::Watch, filter: Filter, sender: mpsc::Sender<Message>) {
        loop {
            let response = tokio::select! {
                () = sender.closed() => return,
                response = stream.message() => response,
            };
            let response = match response {
                Ok(Some(response)) if !response.canceled() && response.compact_revision() == 0 => response,
                Ok(_) => return,
                Err(error) => return tracing::warn!(%error, prefix = self.prefix, "Watch on etcd failed"),
            };
            let changes = history::changes(&self.store, response.events(), &self.prefix, &self.resource).await;
            let Some(changes) = changes else {
                return tracing::error!(prefix = self.prefix, "Failed to decode event from etcd");
            };
            for change in changes {
                let Some((seen, entry)) = change.event_for(&*filter) else { continue };
                let (entry, live) = (entry.clone(), Arc::new(SharedEvent::new(change)));
                if sender.send(Message { seen, entry, live }).await.is_err() {
                    return;
                }
            }
        }
    }
}
