//! The cache of one resource, as its readers and its one writer (the registry's task) see it. Answers for upstream's
//! `pkg/storage/cacher` (`Cacher`).
//!
//! Readers take a short read lock and leave with reference-counted entries. A watcher that does not keep up is dropped:
//! its client lists again, the server never buffers without bound. The ring of changes also answers lists of a moment
//! that has passed: the objects as they are, with the changes since undone.
//!
//! Hot path: no encoding, no decoding and no waiting under the lock.

use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use proto::resources::Resource;
use tokio::sync::{mpsc, watch};

use super::entry::{Change, Entry, EventType, SharedEvent};
use super::index::{Term, WORTH_IT};
use super::reads::ReadMetrics;
use super::state::{State, Trigger, Watcher};

/// Changes a watcher may lag behind.
const WATCHER_BUFFER: usize = 1024;

/// Objects looked at for their average size.
const SAMPLE: usize = 64;

/// Decides which objects a reader sees.
pub type Filter = Arc<dyn Fn(&Entry) -> bool + Send + Sync>;

/// An event as a watcher receives it.
#[derive(Debug)]
pub struct Message {
    /// Event type.
    pub seen: EventType,
    /// The object to show.
    pub entry: Arc<Entry>,
    /// The change, with encodings shared between watchers.
    pub live: Arc<SharedEvent>,
}

/// Starting point of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the state as it is, then its changes.
    State,
    /// With the changes after a revision.
    After(i64),
}

/// Parameters of a watch. Its filter must reject every object that does not meet all of these conditions.
#[derive(Clone, Debug)]
pub struct WatchStart<'a> {
    /// Key prefix such as `default/`, or empty.
    pub scope: &'a str,
    /// Starting point.
    pub start: Start,
    /// A revision known to be applied already.
    pub at_least: i64,
    /// A condition of the filter that an index can answer.
    pub term: Option<&'a Term>,
    /// A condition that decides which changes it is told of.
    pub trigger: Option<Trigger>,
}

/// A running watch.
pub struct Watch {
    /// Objects to show as ADDED first.
    pub initial: Vec<Arc<Entry>>,
    /// Changes to replay after them.
    pub replay: Vec<Change>,
    /// Live changes. Ends when the watcher was too slow or the cache was reset.
    pub receiver: mpsc::Receiver<Message>,
    /// Revision of `initial`.
    pub revision: i64,
}

/// Reasons for which a watch or list cannot be served from the cache.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The changes since that revision are no longer known.
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld {
        /// The requested revision.
        asked: i64,
        /// The oldest revision that can be resumed from.
        oldest: i64,
    },
    /// The list is being read anew: what is here may lack changes that others know of.
    #[error("storage is (re)initializing")]
    Restarting,
}

/// Selects the objects of a list.
#[derive(Clone, Copy, Default)]
pub struct ListScope<'a> {
    /// Key prefix such as `default/`, or empty.
    pub prefix: &'a str,
    /// Key to start at, or empty.
    pub start: &'a str,
    /// Most entries returned (0: all).
    pub limit: usize,
    /// Filter of objects; `None` lets all through.
    pub filter: Option<&'a Filter>,
    /// A condition of the filter that an index can answer.
    pub term: Option<&'a Term>,
}

/// The entries of a list and the revision they are exact at.
pub struct Snapshot {
    /// Matching entries, by key.
    pub items: Vec<Arc<Entry>>,
    /// Revision.
    pub revision: i64,
    /// True when the limit was reached before the last entry in scope, whether or not another one matches.
    pub more: bool,
    /// Entries in scope after the last one returned, where all of them match.
    pub remaining: i64,
    /// Entries that were looked at.
    pub fetched: usize,
}

/// Changes after a sequence number.
pub struct ChangesSince {
    /// The number to ask with next.
    pub sequence: u64,
    /// `entries` are all there are, not only what changed.
    pub complete: bool,
    /// Entries, with whether they are gone.
    pub entries: Vec<(Arc<Entry>, bool)>,
}

impl ListScope<'_> {
    fn from(&self) -> &str {
        if self.start.is_empty() { self.prefix } else { self.start }
    }

    fn pick<'e>(&self, mut entries: impl Iterator<Item = &'e Arc<Entry>>, revision: i64) -> Snapshot {
        let (mut items, mut remaining, mut fetched) = (Vec::new(), 0, 0);
        for e in entries.by_ref() {
            fetched += 1;
            if !self.filter.is_none_or(|f| f(e)) {
                continue;
            }
            items.push(e.clone());
            if self.limit > 0 && items.len() == self.limit {
                // How many match is nobody's business; whether there is anything to look at is.
                let looked_at = if self.filter.is_none() { usize::MAX } else { 1 };
                remaining = entries.by_ref().take(looked_at).count();
                break;
            }
        }
        let (more, remaining) = (remaining > 0, i64::try_from(remaining).unwrap_or(i64::MAX));
        Snapshot { items, revision, more, remaining, fetched }
    }
}

/// Watch cache of one resource.
pub struct Cacher {
    state: RwLock<State>,
    ready: watch::Sender<bool>,
    reads: OnceLock<ReadMetrics>,
}

impl Default for Cacher {
    fn default() -> Self {
        Self { state: RwLock::default(), ready: watch::Sender::new(false), reads: OnceLock::new() }
    }
}

impl Cacher {
    /// Metrics of reads from this cache; `row` names its resource.
    pub fn reads(&self, row: &Resource) -> &ReadMetrics {
        self.reads.get_or_init(|| ReadMetrics::new(row))
    }

    /// Waits until the initial list is in.
    pub async fn wait_ready(&self) {
        if self.is_ready() {
            return;
        }
        // The sender lives in self: waiting cannot fail.
        let _ = self.ready.subscribe().wait_for(|r| *r).await;
    }

    /// True once the initial list is in.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Replaces the content with a list read at `revision`, changed by what happened `since`. Readers see both at once:
    /// they may know already how far the caches have got, and take what they see for that. Running watches end.
    pub(super) fn reset(&self, objects: Vec<Arc<Entry>>, revision: i64, since: impl FnOnce(&mut State)) {
        let mut fresh = State::new(objects, revision);
        since(&mut fresh);
        let mut s = self.state.write();
        (fresh.sequence, fresh.terminated) = (s.sequence + 1 + fresh.sequence, s.terminated);
        let old = std::mem::replace(&mut *s, fresh);
        drop(s);
        drop(old);
        self.ready.send_replace(true);
    }

    /// Marks the content as stale and ends all watches; readers wait until the next [`Cacher::reset`].
    pub fn invalidate(&self) {
        self.ready.send_replace(false);
        let mut s = self.state.write();
        s.valid = false;
        s.watchers = super::state::Watchers::default();
    }

    /// Ends all watches: the cache is about to go.
    pub fn close(&self) {
        self.state.write().watchers = super::state::Watchers::default();
    }

    /// Changes the content.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write());
    }

    /// Applies a write, unless that or a later one is known.
    pub fn put(&self, entry: Entry) {
        self.change(|state| state.put(entry));
    }

    /// Applies a delete, unless that or a later write is known.
    pub fn delete(&self, key: &str, revision: i64) {
        self.change(|state| state.delete(key, revision));
    }

    /// The revision after which all changes are known.
    pub fn floor(&self) -> i64 {
        self.state.read().floor
    }

    /// Adds history: all changes after `floor` up to `upto`, in order. What is known already must follow it without a
    /// gap.
    pub fn prepend_history(&self, floor: i64, upto: i64, changes: Vec<Change>) {
        let mut s = self.state.write();
        if floor < s.floor && s.floor <= upto {
            s.prepend_history(floor, changes);
        }
    }

    /// One entry, as it was last known.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().objects.get(key).cloned()
    }

    /// One entry, as it is now.
    pub fn current(&self, key: &str) -> Result<Option<Arc<Entry>>, CacheError> {
        let s = self.state.read();
        if s.valid { Ok(s.objects.get(key).cloned()) } else { Err(CacheError::Restarting) }
    }

    /// All entries with a key prefix, as they were last known.
    pub fn cached_entries(&self, prefix: &str) -> Vec<Arc<Entry>> {
        self.state.read().entries_from(prefix, prefix).cloned().collect()
    }

    /// Revision of the newest change.
    pub fn revision(&self) -> i64 {
        self.state.read().revision
    }

    /// Differs after every change; see [`Cacher::since`].
    pub fn sequence(&self) -> u64 {
        self.state.read().sequence
    }

    /// The changes after a sequence number, or everything when they are no longer known. 0 knows nothing.
    pub fn since(&self, sequence: u64) -> ChangesSince {
        let s = self.state.read();
        let behind = usize::try_from(s.sequence.saturating_sub(sequence)).unwrap_or(usize::MAX);
        let complete = sequence == 0 || behind > s.own_changes();
        let entries = if complete {
            s.objects.values().map(|e| (e.clone(), false)).collect()
        } else {
            let news = s.ring.range(s.ring.len() - behind..);
            news.filter_map(|c| c.after.as_ref().map(|e| (e.clone(), false)).or(c.before.clone().map(|e| (e, true))))
                .collect()
        };
        ChangesSince { sequence: s.sequence, complete, entries }
    }

    /// True when nothing changed after `revision`.
    pub fn unchanged_since(&self, revision: i64) -> bool {
        self.state.read().revision <= revision
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    /// Stored bytes of an object, on average over a few.
    pub fn size_of_one(&self) -> u64 {
        let state = self.state.read();
        let sizes = state.objects.values().take(SAMPLE).map(|e| e.raw.size());
        let (count, sum) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        u64::try_from(sum.checked_div(count).unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// True without objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Matching entries as they are now. `at_least` is a revision known to be applied already; the snapshot is exact at
    /// the returned one.
    pub fn list(&self, scope: &ListScope<'_>, at_least: i64) -> Result<Snapshot, CacheError> {
        let s = self.state.read();
        if !s.valid {
            return Err(CacheError::Restarting);
        }
        let revision = s.revision.max(at_least);
        let Some(term) = scope.term.filter(|_| s.objects.len() >= WORTH_IT) else {
            return Ok(scope.pick(s.entries_from(scope.prefix, scope.from()), revision));
        };
        if let Some(found) = s.indexes.find(term) {
            let from = scope.from();
            let found = found.into_iter().filter(|e| &*e.key >= from && e.key.starts_with(scope.prefix));
            let mut snapshot = scope.pick(found, revision);
            if let Some(last) = snapshot.items.last().filter(|_| scope.limit > 0 && snapshot.items.len() == scope.limit)
            {
                snapshot.more = s.entries_from(scope.prefix, &last.key).nth(1).is_some();
            }
            return Ok(snapshot);
        }
        let snapshot = scope.pick(s.entries_from(scope.prefix, scope.from()), revision);
        drop(s);
        let s = &mut *self.state.write();
        s.indexes.build_if_repeated(&term.by, s.objects.values());
        Ok(snapshot)
    }

    /// Matching entries as they were at a revision, which the cache must have reached.
    pub fn list_at(&self, scope: &ListScope<'_>, revision: i64) -> Result<Snapshot, CacheError> {
        let s = self.state.read();
        if !s.valid {
            return Err(CacheError::Restarting);
        }
        if s.revision <= revision {
            return Ok(scope.pick(s.entries_from(scope.prefix, scope.from()), revision));
        }
        if revision < s.floor {
            return Err(CacheError::TooOld { asked: revision, oldest: s.floor });
        }
        Ok(scope.pick(s.past(revision, scope.prefix, scope.from()), revision))
    }

    /// Starts a watch of what the filter lets through.
    pub fn watch(&self, begin: WatchStart<'_>, filter: Filter) -> Result<Watch, CacheError> {
        let s = &mut *self.state.write();
        if !s.valid {
            return Err(CacheError::Restarting);
        }
        let (mut initial, mut replay) = (Vec::new(), Vec::new());
        match begin.start {
            Start::State => {
                let term = begin.term.filter(|_| s.objects.len() >= WORTH_IT);
                if let Some(term) = term {
                    s.indexes.build_if_repeated(&term.by, s.objects.values());
                }
                initial = match term.and_then(|term| s.indexes.find(term)) {
                    Some(found) => found.into_iter().filter(|e| filter(e)).cloned().collect(),
                    None => s.entries_from(begin.scope, begin.scope).filter(|e| filter(e)).cloned().collect(),
                };
            }
            Start::After(asked) if asked < s.floor => return Err(CacheError::TooOld { asked, oldest: s.floor }),
            Start::After(asked) => {
                let first = s.ring.partition_point(|c| c.revision <= asked);
                replay = s.ring.range(first..).filter(|c| c.event_for(&*filter).is_some()).cloned().collect();
            }
        }
        let (sender, receiver) = mpsc::channel(WATCHER_BUFFER);
        s.watchers.add(begin.trigger, Watcher { filter, sender });
        Ok(Watch { initial, replay, receiver, revision: s.revision.max(begin.at_least) })
    }

    /// Watches that ended because they were too slow.
    pub fn terminated(&self) -> u64 {
        self.state.read().terminated
    }

    /// Number of running watches.
    pub fn watchers(&self) -> usize {
        self.state.read().watchers.len()
    }
}

#[cfg(test)]
mod tests;
