//! The work queue between informers and controllers, with client-go's guarantees: an item waits at most once, is
//! never handled by two workers at the same time, and an item that is added while it is being handled comes back
//! afterwards. Delays and back-off live here too. The queue holds keys, never objects.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::{InProgress, WorkqueueMetrics};

#[cfg(test)]
mod tests;

/// First delay of [`Queue::add_rate_limited`]; doubles with each failure (client-go's default).
const BASE_DELAY: Duration = Duration::from_millis(5);
/// The longest delay of an item: beyond the life of a process, and within what an instant can hold.
const LONGEST_DELAY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longest delay of [`Queue::add_rate_limited`] (client-go's default).
const MAX_DELAY: Duration = Duration::from_secs(1000);

/// Bounds of a queue item: a small key.
pub trait Item: Clone + Eq + Hash + Send + Sync + 'static {}
impl<T: Clone + Eq + Hash + Send + Sync + 'static> Item for T {}

/// A cloneable handle on one queue.
pub struct Queue<T>(Arc<Inner<T>>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    base: Duration,
    max: Duration,
    metrics: WorkqueueMetrics,
}

struct State<T> {
    ready: VecDeque<T>,
    /// Waiting in `ready`, or added again while being handled; with the time of the add.
    dirty: HashMap<T, Instant>,
    processing: HashMap<T, Instant>,
    delayed: BTreeMap<(Instant, u64), T>,
    delayed_at: HashMap<T, (Instant, u64)>,
    failures: HashMap<T, u32>,
    sequence: u64,
    closed: bool,
}

impl<T: Item> InProgress for Inner<T> {
    fn in_progress(&self) -> Vec<Duration> {
        self.state.lock().processing.values().map(Instant::elapsed).collect()
    }
}

impl<T: Item> Queue<T> {
    /// A queue whose metrics carry `name`, with client-go's default back-off (5 ms to 1000 s).
    pub fn new(name: &str) -> Self {
        Self::with_backoff(name, BASE_DELAY, MAX_DELAY)
    }

    /// A queue with its own back-off range.
    pub fn with_backoff(name: &str, base: Duration, max: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::default(),
            processing: HashMap::default(),
            delayed: BTreeMap::new(),
            delayed_at: HashMap::default(),
            failures: HashMap::default(),
            sequence: 0,
            closed: false,
        };
        let metrics = crate::metrics::workqueue(name);
        let inner = Arc::new(Inner { state: Mutex::new(state), wake: Notify::new(), base, max, metrics });
        let watched: Weak<Inner<T>> = Arc::downgrade(&inner);
        crate::metrics::watch(name, &inner.metrics, watched);
        Self(inner)
    }

    /// Adds an item; no effect while it already waits.
    pub fn add(&self, item: T) {
        let mut state = self.0.state.lock();
        if self.push(&mut state, item) {
            drop(state);
            self.0.wake.notify_one();
        }
    }

    /// Adds an item after `delay`; of several delays the earliest counts.
    pub fn add_after(&self, item: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(item);
        }
        let mut state = self.0.state.lock();
        if state.closed {
            return;
        }
        let due = Instant::now() + delay.min(LONGEST_DELAY);
        match state.delayed_at.get(&item) {
            Some((at, _)) if *at <= due => return,
            Some(old) => {
                let old = *old;
                state.delayed.remove(&old);
            }
            None => {}
        }
        state.sequence += 1;
        let slot = (due, state.sequence);
        state.delayed.insert(slot, item.clone());
        state.delayed_at.insert(item, slot);
        drop(state);
        self.0.wake.notify_one();
    }

    /// Adds an item after a delay that doubles with every call until [`Queue::forget`].
    pub fn add_rate_limited(&self, item: T) {
        self.0.metrics.retries.inc();
        let failures = {
            let mut state = self.0.state.lock();
            let failures = state.failures.entry(item.clone()).or_insert(0);
            *failures += 1;
            *failures
        };
        let factor = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
        self.add_after(item, self.0.base.saturating_mul(factor).min(self.0.max));
    }

    /// Ends the back-off of an item: it succeeded, or will not be tried again.
    pub fn forget(&self, item: &T) {
        self.0.state.lock().failures.remove(item);
    }

    /// Waits for the next item; `None` once the queue is shut down and empty. Cancel-safe.
    pub async fn get(&self) -> Option<T> {
        loop {
            let woken = self.0.wake.notified();
            let due = {
                let mut state = self.0.state.lock();
                self.release_due(&mut state);
                if let Some(item) = self.pop(&mut state) {
                    if !state.ready.is_empty() {
                        self.0.wake.notify_one();
                    }
                    return Some(item);
                }
                if state.closed {
                    self.0.wake.notify_one();
                    return None;
                }
                state.delayed.keys().next().map(|(at, _)| *at)
            };
            match due {
                None => woken.await,
                Some(at) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Ends the handling of an item; it comes back if it was added meanwhile.
    pub fn done(&self, item: &T) {
        let mut state = self.0.state.lock();
        if let Some(started) = state.processing.remove(item) {
            self.0.metrics.work_duration.observe(started.elapsed().as_secs_f64());
        }
        if state.dirty.contains_key(item) {
            state.ready.push_back(item.clone());
            drop(state);
            self.0.wake.notify_one();
        }
    }

    /// Refuses new items; workers finish what waits and then see `None`.
    pub fn shut_down(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        state.delayed.clear();
        state.delayed_at.clear();
        drop(state);
        self.0.wake.notify_one();
    }

    /// Items ready to be handled.
    pub fn len(&self) -> usize {
        self.0.state.lock().ready.len()
    }

    /// True when nothing is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Marks the item dirty; true when a worker should look.
    fn push(&self, state: &mut State<T>, item: T) -> bool {
        if state.closed || state.dirty.contains_key(&item) {
            return false;
        }
        self.0.metrics.adds.inc();
        // Queues of one name are measured as one.
        self.0.metrics.depth.inc();
        state.dirty.insert(item.clone(), Instant::now());
        if state.processing.contains_key(&item) {
            return false;
        }
        state.ready.push_back(item);
        true
    }

    fn pop(&self, state: &mut State<T>) -> Option<T> {
        let item = state.ready.pop_front()?;
        let now = Instant::now();
        if let Some(added) = state.dirty.remove(&item) {
            self.0.metrics.latency.observe(now.duration_since(added).as_secs_f64());
        }
        state.processing.insert(item.clone(), now);
        self.0.metrics.depth.dec();
        Some(item)
    }

    fn release_due(&self, state: &mut State<T>) {
        let now = Instant::now();
        while let Some((slot, _)) = state.delayed.first_key_value() {
            if slot.0 > now {
                return;
            }
            let Some((_, item)) = state.delayed.pop_first() else { return };
            state.delayed_at.remove(&item);
            self.push(state, item);
        }
    }
}
