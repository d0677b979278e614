//! The cache of one resource: its objects by key, a bounded ring of its last changes, and its watchers.
//!
//! One task (the hub's) writes; readers take a short read lock and leave with reference-counted entries. A watcher
//! that does not keep up is dropped: its client lists again, the server never buffers without bound.
//!
//! Hot path: no encoding, no decoding and no waiting under the lock.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::OnceLock;

use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};

use super::entry::{Change, Entry, Live, Seen};

/// Changes kept for watches that resume.
const RING: usize = 1024;
/// Bytes of objects the ring may hold on to beyond the live ones.
const RING_BYTES: usize = 4 << 20;
/// Changes a watcher may lag behind.
const WATCHER_BUFFER: usize = 1024;

/// Objects looked at for their average size.
const SAMPLE: usize = 64;

/// Decides which objects a reader sees.
pub type Filter = Arc<dyn Fn(&Entry) -> bool + Send + Sync>;

/// What a watcher receives.
#[derive(Debug)]
pub struct Message {
    /// Event type.
    pub seen: Seen,
    /// The object to show.
    pub entry: Arc<Entry>,
    /// The change, with encodings shared between watchers.
    pub live: Arc<Live>,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the state as it is, then its changes.
    State,
    /// With the changes after a revision.
    After(i64),
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

/// Why a watch or list cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The changes since that revision are no longer known.
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld {
        /// What was asked.
        asked: i64,
        /// The oldest revision that can be resumed from.
        oldest: i64,
    },
}

struct Watcher {
    filter: Filter,
    sender: mpsc::Sender<Message>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Arc<str>, Arc<Entry>>,
    /// Revision of the newest change applied, or of the initial list.
    revision: i64,
    ring: VecDeque<Change>,
    ring_bytes: usize,
    /// The ring holds every change after this revision.
    floor: i64,
    /// Counts changes and initial lists: unlike the revision it differs after each of several changes of one
    /// transaction.
    sequence: u64,
    watchers: Vec<Watcher>,
}

/// The entries of a list and the revision they are exact at.
pub struct Snapshot {
    /// Matching entries, by key.
    pub items: Vec<Arc<Entry>>,
    /// Revision.
    pub revision: i64,
    /// True when the limit cut the list.
    pub more: bool,
    /// Entries in scope after the last one returned, filter not applied.
    pub remaining: i64,
}

/// What happened after a sequence number.
pub struct Since {
    /// The number to ask with next.
    pub sequence: u64,
    /// `entries` are all there are, not only what changed.
    pub complete: bool,
    /// Entries, with whether they are gone.
    pub entries: Vec<(Arc<Entry>, bool)>,
}

/// See the module.
pub struct Cacher {
    state: RwLock<State>,
    ready: watch::Sender<bool>,
}

impl Default for Cacher {
    fn default() -> Self {
        Self { state: RwLock::default(), ready: watch::Sender::new(false) }
    }
}

impl Cacher {
    /// Waits until the initial list is in.
    pub async fn wait_ready(&self) {
        // The sender lives in self: waiting cannot fail.
        let _ = self.ready.subscribe().wait_for(|r| *r).await;
    }

    /// True once the initial list is in.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Replaces the content with a list read at `revision`. Running watches end.
    pub fn reset(&self, objects: Vec<Arc<Entry>>, revision: i64) {
        let mut s = self.state.write();
        *s = State {
            objects: objects.into_iter().map(|e| (e.key.clone(), e)).collect(),
            revision,
            floor: revision,
            sequence: s.sequence + 1,
            ..State::default()
        };
        drop(s);
        self.ready.send_replace(true);
    }

    /// Marks the content as stale and ends all watches; readers wait until the next [`Cacher::reset`].
    pub fn invalidate(&self) {
        self.ready.send_replace(false);
        self.state.write().watchers.clear();
    }

    /// Applies a write. Older revisions than what is known are ignored, so replays are harmless. One transaction (such
    /// as the end of a lease) may change several keys at one revision.
    pub fn put(&self, entry: Entry) {
        let mut s = self.state.write();
        if entry.revision < s.revision || s.objects.get(&entry.key).is_some_and(|e| e.revision >= entry.revision) {
            return;
        }
        let entry = Arc::new(entry);
        let before = s.objects.insert(entry.key.clone(), entry.clone());
        let change = Change { revision: entry.revision, after: Some(entry), before };
        s.publish(change);
    }

    /// Applies a delete; `gone` makes the last state carry the deletion's revision.
    pub fn delete(&self, key: &str, revision: i64, gone: impl FnOnce(&Entry) -> Entry) {
        let mut s = self.state.write();
        if revision < s.revision || s.objects.get(key).is_some_and(|e| e.revision >= revision) {
            return;
        }
        match s.objects.remove(key) {
            Some(last) => {
                let before = Some(Arc::new(gone(&last)));
                s.publish(Change { revision, after: None, before });
            }
            None => s.revision = revision,
        }
    }

    /// One entry.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().objects.get(key).cloned()
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
    pub fn since(&self, sequence: u64) -> Since {
        let s = self.state.read();
        let behind = usize::try_from(s.sequence.saturating_sub(sequence)).unwrap_or(usize::MAX);
        let complete = sequence == 0 || behind > s.ring.len();
        let entries = if complete {
            s.objects.values().map(|e| (e.clone(), false)).collect()
        } else {
            let news = s.ring.range(s.ring.len() - behind..);
            news.filter_map(|c| c.after.as_ref().map(|e| (e.clone(), false)).or(c.before.clone().map(|e| (e, true))))
                .collect()
        };
        Since { sequence: s.sequence, complete, entries }
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

    /// Matching entries below `scope` (a key prefix such as `default/`, or empty), from `start` on, at most `limit`
    /// (0: all). `at_least` is a revision known to be applied already; the snapshot is exact at the returned one.
    pub fn list(&self, scope: &str, start: &str, limit: usize, at_least: i64, filter: Option<&Filter>) -> Snapshot {
        let s = self.state.read();
        let from = if start.is_empty() { scope } else { start };
        let mut items = Vec::new();
        let mut range = s
            .objects
            .range::<str, _>((Bound::Included(from), Bound::Unbounded))
            .take_while(|(k, _)| k.starts_with(scope));
        let mut more = false;
        let mut remaining = 0;
        for (_, e) in range.by_ref() {
            if filter.is_none_or(|f| f(e)) {
                if limit > 0 && items.len() == limit {
                    more = true;
                    remaining = 1;
                    break;
                }
                items.push(e.clone());
            }
        }
        if more {
            remaining += i64::try_from(range.count()).unwrap_or(i64::MAX);
        }
        Snapshot { items, revision: s.revision.max(at_least), more, remaining }
    }

    /// True when nothing changed after `revision`.
    pub fn unchanged_since(&self, revision: i64) -> bool {
        let s = self.state.read();
        s.revision <= revision
    }

    /// Starts a watch. `at_least` as in [`Cacher::list`].
    pub fn watch(&self, scope: &str, start: Start, at_least: i64, filter: Filter) -> Result<Watch, CacheError> {
        let mut s = self.state.write();
        let (mut initial, mut replay) = (Vec::new(), Vec::new());
        match start {
            Start::State => {
                let range = s.objects.range::<str, _>((Bound::Included(scope), Bound::Unbounded));
                initial = range
                    .take_while(|(k, _)| k.starts_with(scope))
                    .filter(|(_, e)| filter(e))
                    .map(|(_, e)| e.clone())
                    .collect();
            }
            Start::After(asked) if asked < s.floor => return Err(CacheError::TooOld { asked, oldest: s.floor }),
            Start::After(asked) => {
                let first = s.ring.partition_point(|c| c.revision <= asked);
                replay = s.ring.range(first..).filter(|c| c.seen(&*filter).is_some()).cloned().collect();
            }
        }
        let (sender, receiver) = mpsc::channel(WATCHER_BUFFER);
        s.watchers.retain(|w| !w.sender.is_closed());
        s.watchers.push(Watcher { filter, sender });
        Ok(Watch { initial, replay, receiver, revision: s.revision.max(at_least) })
    }

    /// Number of running watches.
    pub fn watchers(&self) -> usize {
        self.state.read().watchers.len()
    }
}

impl State {
    fn publish(&mut self, change: Change) {
        self.revision = change.revision;
        self.sequence += 1;
        self.ring_bytes += change.before.as_ref().map_or(0, |e| e.raw.size());
        self.ring.push_back(change.clone());
        while self.ring.len() > RING || self.ring_bytes > RING_BYTES {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= oldest.before.as_ref().map_or(0, |e| e.raw.size());
            self.floor = oldest.revision;
        }
        if self.watchers.is_empty() {
            return;
        }
        let live = Arc::new(Live { change, json: OnceLock::new() });
        self.watchers.retain(|w| {
            let Some((seen, entry)) = live.change.seen(&*w.filter) else { return !w.sender.is_closed() };
            // A full channel is a slow watcher: dropping the sender ends its stream.
            w.sender.try_send(Message { seen, entry: entry.clone(), live: live.clone() }).is_ok()
        });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::entry::Raw;

    fn entry(key: &str, revision: i64, label: &str) -> Entry {
        Entry {
            key: key.into(),
            revision,
            raw: Raw::Json(Bytes::from_static(b"{}")),
            labels: Box::new([("l".into(), label.into())]),
            fields: Box::new([]),
        }
    }

    fn all() -> Filter {
        Arc::new(|_| true)
    }

    fn gone(e: &Entry, revision: i64) -> Entry {
        Entry { key: e.key.clone(), revision, raw: e.raw.clone(), labels: e.labels.clone(), fields: e.fields.clone() }
    }

    fn cacher() -> Cacher {
        let c = Cacher::default();
        c.reset(vec![Arc::new(entry("a/x", 3, "1")), Arc::new(entry("b/y", 5, "1"))], 6);
        c
    }

    #[test]
    fn resumes_from_the_ring_in_order() {
        let c = cacher();
        c.put(entry("a/z", 7, "1"));
        c.put(entry("a/x", 8, "1"));
        c.delete("b/y", 9, |e| gone(e, 9));
        let w = c.watch("", Start::After(6), 9, all()).expect("in the ring");
        let seen: Vec<_> = w.replay.iter().filter_map(|c| c.seen(|_| true).map(|(s, e)| (s, e.revision))).collect();
        assert_eq!(seen, [(Seen::Added, 7), (Seen::Modified, 8), (Seen::Deleted, 9)]);
        assert_eq!(c.watch("", Start::After(5), 9, all()).err(), Some(CacheError::TooOld { asked: 5, oldest: 6 }));
    }

    #[test]
    fn one_revision_may_delete_many() {
        let c = cacher();
        c.delete("a/x", 7, |e| gone(e, 7));
        c.delete("b/y", 7, |e| gone(e, 7));
        assert!(c.is_empty());
    }

    #[test]
    fn leaving_a_selector_is_a_delete() {
        let c = cacher();
        let only: Filter = Arc::new(|e| e.label("l") == Some("1"));
        let mut w = c.watch("", Start::State, 6, only).expect("state");
        assert_eq!(w.initial.len(), 2);
        c.put(entry("a/x", 7, "2"));
        c.put(entry("a/x", 8, "2"));
        c.put(entry("a/x", 9, "1"));
        let mut got = Vec::new();
        while let Ok(m) = w.receiver.try_recv() {
            got.push((m.seen, m.live.change.revision));
        }
        assert_eq!(got, [(Seen::Deleted, 7), (Seen::Added, 9)]);
    }

    #[test]
    fn slow_watchers_are_closed_not_buffered() {
        let c = cacher();
        let mut w = c.watch("", Start::State, 6, all()).expect("state");
        for i in 0..=i64::try_from(WATCHER_BUFFER).expect("small") {
            c.put(entry("a/x", 7 + i, "1"));
        }
        assert_eq!(c.watchers(), 0);
        let mut n = 0;
        while w.receiver.try_recv().is_ok() {
            n += 1;
        }
        assert_eq!(n, WATCHER_BUFFER);
    }

    #[test]
    fn ring_is_bounded_and_moves_its_floor() {
        let c = cacher();
        for i in 0..2000 {
            c.put(entry("a/x", 7 + i, "1"));
        }
        assert_eq!(
            c.watch("", Start::After(7), 0, all()).err(),
            Some(CacheError::TooOld { asked: 7, oldest: 2006 - 1024 })
        );
        assert!(c.watch("", Start::After(2006 - 1024), 0, all()).is_ok());
    }

    #[test]
    fn followers_get_what_is_new() {
        let c = cacher();
        let seen = |since: u64| {
            let s = c.since(since);
            let keys: Vec<String> =
                s.entries.iter().map(|(e, gone)| format!("{}{}", if *gone { "-" } else { "" }, e.key)).collect();
            (s.sequence, s.complete, keys.join(" "))
        };
        let (start, complete, keys) = seen(0);
        assert_eq!((complete, keys.as_str()), (true, "a/x b/y"));
        c.put(entry("a/z", 7, "1"));
        let between = c.sequence();
        // The end of a lease deletes several keys at one revision.
        c.delete("a/x", 8, |e| gone(e, 8));
        let half = c.sequence();
        c.delete("b/y", 8, |e| gone(e, 8));
        assert_eq!(seen(start), (c.sequence(), false, "a/z -a/x -b/y".to_owned()));
        assert_eq!(seen(between), (c.sequence(), false, "-a/x -b/y".to_owned()));
        assert_eq!(seen(half), (c.sequence(), false, "-b/y".to_owned()));
        c.reset(vec![Arc::new(entry("a/n", 9, "1"))], 9);
        assert_eq!(seen(half), (c.sequence(), true, "a/n".to_owned()), "a new list replaces everything");
    }

    #[test]
    fn lists_by_scope_with_limit() {
        let c = cacher();
        c.put(entry("a/z", 7, "1"));
        let s = c.list("a/", "", 0, 9, None);
        assert_eq!((s.items.len(), s.revision, s.more), (2, 9, false));
        let s = c.list("", "", 1, 0, None);
        assert_eq!((s.items.len(), s.revision, s.more, s.remaining), (1, 7, true, 2));
        let s = c.list("", "a/x\0", 0, 0, None);
        assert_eq!(s.items.len(), 2);
    }
}
