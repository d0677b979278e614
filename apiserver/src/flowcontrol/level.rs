//! A priority level at work: its queues behind a lock, and who is told when a seat is free.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::borrowing::{self, Bounds, Claim, DemandStats};
use super::config::{Config, LevelSpec};
use super::meters::{self, Metrics};
use super::queues::{Counts, Grant, QueueMode, QueueSet, QueueSums, Start};
use super::retry::Refusals;
use super::timing::Timing;
use super::work::Work;
use super::{ActiveSchema, Clock, RequestFlow, State};

const REQUEST_UTILIZATION: [f64; 10] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
const SEAT_UTILIZATION: [f64; 13] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
const DEMAND: [f64; 12] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// Names a request that runs.
pub(super) type Ticket = u64;
/// Grant for a request that was queued.
pub(super) type QueuedGrant = (Grant, Ticket);

/// One who waits.
pub(super) struct Waiter {
    pub(super) about: Arc<RequestFlow>,
    tell: oneshot::Sender<QueuedGrant>,
}

/// Utilization of a level, as ratios over time.
struct Utilization {
    waiting: Timing,
    executing: Timing,
    seats: Timing,
    demand: Timing,
}

struct LevelState {
    spec: LevelSpec,
    quiescing: bool,
    bounds: Bounds,
    demand: DemandStats,
    queues: QueueSet<Waiter>,
    running: HashMap<Ticket, (Arc<RequestFlow>, Grant)>,
    tickets: Ticket,
    refusals: Refusals,
    usage: Utilization,
}

/// Priority level with its seats and queues.
pub(super) struct PriorityLevel {
    name: String,
    clock: Arc<Clock>,
    inner: Mutex<LevelState>,
}

impl LevelState {
    fn admit(&mut self, about: &Arc<RequestFlow>, grant: Grant) -> QueuedGrant {
        self.tickets += 1;
        self.running.insert(self.tickets, (about.clone(), grant));
        (grant, self.tickets)
    }

    fn tell(&mut self, told: Vec<(Waiter, Grant)>) {
        for (waiter, grant) in told {
            let told = self.admit(&waiter.about, grant);
            // The receiver is only dropped with this lock held, after its place was given up: somebody listens.
            let _ = waiter.tell.send(told);
        }
    }

    /// Notes the use of the level as it is from now on.
    fn observe(&mut self, now: Duration) {
        let (waiting, executing, seats) = self.queues.load();
        let limit = f64::from(self.queues.limit());
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
        let (waiting, executing) = (waiting as f64, executing as f64);
        let room = match self.spec.mode {
            #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
            QueueMode::Queue { queues, length, .. } => f64::from(queues) * length as f64,
            _ => 1.0,
        };
        let wanted: u32 = self.queues.waiting_seats();
        self.usage.waiting.set(now, waiting, room);
        self.usage.executing.set(now, executing, limit);
        self.usage.seats.set(now, f64::from(seats), limit);
        self.usage.demand.set(now, f64::from(seats + wanted), limit.max(1.0));
    }
}

impl PriorityLevel {
    fn new(clock: &Arc<Clock>, spec: LevelSpec, bounds: Bounds) -> Self {
        let now = clock.now();
        let usage = Utilization {
            waiting: Timing::new(&REQUEST_UTILIZATION, now),
            executing: Timing::new(&REQUEST_UTILIZATION, now),
            seats: Timing::new(&SEAT_UTILIZATION, now),
            demand: Timing::new(&DEMAND, now),
        };
        let inner = LevelState {
            quiescing: false,
            bounds,
            demand: DemandStats::default(),
            queues: QueueSet::new(spec.mode, bounds.initial()),
            running: HashMap::new(),
            tickets: 0,
            refusals: Refusals::default(),
            usage,
            spec,
        };
        Self { name: inner.spec.name.clone(), clock: clock.clone(), inner: Mutex::new(inner) }
    }

    /// Does something with the queues, tells those who may go, and says when somebody should look again.
    fn with<R>(&self, act: impl FnOnce(&mut LevelState, Duration) -> (R, Vec<(Waiter, Grant)>)) -> R {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        let due = inner.queues.due();
        let (result, told) = act(&mut inner, now);
        inner.tell(told);
        if let Some(waiter) = inner.queues.take_held_up() {
            waiter.about.schema.meters.crowded.inc();
        }
        inner.observe(now);
        if inner.queues.due() != due {
            self.clock.bell.notify_one();
        }
        result
    }

    pub(super) fn start(
        &self,
        hash: impl FnOnce() -> u64,
        work: Work,
        about: &Arc<RequestFlow>,
        tell: impl FnOnce() -> oneshot::Sender<QueuedGrant>,
    ) -> (Start, Ticket) {
        self.with(|inner, now| {
            let waiter = || Waiter { about: about.clone(), tell: tell() };
            let (start, told) = inner.queues.start(now, hash, work, waiter);
            let ticket = match start {
                Start::Granted(grant) => inner.admit(about, grant).1,
                _ => 0,
            };
            ((start, ticket), told)
        })
    }

    pub(super) fn finish(&self, grant: &Grant, ticket: Ticket) {
        self.with(|inner, now| {
            inner.running.remove(&ticket);
            ((), inner.queues.finish(now, grant))
        });
    }

    /// Gives up a place. When its turn came at the same moment the seat is given back.
    pub(super) fn cancel(&self, queue: u32, ticket: u64, timed_out: bool, told: &mut oneshot::Receiver<QueuedGrant>) {
        self.with(|inner, now| {
            if inner.queues.cancel(now, queue, ticket, timed_out) {
                return ((), Vec::new());
            }
            told.close();
            let Ok((grant, running)) = told.try_recv() else { return ((), Vec::new()) };
            inner.running.remove(&running);
            ((), inner.queues.finish(now, &grant))
        });
    }

    pub(super) fn tick(&self) -> Option<Duration> {
        let due = self.inner.lock().queues.due()?;
        if due > self.clock.now() {
            return Some(due);
        }
        self.with(|inner, now| {
            let told = inner.queues.tick(now);
            (inner.queues.due(), told)
        })
    }

    /// Counts a refusal; how long to stay away, in seconds.
    pub(super) fn refuse(&self, second: i64) -> i64 {
        let mut inner = self.inner.lock();
        inner.refusals.record(second);
        inner.refusals.seconds()
    }

    fn is_idle(&self) -> bool {
        self.inner.lock().queues.is_idle()
    }

    /// Writes the gauges that describe it.
    pub(super) fn publish(&self) {
        let inner = self.inner.lock();
        let (now, latest) = inner.queues.progress();
        let count = f64::from;
        let values = [
            (
                "nominal_limit_seats",
                "Nominal number of execution seats configured for each priority level",
                count(inner.bounds.nominal),
            ),
            (
                "lower_limit_seats",
                "Configured lower bound on number of execution seats available to each priority level",
                count(inner.bounds.least),
            ),
            (
                "upper_limit_seats",
                "Configured upper bound on number of execution seats available to each priority level",
                count(inner.bounds.most),
            ),
            (
                "current_limit_seats",
                "current derived number of execution seats available to each priority level",
                count(inner.queues.limit()),
            ),
            (
                "demand_seats_high_watermark",
                "High watermark, over last adjustment period, of demand_seats",
                inner.demand.highest,
            ),
            (
                "demand_seats_average",
                "Time-weighted average, over last adjustment period, of demand_seats",
                inner.demand.average,
            ),
            (
                "demand_seats_stdev",
                "Time-weighted standard deviation, over last adjustment period, of demand_seats",
                inner.demand.deviation,
            ),
            ("demand_seats_smoothed", "Smoothed seat demands", inner.demand.smoothed),
            ("target_seats", "Seat allocation targets", inner.claim().target()),
            ("current_r", "R(time of last change)", now),
            ("dispatch_r", "R(time of last dispatch)", latest),
            ("latest_s", "S(most recently dispatched request)", latest),
        ];
        meters::level(&self.name, &values);
        let starts = |f: fn(&QueueSums) -> f64| {
            let queued = inner.queues.busy().filter(|(_, s)| s.waiting > 0).map(move |(_, s)| f(&s));
            queued.fold(None, |all: Option<(f64, f64)>, s| Some(all.map_or((s, s), |(l, h)| (l.min(s), h.max(s)))))
        };
        for (discounted, f) in
            [(false, (|s: &QueueSums| s.next) as fn(&QueueSums) -> f64), (true, |s: &QueueSums| s.next - s.running)]
        {
            let (low, high) = starts(f).unwrap_or((0.0, 0.0));
            meters::bounds(&self.name, discounted, low, high);
        }
    }

    /// Shows the timings of its use, with what they are called.
    pub(super) fn timings(&self, mut show: impl FnMut(&str, &'static str, &Timing)) {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        inner.observe(now);
        show(&self.name, "waiting", &inner.usage.waiting);
        show(&self.name, "executing", &inner.usage.executing);
        show(&self.name, "seats", &inner.usage.seats);
        show(&self.name, "demand", &inner.usage.demand);
    }

    /// Gives a consistent view of the level to a function.
    pub(super) fn with_view<R>(&self, see: impl FnOnce(&LevelView<'_>) -> R) -> R {
        let inner = self.inner.lock();
        let (waiting, executing, _) = inner.queues.load();
        see(&LevelView {
            name: &self.name,
            mode: inner.spec.mode,
            quiescing: inner.quiescing,
            waiting,
            executing,
            counts: inner.queues.counts,
            busy: inner.queues.busy().collect(),
            line: inner.queues.line().map(|(queue, place, w)| (queue, place, w.token.about.clone(), w.work)).collect(),
            running: inner.running.values().cloned().collect(),
            clock: &self.clock,
        })
    }
}

impl LevelState {
    fn claim(&self) -> Claim {
        Claim { bounds: self.bounds, demand: self.demand, exempt: self.spec.mode == QueueMode::Exempt }
    }
}

/// A level as those see it who look.
pub(super) struct LevelView<'a> {
    pub(super) name: &'a str,
    pub(super) mode: QueueMode,
    pub(super) quiescing: bool,
    pub(super) waiting: usize,
    pub(super) executing: usize,
    pub(super) counts: Counts,
    pub(super) busy: Vec<(u32, QueueSums)>,
    pub(super) line: Vec<(u32, usize, Arc<RequestFlow>, Work)>,
    pub(super) running: Vec<(Arc<RequestFlow>, Grant)>,
    pub(super) clock: &'a Clock,
}

/// The levels and schemas of a new configuration. Levels that are not wanted any more stay until nobody is in them.
pub(super) fn rebuild(
    clock: &Arc<Clock>,
    total: u32,
    old: &BTreeMap<String, Arc<PriorityLevel>>,
    config: Config,
) -> State {
    let mut specs: Vec<(LevelSpec, bool)> = config.levels.into_iter().map(|l| (l, false)).collect();
    for (name, level) in old {
        if !specs.iter().any(|(s, _)| s.name == *name) && !level.is_idle() {
            specs.push((level.inner.lock().spec.clone(), true));
        }
    }
    let shares = specs.iter().map(|(s, _)| s.shares).sum();
    let mut levels = BTreeMap::new();
    for (spec, quiescing) in specs {
        let bounds = spec.bounds(total, shares);
        let level = match old.get(&spec.name) {
            Some(level) => {
                level.with(|inner, now| {
                    inner.bounds = bounds;
                    inner.quiescing = quiescing;
                    let told = inner.queues.configure(now, spec.mode, inner.queues.limit());
                    inner.spec = spec.clone();
                    ((), told)
                });
                level.clone()
            }
            None => Arc::new(PriorityLevel::new(clock, spec.clone(), bounds)),
        };
        levels.insert(spec.name, level);
    }
    let schemas = config.schemas.into_iter().filter_map(|spec| {
        let level = levels.get(&spec.level)?.clone();
        let (level_uid, widest) = {
            let inner = level.inner.lock();
            (inner.spec.uid.clone(), inner.spec.widest(inner.bounds.nominal))
        };
        let meters = Metrics::new(&spec.level, &spec.name);
        Some(Arc::new(ActiveSchema { spec, level, level_uid, widest, meters }))
    });
    State { schemas: schemas.collect(), levels }
}

/// Sets the limits of all levels by what they wanted since the last time.
pub(super) fn rebalance(clock: &Clock, levels: &BTreeMap<String, Arc<PriorityLevel>>) {
    let now = clock.now();
    let (mut claims, mut current) = (Vec::new(), Vec::new());
    for level in levels.values() {
        let mut inner = level.inner.lock();
        let seen = inner.queues.take_demand(now);
        inner.demand.update(&seen);
        claims.push(inner.claim());
        current.push(inner.queues.limit());
    }
    let (seats, fair) = borrowing::divide(&claims, &current);
    for (level, seats) in levels.values().zip(seats) {
        level.with(|inner, now| {
            let mode = inner.spec.mode;
            ((), inner.queues.configure(now, mode, seats))
        });
    }
    meters::fair_fraction(fair);
}
