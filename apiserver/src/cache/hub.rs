//! One watch over everything in etcd feeds the caches of all resources.
//!
//! Because that watch sees every revision, "has the cache caught up with revision R?" needs no progress notification
//! from etcd: the hub has seen R when it has seen an event at R or later. A consistent read asks etcd for its revision
//! (one read of no data, shared by all readers that wait at that moment) and waits for the hub to get there.
//!
//! Caches start at their first use: the list is read while changes queue up, then both are joined by revision.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{EventType, WatchOptions};
use parking_lot::{Mutex, RwLock};
use proto::resources::{Resource, Row};
use tokio::sync::{mpsc, oneshot, watch};

use super::cacher::Cacher;
use super::entry::Entry;
use crate::storage::{self, Store, codec};

/// Entries per page of an initial list.
const PAGE: i64 = 10_000;
/// How long a consistent read waits for the cache.
const CATCH_UP: Duration = Duration::from_secs(3);
/// Readers that may wait for one revision read.
const READERS: usize = 4096;

enum Pending {
    Put { key: String, value: Vec<u8>, revision: i64 },
    Delete { key: String, revision: i64 },
}

enum Phase {
    /// The list is being read; changes wait here.
    Loading(Vec<Pending>),
    Ready,
}

struct Slot {
    resource: Row,
    cacher: Arc<Cacher>,
    phase: Mutex<Phase>,
}

/// See the module.
pub struct Hub {
    store: Store,
    /// By full key prefix, with trailing slash. No prefix is the beginning of another.
    slots: RwLock<BTreeMap<String, Arc<Slot>>>,
    processed: watch::Sender<i64>,
    asks: mpsc::Sender<oneshot::Sender<i64>>,
    runtime: tokio::runtime::Handle,
}

impl Hub {
    /// Creates the hub; its two loops ([`Hub::follow`] and [`Hub::answer`]) are to be run by the caller.
    pub fn new(store: Store) -> (Arc<Self>, mpsc::Receiver<oneshot::Sender<i64>>) {
        let (asks, receiver) = mpsc::channel(READERS);
        let hub = Self {
            store,
            slots: RwLock::default(),
            processed: watch::Sender::new(0),
            asks,
            runtime: tokio::runtime::Handle::current(),
        };
        (Arc::new(hub), receiver)
    }

    /// The revision up to which all changes are in the caches.
    pub fn processed(&self) -> i64 {
        *self.processed.borrow()
    }

    /// Stored objects by resource, for the caches that run.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let name =
            |r: &Resource| if r.group.is_empty() { r.plural.to_string() } else { format!("{}.{}", r.plural, r.group) };
        self.slots.read().values().map(|s| (name(&s.resource), s.cacher.len())).collect()
    }

    /// The cache of a resource, started if it was not. It may still be loading.
    pub fn cacher(self: &Arc<Self>, resource: &Row) -> Arc<Cacher> {
        let prefix = format!("{}/", self.store.key(&resource.etcd_prefix));
        if let Some(slot) = self.slots.read().get(&prefix) {
            return slot.cacher.clone();
        }
        let mut slots = self.slots.write();
        let slot = slots.entry(prefix.clone()).or_insert_with(|| {
            let slot = Arc::new(Slot {
                resource: resource.clone(),
                cacher: Arc::default(),
                phase: Mutex::new(Phase::Loading(Vec::new())),
            });
            // Ends by itself once the list is in.
            self.runtime.spawn(self.clone().load(prefix, slot.clone()));
            slot
        });
        slot.cacher.clone()
    }

    async fn load(self: Arc<Self>, prefix: String, slot: Arc<Slot>) {
        // Changes are queued from where the watch begins: only what is listed after that leaves no gap.
        // The sender lives in self: waiting cannot fail.
        let _ = self.processed.subscribe().wait_for(|r| *r > 0).await;
        let mut delay = Duration::from_millis(50);
        loop {
            match self.read_all(&prefix, &slot.resource).await {
                Ok((entries, revision)) => {
                    self.join(&prefix, &slot, entries, revision);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, %prefix, "initial list failed");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(Duration::from_secs(5));
                }
            }
        }
    }

    async fn read_all(&self, prefix: &str, resource: &Row) -> Result<(Vec<Arc<Entry>>, i64), storage::Error> {
        let mut entries = Vec::new();
        let (mut start, mut revision) = (prefix.to_owned(), 0);
        loop {
            let page = self.store.page(prefix, &start, PAGE, revision).await?;
            if revision == 0 {
                revision = page.revision;
            }
            if let Some(last) = page.items.last() {
                start = format!("{}\0", last.key);
            }
            for item in page.items {
                if let Some(e) = entry(resource, &item.key[prefix.len()..], &item.value, item.revision) {
                    entries.push(Arc::new(e));
                }
            }
            if !page.more {
                return Ok((entries, revision));
            }
        }
    }

    fn join(&self, prefix: &str, slot: &Slot, entries: Vec<Arc<Entry>>, revision: i64) {
        let mut phase = slot.phase.lock();
        slot.cacher.reset(entries, revision);
        if let Phase::Loading(pending) = std::mem::replace(&mut *phase, Phase::Ready) {
            for p in pending {
                apply(prefix, slot, p);
            }
        }
    }

    /// Waits until the caches are as new as etcd is now. Returns the revision reached.
    pub async fn catch_up(&self) -> Result<i64, storage::Error> {
        let (tell, told) = oneshot::channel();
        if self.asks.send(tell).await.is_err() {
            return Err(storage::Error::Timeout);
        }
        let revision = told.await.map_err(|_| storage::Error::Timeout)?;
        self.reach(revision, CATCH_UP).await?;
        Ok(self.processed())
    }

    /// Waits until the caches have reached a revision.
    pub async fn reach(&self, revision: i64, patience: Duration) -> Result<(), storage::Error> {
        if self.processed() >= revision {
            return Ok(());
        }
        let mut processed = self.processed.subscribe();
        match tokio::time::timeout(patience, processed.wait_for(|r| *r >= revision)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(storage::Error::Timeout),
        }
    }

    /// Answers readers with etcd's revision, one read for all who wait.
    pub async fn answer(self: Arc<Self>, mut asks: mpsc::Receiver<oneshot::Sender<i64>>) {
        let mut waiting = Vec::new();
        while asks.recv_many(&mut waiting, READERS).await > 0 {
            match self.store.revision().await {
                Ok(revision) => waiting.drain(..).for_each(|w| {
                    // A reader that went away needs no answer.
                    let _ = w.send(revision);
                }),
                Err(error) => {
                    tracing::warn!(%error, "reading etcd's revision failed");
                    waiting.clear();
                }
            }
        }
    }

    /// Follows etcd until dropped.
    pub async fn follow(self: Arc<Self>) {
        let mut delay = Duration::from_millis(20);
        loop {
            let from = self.processed();
            match self.follow_once().await {
                Ok(()) => {}
                Err(storage::Error::Compacted) => self.reload(),
                Err(error) => tracing::warn!(%error, "watch on etcd broke"),
            }
            delay = if self.processed() > from {
                Duration::from_millis(20)
            } else {
                (delay * 2).min(Duration::from_secs(2))
            };
            tokio::time::sleep(delay).await;
        }
    }

    async fn follow_once(&self) -> Result<(), storage::Error> {
        let mut processed = self.processed();
        if processed == 0 {
            processed = self.store.revision().await?;
        }
        let options = WatchOptions::new().with_all_keys().with_start_revision(processed + 1).with_progress_notify();
        let mut stream = self.store.watch_client().watch("", Some(options)).await?;
        while let Some(response) = stream.message().await? {
            if response.canceled() || response.compact_revision() > 0 {
                return Err(if response.compact_revision() > 0 {
                    storage::Error::Compacted
                } else {
                    storage::Error::Timeout
                });
            }
            if response.created() {
                self.processed.send_if_modified(|r| std::mem::replace(r, (*r).max(processed)) < processed);
            }
            let mut last = 0;
            for event in response.events() {
                if let Some(kv) = event.kv() {
                    last = kv.mod_revision();
                    self.dispatch(event.event_type(), kv);
                }
            }
            if last > 0 {
                self.processed.send_replace(last);
            }
        }
        Ok(())
    }

    fn dispatch(&self, kind: EventType, kv: &etcd_client::KeyValue) {
        let Ok(key) = kv.key_str() else { return };
        let found = {
            let slots = self.slots.read();
            let candidate = slots.range::<str, _>((Bound::Unbounded, Bound::Included(key))).next_back();
            candidate.filter(|(prefix, _)| key.starts_with(prefix.as_str())).map(|(p, s)| (p.len(), s.clone()))
        };
        let Some((prefix, slot)) = found else { return };
        let revision = kv.mod_revision();
        let pending = match kind {
            EventType::Put => Pending::Put { key: key.to_owned(), value: kv.value().to_vec(), revision },
            EventType::Delete => Pending::Delete { key: key.to_owned(), revision },
        };
        let mut phase = slot.phase.lock();
        match &mut *phase {
            Phase::Loading(queue) => queue.push(pending),
            Phase::Ready => apply(&key[..prefix], &slot, pending),
        }
    }

    /// History was lost: every cache reads its list again.
    fn reload(self: &Arc<Self>) {
        self.processed.send_replace(0);
        for (prefix, slot) in self.slots.read().iter() {
            slot.cacher.invalidate();
            *slot.phase.lock() = Phase::Loading(Vec::new());
            self.runtime.spawn(self.clone().load(prefix.clone(), slot.clone()));
        }
    }
}

fn apply(prefix: &str, slot: &Slot, pending: Pending) {
    match pending {
        Pending::Put { key, value, revision } => {
            if let Some(e) = entry(&slot.resource, &key[prefix.len()..], &value, revision) {
                slot.cacher.put(e);
            }
        }
        Pending::Delete { key, revision } => slot.cacher.delete(&key[prefix.len()..], revision, |last| Entry {
            key: last.key.clone(),
            revision,
            raw: codec::restamp(&last.raw, revision),
            labels: last.labels.clone(),
            fields: last.fields.clone(),
        }),
    }
}

/// Reads a stored value. One that cannot be read is logged and left out: it never fails the others.
fn entry(resource: &Row, key: &str, value: &[u8], revision: i64) -> Option<Entry> {
    match codec::entry(resource, key, value, revision) {
        Ok(e) => Some(e),
        Err(error) => {
            tracing::error!(%error, key, resource = %resource.plural, "unreadable object in etcd");
            None
        }
    }
}
