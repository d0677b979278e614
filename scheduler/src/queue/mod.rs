//! Pods that wait for a node.
//!
//! Answers for upstream's scheduling queue. Pods ready for an attempt are *active*; pods that failed and may soon try
//! again sit out a *back-off*; pods that nothing but a change in the cluster can help are *unschedulable*, and those
//! whose gates are closed are among them. What happens while a pod is being tried is kept and looked through when it
//! fails, so that no event is missed. Pure: the clock is an argument.

mod heap;
mod parked;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::heap::Heap;
use self::parked::Parked;
use crate::framework::{ClusterEvent, Hint, Listers, Nominated, Profile, QueuedPod};
use crate::metrics;
use crate::model::PodInfo;
use crate::plugins::default_preemption;

/// Events that are kept for pods being tried.
const MAX_EVENTS: usize = 10_000;
/// Event that stands for those that are no longer kept.
const FORGOTTEN: &str = "ForceActivate";

/// Profiles by name.
pub type Profiles = HashMap<Arc<str>, Arc<Profile>>;

/// Back-offs that end in one of these come out in the queue's order.
const WINDOW: Duration = Duration::from_secs(1);

/// Period of looking for pods that have waited for too long.
const FLUSH: Duration = Duration::from_secs(30);

/// Waiting times.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// First back-off.
    pub initial: Duration,
    /// Longest back-off.
    pub max: Duration,
    /// After this long an unschedulable pod is tried again whatever happens.
    pub stale: Duration,
    /// Back-offs after rejections end early when nobody else waits (SchedulerPopFromBackoffQ).
    pub pops_from_backoff: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(1),
            max: Duration::from_secs(10),
            stale: Duration::from_secs(300),
            pops_from_backoff: true,
        }
    }
}

impl Timing {
    fn backoff(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.initial.saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(self.max),
        }
    }
}

/// See the module.
pub struct SchedulingQueue {
    profiles: Arc<Profiles>,
    /// Objects that gates look up; without them gates look at pods alone.
    listers: Option<Arc<dyn Listers>>,
    timing: Timing,
    active: Heap,
    backoff: Heap,
    /// Back-off of pods whose attempt broke; these are never taken out early.
    error_backoff: Heap,
    unschedulable: Parked,
    /// Pods being tried, and the number of the first event after they were taken.
    in_flight: HashMap<Arc<str>, u64>,
    /// Start numbers of pods in flight, and the number of pods that have each.
    taken_at: BTreeMap<u64, usize>,
    /// Events since the oldest pod in flight, or the latest ones of them.
    events: VecDeque<ClusterEvent>,
    first_event: u64,
    nominated: Arc<Nominated>,
    /// Pods whose victims are being evicted.
    preempting: HashSet<Arc<str>>,
    /// Time of the last look for pods that have waited for too long.
    flushed: Instant,
}

impl SchedulingQueue {
    /// An empty queue. All profiles share one order, the first one's.
    pub fn new(profiles: Arc<Profiles>, timing: Timing) -> Self {
        let sort = profiles.values().next().map(|p| p.queue_sort());
        let order = move |a: &QueuedPod, b: &QueuedPod| match &sort {
            Some(sort) => sort.compare(a, b),
            None => a.queued.cmp(&b.queued),
        };
        let by_due = |a: &QueuedPod, b: &QueuedPod| a.due.cmp(&b.due);
        let begun = Instant::now();
        let window = move |q: &QueuedPod| q.due.saturating_duration_since(begun).as_millis() / WINDOW.as_millis();
        let by_window = {
            let order = order.clone();
            move |a: &QueuedPod, b: &QueuedPod| window(a).cmp(&window(b)).then_with(|| order(a, b))
        };
        Self {
            profiles,
            listers: None,
            timing,
            active: Heap::new(Box::new(order)),
            backoff: Heap::new(if timing.pops_from_backoff { Box::new(by_window) } else { Box::new(by_due) }),
            error_backoff: Heap::new(Box::new(by_due)),
            unschedulable: Parked::default(),
            in_flight: HashMap::new(),
            taken_at: BTreeMap::new(),
            events: VecDeque::new(),
            first_event: 0,
            nominated: Arc::new(Nominated::default()),
            preempting: HashSet::new(),
            flushed: Instant::now(),
        }
    }

    /// The queue with objects that gates look up.
    #[must_use]
    pub fn with_listers(mut self, listers: Arc<dyn Listers>) -> Self {
        self.listers = Some(listers);
        self
    }

    /// Lengths: active, back-off, unschedulable, gated.
    pub fn lengths(&self) -> [usize; 4] {
        let gated = self.unschedulable.gated();
        [self.active.len(), self.backoff.len() + self.error_backoff.len(), self.unschedulable.len() - gated, gated]
    }

    /// Promised nodes.
    pub fn nominated(&self) -> Arc<Nominated> {
        Arc::clone(&self.nominated)
    }

    /// Promises a node to a pod, or takes the promise back.
    pub fn nominate(&mut self, pod: &Arc<PodInfo>, node: Option<Arc<str>>) {
        match node {
            Some(node) => Arc::make_mut(&mut self.nominated).set(Arc::clone(pod), node),
            None if self.nominated.node_of(&pod.uid).is_some() => {
                Arc::make_mut(&mut self.nominated).remove(&pod.uid);
            }
            None => {}
        }
    }

    fn find(&self, uid: &str) -> Option<&QueuedPod> {
        self.active
            .get(uid)
            .or_else(|| self.backoff.get(uid))
            .or_else(|| self.error_backoff.get(uid))
            .or_else(|| self.unschedulable.get(uid))
    }

    fn take(&mut self, uid: &str) -> Option<QueuedPod> {
        self.active
            .remove(uid)
            .or_else(|| self.backoff.remove(uid))
            .or_else(|| self.error_backoff.remove(uid))
            .or_else(|| self.take_unschedulable(uid))
    }

    fn take_unschedulable(&mut self, uid: &str) -> Option<QueuedPod> {
        let q = self.unschedulable.remove(uid)?;
        note(&q, -1.0);
        Some(q)
    }

    /// A pod has come. `true` when something can be popped now.
    pub fn add(&mut self, pod: Arc<PodInfo>, now: Instant) -> bool {
        if self.in_flight.contains_key(&pod.uid) {
            return false;
        }
        self.nominate(&pod, pod.nominated.clone());
        let queued = match self.take(&pod.uid) {
            Some(q) => QueuedPod { pod, ..q },
            None => QueuedPod::new(pod, now),
        };
        self.activate(queued, now, "UnschedulablePodAdd")
    }

    /// A waiting pod has changed, from `before` where that is known: what the queue has may be newer than that.
    pub fn update(&mut self, before: Option<Arc<PodInfo>>, pod: Arc<PodInfo>, now: Instant) -> bool {
        if self.in_flight.contains_key(&pod.uid) {
            // Its attempt may fail for what has just been mended.
            if let Some(old) = before {
                self.remember(&ClusterEvent::Target { old, new: pod });
            }
            return false;
        }
        let Some(queued) = self.find(&pod.uid).map(|q| Arc::clone(&q.pod)) else { return self.add(pod, now) };
        let old = before.unwrap_or_else(|| Arc::clone(&queued));
        let promised = self.nominated.node_of(&pod.uid).cloned();
        let mut helped = false;
        if pod.nominated != old.nominated || pod.nominated != queued.nominated {
            self.nominate(&pod, pod.nominated.clone());
            if let Some(node) = promised.filter(|node| Some(node) != pod.nominated.as_ref()) {
                helped = self.released(&old, &node, now);
            }
        }
        self.exchange(old, pod, now) || helped
    }

    /// A promise is gone: pods of no higher priority may take the room that was kept.
    fn released(&mut self, pod: &PodInfo, node: &Arc<str>, now: Instant) -> bool {
        let event = ClusterEvent::AssignedPod { old: Some(Arc::new(pod.placed(node))), new: None };
        self.remember(&event);
        self.bring_back(&event, now, |q| q.pod.priority <= pod.priority && q.pod.uid != pod.uid)
    }

    /// Puts the pod as it is now in the place of what waits, which may end its waiting.
    fn exchange(&mut self, old: Arc<PodInfo>, pod: Arc<PodInfo>, now: Instant) -> bool {
        let same = (Arc::ptr_eq(&pod.demand, &old.demand) || pod.demand == old.demand)
            && pod.resource_claims == old.resource_claims;
        if let Some(q) = self.unschedulable.remove(&pod.uid) {
            let q = QueuedPod { pod: Arc::clone(&pod), ..q };
            let event = ClusterEvent::Target { old, new: pod };
            if same || !self.worth(&q, &event) {
                self.unschedulable.insert(q);
                return false;
            }
            note(&q, -1.0);
            return self.requeue(q, now, event.label());
        }
        for heap in [&mut self.active, &mut self.backoff, &mut self.error_backoff] {
            if let Some(q) = heap.remove(&pod.uid) {
                heap.push(QueuedPod { pod, ..q });
                return false;
            }
        }
        false
    }

    /// A pod is gone, or has its node.
    pub fn delete(&mut self, uid: &str) {
        self.take(uid);
        if self.nominated.node_of(uid).is_some() {
            Arc::make_mut(&mut self.nominated).remove(uid);
        }
    }

    /// The next pod to try. Pods in back-off are taken early when nobody else waits. Must be followed by
    /// [`SchedulingQueue::done`].
    pub fn pop(&mut self, now: Instant) -> Option<QueuedPod> {
        // However busy it is: a back-off that has ended may be of a higher priority.
        self.tick(now);
        let mut q = match self.active.pop() {
            Some(q) => q,
            None if !self.timing.pops_from_backoff => return None,
            None => {
                let q = self.backoff.pop()?;
                metrics::incoming("active", "PopFromBackoffQ");
                q
            }
        };
        q.attempts += 1;
        let at = self.first_event + self.events.len() as u64;
        self.in_flight.insert(Arc::clone(&q.pod.uid), at);
        *self.taken_at.entry(at).or_default() += 1;
        Some(q)
    }

    /// A pod that was popped needs no more watching over: it is bound, failed and put back, or gone.
    pub fn done(&mut self, uid: &str) {
        let Some(at) = self.in_flight.remove(uid) else { return };
        if let Some(n) = self.taken_at.get_mut(&at) {
            *n -= 1;
            if *n == 0 {
                self.taken_at.remove(&at);
            }
        }
        let oldest = self.taken_at.keys().next().copied().unwrap_or(u64::MAX);
        while self.first_event < oldest && self.forget_event() {}
    }

    /// Forgets the oldest event that is kept, if any.
    fn forget_event(&mut self) -> bool {
        let Some(event) = self.events.pop_front() else { return false };
        metrics::in_flight(event.label(), -1.0);
        self.first_event += 1;
        true
    }

    /// A pod found no place (`rejectors` in it say why) or its attempt broke (no rejectors).
    pub fn failed(&mut self, mut q: QueuedPod, now: Instant) -> bool {
        let Some(since) = self.in_flight.get(&q.pod.uid).copied() else { return false };
        q.queued = now;
        q.broke = q.rejectors.is_empty();
        if q.broke {
            q.errors += 1;
        } else {
            (q.failures, q.errors) = (q.failures + 1, 0);
        }
        q.due = now + self.timing.backoff(if q.broke { q.errors } else { q.failures });
        let missed = match since.checked_sub(self.first_event).map(usize::try_from) {
            Some(Ok(skip)) => {
                // What changed about another pod is that pod's own affair.
                let of_another =
                    |e: &ClusterEvent| matches!(e, ClusterEvent::Target { new, .. } if new.uid != q.pod.uid);
                let mut missed = self.events.iter().skip(skip).filter(|e| !of_another(e));
                missed.find(|e| self.worth(&q, e)).map(ClusterEvent::label)
            }
            // More happened than is kept: any of it may have helped.
            _ => Some(FORGOTTEN),
        };
        self.done(&q.pod.uid);
        if q.broke {
            return self.requeue(q, now, "ScheduleAttemptFailure");
        }
        if let Some(label) = missed {
            return self.requeue(q, now, label);
        }
        self.park(q, "ScheduleAttemptFailure");
        false
    }

    /// Keeps an event for the pods that are being tried.
    fn remember(&mut self, event: &ClusterEvent) {
        if self.in_flight.is_empty() {
            return;
        }
        metrics::in_flight(event.label(), 1.0);
        self.events.push_back(event.clone());
        if self.events.len() > MAX_EVENTS {
            self.forget_event();
        }
    }

    /// Something happened: brings back the pods it may help.
    pub fn happened(&mut self, event: &ClusterEvent, now: Instant) -> bool {
        self.remember(event);
        self.bring_back(event, now, |_| true)
    }

    /// Moves pods like [`Self::happened`], but for one pod, whose own failure is the event.
    pub fn happened_to_others(&mut self, event: &ClusterEvent, uid: &str, now: Instant) -> bool {
        self.remember(event);
        self.bring_back(event, now, |q| &*q.pod.uid != uid)
    }

    /// Holds a pod back while its victims are evicted: until then it would find no terminating victim, and choose others.
    pub fn preemption_begins(&mut self, uid: &Arc<str>) {
        self.preempting.insert(Arc::clone(uid));
    }

    /// Ends what [`Self::preemption_begins`] began.
    pub fn preemption_ends(&mut self, uid: &str) {
        self.preempting.remove(uid);
    }

    /// Tries a pod again that an event would have brought back while its victims were evicted.
    pub fn preemption_is_over(&mut self, uid: &str, now: Instant) -> bool {
        let is_held = |q: &QueuedPod| q.gate == Some(default_preemption::NAME);
        if !self.unschedulable.get(uid).is_some_and(is_held) {
            return false;
        }
        self.take_unschedulable(uid).is_some_and(|q| self.requeue(q, now, "ForceActivate"))
    }

    /// Takes a pod that waits out of its waiting, whatever it waits for.
    pub fn activate_now(&mut self, uid: &str, now: Instant) -> bool {
        let waiting = self.backoff.remove(uid).or_else(|| self.error_backoff.remove(uid));
        match waiting.or_else(|| self.take_unschedulable(uid)) {
            Some(q) => self.activate(q, now, "ForceActivate"),
            None => false,
        }
    }

    fn bring_back(&mut self, event: &ClusterEvent, now: Instant, may: impl Fn(&QueuedPod) -> bool) -> bool {
        let mut any = false;
        for uid in self.unschedulable.helped(|q| may(q) && self.worth(q, event)) {
            if let Some(q) = self.take_unschedulable(&uid) {
                any |= self.requeue(q, now, event.label());
            }
        }
        any
    }

    /// Time has passed: ends back-offs and tries pods again that have waited for too long.
    pub fn tick(&mut self, now: Instant) -> bool {
        let mut any = false;
        for errors in [false, true] {
            let due = |q: Option<&QueuedPod>| q.is_some_and(|q| q.due <= now);
            while due(if errors { self.error_backoff.peek() } else { self.backoff.peek() }) {
                let q = if errors { self.error_backoff.pop() } else { self.backoff.pop() };
                any |= q.is_some_and(|q| self.activate(q, now, "BackoffComplete"));
            }
        }
        if now.saturating_duration_since(self.flushed) < FLUSH {
            return any;
        }
        self.flushed = now;
        let stale: Vec<Arc<str>> = self
            .unschedulable
            .iter()
            .filter(|q| now.saturating_duration_since(q.queued) > self.timing.stale)
            .map(|q| Arc::clone(&q.pod.uid))
            .collect();
        for uid in stale {
            if let Some(q) = self.take_unschedulable(&uid) {
                any |= self.requeue(q, now, "UnschedulableTimeout");
            }
        }
        any
    }

    /// Reports whether an event may help a pod.
    fn worth(&self, q: &QueuedPod, event: &ClusterEvent) -> bool {
        let Some(profile) = self.profiles.get(&q.pod.scheduler_name) else { return false };
        match (event, q.gate) {
            (_, Some(gate)) => {
                let rejectors = q.rejectors.iter().copied().chain([gate]);
                profile.hint(&q.pod, event, rejectors) == Hint::Queue
            }
            (ClusterEvent::Everything(_), None) => true,
            _ => profile.hint(&q.pod, event, q.rejectors.iter().copied()) == Hint::Queue,
        }
    }

    /// To the active pods, or to the back-off when it is not over.
    fn requeue(&mut self, mut q: QueuedPod, now: Instant, event: &'static str) -> bool {
        if q.gate.is_some() || q.due <= now {
            return self.activate(q, now, event);
        }
        // Nobody asks again when it is taken out early.
        if self.timing.pops_from_backoff
            && let Some(gate) = self.gate(&q)
        {
            q.gate = Some(gate);
            self.park(q, event);
            return false;
        }
        metrics::incoming("backoff", event);
        let early = !q.broke && self.timing.pops_from_backoff;
        if q.broke {
            self.error_backoff.push(q);
        } else {
            self.backoff.push(q);
        }
        early
    }

    /// The plugin that keeps a pod out of the queue, if any does.
    fn gate(&self, q: &QueuedPod) -> Option<&'static str> {
        if self.preempting.contains(&q.pod.uid) {
            return Some(default_preemption::NAME);
        }
        let status = self.profiles.get(&q.pod.scheduler_name)?.pre_enqueue(self.listers.as_deref(), &q.pod);
        (!status.is_success()).then_some(status.plugin)
    }

    fn activate(&mut self, mut q: QueuedPod, now: Instant, event: &'static str) -> bool {
        if let Some(gate) = self.gate(&q) {
            q.gate = Some(gate);
            self.park(q, event);
            return false;
        }
        if q.gate.take().is_some() {
            q.queued = now;
        }
        q.first.get_or_insert(now);
        metrics::incoming("active", event);
        self.active.push(q);
        true
    }

    fn park(&mut self, q: QueuedPod, event: &'static str) {
        metrics::incoming(if q.gate.is_some() { "gated" } else { "unschedulable" }, event);
        note(&q, 1.0);
        self.unschedulable.insert(q);
    }

    /// Time at which the next back-off ends.
    pub fn next_due(&self) -> Option<Instant> {
        [self.backoff.peek(), self.error_backoff.peek()].into_iter().flatten().map(|q| q.due).min()
    }
}

/// Counts a parked pod (or one less) for each plugin that keeps it waiting.
fn note(q: &QueuedPod, by: f64) {
    for plugin in q.rejectors.iter().copied().chain(q.gate) {
        metrics::unschedulable(plugin, &q.pod.scheduler_name, by);
    }
}

impl std::fmt::Debug for SchedulingQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchedulingQueue").field("lengths", &self.lengths()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
