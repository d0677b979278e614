//! The controllers' own metrics under upstream's names; a family is made when it is first used.
//!
//! Work queues, clients and leader election count in `shared`.

mod table;

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use shared::metrics::{self, CounterVec, GaugeVec, HistogramVec, exponential};

use self::table::TABLE;

enum MetricShape {
    Counter,
    Gauge,
    /// First bucket, factor, number of buckets.
    Histogram(f64, f64, usize),
    /// Buckets that follow no rule.
    Buckets(&'static [f64]),
}

impl MetricShape {
    fn buckets(&self) -> Vec<f64> {
        match self {
            Self::Histogram(first, factor, n) => exponential(*first, *factor, *n),
            Self::Buckets(all) => all.to_vec(),
            Self::Counter | Self::Gauge => Vec::new(),
        }
    }
}

enum MadeMetric {
    Counter(CounterVec),
    Gauge(GaugeVec),
    Histogram(HistogramVec),
}

struct Row {
    name: &'static str,
    labels: &'static [&'static str],
    shape: MetricShape,
    help: &'static str,
}

impl Row {
    fn make(&self) -> MadeMetric {
        match self.shape {
            MetricShape::Counter => MadeMetric::Counter(metrics::counter(self.name, self.help, self.labels)),
            MetricShape::Gauge => MadeMetric::Gauge(metrics::gauge(self.name, self.help, self.labels)),
            MetricShape::Histogram(..) | MetricShape::Buckets(_) => {
                MadeMetric::Histogram(metrics::histogram(self.name, self.help, self.labels, self.shape.buckets()))
            }
        }
    }
}

fn find(name: &str) -> Option<&'static MadeMetric> {
    type Families = HashMap<&'static str, (&'static Row, OnceLock<MadeMetric>)>;
    static FAMILIES: LazyLock<Families> =
        LazyLock::new(|| TABLE.iter().map(|row| (row.name, (row, OnceLock::new()))).collect());
    let found = FAMILIES.get(name);
    debug_assert!(found.is_some(), "{name} is not in the table");
    found.map(|(row, made)| made.get_or_init(|| row.make()))
}

/// Count one.
pub fn count(name: &str, labels: &[&str]) {
    add(name, labels, 1);
}

/// Count some.
pub fn add(name: &str, labels: &[&str], n: usize) {
    if n == 0 {
        return;
    }
    if let Some(MadeMetric::Counter(family)) = find(name)
        && let Ok(counter) = family.get_metric_with_label_values(labels)
    {
        counter.inc_by(float(n));
    }
}

/// Show a counter that has counted nothing yet.
pub fn show_zero(name: &str, labels: &[&str]) {
    if let Some(MadeMetric::Counter(family)) = find(name) {
        // It is there from now on.
        let _ = family.get_metric_with_label_values(labels);
    }
}

/// Set a gauge.
pub fn set(name: &str, labels: &[&str], value: f64) {
    if let Some(MadeMetric::Gauge(family)) = find(name)
        && let Ok(gauge) = family.get_metric_with_label_values(labels)
    {
        gauge.set(value);
    }
}

/// Move a gauge up or down.
pub fn move_by(name: &str, labels: &[&str], step: f64) {
    if let Some(MadeMetric::Gauge(family)) = find(name)
        && let Ok(gauge) = family.get_metric_with_label_values(labels)
    {
        gauge.add(step);
    }
}

/// Removes a gauge whose subject is gone.
pub fn forget(name: &str, labels: &[&str]) {
    if let Some(MadeMetric::Gauge(family)) = find(name) {
        // It may never have been set.
        let _ = family.remove_label_values(labels);
    }
}

/// Add a sample to a histogram.
pub fn observe(name: &str, labels: &[&str], value: f64) {
    if let Some(MadeMetric::Histogram(family)) = find(name)
        && let Ok(histogram) = family.get_metric_with_label_values(labels)
    {
        histogram.observe(value);
    }
}

/// A count as metrics take it.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
#[must_use]
pub fn float(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use MetricShape::{Buckets, Counter, Gauge, Histogram};
    use serde_json::Value;

    use super::*;

    /// Upstream's own list of what it registers.
    const FACTS: &str = include_str!("../../../testdata/metrics.json");

    #[test]
    fn names_labels_types_and_buckets_are_upstreams() {
        let facts: Value = serde_json::from_str(FACTS).expect("facts");
        for row in TABLE {
            let fact = &facts[row.name];
            assert!(fact.is_object(), "upstream has no {}", row.name);
            let labels: Vec<&str> = fact["labels"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            assert_eq!(row.labels, labels, "{}", row.name);
            let kind = match row.shape {
                Counter => "Counter",
                Gauge => "Gauge",
                Histogram(..) | Buckets(_) => "Histogram",
            };
            // What upstream counts when it is asked is counted here as things change.
            assert!(fact["type"] == kind || fact["type"] == "Custom", "{}", row.name);
            let buckets = row.shape.buckets();
            // The default buckets are not spelled out there.
            let want: Vec<f64> = fact["buckets"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
            let same = buckets.len() == want.len() && buckets.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(want.is_empty() || same, "{}: {buckets:?} {want:?}", row.name);
        }
    }

    /// Upstream's families that nothing is ever counted in here.
    const WITHOUT: &[(&str, &[&str])] = &[(
        "no cloud is built in",
        &[
            "node_controller_cloud_provider_taint_removal_delay_seconds",
            "node_controller_initial_node_sync_delay_seconds",
        ],
    )];

    #[test]
    fn every_family_of_a_controller_is_there() {
        let facts: Value = serde_json::from_str(FACTS).expect("facts");
        let without: Vec<&str> = WITHOUT.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for name in facts.as_object().expect("a map").keys() {
            let there = TABLE.iter().any(|r| r.name == name);
            assert_ne!(there, without.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn what_is_counted_can_be_read() {
        count("retroactive_storageclass_total", &[]);
        move_by("attachdetach_controller_total_volumes", &["p", "s"], 2.0);
        move_by("attachdetach_controller_total_volumes", &["p", "s"], -1.0);
        set("storage_count_attachable_volumes_in_use", &["gone", "p"], 1.0);
        forget("storage_count_attachable_volumes_in_use", &["gone", "p"]);
        observe("node_collector_update_node_health_duration_seconds", &[], 0.5);
        let text = metrics::gather();
        for line in [
            "retroactive_storageclass_total 1",
            "attachdetach_controller_total_volumes{plugin_name=\"p\",state=\"s\"} 1",
            "node_collector_update_node_health_duration_seconds_sum 0.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
        assert!(!text.contains("node=\"gone\""));
    }
}
