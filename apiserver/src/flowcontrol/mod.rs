//! API Priority and Fairness: no tenant and no class of requests takes the whole server. Every request belongs to a
//! flow of a FlowSchema and takes seats of that schema's priority level, or waits its turn in a queue of it, or is
//! sent away. Answers for upstream's `pkg/util/flowcontrol` (`cfgCtlr.Handle`).
//!
//! The decisions are pure and take the time as an argument ([`queues`], [`borrowing`], [`schema`], [`work`]); this
//! file is the edge: locks, wake-ups, metrics. [`keeper`] follows the configuration. Nothing here reads a body, writes
//! a response or touches etcd.

mod borrowing;
mod config;
mod dealer;
mod dump;
mod keeper;
mod level;
mod meters;
mod queues;
mod retry;
mod schema;
mod timing;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use shared::authn::UserInfo;
use tokio::sync::{Notify, oneshot};

use crate::api::{Reader, RequestInfo};
use crate::machinery::GroupResource;
use crate::machinery::query::Query;
use config::{CATCH_ALL, Config};
use level::{PriorityLevel, QueuedGrant, Ticket};
use meters::Metrics;
use queues::{Grant, RejectReason, Start};
use schema::{RequestDigest, Spec};
use timing::Timing;
use work::{EstimateFacts, Watchers, estimate};

/// The longest any request waits in a queue.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Bounds of the histogram of reading and changing requests.
const READ_WRITE: [f64; 15] = [0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// Time since the server started, and the bell of the one who follows it.
struct Clock {
    started: Instant,
    bell: Notify,
}

impl Clock {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A schema at work.
struct ActiveSchema {
    spec: Spec,
    level: Arc<PriorityLevel>,
    level_uid: String,
    widest: u32,
    meters: Arc<Metrics>,
}

/// Current configuration.
#[derive(Default)]
struct State {
    levels: BTreeMap<String, Arc<PriorityLevel>>,
    schemas: Vec<Arc<ActiveSchema>>,
}

/// Flow schema and priority level of a request, sent in headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    /// Uid of the FlowSchema.
    pub schema_uid: String,
    /// Uid of the PriorityLevelConfiguration.
    pub level_uid: String,
}

/// A request that was sent away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Classification of the request.
    pub classified: Classified,
    /// Value of `Retry-After`, in seconds.
    pub retry_after: i64,
}

/// A request's description, for those who look at what waits and runs.
struct RequestFlow {
    schema: Arc<ActiveSchema>,
    distinguisher: String,
    arrived: jiff::Timestamp,
    user: String,
    info: RequestInfo,
}

/// API Priority and Fairness filter.
pub struct FlowControl {
    clock: Arc<Clock>,
    /// Seats of the server.
    total: u32,
    /// Timeout of requests that set none.
    timeout: Duration,
    state: RwLock<Arc<State>>,
    watchers: Watchers,
    reader: Arc<dyn Reader>,
    /// `SizeBasedListCostEstimate`
    sizes: bool,
    mix: ReadWriteCounts,
}

/// Numbers of read-only and mutating requests that wait and execute.
struct ReadWriteCounts(Mutex<[(f64, Timing); 4]>);

impl ReadWriteCounts {
    /// `phase` 0 waits, 1 runs.
    fn add(&self, clock: &Clock, phase: usize, changes: bool, by: f64, of: f64) {
        let mut all = self.0.lock();
        let (count, timing) = &mut all[phase * 2 + usize::from(changes)];
        *count += by;
        timing.set(clock.now(), *count, of);
    }

    /// Reading and changing requests that wait.
    fn waiting(&self) -> [f64; 2] {
        let all = self.0.lock();
        [all[0].0, all[1].0]
    }
}

fn changes(info: &RequestInfo) -> bool {
    !matches!(info.verb.as_str(), "get" | "list" | "watch")
}

impl FlowControl {
    /// With so many seats, and the mandatory objects until others are read; `sizes`: lists cost by size, not by number.
    pub fn new(total: u32, timeout: Duration, reader: Arc<dyn Reader>, sizes: bool) -> Arc<Self> {
        let clock = Arc::new(Clock { started: Instant::now(), bell: Notify::new() });
        let mix = std::array::from_fn(|_| (0.0, Timing::new(&READ_WRITE, Duration::ZERO)));
        let flow = Arc::new(Self {
            clock,
            total,
            timeout,
            state: RwLock::default(),
            watchers: Watchers::default(),
            reader,
            sizes,
            mix: ReadWriteCounts(Mutex::new(mix)),
        });
        flow.reconfigure(Config::digest(&[], &[]));
        keeper::register(&flow);
        flow
    }

    /// Finds the flow of a request and a seat for it. Dropping the future gives the place in the queue away.
    pub async fn enter(self: &Arc<Self>, info: &RequestInfo, user: &UserInfo, query: &str) -> Result<Seat, Rejected> {
        let digest = RequestDigest { info, user };
        let schema = self.classify(&digest);
        let distinguisher = schema.spec.distinguish(&digest);
        let watchers = self.watchers.interested(info);
        let stored = |info: &RequestInfo| self.reader.stored(GroupResource::new(&info.api_group, &info.resource));
        let work =
            estimate(info, query, &EstimateFacts { most: schema.widest, stored: &stored, watchers, sizes: self.sizes });
        schema.meters.seats.observe(f64::from(work.widest()));
        if changes(info) {
            schema.meters.watchers.observe(f64::from(watchers));
        }
        let about = Arc::new(RequestFlow {
            schema: schema.clone(),
            distinguisher: distinguisher.to_owned(),
            arrived: jiff::Timestamp::now(),
            user: user.name.clone(),
            info: info.clone(),
        });
        let mut line = None;
        let (start, ticket) = schema.level.start(
            || dealer::flow_hash(&schema.spec.name, distinguisher),
            work,
            &about,
            || {
                let (tell, told) = oneshot::channel();
                line = Some(told);
                tell
            },
        );
        let classified = schema.classified();
        match (start, line) {
            (Start::Refused(why), _) => {
                schema.meters.refused(if why == RejectReason::Full { "concurrency-limit" } else { "queue-full" });
                schema.meters.waited(Duration::ZERO, false);
                Err(self.refuse(&schema, classified))
            }
            (Start::Granted(grant), _) => {
                if grant.queue.is_some() {
                    // It was in its queue for the moment that it took to leave it.
                    schema.meters.queue_length.observe(1.0);
                }
                schema.meters.waited(Duration::ZERO, true);
                Ok(self.seat(about, grant, ticket))
            }
            (Start::Waits { queue, ticket, length }, Some(told)) => {
                #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
                schema.meters.queue_length.observe(length as f64);
                let since = Instant::now();
                let patience = self.patience(query);
                let place = QueuedRequest {
                    flow: self.clone(),
                    about: about.clone(),
                    queue,
                    ticket,
                    seats: work.widest(),
                    until: since + patience,
                    told: Some(told),
                };
                place.note(1.0);
                let granted = tokio::time::timeout(patience, place.wait_for_seat()).await;
                let time = since.elapsed();
                schema.meters.waited(time, granted.is_ok());
                match granted {
                    Ok((grant, id)) => Ok(self.seat(about, grant, id)),
                    Err(_) => {
                        schema.meters.refused("time-out");
                        Err(self.refuse(&schema, classified))
                    }
                }
            }
            (Start::Waits { .. }, None) => Err(self.refuse(&schema, classified)),
        }
    }

    /// A quarter of the time the request has in all.
    fn patience(&self, query: &str) -> Duration {
        let query = Query::parse(query);
        let asked = query.get("timeout").and_then(|t| shared::flags::parse_duration(t).ok()).filter(|t| !t.is_zero());
        (asked.map_or(self.timeout, |t| t.min(self.timeout)) / 4).min(LONGEST_WAIT)
    }

    fn classify(&self, digest: &RequestDigest<'_>) -> Arc<ActiveSchema> {
        let state = self.state.read();
        let found = state.schemas.iter().find(|s| s.spec.covers(digest));
        // The last one is the catch-all, made up when there is none.
        let fallback = || state.schemas.iter().find(|s| s.spec.name == CATCH_ALL).or(state.schemas.last());
        found.or_else(fallback).expect("the mandatory schemas are always there").clone()
    }

    fn refuse(&self, schema: &ActiveSchema, classified: Classified) -> Rejected {
        let retry_after = schema.level.refuse(jiff::Timestamp::now().as_second());
        Rejected { classified, retry_after }
    }

    fn seat(self: &Arc<Self>, about: Arc<RequestFlow>, grant: Grant, ticket: Ticket) -> Seat {
        let meters = &about.schema.meters;
        meters.dispatched.inc();
        meters.executing.inc();
        meters.executing_seats.add(f64::from(grant.work.widest()));
        self.mix.add(&self.clock, 1, changes(&about.info), 1.0, f64::from(self.total));
        Seat { flow: self.clone(), about, grant, ticket }
    }

    /// Counts a watch until what it returns is dropped.
    pub fn watching(self: &Arc<Self>, info: &RequestInfo) -> WatchGuard {
        WatchGuard { flow: self.clone(), key: self.watchers.register(info) }
    }

    /// Takes a new configuration. Requests that wait or run stay in the level they came to.
    fn reconfigure(&self, config: Config) {
        let mut state = self.state.write();
        let next = level::rebuild(&self.clock, self.total, &state.levels, config);
        *state = Arc::new(next);
        drop(state);
        self.rebalance();
    }

    /// Levels that need less lend to those that need more.
    fn rebalance(&self) {
        let state = self.state.read().clone();
        level::rebalance(&self.clock, &state.levels);
    }

    /// Lets time pass in all levels; when to do so again.
    fn tick(&self) -> Option<Duration> {
        let state = self.state.read().clone();
        state.levels.values().filter_map(|l| l.tick()).min()
    }
}

impl ActiveSchema {
    fn classified(&self) -> Classified {
        Classified { schema_uid: self.spec.uid.clone(), level_uid: self.level_uid.clone() }
    }
}

/// A watch that is counted.
pub struct WatchGuard {
    flow: Arc<FlowControl>,
    key: (String, String, String, String),
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.flow.watchers.remove(&self.key);
    }
}

/// The right to be executed. Dropping it makes room for the next.
pub struct Seat {
    flow: Arc<FlowControl>,
    about: Arc<RequestFlow>,
    grant: Grant,
    ticket: Ticket,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("schema", &self.about.schema.spec.name).field("grant", &self.grant).finish()
    }
}

impl Seat {
    /// Classification of the request.
    pub fn classified(&self) -> Classified {
        self.about.schema.classified()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let schema = &self.about.schema;
        let clock = &self.flow.clock;
        schema.meters.executed(clock.now().saturating_sub(self.grant.started), self.about.info.verb == "watch");
        schema.meters.executing.dec();
        schema.meters.executing_seats.sub(f64::from(self.grant.work.widest()));
        self.flow.mix.add(clock, 1, changes(&self.about.info), -1.0, f64::from(self.flow.total));
        schema.level.finish(&self.grant, self.ticket);
    }
}

/// A place in a queue; dropping it leaves the queue.
struct QueuedRequest {
    flow: Arc<FlowControl>,
    about: Arc<RequestFlow>,
    queue: u32,
    ticket: u64,
    seats: u32,
    until: Instant,
    told: Option<oneshot::Receiver<QueuedGrant>>,
}

impl QueuedRequest {
    fn note(&self, by: f64) {
        let meters = &self.about.schema.meters;
        meters.waiting.add(by);
        meters.waiting_seats.add(by * f64::from(self.seats));
        self.flow.mix.add(&self.flow.clock, 0, changes(&self.about.info), by, f64::from(self.flow.total));
    }

    /// Waits to be called.
    async fn wait_for_seat(mut self) -> QueuedGrant {
        match &mut self.told {
            Some(told) => match told.await {
                Ok(granted) => {
                    self.told = None;
                    granted
                }
                // Whoever calls never goes away before those who wait: only a time-out ends this.
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        self.note(-1.0);
        if let Some(mut told) = self.told.take() {
            let timed_out = Instant::now() >= self.until;
            if !timed_out {
                self.about.schema.meters.refused("cancelled");
            }
            self.about.schema.level.cancel(self.queue, self.ticket, timed_out, &mut told);
        }
    }
}

#[cfg(test)]
mod tests;
