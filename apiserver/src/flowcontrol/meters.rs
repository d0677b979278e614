//! Upstream's metrics of flow control. What a request touches is looked up once per schema; what describes a level
//! is written when somebody looks.

use std::sync::Arc;
use std::time::Duration;

use shared::metrics::{self, Counter, Gauge, GaugeVec, Histogram};

const SECONDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const FLOW: [&str; 2] = ["priority_level", "flow_schema"];

/// The metrics of one schema in its level.
pub(super) struct Metrics {
    pub(super) waiting: Gauge,
    pub(super) waiting_seats: Gauge,
    pub(super) executing: Gauge,
    pub(super) executing_seats: Gauge,
    pub(super) dispatched: Counter,
    pub(super) crowded: Counter,
    pub(super) queue_length: Histogram,
    pub(super) seats: Histogram,
    pub(super) watchers: Histogram,
    waited: [Histogram; 2],
    executed: [Histogram; 2],
    labels: [String; 2],
}

impl Metrics {
    pub(super) fn new(level: &str, schema: &str) -> Arc<Self> {
        let labels = [level, schema];
        let gauge = |name: &str, help: &str| metrics::gauge(name, help, &FLOW).with_label_values(&labels);
        let counter = |name: &str, help: &str| metrics::counter(name, help, &FLOW).with_label_values(&labels);
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            metrics::histogram(name, help, &FLOW, buckets.to_vec()).with_label_values(&labels)
        };
        let waited = metrics::histogram(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "[BETA] Length of time a request spent waiting in its queue",
            &["priority_level", "flow_schema", "execute"],
            SECONDS.to_vec(),
        );
        let executed = metrics::histogram(
            "apiserver_flowcontrol_request_execution_seconds",
            "[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
            &["priority_level", "flow_schema", "type"],
            SECONDS.to_vec(),
        );
        Arc::new(Self {
            waiting: gauge(
                "apiserver_flowcontrol_current_inqueue_requests",
                "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem",
            ),
            waiting_seats: gauge(
                "apiserver_flowcontrol_current_inqueue_seats",
                "[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem",
            ),
            executing: gauge(
                "apiserver_flowcontrol_current_executing_requests",
                "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
            ),
            executing_seats: gauge(
                "apiserver_flowcontrol_current_executing_seats",
                "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
            ),
            dispatched: counter(
                "apiserver_flowcontrol_dispatched_requests_total",
                "[BETA] Number of requests executed by API Priority and Fairness subsystem",
            ),
            crowded: counter(
                "apiserver_flowcontrol_request_dispatch_no_accommodation_total",
                "[ALPHA] Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats",
            ),
            queue_length: histogram(
                "apiserver_flowcontrol_request_queue_length_after_enqueue",
                "[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
                &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0],
            ),
            seats: histogram(
                "apiserver_flowcontrol_work_estimated_seats",
                "[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
                &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0],
            ),
            watchers: histogram(
                "apiserver_flowcontrol_watch_count_samples",
                "[ALPHA] count of watchers for mutating requests in API Priority and Fairness",
                &[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0],
            ),
            waited: ["false", "true"].map(|x| waited.with_label_values(&[level, schema, x])),
            executed: ["regular", "watch"].map(|x| executed.with_label_values(&[level, schema, x])),
            labels: labels.map(str::to_owned),
        })
    }

    /// A wait ended, in execution or not.
    pub(super) fn waited(&self, time: Duration, execute: bool) {
        self.waited[usize::from(execute)].observe(time.as_secs_f64());
    }

    /// A request (or the beginning of a watch) was executed.
    pub(super) fn executed(&self, time: Duration, watch: bool) {
        self.executed[usize::from(watch)].observe(time.as_secs_f64());
    }

    /// A request was sent away.
    pub(super) fn refused(&self, why: &str) {
        let [level, schema] = &self.labels;
        metrics::counter(
            "apiserver_flowcontrol_rejected_requests_total",
            "[BETA] Number of requests rejected by API Priority and Fairness subsystem",
            &["priority_level", "flow_schema", "reason"],
        )
        .with_label_values(&[level, schema, why])
        .inc();
    }
}

/// The description of a level, as gauges by name below `apiserver_flowcontrol_`.
pub(super) fn level(name: &str, values: &[(&'static str, &'static str, f64)]) {
    for (metric, help, value) in values {
        gauge_of(metric, help).with_label_values(&[name]).set(*value);
    }
}

fn gauge_of(metric: &str, help: &str) -> GaugeVec {
    let stage = if metric == "nominal_limit_seats" { "BETA" } else { "ALPHA" };
    metrics::gauge(&format!("apiserver_flowcontrol_{metric}"), &format!("[{stage}] {help}"), &["priority_level"])
}

/// Lowest and highest virtual start over the queues of a level, with or without what runs already.
pub(super) fn bounds(name: &str, discounted: bool, low: f64, high: f64) {
    let (metric, help) = if discounted {
        (
            "apiserver_flowcontrol_next_discounted_s_bounds",
            "[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress",
        )
    } else {
        (
            "apiserver_flowcontrol_next_s_bounds",
            "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)",
        )
    };
    let gauge = metrics::gauge(metric, help, &["priority_level", "bound"]);
    gauge.with_label_values(&[name, "min"]).set(low);
    gauge.with_label_values(&[name, "max"]).set(high);
}

/// The fraction of its target each level got in the last adjustment.
pub(super) fn fair_fraction(value: f64) {
    let gauge = metrics::gauge(
        "apiserver_flowcontrol_seat_fair_frac",
        "[ALPHA] Fair fraction of server's concurrency to allocate to each priority level that can use it",
        &[],
    );
    gauge.with_label_values(&[] as &[&str]).set(value);
}

/// Requests of a kind that wait now, whatever their level.
pub(super) fn waiting(kind: &str, count: f64) {
    let gauge = metrics::gauge(
        "apiserver_current_inqueue_requests",
        "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.",
        &["request_kind"],
    );
    gauge.with_label_values(&[kind]).set(count);
}
