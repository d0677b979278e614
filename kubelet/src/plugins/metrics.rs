//! Metrics of what plugins are asked for, under upstream's names.

use shared::metrics::{counter, exponential, gauge, histogram};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
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

/// Stands for all drivers.
const ANY_DRIVER: &str = "<any>";

/// Tells how many claims are in use, of the drivers of each; `before` are the drivers that were told last.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub fn claims_in_use<'a>(claims: impl Iterator<Item = Vec<&'a str>>, before: &mut BTreeSet<String>) {
    let help = "[ALPHA] Number of resource claims that are in use on the node, by driver, and <any> for all";
    let gauge = gauge("dra_resource_claims_in_use", help, &["driver_name"]);
    let mut counts = BTreeMap::from([(ANY_DRIVER.to_owned(), 0_usize)]);
    for drivers in claims {
        for driver in drivers.into_iter().chain([ANY_DRIVER]) {
            *counts.entry(driver.to_owned()).or_default() += 1;
        }
    }
    for (driver, count) in &counts {
        gauge.with_label_values(&[driver]).set(*count as f64);
    }
    for gone in before.iter().filter(|driver| !counts.contains_key(*driver)) {
        // One that was never told is not there to be removed.
        gauge.remove_label_values(&[gone]).ok();
    }
    *before = counts.into_keys().collect();
}

/// States of a plugin's socket, as metrics name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// The socket is there.
    Desired,
    /// The plugin has registered.
    Actual,
}

/// Tells that a socket is in a state, or is not any more.
pub fn socket(socket: &Path, state: SocketState, is_in: bool) {
    let help = "[ALPHA] Number of plugins, by socket and state";
    let gauge = gauge("plugin_manager_total_plugins", help, &["socket_path", "state"]);
    let state = match state {
        SocketState::Desired => "desired_state_of_world",
        SocketState::Actual => "actual_state_of_world",
    };
    let path = socket.display().to_string();
    if is_in {
        gauge.with_label_values(&[&path, state]).set(1.0);
    } else {
        gauge.remove_label_values(&[&path, state]).ok();
    }
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

/// Questions to the podresources service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodResourcesQuestion {
    /// `List`.
    List,
    /// `GetAllocatableResources`.
    Allocatable,
    /// `Get`.
    Get,
}

impl PodResourcesQuestion {
    /// Names of what counts requests and failures.
    fn metrics(self) -> [&'static str; 2] {
        match self {
            Self::List => {
                ["kubelet_pod_resources_endpoint_requests_list", "kubelet_pod_resources_endpoint_errors_list"]
            }
            Self::Allocatable => [
                "kubelet_pod_resources_endpoint_requests_get_allocatable",
                "kubelet_pod_resources_endpoint_errors_get_allocatable",
            ],
            Self::Get => ["kubelet_pod_resources_endpoint_requests_get", "kubelet_pod_resources_endpoint_errors_get"],
        }
    }
}

/// Counts a question to the podresources service.
pub fn pod_resources<T>(question: PodResourcesQuestion, outcome: &Result<T, tonic::Status>) {
    let count = |name: &str, help: &str| counter(name, help, &["server_api_version"]).with_label_values(&["v1"]).inc();
    let [requests, errors] = question.metrics();
    count("kubelet_pod_resources_endpoint_requests_total", "[ALPHA] Number of requests to the podresources service");
    count(requests, "[ALPHA] Number of requests to the podresources service, by method");
    if outcome.is_err() {
        count(errors, "[ALPHA] Number of failed requests to the podresources service, by method");
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
    fn claims_and_sockets_are_told_until_they_are_gone() {
        let mut before = BTreeSet::new();
        let sample =
            |driver: &str, count: usize| format!("dra_resource_claims_in_use{{driver_name=\"{driver}\"}} {count}");
        claims_in_use([vec!["a.test", "b.test"], vec!["a.test"]].into_iter(), &mut before);
        let text = shared::metrics::gather();
        for expected in [sample("a.test", 2), sample("b.test", 1)] {
            assert!(text.contains(&expected), "{expected}: {text}");
        }
        claims_in_use([vec!["b.test"]].into_iter(), &mut before);
        let text = shared::metrics::gather();
        assert!(text.contains(&sample("b.test", 1)) && !text.contains("a.test"), "{text}");
        let path = Path::new("/plugins/metrics-test.sock");
        socket(path, SocketState::Desired, true);
        socket(path, SocketState::Actual, true);
        socket(path, SocketState::Actual, false);
        let text = shared::metrics::gather();
        let is_told = |state: &str| {
            text.contains(&format!("total_plugins{{socket_path=\"{}\",state=\"{state}\"}} 1", path.display()))
        };
        assert!(is_told("desired_state_of_world") && !is_told("actual_state_of_world"), "{text}");
    }

    #[test]
    fn calls_are_counted_by_their_code() {
        csi_call(("metrics.test", false), "/csi.v1.Node/NodeStageVolume", Instant::now(), &Ok(()));
        let failed: Result<(), _> = Err(tonic::Status::unavailable("away"));
        csi_call(("metrics.test", false), "/csi.v1.Node/NodeStageVolume", Instant::now(), &failed);
        claims::<(), ()>("PrepareResources", Instant::now(), &Err(()));
        pod_resources(PodResourcesQuestion::Get, &failed);
        pod_resources(PodResourcesQuestion::Allocatable, &Ok(()));
        let text = shared::metrics::gather();
        for wanted in [
            "csi_operations_seconds_count{driver_name=\"metrics.test\",grpc_status_code=\"OK\"",
            "csi_operations_seconds_count{driver_name=\"metrics.test\",grpc_status_code=\"Unavailable\"",
            "dra_operations_duration_seconds_count{is_error=\"true\",operation_name=\"PrepareResources\"}",
            "kubelet_pod_resources_endpoint_errors_get{server_api_version=\"v1\"}",
            "kubelet_pod_resources_endpoint_requests_get_allocatable{server_api_version=\"v1\"}",
        ] {
            assert!(text.contains(wanted), "{wanted}");
        }
    }
}
