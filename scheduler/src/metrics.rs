//! Upstream's `scheduler_*` metrics.

mod batch;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use prometheus::{Counter, CounterVec, GaugeVec, Histogram, HistogramVec};
use shared::metrics::{counter, exponential, gauge, histogram};

pub use self::batch::{Batch, Flushed};

/// Extension points that are timed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "names are upstream's extension points")]
pub enum Point {
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Unreserve,
    Permit,
    PreBindPreFlight,
    PreBind,
    Bind,
    PostBind,
    /// Finding out whether the pod's answers are those of another.
    Sign,
}

impl Point {
    fn name(self) -> &'static str {
        match self {
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::PreScore => "PreScore",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Unreserve => "Unreserve",
            Self::Permit => "Permit",
            Self::PreBindPreFlight => "PreBindPreFlight",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
            Self::Sign => "Sign",
        }
    }
}

/// Result of an extension point, as the metric labels it.
pub trait ExtensionPointResult {
    /// The label.
    fn label(&self) -> &'static str;
}

/// Runs an extension point and notes how long it took.
pub fn timed<T: ExtensionPointResult>(point: Point, profile: &str, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = f();
    observe_point(point, profile, out.label(), start.elapsed());
    out
}

/// Notes how long an extension point took.
pub fn observe_point(point: Point, profile: &str, status: &str, took: Duration) {
    POINTS.with_label_values(&[point.name(), status, profile]).observe(took.as_secs_f64());
}

static POINTS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_framework_extension_point_duration_seconds",
        "Latency for running all plugins of a specific extension point.",
        &["extension_point", "status", "profile"],
        exponential(0.0001, 2.0, 12),
    )
});

/// Counts a claim that was to be made for extended resources.
pub fn claim_created(success: bool) {
    CLAIMS.with_label_values(&[if success { "success" } else { "failure" }]).inc();
}

static CLAIMS: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_resourceclaim_creates_total",
        "Number of ResourceClaims creation requests within scheduler",
        &["status"],
    )
});

static ATTEMPTS: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_schedule_attempts_total",
        "Number of attempts to schedule pods, by the result.",
        &["profile", "result"],
    )
});

static ATTEMPT_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_scheduling_attempt_duration_seconds",
        "Scheduling attempt latency in seconds (scheduling algorithm and binding).",
        &["profile", "result"],
        exponential(0.001, 2.0, 15),
    )
});

static ALGORITHM_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    histogram(
        "scheduler_scheduling_algorithm_duration_seconds",
        "Scheduling algorithm latency in seconds.",
        &[],
        exponential(0.001, 2.0, 15),
    )
    .with_label_values(&[] as &[&str])
});

static POD_ATTEMPTS: LazyLock<Histogram> = LazyLock::new(|| {
    histogram(
        "scheduler_pod_scheduling_attempts",
        "Number of attempts to successfully schedule a pod.",
        &[],
        exponential(1.0, 2.0, 5),
    )
    .with_label_values(&[] as &[&str])
});

static POD_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_pod_scheduling_sli_duration_seconds",
        "Time from a pod entering the queue until it is bound.",
        &["attempts"],
        exponential(0.01, 2.0, 20),
    )
});

static VICTIMS: LazyLock<Histogram> = LazyLock::new(|| {
    histogram("scheduler_preemption_victims", "Number of selected preemption victims.", &[], exponential(1.0, 2.0, 7))
        .with_label_values(&[] as &[&str])
});

/// Not one of upstream's: what the scheduler itself adds to a pod's start.
static SEEN_TO_BIND: LazyLock<Histogram> = LazyLock::new(|| {
    histogram(
        "scheduler_pod_seen_to_bind_duration_seconds",
        "Time from a pod entering the queue until its binding is sent, of pods placed at the first attempt.",
        &[],
        exponential(0.0001, 1.3, 32),
    )
    .with_label_values(&[] as &[&str])
});

static PREEMPTIONS: LazyLock<Counter> = LazyLock::new(|| {
    counter("scheduler_preemption_attempts_total", "Total preemption attempts in the cluster till now.", &[])
        .with_label_values(&[] as &[&str])
});

static PENDING: LazyLock<GaugeVec> =
    LazyLock::new(|| gauge("scheduler_pending_pods", "Number of pending pods, by the queue they wait in.", &["queue"]));

static INCOMING: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_queue_incoming_pods_total",
        "Number of pods added to scheduling queues by event and queue type.",
        &["queue", "event"],
    )
});

static CACHE: LazyLock<GaugeVec> = LazyLock::new(|| {
    gauge("scheduler_cache_size", "Number of nodes, pods, and assumed pods in the scheduler cache.", &["type"])
});

static PERMIT_WAIT: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_permit_wait_duration_seconds",
        "Duration of waiting on permit.",
        &["result"],
        exponential(0.001, 2.0, 15),
    )
});

static UNSCHEDULABLE: LazyLock<GaugeVec> = LazyLock::new(|| {
    gauge(
        "scheduler_unschedulable_pods",
        "The number of unschedulable pods broken down by plugin name.",
        &["plugin", "profile"],
    )
});

static EVENT_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_event_handling_duration_seconds",
        "Event handling latency in seconds.",
        &["event"],
        exponential(0.0001, 2.0, 12),
    )
});

static EVICTION_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_preemption_goroutines_duration_seconds",
        "Duration in seconds for running goroutines for the preemption.",
        &["result"],
        exponential(0.01, 2.0, 20),
    )
});

static EVICTIONS: LazyLock<CounterVec> = LazyLock::new(|| {
    counter("scheduler_preemption_goroutines_execution_total", "Number of preemption goroutines executed.", &["result"])
});

static HINT_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_queueing_hint_execution_duration_seconds",
        "Scheduler latency for calling queueing hint functions.",
        &["plugin", "event", "hint"],
        exponential(0.00001, 1.5, 20),
    )
});

static PLUGIN_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    histogram(
        "scheduler_plugin_execution_duration_seconds",
        "Duration for running a plugin at a specific extension point.",
        &["plugin", "extension_point", "status"],
        exponential(0.00001, 1.5, 20),
    )
});

static EVALUATIONS: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_plugin_evaluation_total",
        "Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).",
        &["plugin", "extension_point", "profile"],
    )
});

static IN_FLIGHT: LazyLock<GaugeVec> = LazyLock::new(|| {
    gauge("scheduler_inflight_events", "Number of events kept for pods that are being scheduled.", &["event"])
});

static VOLUME_STAGE_FAILED: LazyLock<CounterVec> = LazyLock::new(|| {
    counter(
        "scheduler_volume_scheduling_stage_error_total",
        "Number of errors by the stage of a volume's scheduling.",
        &["operation"],
    )
});

/// Notes an error of a stage of a volume's scheduling.
pub fn volume_stage_failed(stage: &str) {
    VOLUME_STAGE_FAILED.with_label_values(&[stage]).inc();
}

static RUNNING: LazyLock<GaugeVec> = LazyLock::new(|| {
    gauge(
        "scheduler_goroutines",
        "Number of running goroutines split by the work they do such as binding.",
        &["operation"],
    )
});

/// Handles an event and notes how long that took.
pub fn handled<T>(event: &'static str, handle: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let out = handle();
    EVENT_SECONDS.with_label_values(&[event]).observe(begun.elapsed().as_secs_f64());
    out
}

/// Asks a plugin whether an event may help a pod, and notes how long that took.
pub fn hinted(plugin: &str, event: &str, ask: impl FnOnce() -> bool) -> bool {
    let begun = Instant::now();
    let hint = ask();
    let label = if hint { "Queue" } else { "QueueSkip" };
    HINT_SECONDS.with_label_values(&[plugin, event, label]).observe(begun.elapsed().as_secs_f64());
    hint
}

/// Runs a plugin, and notes how long that took in the cycles whose plugins are timed one by one.
pub fn plugin<T: ExtensionPointResult>(sampled: bool, point: Point, name: &str, run: impl FnOnce() -> T) -> T {
    if !sampled {
        return run();
    }
    let begun = Instant::now();
    let out = run();
    plugin_took(sampled, point, name, &out, begun.elapsed());
    out
}

/// Observes like [`plugin`], of one that has run.
pub fn plugin_took(sampled: bool, point: Point, name: &str, out: &impl ExtensionPointResult, took: Duration) {
    if sampled {
        PLUGIN_SECONDS.with_label_values(&[name, point.name(), out.label()]).observe(took.as_secs_f64());
    }
}

/// Counter of a plugin's evaluations.
pub fn evaluations(plugin: &str, point: Point, profile: &str) -> Counter {
    EVALUATIONS.with_label_values(&[plugin, point.name(), profile])
}

/// Notes an event that is kept for pods being scheduled (or one that no longer is).
pub fn in_flight(event: &str, by: f64) {
    IN_FLIGHT.with_label_values(&[event]).add(by);
}

/// Notes that victims were sent away, or that it failed.
pub fn evictions(done: bool, took: Duration) {
    let result = if done { "success" } else { "error" };
    EVICTION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
    EVICTIONS.with_label_values(&[result]).inc();
}

/// Counts a task of the kind named while it lives.
#[derive(Debug)]
pub struct Running(&'static str);

impl Running {
    /// One more.
    pub fn one(operation: &'static str) -> Self {
        RUNNING.with_label_values(&[operation]).inc();
        Self(operation)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.with_label_values(&[self.0]).dec();
    }
}

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Bound.
    Scheduled,
    /// Fits nowhere.
    Unschedulable,
    /// Something broke.
    Error,
}

/// Notes the end of an attempt.
pub fn attempt(profile: &str, how: Attempt, took: Duration) {
    let result = match how {
        Attempt::Scheduled => "scheduled",
        Attempt::Unschedulable => "unschedulable",
        Attempt::Error => "error",
    };
    ATTEMPTS.with_label_values(&[profile, result]).inc();
    ATTEMPT_SECONDS.with_label_values(&[profile, result]).observe(took.as_secs_f64());
}

/// Notes the time one decision took.
pub fn algorithm(took: Duration) {
    ALGORITHM_SECONDS.observe(took.as_secs_f64());
}

fn attempts_label(attempts: u32) -> String {
    if attempts >= 15 { "15+".to_owned() } else { attempts.to_string() }
}

/// Notes that a pod was bound at last.
pub fn bound(attempts: u32, since_first: Duration) {
    POD_ATTEMPTS.observe(f64::from(attempts));
    POD_SECONDS.with_label_values(&[&*attempts_label(attempts)]).observe(since_first.as_secs_f64());
}

/// Notes how long a pod has waited until its binding is sent.
pub fn binding(waited: Duration) {
    SEEN_TO_BIND.observe(waited.as_secs_f64());
}

/// Notes that room was sought, and how many pods have to go if some was found.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub fn preemption(victims: Option<usize>) {
    PREEMPTIONS.inc();
    if let Some(n) = victims {
        VICTIMS.observe(n as f64);
    }
}

/// Notes how long a pod waited for permission.
pub fn permit_wait(result: &str, took: Duration) {
    PERMIT_WAIT.with_label_values(&[result]).observe(took.as_secs_f64());
}

/// Notes a pod entering a queue.
pub fn incoming(queue: &str, event: &str) {
    INCOMING.with_label_values(&[queue, event]).inc();
}

/// Notes the lengths of the queues: active, back-off, unschedulable, gated.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub fn pending(lengths: [usize; 4]) {
    for (queue, n) in ["active", "backoff", "unschedulable", "gated"].iter().zip(lengths) {
        PENDING.with_label_values(&[*queue]).set(n as f64);
    }
}

/// Notes the sizes of the cache.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub fn cache(sizes: crate::model::cache::Sizes) {
    for (kind, n) in [("nodes", sizes.nodes), ("pods", sizes.pods), ("assumed_pods", sizes.assumed)] {
        CACHE.with_label_values(&[kind]).set(n as f64);
    }
}

/// Notes one pod more (or less) that a plugin keeps waiting.
pub fn unschedulable(plugin: &str, profile: &str, by: f64) {
    UNSCHEDULABLE.with_label_values(&[plugin, profile]).add(by);
}

/// Makes the families that need no labels show from the start.
pub fn register() {
    LazyLock::force(&ALGORITHM_SECONDS);
    LazyLock::force(&POD_ATTEMPTS);
    LazyLock::force(&VICTIMS);
    LazyLock::force(&PREEMPTIONS);
    pending([0; 4]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_attempts_are_one_series() {
        assert_eq!([1, 14, 15, 16, 400].map(attempts_label), ["1", "14", "15+", "15+", "15+"]);
    }
}
