//! The controllers' own metrics under upstream's names, one row each; a family is made when it is first used.
//!
//! Work queues, clients and leader election count in `shared`.

use shared::metrics::{self, exponential};

enum Shape {
    Counter,
    Gauge,
    /// First bucket, factor, number of buckets.
    Histogram(f64, f64, usize),
    /// Buckets that follow no rule.
    Buckets(&'static [f64]),
}

struct Row {
    name: &'static str,
    labels: &'static [&'static str],
    shape: Shape,
    help: &'static str,
}

const fn row(name: &'static str, labels: &'static [&'static str], shape: Shape, help: &'static str) -> Row {
    Row { name, labels, shape, help }
}

use Shape::{Buckets, Counter, Gauge, Histogram};

/// Names, types, labels and buckets as upstream v1.35 registers them.
const TABLE: &[Row] = &[
    row(
        "cronjob_controller_job_creation_skew_duration_seconds",
        &[],
        Histogram(1.0, 2.0, 10),
        "[STABLE] Time between when a job was due and when it was created.",
    ),
    row("endpoint_slice_controller_changes", &["operation"], Counter, "[ALPHA] Number of EndpointSlice changes."),
    row(
        "endpoint_slice_controller_desired_endpoint_slices",
        &[],
        Gauge,
        "[ALPHA] Number of EndpointSlices there would be with perfect packing.",
    ),
    row(
        "endpoint_slice_controller_endpoints_added_per_sync",
        &[],
        Histogram(2.0, 2.0, 15),
        "[ALPHA] Number of endpoints added on each Service sync.",
    ),
    row("endpoint_slice_controller_endpoints_desired", &[], Gauge, "[ALPHA] Number of endpoints wanted."),
    row(
        "endpoint_slice_controller_endpoints_removed_per_sync",
        &[],
        Histogram(2.0, 2.0, 15),
        "[ALPHA] Number of endpoints removed on each Service sync.",
    ),
    row(
        "endpoint_slice_controller_endpointslices_changed_per_sync",
        &["topology", "traffic_distribution"],
        Buckets(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
        "[ALPHA] Number of EndpointSlices changed on each Service sync.",
    ),
    row("endpoint_slice_controller_num_endpoint_slices", &[], Gauge, "[ALPHA] Number of EndpointSlices."),
    row(
        "endpoint_slice_controller_services_count_by_traffic_distribution",
        &["traffic_distribution"],
        Gauge,
        "[ALPHA] Number of Services by their traffic distribution.",
    ),
    row("endpoint_slice_controller_syncs", &["result"], Counter, "[ALPHA] Number of EndpointSlice syncs."),
    row(
        "endpoint_slice_mirroring_controller_changes",
        &["operation"],
        Counter,
        "[ALPHA] Number of EndpointSlice changes.",
    ),
    row(
        "endpoint_slice_mirroring_controller_endpoints_sync_duration",
        &[],
        Histogram(0.001, 2.0, 15),
        "[ALPHA] Duration of syncEndpoints() in seconds.",
    ),
    row("ephemeral_volume_controller_create_total", &[], Counter, "[ALPHA] Number of claims asked for."),
    row("ephemeral_volume_controller_create_failures_total", &[], Counter, "[ALPHA] Number of claims that failed."),
    row(
        "garbagecollector_controller_resources_sync_error_total",
        &[],
        Counter,
        "[ALPHA] Number of garbage collector resources sync errors.",
    ),
    row(
        "job_controller_job_finished_indexes_total",
        &["backoffLimit", "status"],
        Counter,
        "[ALPHA] Number of finished indexes.",
    ),
    row(
        "job_controller_job_pods_creation_total",
        &["reason", "status"],
        Counter,
        "[ALPHA] Number of pods created by the job controller.",
    ),
    row(
        "job_controller_job_pods_finished_total",
        &["completion_mode", "result"],
        Counter,
        "[STABLE] Number of finished pods that are fully tracked.",
    ),
    row(
        "job_controller_job_sync_duration_seconds",
        &["action", "completion_mode", "result"],
        Histogram(0.004, 2.0, 15),
        "[STABLE] The time it took to sync a job.",
    ),
    row(
        "job_controller_job_syncs_total",
        &["action", "completion_mode", "result"],
        Counter,
        "[STABLE] The number of job syncs.",
    ),
    row(
        "job_controller_jobs_by_external_controller_total",
        &["controller_name"],
        Counter,
        "[ALPHA] The number of jobs managed by an external controller.",
    ),
    row(
        "job_controller_jobs_finished_total",
        &["completion_mode", "reason", "result"],
        Counter,
        "[STABLE] The number of finished jobs.",
    ),
    row(
        "job_controller_pod_failures_handled_by_failure_policy_total",
        &["action"],
        Counter,
        "[ALPHA] The number of failed pods handled by a failure policy.",
    ),
    row(
        "job_controller_terminated_pods_tracking_finalizer_total",
        &["event"],
        Counter,
        "[ALPHA] The number of terminated pods that got or lost the tracking finalizer.",
    ),
    row("node_collector_evictions_total", &["zone"], Counter, "[STABLE] Number of node evictions since the start."),
    row("node_collector_unhealthy_nodes_in_zone", &["zone"], Gauge, "[ALPHA] Number of not ready nodes per zone."),
    row(
        "node_collector_update_all_nodes_health_duration_seconds",
        &[],
        Histogram(0.01, 4.0, 8),
        "[ALPHA] Duration of a look at the health of all nodes.",
    ),
    row("node_collector_zone_health", &["zone"], Gauge, "[ALPHA] Percentage of healthy nodes per zone."),
    row("node_collector_zone_size", &["zone"], Gauge, "[ALPHA] Number of registered nodes per zone."),
    row(
        "node_ipam_controller_cidrset_allocation_tries_per_request",
        &["clusterCIDR"],
        Histogram(1.0, 5.0, 5),
        "[ALPHA] Number of tries per allocation.",
    ),
    row("node_ipam_controller_cidrset_cidrs_allocations_total", &["clusterCIDR"], Counter, "[ALPHA] CIDR allocations."),
    row("node_ipam_controller_cidrset_cidrs_releases_total", &["clusterCIDR"], Counter, "[ALPHA] CIDR releases."),
    row("node_ipam_controller_cidrset_usage_cidrs", &["clusterCIDR"], Gauge, "[ALPHA] Share of CIDRs in use."),
    row("node_ipam_controller_cirdset_max_cidrs", &["clusterCIDR"], Gauge, "[ALPHA] Number of CIDRs there are."),
    row(
        "pod_gc_collector_force_delete_pods_total",
        &["namespace", "reason"],
        Counter,
        "[ALPHA] Number of pods that were deleted without grace.",
    ),
    row(
        "pod_gc_collector_force_delete_pod_errors_total",
        &["namespace", "reason"],
        Counter,
        "[ALPHA] Number of errors when deleting pods without grace.",
    ),
    row(
        "replicaset_controller_sorting_deletion_age_ratio",
        &[],
        Buckets(&[0.25, 0.5, 1.0, 2.0, 4.0, 8.0]),
        "[ALPHA] The age of a deleted pod in proportion to the youngest.",
    ),
    row("pv_collector_bound_pv_count", &["storage_class"], Gauge, "[ALPHA] Number of bound volumes."),
    row("pv_collector_unbound_pv_count", &["storage_class"], Gauge, "[ALPHA] Number of volumes that are not bound."),
    row("pv_collector_total_pv_count", &["plugin_name", "volume_mode"], Gauge, "[ALPHA] Number of volumes."),
    row(
        "pv_collector_bound_pvc_count",
        &["namespace", "storage_class", "volume_attributes_class"],
        Gauge,
        "[ALPHA] Number of bound claims.",
    ),
    row(
        "pv_collector_unbound_pvc_count",
        &["namespace", "storage_class", "volume_attributes_class"],
        Gauge,
        "[ALPHA] Number of claims that are not bound.",
    ),
    row(
        "running_managed_controllers",
        &["manager", "name"],
        Gauge,
        "[ALPHA] Controllers that run, by the manager that runs them.",
    ),
    row("retroactive_storageclass_total", &[], Counter, "[ALPHA] Number of claims given a default class afterwards."),
    row("retroactive_storageclass_errors_total", &[], Counter, "[ALPHA] Number of failures to do so."),
    row("root_ca_cert_publisher_sync_total", &["code"], Counter, "[ALPHA] Number of namespace syncs."),
    row(
        "root_ca_cert_publisher_sync_duration_seconds",
        &["code"],
        Histogram(0.001, 2.0, 15),
        "[ALPHA] Duration of namespace syncs.",
    ),
    row("taint_eviction_controller_pod_deletions_total", &[], Counter, "[ALPHA] Number of pods deleted for taints."),
    row(
        "taint_eviction_controller_pod_deletion_duration_seconds",
        &[],
        Buckets(&[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0]),
        "[ALPHA] Time between when a pod was due to be deleted and when it was.",
    ),
    row(
        "ttl_after_finished_controller_job_deletion_duration_seconds",
        &[],
        Histogram(0.1, 2.0, 14),
        "[ALPHA] Time between when a job was due to be deleted and when it was.",
    ),
];

fn find(name: &str) -> Option<&'static Row> {
    let found = TABLE.iter().find(|r| r.name == name);
    debug_assert!(found.is_some(), "{name} is not in the table");
    found
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
    let Some(row) = find(name) else { return };
    let counter = metrics::counter(row.name, row.help, row.labels);
    if let Ok(counter) = counter.get_metric_with_label_values(labels) {
        counter.inc_by(float(n));
    }
}

/// Set a gauge.
pub fn set(name: &str, labels: &[&str], value: f64) {
    let Some(row) = find(name) else { return };
    if let Ok(gauge) = metrics::gauge(row.name, row.help, row.labels).get_metric_with_label_values(labels) {
        gauge.set(value);
    }
}

/// Add a sample to a histogram.
pub fn observe(name: &str, labels: &[&str], value: f64) {
    let Some(row) = find(name) else { return };
    let buckets = match row.shape {
        Histogram(first, factor, n) => exponential(first, factor, n),
        Buckets(all) => all.to_vec(),
        Counter | Gauge => return,
    };
    if let Ok(histogram) =
        metrics::histogram(row.name, row.help, row.labels, buckets).get_metric_with_label_values(labels)
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
    use super::*;
    use serde_json::Value;

    /// Upstream's own list of what it registers.
    const FACTS: &str = include_str!("../../testdata/metrics.json");

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
            let buckets = match row.shape {
                Histogram(first, factor, n) => exponential(first, factor, n),
                Buckets(all) => all.to_vec(),
                _ => Vec::new(),
            };
            // The default buckets are not spelled out there.
            let want: Vec<f64> = fact["buckets"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
            let same = buckets.len() == want.len() && buckets.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(want.is_empty() || same, "{}: {buckets:?} {want:?}", row.name);
        }
    }
}
