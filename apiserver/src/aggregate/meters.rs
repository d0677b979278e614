//! The aggregator's metrics, under upstream's names.

use prometheus::{CounterVec, GaugeVec};
use shared::metrics;

pub(super) struct Metrics {
    pub(super) unavailable: GaugeVec,
    pub(super) unavailable_total: CounterVec,
    pub(super) aggregations: CounterVec,
    pub(super) regenerated: CounterVec,
    pub(super) regeneration: GaugeVec,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let meters = Self {
            unavailable: metrics::gauge(
                "aggregator_unavailable_apiservice",
                "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
                &["name"],
            ),
            unavailable_total: metrics::counter(
                "aggregator_unavailable_apiservice_total",
                "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
                &["name", "reason"],
            ),
            aggregations: metrics::counter(
                "aggregator_discovery_aggregation_count_total",
                "[ALPHA] Counter of number of times discovery was aggregated",
                &[],
            ),
            regenerated: metrics::counter(
                "aggregator_openapi_v2_regeneration_count",
                "[ALPHA] Counter of OpenAPI v2 spec regeneration count broken down by causing APIService name and reason.",
                &["apiservice", "reason"],
            ),
            regeneration: metrics::gauge(
                "aggregator_openapi_v2_regeneration_duration",
                "[ALPHA] Gauge of OpenAPI v2 spec regeneration duration in seconds.",
                &["reason"],
            ),
        };
        // Shown from the start, as a counter without labels is.
        meters.aggregations.with_label_values::<&str>(&[]).inc_by(0.0);
        meters
    }
}
