//! Fair queuing of one priority level: flows wait in queues that their hand of cards gives them; the queue that has
//! had the least service goes next, measured in seat-seconds of virtual time `R`, which advances as fast as each
//! busy queue is served when all are served equally. Answers for upstream's `pkg/util/flowcontrol/fairqueuing/queueset`
//! (`queueSet`).
//!
//! A tenth of the seats is spared for narrow requests, those of one seat, whose turn has not come: wide requests last
//! as long as their clients like to read, and others must not wait for that. Seats of the spare are not seats of the
//! rest, so wide requests get as much as if narrow ones did not overtake them.
//!
//! Pure: the time is an argument, and who waits is told by the caller, with the token it left. Queues exist while
//! they are busy, so an idle level costs nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::borrowing::{Integrator, IntegratorResults};
use super::dealer;
use super::work::{GUESS, Work};

/// One seat of so many is spared.
const SPARE: u32 = 10;

/// Treatment of requests that find no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueMode {
    /// There is always a seat.
    Exempt,
    /// The request is rejected.
    Reject,
    /// The request is queued: each flow has `hand` of the `queues` queues, which hold `length` requests each.
    Queue { queues: u32, hand: u32, length: usize },
}

/// A request that may run. To be given back with [`QueueSet::finish`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Grant {
    /// Queue that the request came from, if it came from one.
    pub(super) queue: Option<u32>,
    pub(super) work: Work,
    pub(super) started: Duration,
    /// A seat of the spare ones.
    pub(super) spare: bool,
}

/// Reasons to reject a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RejectReason {
    /// No seat, and nobody waits here.
    Full,
    /// No seat, and the queue is full.
    QueueFull,
}

/// Result of an arriving request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Start {
    Granted(Grant),
    /// Queued, with the ticket and the number of requests ahead.
    Waits {
        queue: u32,
        ticket: u64,
        length: usize,
    },
    Refused(RejectReason),
}

/// A request that waits.
pub(super) struct QueuedRequest<T> {
    ticket: u64,
    arrived: f64,
    pub(super) work: Work,
    pub(super) token: T,
}

struct Queue<T> {
    waiting: VecDeque<QueuedRequest<T>>,
    executing: u32,
    seats: u32,
    /// Virtual time at which its next request begins.
    next: f64,
    /// Seat-seconds its running requests were taken to need.
    running: f64,
}

impl<T> Queue<T> {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0 && self.seats == 0
    }

    fn waiting_seats(&self) -> u32 {
        self.waiting.iter().map(|w| w.work.widest()).sum()
    }

    fn waiting_cost(&self) -> f64 {
        self.waiting.iter().map(|w| w.work.cost()).sum()
    }

    /// A queue does not bank the time in which it had nothing to do.
    fn bound(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next = self.next.max(oldest.arrived);
        }
    }
}

/// Sums over a queue, for those who look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct QueueSums {
    pub(super) waiting: usize,
    pub(super) executing: u32,
    pub(super) seats: u32,
    pub(super) next: f64,
    pub(super) running: f64,
    pub(super) initial_seats: u32,
    pub(super) widest_seats: u32,
    pub(super) cost: f64,
}

/// Counts since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) dispatched: u64,
    pub(super) refused: u64,
    pub(super) timed_out: u64,
    pub(super) cancelled: u64,
}

/// Fair queues of one priority level.
pub(super) struct QueueSet<T> {
    mode: QueueMode,
    limit: u32,
    queues: BTreeMap<u32, Queue<T>>,
    /// Seats still taken by what came after requests that ended: until when, of which queue, how many.
    tails: BTreeSet<(Duration, u64, Option<u32>, u32)>,
    tickets: u64,
    /// Virtual time, in seat-seconds.
    now: f64,
    synced: Duration,
    robin: u32,
    waiting: usize,
    executing: usize,
    seats: u32,
    /// Seats in use out of the reserve for narrow requests.
    spare: u32,
    waiting_seats: u32,
    demand: Integrator,
    /// The virtual start of the last dispatch.
    latest: f64,
    /// The queue whose turn it is and whose seats are not free, until somebody asks.
    held_up: Option<u32>,
    pub(super) counts: Counts,
}

impl<T> QueueSet<T> {
    pub(super) fn new(mode: QueueMode, limit: u32) -> Self {
        Self {
            mode,
            limit,
            queues: BTreeMap::new(),
            tails: BTreeSet::new(),
            tickets: 0,
            now: 0.0,
            synced: Duration::ZERO,
            robin: 0,
            waiting: 0,
            executing: 0,
            seats: 0,
            spare: 0,
            waiting_seats: 0,
            demand: Integrator::default(),
            latest: 0.0,
            held_up: None,
            counts: Counts::default(),
        }
    }

    /// Changes what is configured. Who waits stays where he is. Those to be told come out.
    pub(super) fn configure(&mut self, now: Duration, mode: QueueMode, limit: u32) -> Vec<(T, Grant)> {
        self.sync(now);
        self.mode = mode;
        self.limit = limit;
        self.dispatch(now)
    }

    /// Takes in a request. Those that may go before or with it come out to be told.
    pub(super) fn start(
        &mut self,
        now: Duration,
        hash: impl FnOnce() -> u64,
        work: Work,
        token: impl FnOnce() -> T,
    ) -> (Start, Vec<(T, Grant)>) {
        let mut told = self.tick(now);
        let (count, hand, length) = match self.mode {
            QueueMode::Queue { queues, hand, length } => (queues, hand, length),
            QueueMode::Reject if !self.accommodates(work.widest()) => {
                self.counts.refused += 1;
                return (Start::Refused(RejectReason::Full), told);
            }
            QueueMode::Reject | QueueMode::Exempt => return (Start::Granted(self.run(now, None, work, false)), told),
        };
        let at = self.choose(&dealer::deal(hash(), count, hand));
        let room = self.queues.get(&at).map_or(0, |q| q.waiting.len()) < length;
        if self.seats >= self.limit && !room {
            self.counts.refused += 1;
            return (Start::Refused(RejectReason::QueueFull), told);
        }
        let arrived = self.now;
        // Nobody before it: no need to wait for a message to itself.
        if self.waiting == 0 && self.seats < self.limit && self.accommodates(work.widest()) {
            self.queue(at);
            let work = work.fitted(self.limit);
            return (Start::Granted(self.run(now, Some(at), work, false)), told);
        }
        self.tickets += 1;
        let ticket = self.tickets;
        let queue = self.queue(at);
        queue.waiting.push_back(QueuedRequest { ticket, arrived, work, token: token() });
        let length = queue.waiting.len();
        self.waiting += 1;
        self.waiting_seats += work.widest();
        self.note_demand(now);
        told.extend(self.dispatch(now));
        (Start::Waits { queue: at, ticket, length }, told)
    }

    /// A request ended. Its seats may be needed for a while.
    pub(super) fn finish(&mut self, now: Duration, grant: &Grant) -> Vec<(T, Grant)> {
        self.sync(now);
        self.executing = self.executing.saturating_sub(1);
        let ran = now.saturating_sub(grant.started);
        if let Some(queue) = grant.queue.and_then(|at| self.queues.get_mut(&at)) {
            queue.executing = queue.executing.saturating_sub(1);
            queue.running -= grant.work.cost();
            queue.next -= f64::from(grant.work.seats) * (GUESS.as_secs_f64() - ran.as_secs_f64());
            queue.bound();
        }
        let seats = grant.work.widest();
        if grant.spare {
            self.spare -= seats;
        }
        if grant.work.tail.is_zero() {
            self.release(now, grant.queue, seats);
        } else {
            self.tickets += 1;
            self.tails.insert((now + grant.work.tail, self.tickets, grant.queue, seats));
        }
        self.dispatch(now)
    }

    /// A request that waited goes away; false when it is not there any more.
    pub(super) fn cancel(&mut self, now: Duration, at: u32, ticket: u64, timed_out: bool) -> bool {
        self.sync(now);
        let Some(queue) = self.queues.get_mut(&at) else { return false };
        let Some(place) = queue.waiting.iter().position(|w| w.ticket == ticket) else { return false };
        let Some(gone) = queue.waiting.remove(place) else { return false };
        queue.bound();
        if queue.is_idle() {
            self.queues.remove(&at);
        }
        self.waiting -= 1;
        self.waiting_seats -= gone.work.widest();
        self.note_demand(now);
        if timed_out {
            self.counts.timed_out += 1;
        } else {
            self.counts.cancelled += 1;
        }
        true
    }

    /// Lets time pass.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<(T, Grant)> {
        if self.tails.first().is_none_or(|tail| tail.0 > now) {
            self.sync(now);
            return Vec::new();
        }
        while let Some(tail) = self.tails.first().copied().filter(|tail| tail.0 <= now) {
            self.tails.remove(&tail);
            self.sync(tail.0.max(self.synced));
            self.release(now, tail.2, tail.3);
        }
        self.sync(now);
        self.dispatch(now)
    }

    /// Time at which [`QueueSet::tick`] has seats to free for waiting requests.
    pub(super) fn due(&self) -> Option<Duration> {
        self.tails.first().filter(|_| self.waiting > 0).map(|tail| tail.0)
    }

    /// Demand since the last call.
    pub(super) fn take_demand(&mut self, now: Duration) -> IntegratorResults {
        self.demand.take_observations(now)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Requests that wait, requests that run, and the seats of these.
    pub(super) fn load(&self) -> (usize, usize, u32) {
        (self.waiting, self.executing, self.seats)
    }

    /// The virtual time now, and that at which the last request began.
    pub(super) fn progress(&self) -> (f64, f64) {
        (self.now, self.latest)
    }

    /// Seats wanted by those who wait.
    pub(super) fn waiting_seats(&self) -> u32 {
        self.waiting_seats
    }

    /// Returns the request that was next since the last call and found no seats.
    pub(super) fn take_held_up(&mut self) -> Option<&T> {
        let at = self.held_up.take()?;
        self.queues.get(&at)?.waiting.front().map(|w| &w.token)
    }

    /// The busy queues.
    pub(super) fn busy(&self) -> impl Iterator<Item = (u32, QueueSums)> {
        self.queues.iter().map(|(at, q)| {
            let sums = QueueSums {
                waiting: q.waiting.len(),
                executing: q.executing,
                seats: q.seats,
                next: q.next,
                running: q.running,
                initial_seats: q.waiting.iter().map(|w| w.work.seats).sum(),
                widest_seats: q.waiting_seats(),
                cost: q.waiting_cost(),
            };
            (*at, sums)
        })
    }

    /// Waiting requests, by queue and index in it.
    pub(super) fn line(&self) -> impl Iterator<Item = (u32, usize, &QueuedRequest<T>)> {
        self.queues.iter().flat_map(|(at, q)| q.waiting.iter().enumerate().map(|(i, w)| (*at, i, w)))
    }

    fn queue(&mut self, at: u32) -> &mut Queue<T> {
        let now = self.now;
        let fresh = || Queue { waiting: VecDeque::new(), executing: 0, seats: 0, next: now, running: 0.0 };
        let queue = self.queues.entry(at).or_insert_with(fresh);
        if queue.waiting.is_empty() && queue.executing == 0 {
            queue.next = now;
        }
        queue
    }

    /// The card with the least work waiting. The first one looked at changes, so that equal ones take turns.
    fn choose(&mut self, hand: &[u32]) -> u32 {
        self.tickets += 1;
        let offset = usize::try_from(self.tickets).unwrap_or(0) % hand.len().max(1);
        let mut best = (f64::INFINITY, 0);
        for i in 0..hand.len() {
            let at = hand[(offset + i) % hand.len()];
            let cost = self.queues.get(&at).map_or(0.0, Queue::waiting_cost);
            if cost < best.0 {
                best = (cost, at);
            }
        }
        best.1
    }

    /// Reports whether there are seats for the next request. One wider than the level's limit runs alone.
    fn accommodates(&self, seats: u32) -> bool {
        if seats == 1 {
            return self.seats < self.limit;
        }
        let room = self.limit - self.spared();
        let others = self.executing - self.spare as usize;
        if seats > room { others == 0 } else { self.seats - self.spare + seats <= room }
    }

    /// Seats that wide requests leave alone, where narrow ones would wait.
    fn spared(&self) -> u32 {
        if matches!(self.mode, QueueMode::Queue { .. }) { self.limit / SPARE } else { 0 }
    }

    fn run(&mut self, now: Duration, queue: Option<u32>, work: Work, spare: bool) -> Grant {
        let seats = work.widest();
        self.executing += 1;
        self.seats += seats;
        if spare {
            self.spare += seats;
        }
        self.counts.dispatched += 1;
        if let Some(queue) = queue.and_then(|at| self.queues.get_mut(&at)) {
            queue.executing += 1;
            queue.seats += seats;
            self.latest = queue.next;
            queue.next += work.cost();
            queue.running += work.cost();
            queue.bound();
        }
        self.note_demand(now);
        Grant { queue, work, started: now, spare }
    }

    fn release(&mut self, now: Duration, at: Option<u32>, seats: u32) {
        self.seats = self.seats.saturating_sub(seats);
        if let Some((at, queue)) = at.and_then(|at| self.queues.get_mut(&at).map(|q| (at, q))) {
            queue.seats = queue.seats.saturating_sub(seats);
            if queue.is_idle() {
                self.queues.remove(&at);
            }
        }
        self.note_demand(now);
    }

    fn note_demand(&mut self, now: Duration) {
        self.demand.set(now, f64::from(self.seats + self.waiting_seats));
    }

    /// Advances virtual time: the seats that are taken, divided by the queues that are served. Upstream takes the seats
    /// that are wanted, as many as there are: then a flood of wide requests, which never take the last few, falls
    /// behind the time, has all turns until it has caught up, and others wait for free seats beside it.
    fn sync(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.synced).as_secs_f64();
        self.synced = self.synced.max(now);
        let active = self.queues.values().filter(|q| !q.waiting.is_empty() || q.executing > 0).count();
        if active == 0 || passed <= 0.0 {
            return;
        }
        let served: u32 = self.queues.values().map(|q| q.seats).sum();
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
        let rate = f64::from(served.min(self.limit)) / active as f64;
        self.now += rate * passed;
    }

    fn dispatch(&mut self, now: Duration) -> Vec<(T, Grant)> {
        let mut told = Vec::new();
        while self.waiting > 0 && self.seats < self.limit {
            let Some(one) = self.dispatch_next(now) else { break };
            told.push(one);
        }
        told
    }

    /// Dispatches the next request: the oldest of the queue with the earliest virtual finish. When its seats are not
    /// free no other takes them, or a wide request would wait for ever.
    fn dispatch_next(&mut self, now: Duration) -> Option<(T, Grant)> {
        let at = self.earliest_queue(|_| true)?;
        let seats = self.queues.get(&at)?.waiting.front()?.work.widest();
        if self.accommodates(seats) {
            return self.dispatch_from(now, at, false);
        }
        self.held_up = Some(at);
        if self.spare >= self.spared() {
            return None;
        }
        let narrow = self.earliest_queue(Work::is_narrow)?;
        self.dispatch_from(now, narrow, true)
    }

    /// The queue that would be done first with its oldest request, of those whose oldest request is like that. Equal
    /// ones take turns.
    fn earliest_queue(&self, like: impl Fn(&Work) -> bool) -> Option<u32> {
        let mut first: Option<(f64, u32)> = None;
        for (at, queue) in self.queues.range(self.robin + 1..).chain(self.queues.range(..=self.robin)) {
            let Some(oldest) = queue.waiting.front().filter(|w| like(&w.work)) else { continue };
            let done = queue.next + oldest.work.cost();
            if first.is_none_or(|(best, _)| done < best) {
                first = Some((done, *at));
            }
        }
        first.map(|(_, at)| at)
    }

    fn dispatch_from(&mut self, now: Duration, at: u32, spare: bool) -> Option<(T, Grant)> {
        let one = self.queues.get_mut(&at)?.waiting.pop_front()?;
        self.robin = at;
        self.waiting -= 1;
        self.waiting_seats -= one.work.widest();
        let work = one.work.fitted(self.limit);
        Some((one.token, self.run(now, Some(at), work, spare)))
    }
}

#[cfg(test)]
mod tests;
