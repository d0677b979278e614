//! Metrics of what plugins are asked for, under upstream's names.

use shared::metrics::{counter, exponential, histogram};
use std::time::Instant;

/// Buckets of `csi_operations_seconds`.
const CSI_BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Buckets of dynamic resources: fifteen from a tenth of a second to forty seconds.
fn claim_buckets() -> Vec<f64> {
    exponential(0.1, 400_f64.powf(1.0 / 14.0), 15)
}

fn code<T>(outcome: &Result<T, tonic::Status>) -> &'static str {
    shared::grpc::name(outcome.as_ref().err().map_or(tonic::Code::Ok, tonic::Status::code))
}

/// Counts a call of a CSI driver, for a volume of a plugin of old or not: `method` is `/csi.v1.Node/NodeStageVolume` and the
/// like.
pub fn csi_call<T>(
    (driver, is_migrated): (&str, bool),
    method: &str,
    begun: Instant,
    outcome: &Result<T, tonic::Status>,
) {
    let help = "[ALPHA] Duration of calls of CSI drivers in seconds, by driver, method and code";
    let labels = ["driver_name", "method_name", "grpc_status_code", "migrated"];
    let calls = histogram("csi_operations_seconds", help, &labels, CSI_BUCKETS.to_vec());
    calls
        .with_label_values(&[driver, method, code(outcome), &is_migrated.to_string()])
        .observe(begun.elapsed().as_secs_f64());
}

/// Counts a call of a driver of dynamic resources.
pub fn claim_call<T>(driver: &str, method: &str, begun: Instant, outcome: &Result<T, tonic::Status>) {
    let help = "[ALPHA] Duration of calls of drivers of dynamic resources in seconds";
    let labels = ["driver_name", "method_name", "grpc_status_code"];
    let calls = histogram("dra_grpc_operations_duration_seconds", help, &labels, claim_buckets());
    calls.with_label_values(&[driver, method, code(outcome)]).observe(begun.elapsed().as_secs_f64());
}

/// Counts the preparation of a pod's claims, `PrepareResources`, or its end, `UnprepareResources`.
pub fn claims<T, E>(operation: &str, begun: Instant, outcome: &Result<T, E>) {
    let help = "[ALPHA] Duration of work on all claims of a pod in seconds, by operation and success";
    let labels = ["operation_name", "is_error"];
    let operations = histogram("dra_operations_duration_seconds", help, &labels, claim_buckets());
    let is_error = if outcome.is_err() { "true" } else { "false" };
    operations.with_label_values(&[operation, is_error]).observe(begun.elapsed().as_secs_f64());
}

/// Counts a registration of a device plugin.
pub fn device_registration(resource: &str) {
    let help = "[ALPHA] Number of registrations of device plugins, by resource";
    counter("kubelet_device_plugin_registration_total", help, &["resource_name"]).with_label_values(&[resource]).inc();
}

/// Counts an allocation by a device plugin.
pub fn device_allocation(resource: &str, begun: Instant) {
    let name = "kubelet_device_plugin_alloc_duration_seconds";
    let help = "[ALPHA] Duration of allocations by device plugins in seconds, by resource";
    let allocations = histogram(name, help, &["resource_name"], shared::metrics::default_buckets());
    allocations.with_label_values(&[resource]).observe(begun.elapsed().as_secs_f64());
}

/// Counts a question to the podresources service: `list`, `get_allocatable` or `get`.
pub fn pod_resources<T>(question: &str, outcome: &Result<T, tonic::Status>) {
    let count = |name: &str, help: &str| {
        let name = format!("kubelet_pod_resources_endpoint_{name}");
        counter(&name, help, &["server_api_version"]).with_label_values(&["v1"]).inc();
    };
    count("requests_total", "[ALPHA] Number of requests to the podresources service");
    count(&format!("requests_{question}"), "[ALPHA] Number of requests to the podresources service, by method");
    if outcome.is_err() {
        count(
            &format!("errors_{question}"),
            "[ALPHA] Number of failed requests to the podresources service, by method",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_upstreams() {
        let buckets = claim_buckets();
        assert_eq!(buckets.len(), 15);
        for (at, expected) in [(0, 0.1), (1, 0.153_412_740_463_439_1), (7, 2.0), (14, 40.0)] {
            assert!((buckets[at] - expected).abs() < 1e-9, "{at}: {}", buckets[at]);
        }
    }

    #[test]
    fn calls_are_counted_by_their_code() {
        csi_call(("metrics.test", false), "/csi.v1.Node/NodeStageVolume", Instant::now(), &Ok(()));
        let failed: Result<(), _> = Err(tonic::Status::unavailable("away"));
        csi_call(("metrics.test", false), "/csi.v1.Node/NodeStageVolume", Instant::now(), &failed);
        claims::<(), ()>("PrepareResources", Instant::now(), &Err(()));
        pod_resources("get", &failed);
        let text = shared::metrics::gather();
        for wanted in [
            "csi_operations_seconds_count{driver_name=\"metrics.test\",grpc_status_code=\"OK\"",
            "csi_operations_seconds_count{driver_name=\"metrics.test\",grpc_status_code=\"Unavailable\"",
            "dra_operations_duration_seconds_count{is_error=\"true\",operation_name=\"PrepareResources\"}",
            "kubelet_pod_resources_endpoint_errors_get{server_api_version=\"v1\"}",
        ] {
            assert!(text.contains(wanted), "{wanted}");
        }
    }
}
