//! The ties between sets and the objects they own: who is woken when a pod changes, and who gets to keep it.

use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashSet};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use parking_lot::Mutex;
use shared::informer::{Event, Informer, Object, Store};
use shared::workqueue::Queue;
use tokio::time::Instant;

use super::action::{Action, object_path};
use super::claim::{Claimed, claim};
use super::expect::Expectations;
use super::indices::{BY_CONTROLLER, orphans};
use super::object::{self, Held, Key, Metadata as _};
use super::pod::Pod;
use super::pods;
use super::rest::{Rest, RestError};
use super::selectors::{Selecting, Selectors};

/// Wake the key of every object of a kind that changes.
pub fn watch<K: Object>(informer: &Informer<K>, queue: &Queue<Key>) {
    let queue = queue.clone();
    informer.add_handler(move |event: &Event<K>| queue.add(Key::of(event.object().meta())));
}

/// The owner a reference means, if it is of this kind and has that very uid.
pub fn resolve<K: Object>(store: &Store<K>, namespace: &str, reference: &OwnerReference) -> Option<Arc<K>> {
    if reference.kind != K::kind(&()) {
        return None;
    }
    store.get(namespace, &reference.name).filter(|o| o.meta().uid.as_deref() == Some(reference.uid.as_str()))
}

/// Shortest interval between two looks at a set because of its pods: each look goes over all of them, and when very
/// many change at once each change would bring one.
const PACE: Duration = Duration::from_millis(100);
/// Sets whose last look is remembered, before those are forgotten that were looked at long ago.
const REMEMBERED: usize = 1024;

/// Share of a pod in the pace of sets that are known to be small.
const PACE_OF_A_POD: Duration = Duration::from_millis(1);

/// Share of a pod in the pace of sets of thousands, each look at which costs as much as it has pods: a look for every tenth
/// of a millisecond of each keeps the cost of a change the same, however large a set is.
const PACE_OF_MANY: Duration = Duration::from_micros(100);
/// Longest pace.
const SLOWEST: Duration = Duration::from_secs(1);

/// The pace of sets of this many pods: the status of few is current at once, as people who wait for it expect.
fn pace_of(pods: usize) -> Duration {
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    let few = PACE_OF_A_POD.saturating_mul(pods).min(PACE);
    few.max(PACE_OF_MANY.saturating_mul(pods).min(SLOWEST))
}

/// Times of the last look at each set, or of the next.
#[derive(Default)]
struct Looks {
    by_set: HashMap<Key, Instant>,
    /// Sets left by the last sweep of those that were looked at long ago.
    left: usize,
}

impl Looks {
    /// Takes note of a look. The sets are swept when they are twice as many as the last sweep left, so that a look costs
    /// the same however many there are.
    fn insert(&mut self, key: Key, due: Instant, forgotten: impl Fn(Instant) -> bool) {
        if self.by_set.len() >= REMEMBERED.max(2 * self.left) {
            self.by_set.retain(|_, look| !forgotten(*look));
            self.left = self.by_set.len();
        }
        self.by_set.insert(key, due);
    }
}

/// Wakes the keys of a queue: the first time at once, and then not before its pace has passed, which is [`PACE`] where
/// nothing is known about the size of sets.
pub struct Paced {
    queue: Queue<Key>,
    looks: Mutex<Looks>,
    pace: Box<dyn Fn(&Key) -> Duration + Send + Sync>,
}

impl Paced {
    /// Returns the pace of this queue.
    #[must_use]
    pub fn new(queue: &Queue<Key>) -> Arc<Self> {
        Arc::new(Self { queue: queue.clone(), looks: Mutex::default(), pace: Box::new(|_| PACE) })
    }

    /// Returns the pace of this queue, whose sets ask for as many pods as `size` says: not faster than [`PACE`].
    #[must_use]
    pub fn of_many(queue: &Queue<Key>, size: impl Fn(&Key) -> i32 + Send + Sync + 'static) -> Arc<Self> {
        let pace = move |key: &Key| pace_of(usize::try_from(size(key)).unwrap_or(0)).max(PACE);
        Arc::new(Self { queue: queue.clone(), looks: Mutex::default(), pace: Box::new(pace) })
    }

    /// Returns the pace of this queue, whose sets have as many pods as `size` says.
    #[must_use]
    pub fn sized(queue: &Queue<Key>, size: impl Fn(&Key) -> usize + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { queue: queue.clone(), looks: Mutex::default(), pace: Box::new(move |key| pace_of(size(key))) })
    }

    /// Wake a key.
    pub fn wake(&self, key: Key) {
        let (now, pace) = (Instant::now(), (self.pace)(&key));
        let mut looks = self.looks.lock();
        let due = match looks.by_set.get(&key) {
            // Asked for once more: what the queue had may have come earlier, with a retry.
            Some(next) if *next > now => *next,
            Some(last) => (*last + pace).max(now),
            None => now,
        };
        looks.insert(key.clone(), due, |look| look + SLOWEST <= now);
        drop(looks);
        self.queue.add_after(key, due - now);
    }
}

/// Wakes the key of every set of a kind that changes: at once where it asks for something else, and at its pace where only
/// its status changed, which its controller writes itself.
pub fn watch_paced<K: Object>(informer: &Informer<K>, paced: &Arc<Paced>) {
    let paced = Arc::clone(paced);
    informer.add_handler(move |event: &Event<K>| {
        let key = Key::of(event.object().meta());
        match event {
            Event::Updated { old, new } if object::asks_the_same(old.meta(), new.meta()) => paced.wake(key),
            _ => paced.queue.add(key),
        }
    });
}

/// Wakes the sets of one kind when their pods change.
pub struct PodWatch<K: Selecting> {
    /// The sets.
    pub sets: Arc<Selectors<K>>,
    /// Queue of the sets.
    pub paced: Arc<Paced>,
    /// Writes that the caches do not show yet.
    pub expectations: Arc<Expectations>,
    /// Reports whether a set selects a pod.
    pub selects: fn(&K, &Pod) -> bool,
}

impl<K: Selecting> PodWatch<K> {
    /// Listen to the pods.
    pub fn listen(self, pods: &Informer<Pod>) {
        pods.add_handler(move |event| self.on(event));
    }

    fn on(&self, event: &Event<Pod>) {
        match event {
            Event::Added(pod) if object::deleting(&pod.metadata) => self.gone(pod),
            Event::Added(pod) => {
                if let Some(set) = self.owner(pod) {
                    let key = Key::of(set.meta());
                    let all_seen = self.expectations.of(&key, object::uid(set.meta())).created();
                    self.seen(key, all_seen);
                } else if object::controller_of(&pod.metadata).is_none() {
                    self.wake_takers(pod);
                }
            }
            Event::Updated { old, new } => {
                if object::deleting(&new.metadata) {
                    self.gone(new);
                    return;
                }
                let same = pods::owner_uid(old) == pods::owner_uid(new);
                if !same {
                    self.wake_owner(old);
                }
                if object::controller_of(&new.metadata).is_some() {
                    self.wake_owner(new);
                } else if !same || old.metadata.labels != new.metadata.labels {
                    self.wake_takers(new);
                }
            }
            Event::Deleted(pod) => self.gone(pod),
        }
    }

    fn owner(&self, pod: &Pod) -> Option<Arc<K>> {
        resolve(self.sets.store(), object::namespace(&pod.metadata), object::controller_of(&pod.metadata)?)
    }

    /// Wakes a key: at once when it is all that the controller waited for; else at its pace.
    fn seen(&self, key: Key, all_expected: bool) {
        if all_expected { self.paced.queue.add(key) } else { self.paced.wake(key) }
    }

    fn wake_owner(&self, pod: &Pod) {
        if let Some(set) = self.owner(pod) {
            self.paced.wake(Key::of(set.meta()));
        }
    }

    fn gone(&self, pod: &Pod) {
        if let Some(set) = self.owner(pod) {
            let key = Key::of(set.meta());
            let all_seen = self.expectations.of(&key, object::uid(set.meta())).deleted(object::uid(&pod.metadata));
            self.seen(key, all_seen);
        }
    }

    fn wake_takers(&self, pod: &Pod) {
        for set in self.sets.candidates(object::namespace(&pod.metadata), pod.metadata.labels.as_deref()) {
            if (self.selects)(&set, pod) {
                self.paced.queue.add(Key::of(set.meta()));
            }
        }
    }
}

/// Wake the sets of kind `P` when owned objects of kind `C` change, and those that might adopt an orphan.
pub fn watch_children<P: Selecting, C: Object>(
    children: &Informer<C>,
    parents: Arc<Selectors<P>>,
    queue: Queue<Key>,
    selects: fn(&P, &C) -> bool,
) {
    children.add_handler(waking(parents, queue, selects));
}

/// Watches template revisions; but one that comes with an owner wakes nobody: upstream's controllers look at it when
/// something else happens, and until then it stands beside an equal one.
pub fn watch_revisions<P: Selecting>(
    revisions: &Informer<ControllerRevision>,
    parents: Arc<Selectors<P>>,
    queue: Queue<Key>,
    selects: fn(&P, &ControllerRevision) -> bool,
) {
    let wake = waking(parents, queue, selects);
    revisions.add_handler(move |event: &Event<ControllerRevision>| match event {
        Event::Added(revision) if object::controller_of(&revision.metadata).is_some() => {}
        event => wake(event),
    });
}

fn waking<P: Selecting, C: Object>(
    parents: Arc<Selectors<P>>,
    queue: Queue<Key>,
    selects: fn(&P, &C) -> bool,
) -> impl Fn(&Event<C>) {
    move |event: &Event<C>| {
        let wake = |child: &C, orphans_too: bool| {
            let meta = child.meta();
            match object::controller_of(meta) {
                Some(r) => {
                    if let Some(parent) = resolve(parents.store(), object::namespace(meta), r) {
                        queue.add(Key::of(parent.meta()));
                    }
                }
                None if orphans_too && !object::deleting(meta) => {
                    for parent in parents.candidates(object::namespace(meta), meta.labels.as_ref()) {
                        if selects(&parent, child) {
                            queue.add(Key::of(parent.meta()));
                        }
                    }
                }
                None => {}
            }
        };
        match event {
            Event::Added(child) => wake(child, true),
            Event::Updated { old, new } => {
                let owner = |c: &C| object::controller_of(c.meta()).map(|r| r.uid.clone());
                let moved = owner(old) != owner(new);
                if moved {
                    wake(old, false);
                }
                wake(new, moved || old.meta().labels != new.meta().labels);
            }
            Event::Deleted(child) => wake(child, false),
        }
    }
}

/// Returns what a set owns or could adopt, in no order: its children and the orphans of its namespace. Putting thousands in
/// order takes longer than all else that is done with them.
pub fn unordered_candidates<C: Held>(store: &Store<C>, namespace: &str, uid: &str) -> Vec<Arc<C>> {
    let mut out = store.by_index(BY_CONTROLLER, uid);
    out.retain(|c| object::namespace(c.metadata()) == namespace);
    out.extend(store.by_index(BY_CONTROLLER, &orphans(namespace)));
    out
}

/// Does as [`unordered_candidates`], by name.
pub fn candidates<C: Held>(store: &Store<C>, namespace: &str, uid: &str) -> Vec<Arc<C>> {
    let mut out = unordered_candidates(store, namespace, uid);
    out.sort_by(|a, b| a.metadata().name().cmp(&b.metadata().name()));
    out
}

/// Adopt and release on the server, and return what the set owns after that. An orphan that is gone is left out; a write
/// that fails otherwise is told when the others are done, as in upstream's `ClaimPods`.
pub async fn settle<P, C>(
    rest: &Rest,
    owner: &P,
    selects: impl Fn(&C) -> bool,
    candidates: Vec<Arc<C>>,
) -> Result<Vec<Arc<C>>, RestError>
where
    P: Object,
    C: Held,
{
    settle_with(rest, owner, selects, candidates, None).await
}

/// Settles owners that track what they own by a finalizer.
pub async fn settle_with<P, C>(
    rest: &Rest,
    owner: &P,
    selects: impl Fn(&C) -> bool,
    candidates: Vec<Arc<C>>,
    finalizer: Option<&str>,
) -> Result<Vec<Arc<C>>, RestError>
where
    P: Object,
    C: Held,
{
    let reference = object::controller_ref::<P>(owner.meta());
    let claimed = claim(owner.meta(), &reference, selects, candidates, finalizer);
    let Claimed { mut owned, releases, adoptions } = claimed;
    let mut failed = None;
    for patch in releases {
        match write(rest, patch).await {
            // Gone, or already another's.
            Err(e) if !e.not_found() && !e.invalid() => failed = Some(e),
            _ => {}
        }
    }
    if !adoptions.is_empty() {
        // The cache may be behind: a set that is going away must not take anything with it.
        may_adopt(rest, owner).await?;
    }
    let mut gone: HashSet<String> = HashSet::default();
    for (uid, patch) in adoptions {
        match write(rest, patch).await {
            Ok(()) => {}
            Err(e) => {
                if !e.not_found() {
                    failed = Some(e);
                }
                gone.insert(uid);
            }
        }
    }
    owned.retain(|child| !gone.contains(object::uid(child.metadata())));
    failed.map_or(Ok(owned), Err)
}

async fn write(rest: &Rest, patch: Action) -> Result<(), RestError> {
    let Action::Patch { path, kind, body } = patch else { return Ok(()) };
    rest.patch(&path, kind, &body).await.map(drop)
}

/// Fails unless the owner is still the one of the cache, and stays.
async fn may_adopt<P: Object>(rest: &Rest, owner: &P) -> Result<(), RestError> {
    let live = rest.get(&object_path::<P>(owner.meta())).await?;
    let (uid, name) = (object::uid(owner.meta()), Key::of(owner.meta()));
    if live["metadata"]["uid"] != uid {
        return Err(RestError::other(format!("original {} {name} is gone: expected uid {uid}", P::kind(&()))));
    }
    match live["metadata"]["deletionTimestamp"].as_str() {
        Some(at) => Err(RestError::other(format!("{name} has just been deleted at {at}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_the_size_of_a_set() {
        for (pods, millis) in
            [(0, 0), (2, 2), (60, 60), (100, 100), (1_000, 100), (5_000, 500), (10_000, 1_000), (usize::MAX, 1_000)]
        {
            assert_eq!(pace_of(pods), Duration::from_millis(millis), "{pods}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_that_comes_earlier_takes_nobodys_look_away() {
        let queue: Queue<Key> = Queue::new("test_paced");
        let (paced, key) = (Paced::new(&queue), Key::new("ns", "set"));
        let look = async || queue.done(&queue.get().await.expect("a key"));
        paced.wake(key.clone());
        look().await;
        paced.wake(key.clone());
        // A write of that look failed.
        queue.add_rate_limited(key.clone());
        look().await;
        paced.wake(key);
        tokio::time::timeout(PACE * 2, look()).await.expect("what has changed since is seen");
    }
}
