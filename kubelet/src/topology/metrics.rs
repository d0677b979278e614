//! Metrics of what containers have to themselves: processors, memory and their placement.

use shared::metrics::{counter, exponential, gauge, histogram};
use std::time::Instant;

const NO_LABELS: [&str; 0] = [];
const ALIGNMENT: [&str; 2] = ["scope", "boundary"];

fn count(name: &str, help: &str) {
    counter(name, help, &NO_LABELS).with_label_values(&NO_LABELS).inc();
}

/// Counts the placement of a pod.
pub fn admission(begun: Instant, is_refused: bool) {
    count(
        "kubelet_topology_manager_admission_requests_total",
        "[ALPHA] Number of pods whose resources the topology manager was asked to place",
    );
    if is_refused {
        count(
            "kubelet_topology_manager_admission_errors_total",
            "[ALPHA] Number of pods whose resources the topology manager could not place",
        );
    }
    let help = "[ALPHA] Duration of placing a pod's resources in milliseconds";
    let buckets = exponential(0.05, 2.0, 15);
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    histogram("kubelet_topology_manager_admission_duration_ms", help, &NO_LABELS, buckets)
        .with_label_values(&NO_LABELS)
        .observe(took.floor());
}

/// Counts resources that were, or could not be, kept within a boundary: `numa_node`, `physical_cpu` or `uncore_cache`.
pub fn aligned(scope: &str, boundary: &str, is_aligned: bool) {
    let (name, help) = alignment(is_aligned);
    counter(name, help, &ALIGNMENT).with_label_values(&[scope, boundary]).inc();
}

/// Shows a boundary before anything was counted.
pub fn show_alignment(scope: &str, boundary: &str) {
    for is_aligned in [true, false] {
        let (name, help) = alignment(is_aligned);
        counter(name, help, &ALIGNMENT).with_label_values(&[scope, boundary]).inc_by(0.0);
    }
}

const fn alignment(is_aligned: bool) -> (&'static str, &'static str) {
    if is_aligned {
        (
            "kubelet_container_aligned_compute_resources_count",
            "[ALPHA] Number of allocations that were kept within a boundary",
        )
    } else {
        (
            "kubelet_container_aligned_compute_resources_failure_count",
            "[ALPHA] Number of allocations that could not be kept within a boundary",
        )
    }
}

/// Counts a container that asked for processors to itself.
pub fn processors(is_refused: bool) {
    count(
        "kubelet_cpu_manager_pinning_requests_total",
        "[ALPHA] Number of containers that asked for processors to themselves",
    );
    if is_refused {
        count(
            "kubelet_cpu_manager_pinning_errors_total",
            "[ALPHA] Number of containers that could not be given processors to themselves",
        );
    }
}

/// Shows how many processors are shared, how many containers have to themselves, and the latter by NUMA node.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub fn processors_given(shared: usize, exclusive: usize, by_node: impl IntoIterator<Item = (u32, usize)>) {
    let set = |name: &str, help: &str, value: usize| {
        gauge(name, help, &NO_LABELS).with_label_values(&NO_LABELS).set(value as f64);
    };
    set(
        "kubelet_cpu_manager_shared_pool_size_millicores",
        "[ALPHA] Thousandths of processors that can be given to containers and are not",
        shared.saturating_mul(1000),
    );
    set(
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        "[ALPHA] Number of processors that containers have to themselves",
        exclusive,
    );
    let help = "[ALPHA] Number of processors that containers have to themselves, by NUMA node";
    for (node, number) in by_node {
        let gauge = gauge("kubelet_cpu_manager_allocation_per_numa", help, &["numa_node"]);
        gauge.with_label_values(&[&node.to_string()]).set(number as f64);
    }
}

/// Counts a container that asked for memory of NUMA nodes.
pub fn memory(is_refused: bool) {
    count(
        "kubelet_memory_manager_pinning_requests_total",
        "[ALPHA] Number of containers that asked for memory of NUMA nodes",
    );
    if is_refused {
        count(
            "kubelet_memory_manager_pinning_errors_total",
            "[ALPHA] Number of containers that could not be given memory of NUMA nodes",
        );
    }
}
