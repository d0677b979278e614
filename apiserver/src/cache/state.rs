//! State of a cache and its transitions: objects by key, a bounded ring of the last changes, indexes, watchers. Answers
//! for upstream's `watchCache`, `cacheWatcher`, `getAllEventsSinceLocked`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::cacher::{Filter, Message};
use super::entry::{Change, Entry, SharedEvent};
use super::index::Indexes;

/// Changes kept for watches that resume and for lists of a moment that has passed.
pub(super) const RING: usize = 16_384;
/// Bytes of objects the ring may hold on to beyond the live ones.
pub(super) const RING_BYTES: usize = 8 << 20;
/// Changes that are older are only kept while there are few: etcd still has them
/// ([`super::CacheRegistry::backfill_history`]).
const RING_AGE: Duration = Duration::from_secs(5 * 60);
/// So many are kept however old they are.
const RING_LEAST: usize = 128;
/// Watchers are looked through for closed ones when there are this many, and whenever they have doubled since.
const SWEEP_FROM: usize = 64;

/// Objects by the key below the resource's prefix.
pub(super) type Objects = BTreeMap<Arc<str>, Arc<Entry>>;

/// A selectable field that all objects a watcher sees have the same value of.
pub type Trigger = (usize, Box<str>);

pub(super) struct Watcher {
    pub(super) filter: Filter,
    pub(super) sender: mpsc::Sender<Message>,
}

impl Watcher {
    /// False when it is gone or too slow (then it is counted): its channel is full, and dropping the sender ends its
    /// stream.
    fn dispatch(&self, live: &Arc<SharedEvent>, slow: &mut u64) -> bool {
        let Some((seen, entry)) = live.change.event_for(&*self.filter) else { return !self.sender.is_closed() };
        match self.sender.try_send(Message { seen, entry: entry.clone(), live: live.clone() }) {
            Ok(()) => true,
            Err(why) => {
                *slow += u64::from(matches!(why, mpsc::error::TrySendError::Full(_)));
                false
            }
        }
    }
}

/// Running watches. Those that are bound to a field's value (a kubelet's to its node) are only told of changes with it.
#[derive(Default)]
pub(super) struct Watchers {
    all: Vec<Watcher>,
    bound: HashMap<Trigger, Vec<Watcher>>,
    count: usize,
    sweep_at: usize,
}

impl Watchers {
    pub(super) fn add(&mut self, trigger: Option<Trigger>, watcher: Watcher) {
        if self.count >= self.sweep_at.max(SWEEP_FROM) {
            self.all.retain(|w| !w.sender.is_closed());
            self.bound.values_mut().for_each(|some| some.retain(|w| !w.sender.is_closed()));
            self.bound.retain(|_, some| !some.is_empty());
            self.count = self.all.len() + self.bound.values().map(Vec::len).sum::<usize>();
            self.sweep_at = 2 * self.count;
        }
        self.count += 1;
        match trigger {
            Some(trigger) => self.bound.entry(trigger).or_default().push(watcher),
            None => self.all.push(watcher),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len() + self.bound.values().map(Vec::len).sum::<usize>()
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.bound.is_empty()
    }

    fn dispatch(&mut self, live: &Arc<SharedEvent>, slow: &mut u64) {
        self.all.retain(|w| w.dispatch(live, slow));
        if self.bound.is_empty() {
            return;
        }
        let mut fields: Vec<usize> = self.bound.keys().map(|(field, _)| *field).collect();
        fields.sort_unstable();
        fields.dedup();
        for field in fields {
            let value = |e: &Option<Arc<Entry>>| e.as_ref().map(|e| Box::<str>::from(e.field(field)));
            let (before, after) = (value(&live.change.before), value(&live.change.after));
            let other = before.filter(|b| after.as_ref() != Some(b));
            for value in [after, other].into_iter().flatten() {
                if let Some(some) = self.bound.get_mut(&(field, value)) {
                    some.retain(|w| w.dispatch(live, slow));
                }
            }
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) objects: Objects,
    /// No change that others know of is missing.
    pub(super) valid: bool,
    /// Revision of the newest change applied, or of the initial list.
    pub(super) revision: i64,
    pub(super) ring: VecDeque<Change>,
    /// Time at which each of them arrived.
    seen_at: VecDeque<Instant>,
    ring_bytes: usize,
    /// Number of changes at the front of the ring that are history read back from etcd.
    recalled: usize,
    /// The ring holds every change after this revision.
    pub(super) floor: i64,
    /// Counts changes and initial lists: unlike the revision it differs after each of several changes of one
    /// transaction.
    pub(super) sequence: u64,
    pub(super) watchers: Watchers,
    /// Watches that ended because they were too slow.
    pub(super) terminated: u64,
    pub(super) indexes: Indexes,
}

impl State {
    pub(super) fn new(objects: Vec<Arc<Entry>>, revision: i64) -> Self {
        let objects = objects.into_iter().map(|e| (e.key.clone(), e)).collect();
        Self { objects, valid: true, revision, floor: revision, ..Self::default() }
    }

    /// Applies a write. Older revisions than what is known are ignored, so replays are harmless. One transaction (such
    /// as the end of a lease) may change several keys at one revision.
    pub(super) fn put(&mut self, entry: Entry) {
        if self.is_known(&entry.key, entry.revision) {
            return;
        }
        let entry = Arc::new(entry);
        let before = self.objects.insert(entry.key.clone(), entry.clone());
        self.publish(Change { revision: entry.revision, after: Some(entry), before });
    }

    /// Applies a delete.
    pub(super) fn delete(&mut self, key: &str, revision: i64) {
        if self.is_known(key, revision) {
            return;
        }
        match self.objects.remove(key) {
            Some(last) => self.publish(Change { revision, after: None, before: Some(last) }),
            None => self.revision = revision,
        }
    }

    fn is_known(&self, key: &str, revision: i64) -> bool {
        revision < self.revision || self.objects.get(key).is_some_and(|e| e.revision >= revision)
    }

    fn publish(&mut self, change: Change) {
        self.revision = change.revision;
        self.sequence += 1;
        self.indexes.apply(change.before.as_ref(), change.after.as_ref());
        self.ring_bytes += change.weight();
        let now = Instant::now();
        self.ring.push_back(change.clone());
        self.seen_at.push_back(now);
        let old = |at: Option<&Instant>| at.is_some_and(|at| now.duration_since(*at) > RING_AGE);
        while self.ring.len() > RING
            || self.ring_bytes > RING_BYTES
            || (self.ring.len() > RING_LEAST && old(self.seen_at.front()))
        {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.seen_at.pop_front();
            self.recalled = self.recalled.saturating_sub(1);
            self.ring_bytes -= oldest.weight();
            self.floor = oldest.revision;
        }
        if !self.watchers.is_empty() {
            self.watchers.dispatch(&Arc::new(SharedEvent::new(change)), &mut self.terminated);
        }
    }

    /// Number of changes in the ring that arrived after the initial list.
    pub(super) fn own_changes(&self) -> usize {
        self.ring.len() - self.recalled
    }

    /// Puts history before what the ring knows. `changes` are all those after `floor` up to the present floor, in
    /// order; the oldest that find no room are left out.
    pub(super) fn prepend_history(&mut self, floor: i64, changes: Vec<Change>) {
        let known = self.floor;
        for change in changes.into_iter().rev().filter(|c| c.revision <= known) {
            if self.ring.len() >= RING || self.ring_bytes + change.weight() > RING_BYTES {
                // What happened at this revision is not complete.
                self.floor = change.revision;
                return;
            }
            self.ring_bytes += change.weight();
            self.ring.push_front(change);
            self.seen_at.push_front(Instant::now());
            self.recalled += 1;
        }
        self.floor = floor;
    }

    /// The objects as they are now below `scope`, from `from` on.
    pub(super) fn entries_from<'s>(&'s self, scope: &'s str, from: &'s str) -> impl Iterator<Item = &'s Arc<Entry>> {
        let range = self.objects.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        range.take_while(move |(k, _)| k.starts_with(scope)).map(|(_, e)| e)
    }

    /// The objects as they were at a revision that is not before the floor.
    pub(super) fn past<'s>(
        &'s self,
        revision: i64,
        scope: &'s str,
        from: &'s str,
    ) -> impl Iterator<Item = &'s Arc<Entry>> {
        let first = self.ring.partition_point(|c| c.revision <= revision);
        let mut then: BTreeMap<&str, Option<&Arc<Entry>>> = BTreeMap::new();
        for change in self.ring.range(first..) {
            let key = change.after.as_ref().or(change.before.as_ref()).map_or("", |e| &*e.key);
            if key >= from && key.starts_with(scope) {
                // Of several changes of one object the first tells what was before.
                then.entry(key).or_insert(change.before.as_ref());
            }
        }
        Merged { now: self.entries_from(scope, from).peekable(), then: then.into_iter().peekable() }
    }
}

/// Objects as they are, with those that changed replaced by what they were; both by key.
struct Merged<N: Iterator, T: Iterator> {
    now: std::iter::Peekable<N>,
    then: std::iter::Peekable<T>,
}

impl<'s, N, T> Iterator for Merged<N, T>
where
    N: Iterator<Item = &'s Arc<Entry>>,
    T: Iterator<Item = (&'s str, Option<&'s Arc<Entry>>)>,
{
    type Item = &'s Arc<Entry>;

    fn next(&mut self) -> Option<&'s Arc<Entry>> {
        loop {
            let (now, then) = (self.now.peek().map(|e| &*e.key), self.then.peek().map(|(k, _)| *k));
            match (now, then) {
                (None, None) => return None,
                (Some(_), None) => return self.now.next(),
                (Some(now), Some(then)) if now < then => return self.now.next(),
                (now, Some(then)) => {
                    if now == Some(then) {
                        self.now.next();
                    }
                    if let Some((_, Some(entry))) = self.then.next() {
                        return Some(entry);
                    }
                }
            }
        }
    }
}
