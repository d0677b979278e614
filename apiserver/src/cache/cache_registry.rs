//! One watch over everything in an etcd feeds the caches of all resources.
//!
//! Resources that `--etcd-servers-overrides` keeps elsewhere are followed there: one watch and one [`Progress`] for
//! each etcd.
//!
//! Caches start at their first use: the list is read while changes queue up, then both are joined by revision.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{EventType, KeyValue, WatchOptions};
use parking_lot::{Mutex, RwLock};
use proto::resources::{Resource, Row};

use super::cacher::Cacher;
use super::encoded::Budget;
use super::entry::Entry;
use super::gzip_chunks::GzipChunkCache;
use super::history;
use super::progress::{Progress, RevisionRequests};
use super::state::State;
use super::uncached::Uncached;
use crate::backoff::Backoff;
use crate::storage::{self, Caching, Store, Stored};

/// Entries per page of an initial list.
const PAGE: i64 = 10_000;
/// Bytes of cells of tables that are kept with their objects; they are small, and cost the most to make.
const CELLS: usize = 16 << 20;
/// Bytes of compressed pieces of lists.
const PACKS: usize = 16 << 20;
/// Bytes of changes that wait for a list: one that cannot be read for long is read anew all the same.
const QUEUED: usize = 256 << 20;
/// Longest wait for the turn to read history.
const RECALL_TURN: Duration = Duration::from_secs(10);

/// A change as etcd told it.
enum Pending {
    Put(Box<Entry>),
    Delete {
        key: String,
        revision: i64,
    },
    /// One that cannot be read, or some that are lost.
    Unknown,
}

impl Pending {
    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Put(entry) => entry.key.len() + entry.raw.size(),
                Self::Delete { key, .. } => key.len(),
                Self::Unknown => 0,
            }
    }
}

/// Changes that wait for the list they are to be joined with. Once one is lost the others are of no use.
#[derive(Default)]
struct Queue {
    changes: Vec<Pending>,
    bytes: usize,
    lost: bool,
}

impl Queue {
    /// Takes a change in, as long as there is room for `most` bytes.
    fn push(&mut self, pending: Pending, most: usize) {
        self.bytes += pending.size();
        if self.lost || self.bytes > most || matches!(pending, Pending::Unknown) {
            *self = Self { lost: true, ..Self::default() };
        } else {
            self.changes.push(pending);
        }
    }
}

enum CachePhase {
    /// The list is being read.
    Loading(Queue),
    Ready,
}

/// A cache and how it is filled.
pub(super) struct ResourceCache {
    pub(super) resource: Row,
    /// Index of the etcd cluster that holds the resource.
    etcd: usize,
    /// Changes that came from etcd, and lists that were read.
    received: AtomicU64,
    initialized: AtomicU64,
    /// Values that could not be read.
    unreadable: AtomicU64,
    /// The keys of those that etcd still holds.
    missing: Mutex<BTreeSet<String>>,
    pub(super) cacher: Arc<Cacher>,
    phase: Mutex<CachePhase>,
}

impl ResourceCache {
    /// Reports whether etcd holds values of this resource that could not be decoded.
    pub(super) fn has_unreadable(&self) -> bool {
        !self.missing.lock().is_empty()
    }
}

/// Statistics of one cache.
pub struct CacheStats {
    /// Resource of the cache.
    pub row: Row,
    /// Changes that came from etcd.
    pub received: u64,
    /// Lists that were read.
    pub initialized: u64,
    /// The newest change it knows.
    pub revision: i64,
    /// Watches that ended because they were too slow.
    pub terminated: u64,
    /// Values in etcd that could not be read.
    pub unreadable: u64,
    /// Bytes in etcd, estimated.
    pub bytes: u64,
}

/// Watch caches of all resources, and the watches on etcd that fill them.
pub struct CacheRegistry {
    pub(super) store: Store,
    /// By full key prefix, with trailing slash. No prefix is the beginning of another.
    slots: RwLock<BTreeMap<String, Arc<ResourceCache>>>,
    /// By the number of the etcd.
    progress: Vec<Progress>,
    pub(super) uncached: Uncached,
    budget: Arc<Budget>,
    cells: Arc<Budget>,
    gzip_chunks: GzipChunkCache,
    /// History is read by one at a time.
    recalling: tokio::sync::Mutex<()>,
    pub(super) runtime: tokio::runtime::Handle,
}

impl CacheRegistry {
    /// Creates the caches. [`CacheRegistry::run`] is to be run by the caller for each etcd, with its readers.
    ///
    /// `encodings` bounds the bytes of encodings that are kept with their objects (`--watch-cache-encodings-mb`).
    /// `caching` says which resources requests read from their caches.
    pub fn new(store: Store, encodings: usize, caching: Caching) -> (Arc<Self>, Vec<RevisionRequests>) {
        let (progress, asks) = store.each().map(Progress::new).unzip();
        let caches = Self {
            store,
            slots: RwLock::default(),
            progress,
            uncached: Uncached::new(caching),
            budget: Budget::new(encodings),
            cells: Budget::new(CELLS),
            gzip_chunks: GzipChunkCache::new(PACKS),
            recalling: tokio::sync::Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        };
        (Arc::new(caches), asks)
    }

    /// Progress of the etcd cluster of a resource. Resources without a cluster of their own share the main one's.
    pub fn progress(&self, resource: &Row) -> &Progress {
        match self.progress.as_slice() {
            [only] => only,
            several => &several[self.store.etcd_of(&self.prefix(resource))],
        }
    }

    /// Memory budget of the encodings that are kept.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Memory budget of the table cells that are kept.
    pub fn cells(&self) -> &Arc<Budget> {
        &self.cells
    }

    /// Compressed pieces of lists.
    pub fn gzip_chunks(&self) -> &GzipChunkCache {
        &self.gzip_chunks
    }

    /// Reports whether etcd holds objects of a resource that could not be decoded.
    pub fn has_unreadable(&self, resource: &Row) -> bool {
        self.slots.read().get(&self.prefix(resource)).is_some_and(|slot| slot.has_unreadable())
    }

    /// The cache of a resource, if it runs and is filled.
    pub fn running(&self, resource: &Row) -> Option<Arc<Cacher>> {
        let prefix = self.prefix(resource);
        self.slots.read().get(&prefix).map(|s| s.cacher.clone()).filter(|c| c.is_ready())
    }

    /// The caches that run, by their key prefixes.
    pub(super) fn slots(&self) -> Vec<(String, Arc<ResourceCache>)> {
        self.slots.read().iter().map(|(prefix, slot)| (prefix.clone(), slot.clone())).collect()
    }

    /// Reads a cache anew: what it holds must not be shown any more.
    pub(super) fn restart(self: &Arc<Self>, slot: &Arc<ResourceCache>) {
        self.apply_or_queue(0, slot, Pending::Unknown);
    }

    pub(super) fn prefix(&self, resource: &Row) -> String {
        let mut prefix = self.store.key(&resource.etcd_prefix);
        prefix.push('/');
        prefix
    }

    /// Stored objects by resource, for the caches that run and for what has none.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let name =
            |r: &Resource| if r.group.is_empty() { r.plural.to_string() } else { format!("{}.{}", r.plural, r.group) };
        let uncached = self.uncached.counts().into_iter().map(|(row, count)| (name(&row), count));
        let cached = self.slots.read().values().map(|s| (name(&s.resource), s.cacher.len())).collect::<Vec<_>>();
        uncached.chain(cached).collect()
    }

    /// Statistics of the running caches.
    pub fn stats(&self) -> Vec<CacheStats> {
        let tally = |slot: &Arc<ResourceCache>| CacheStats {
            row: slot.resource.clone(),
            received: slot.received.load(Ordering::Relaxed),
            initialized: slot.initialized.load(Ordering::Relaxed),
            revision: slot.cacher.revision(),
            terminated: slot.cacher.terminated(),
            unreadable: slot.unreadable.load(Ordering::Relaxed),
            bytes: slot.cacher.size_of_one() * slot.cacher.len() as u64,
        };
        self.slots.read().values().map(tally).collect()
    }

    /// The cache of a resource, started if it was not. It may still be loading.
    pub fn cacher(self: &Arc<Self>, resource: &Row) -> Arc<Cacher> {
        let prefix = self.prefix(resource);
        if let Some(slot) = self.slots.read().get(&prefix) {
            return slot.cacher.clone();
        }
        let mut slots = self.slots.write();
        let slot = slots.entry(prefix.clone()).or_insert_with(|| {
            let slot = Arc::new(ResourceCache {
                resource: resource.clone(),
                etcd: self.store.etcd_of(&prefix),
                received: AtomicU64::new(0),
                initialized: AtomicU64::new(0),
                unreadable: AtomicU64::new(0),
                missing: Mutex::default(),
                cacher: Arc::default(),
                phase: Mutex::new(CachePhase::Loading(Queue::default())),
            });
            // Ends by itself once the list is in.
            self.runtime.spawn(self.clone().load(prefix, slot.clone()));
            slot
        });
        slot.cacher.clone()
    }

    async fn load(self: Arc<Self>, prefix: String, slot: Arc<ResourceCache>) {
        let mut backoff = Backoff::doubling(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            // Changes are queued from where the watch begins: only what is listed after that leaves no gap.
            self.progress[slot.etcd].wait_started().await;
            match self.read_all(&prefix, &slot).await {
                Ok((entries, revision)) => {
                    if finish_loading(prefix.len(), &slot, entries, revision) {
                        return;
                    }
                    tracing::warn!(%prefix, "Lost events while listing, relisting");
                }
                Err(error) => tracing::warn!(%error, %prefix, "Failed to list objects for the watch cache"),
            }
            backoff.wait().await;
        }
    }

    async fn read_all(&self, prefix: &str, slot: &ResourceCache) -> Result<(Vec<Arc<Entry>>, i64), storage::Error> {
        let mut entries = Vec::new();
        let (mut start, mut revision) = (prefix.to_owned(), 0);
        slot.missing.lock().clear();
        loop {
            let page = self.store.page(prefix, &start, PAGE, revision).await?;
            if revision == 0 {
                revision = page.revision;
            }
            if let Some(last) = page.items.last() {
                start = format!("{}\0", last.key);
            }
            for item in page.items {
                entries.extend(entry(slot, prefix.len(), &item).map(Arc::new));
            }
            if !page.more {
                return Ok((entries, revision));
            }
        }
    }

    /// Ends the cache of a resource, and the watches on it. A request for it starts another one.
    pub fn remove(&self, resource: &Row) {
        let prefix = self.prefix(resource);
        self.uncached.remove(&prefix);
        if let Some(slot) = self.slots.write().remove(&prefix) {
            slot.cacher.close();
        }
    }

    /// Follows an etcd, by its number, and answers its readers, until dropped.
    pub async fn run(self: Arc<Self>, etcd: usize, asks: RevisionRequests) {
        tokio::join!(self.follow_etcd(etcd), self.progress[etcd].serve_requests(asks));
    }

    /// Answers the readers of this thread on this thread, until dropped.
    pub async fn serve_thread_local(&self) {
        futures::future::join_all(self.progress.iter().map(Progress::serve_thread_local)).await;
    }

    async fn follow_etcd(self: &Arc<Self>, etcd: usize) {
        let progress = &self.progress[etcd];
        let mut backoff = Backoff::doubling(Duration::from_millis(20), Duration::from_secs(2));
        loop {
            let from = progress.processed();
            match self.follow_once(etcd).await {
                Ok(()) => {}
                Err(storage::Error::Compacted) => self.reload(etcd),
                Err(error) => tracing::warn!(%error, "Watch on etcd failed"),
            }
            if progress.processed() > from {
                backoff.reset();
            }
            backoff.wait().await;
        }
    }

    async fn follow_once(self: &Arc<Self>, etcd: usize) -> Result<(), storage::Error> {
        let progress = &self.progress[etcd];
        let mut processed = progress.processed();
        if processed == 0 {
            processed = progress.store.revision().await?;
        }
        let options = WatchOptions::new().with_start_revision(processed + 1).with_progress_notify();
        let mut stream = progress.store.watch(options).await?;
        while let Some(response) = stream.message().await? {
            if response.canceled() || response.compact_revision() > 0 {
                return Err(if response.compact_revision() > 0 {
                    storage::Error::Compacted
                } else {
                    storage::Error::Timeout
                });
            }
            if response.created() {
                progress.advance(processed);
            }
            let mut last = 0;
            for event in response.events() {
                if let Some(kv) = event.kv() {
                    last = kv.mod_revision();
                    self.dispatch(etcd, event.event_type(), kv).await;
                }
            }
            if last > 0 {
                progress.set(last);
            }
        }
        Ok(())
    }

    /// The length of the prefix that a key is below, and its cache.
    fn slot_of(&self, key: &str) -> Option<(usize, Arc<ResourceCache>)> {
        let slots = self.slots.read();
        let candidate = slots.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back();
        candidate.filter(|(prefix, _)| key.starts_with(prefix.as_str())).map(|(p, s)| (p.len(), s.clone()))
    }

    async fn dispatch(self: &Arc<Self>, etcd: usize, kind: EventType, kv: &KeyValue) {
        let Ok(key) = kv.key_str() else { return };
        let Some((prefix, slot)) = self.slot_of(key) else { return };
        if slot.etcd != etcd {
            // Left behind from before the resource was kept elsewhere.
            return;
        }
        slot.received.fetch_add(1, Ordering::Relaxed);
        let pending = match kind {
            EventType::Put => match self.store.transform_from_storage(kv.clone()).await {
                Ok(stored) => entry(&slot, prefix, &stored).map_or(Pending::Unknown, |e| Pending::Put(Box::new(e))),
                Err(error) => {
                    tracing::error!(%error, "Failed to decode event from etcd");
                    Pending::Unknown
                }
            },
            EventType::Delete => Pending::Delete { key: key.to_owned(), revision: kv.mod_revision() },
        };
        self.apply_or_queue(prefix, &slot, pending);
    }

    fn apply_or_queue(self: &Arc<Self>, prefix: usize, slot: &Arc<ResourceCache>, pending: Pending) {
        let mut phase = slot.phase.lock();
        match (&mut *phase, pending) {
            (CachePhase::Loading(queue), pending) => queue.push(pending, QUEUED),
            (CachePhase::Ready, Pending::Unknown) => {
                // What was there before must not be shown as if it were still there: the cache starts anew.
                slot.cacher.invalidate();
                *phase = CachePhase::Loading(Queue::default());
                self.runtime.spawn(self.clone().load(self.prefix(&slot.resource), slot.clone()));
            }
            (CachePhase::Ready, pending) => slot.cacher.change(|state| apply(prefix, slot, state, pending)),
        }
    }

    /// History was lost: every cache of an etcd reads its list again.
    fn reload(self: &Arc<Self>, etcd: usize) {
        self.progress[etcd].set(0);
        let slots: Vec<Arc<ResourceCache>> = self.slots.read().values().filter(|s| s.etcd == etcd).cloned().collect();
        slots.iter().for_each(|slot| self.restart(slot));
    }

    /// Makes what happened to a resource after a revision known to its cache, if etcd still knows it. Watches that were
    /// opened before this process began resume that way.
    ///
    /// # Errors
    /// etcd could not be asked now: it may know all the same.
    pub async fn backfill_history(&self, resource: &Row, after: i64) -> Result<(), storage::Error> {
        let prefix = self.prefix(resource);
        let Some(slot) = self.slots.read().get(&prefix).cloned() else { return Ok(()) };
        if slot.cacher.floor() <= after {
            return Ok(());
        }
        let turn = tokio::time::timeout(RECALL_TURN, self.recalling.lock()).await;
        let _one = turn.map_err(|_| storage::Error::Timeout)?;
        let upto = slot.cacher.floor();
        if upto <= after || !slot.cacher.is_ready() {
            return Ok(());
        }
        let store = &self.progress[slot.etcd].store;
        let events = match history::read(store, after, upto).await {
            Err(storage::Error::Compacted) => return Ok(()),
            events => events?,
        };
        // The same history serves all caches that know no more than it.
        let served = |s: &ResourceCache| s.etcd == slot.etcd && s.cacher.is_ready() && s.cacher.floor() <= upto;
        for (prefix, slot) in self.slots().into_iter().filter(|(_, s)| served(s)) {
            if let Some(changes) = history::changes(store, &events, &prefix, &slot.resource).await {
                slot.cacher.prepend_history(after, upto, changes);
            }
        }
        Ok(())
    }
}

/// Makes a list and the changes that came meanwhile one. False when one of those is not known: the list must be read
/// anew.
fn finish_loading(prefix: usize, slot: &ResourceCache, entries: Vec<Arc<Entry>>, revision: i64) -> bool {
    let mut phase = slot.phase.lock();
    let CachePhase::Loading(queue) = &mut *phase else { return true };
    let queue = std::mem::take(queue);
    if queue.lost {
        return false;
    }
    *phase = CachePhase::Ready;
    slot.initialized.fetch_add(1, Ordering::Relaxed);
    slot.cacher.reset(entries, revision, |state| {
        queue.changes.into_iter().for_each(|pending| apply(prefix, slot, state, pending));
    });
    true
}

fn apply(prefix: usize, slot: &ResourceCache, state: &mut State, pending: Pending) {
    match pending {
        // Is never applied.
        Pending::Unknown => {}
        Pending::Put(entry) => {
            slot.missing.lock().remove(&*entry.key);
            state.put(*entry);
        }
        Pending::Delete { key, revision } => {
            slot.missing.lock().remove(&key[prefix..]);
            state.delete(&key[prefix..], revision);
        }
    }
}

/// Reads a stored value. One that cannot be read is logged and left out: it never fails the others.
fn entry(slot: &ResourceCache, prefix: usize, stored: &Stored) -> Option<Entry> {
    let resource = &slot.resource;
    let key = &stored.key[prefix..];
    match Entry::from_stored(resource, key, &stored.value, stored.revision) {
        Ok(e) => Some(e.stored_as(stored.lease, stored.stale)),
        Err(error) => {
            tracing::error!(%error, key, resource = %resource.plural, "Failed to decode object from etcd");
            slot.unreadable.fetch_add(1, Ordering::Relaxed);
            slot.missing.lock().insert(key.to_owned());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_do_not_wait_without_end() {
        let gone = |revision| Pending::Delete { key: "k".to_owned(), revision };
        let (mut queue, room) = (Queue::default(), gone(1).size() * 2);
        queue.push(gone(1), room);
        queue.push(gone(2), room);
        assert_eq!((queue.changes.len(), queue.lost), (2, false));
        queue.push(gone(3), room);
        assert_eq!((queue.changes.len(), queue.lost), (0, true));
        // There is room, but not for what comes after something that is not there.
        queue.push(gone(4), room);
        assert_eq!((queue.changes.len(), queue.lost), (0, true));
        let mut queue = Queue::default();
        queue.push(Pending::Unknown, room);
        assert!(queue.lost);
    }
}
