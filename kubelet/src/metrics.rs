//! The kubelet's own metrics, under upstream's names: a function for each thing that is counted.
//!
//! Metrics of plugins are in `plugins/metrics.rs`; metrics that are computed for each scrape are in `stats/text.rs`.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use shared::metrics::{counter, default_buckets, exponential, gauge, histogram};

use crate::pods;

const NO_LABELS: [&str; 0] = [];

/// Buckets of the time that pods take to start.
const POD_START: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Buckets of the time that pulls take.
const PULLS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
/// Names of image sizes: the largest size in bytes of each.
const IMAGE_SIZES: [(u64, &str); 11] = [
    (10 << 20, "0-10MB"),
    (100 << 20, "10MB-100MB"),
    (500 << 20, "100MB-500MB"),
    (1 << 30, "500MB-1GB"),
    (5 << 30, "1GB-5GB"),
    (10 << 30, "5GB-10GB"),
    (20 << 30, "10GB-20GB"),
    (30 << 30, "20GB-30GB"),
    (40 << 30, "30GB-40GB"),
    (60 << 30, "40GB-60GB"),
    (100 << 30, "60GB-100GB"),
];

fn count(name: &str, help: &str, labels: &[(&str, &str)]) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    counter(name, help, &names).with_label_values(&values).inc();
}

fn time(name: &str, help: &str, labels: &[(&str, &str)], buckets: Vec<f64>, took: Duration) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    histogram(name, help, &names, buckets).with_label_values(&values).observe(took.as_secs_f64());
}

/// Sets a gauge.
pub(crate) fn set(name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    gauge(name, help, &names).with_label_values(&values).set(value);
}

/// Counts a call of the container runtime, by upstream's name for it.
pub(crate) fn runtime_call(operation: &str, took: Duration, failed: bool) {
    let labels = [("operation_type", operation)];
    count(
        "kubelet_runtime_operations_total",
        "[ALPHA] Number of calls of the container runtime, by operation",
        &labels,
    );
    let help = "[ALPHA] Duration of calls of the container runtime in seconds, by operation";
    time("kubelet_runtime_operations_duration_seconds", help, &labels, exponential(0.005, 2.5, 14), took);
    if failed {
        let help = "[ALPHA] Number of failed calls of the container runtime, by operation";
        count("kubelet_runtime_operations_errors_total", help, &labels);
    }
}

/// Counts the making of a sandbox.
pub(crate) fn sandbox(handler: &str, took: Duration, failed: bool) {
    let labels = [("runtime_handler", handler)];
    let help = "[ALPHA] Duration of making sandboxes in seconds, by runtime handler";
    time("kubelet_run_podsandbox_duration_seconds", help, &labels, default_buckets(), took);
    count("kubelet_started_pods_total", "[ALPHA] Number of pods whose start was tried", &[]);
    if failed {
        let help = "[ALPHA] Number of sandboxes that could not be made, by runtime handler";
        count("kubelet_run_podsandbox_errors_total", help, &labels);
        count("kubelet_started_pods_errors_total", "[ALPHA] Number of pods that could not be started", &[]);
    }
}

/// Counts the start of a container; `failure` is the reason it waits for.
pub(crate) fn container_start(pod: &Pod, name: &str, failure: Option<&str>) {
    let kind = ("container_type", container_type(pod, name));
    count("kubelet_started_containers_total", "[ALPHA] Number of containers whose start was tried", &[kind]);
    if let Some(reason) = failure {
        let help = "[ALPHA] Number of containers that could not be started, by kind and reason";
        count("kubelet_started_containers_errors_total", help, &[kind, ("code", reason)]);
    }
}

fn container_type(pod: &Pod, name: &str) -> &'static str {
    let Some(spec) = &pod.spec else { return "container" };
    if spec.init_containers.iter().flatten().any(|c| c.name == name) {
        return "init_container";
    }
    match spec.ephemeral_containers.iter().flatten().any(|c| c.name == name) {
        true => "ephemeral_container",
        false => "container",
    }
}

/// Counts a round of a pod's worker: `create`, `update`, `sync`, `terminating` or `terminated`.
pub(crate) fn worker_round(operation: &str, begun: Instant) {
    let help = "[ALPHA] Duration of rounds of pod workers in seconds, by operation";
    let labels = [("operation_type", operation)];
    time("kubelet_pod_worker_duration_seconds", help, &labels, default_buckets(), begun.elapsed());
}

/// Counts the begin of a pod's first round, given when the kubelet heard of the pod.
pub(crate) fn worker_start(pod: &Pod, seen: Timestamp) {
    let help = "[ALPHA] Duration from hearing of a pod to the start of its worker in seconds";
    time("kubelet_pod_worker_start_duration_seconds", help, &[], default_buckets(), between(seen, Timestamp::now()));
    let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let help = "[ALPHA] Number of containers of a pod";
    let sizes = histogram("kubelet_containers_per_pod_count", help, &NO_LABELS, exponential(1.0, 2.0, 5));
    sizes.with_label_values(&NO_LABELS).observe(f64::from(u32::try_from(containers).unwrap_or(u32::MAX)));
}

/// Time between two timestamps; zero when the clock went back.
fn between(begun: Timestamp, ended: Timestamp) -> Duration {
    Duration::try_from(ended.duration_since(begun)).unwrap_or_default()
}

/// First begin and last end of the pulls for pods that do not run yet, by uid.
static PULLED: LazyLock<Mutex<HashMap<String, (Instant, Instant)>>> = LazyLock::new(Mutex::default);

/// Notes the time in which the image of one of a pod's containers was seen to.
pub(crate) fn pulled_for(pod: &Pod, begun: Instant) {
    let mut pulled = PULLED.lock();
    let span = pulled.entry(pods::uid(pod).to_owned()).or_insert((begun, begun));
    span.1 = span.1.max(Instant::now());
}

/// Counts a pod that has come to run.
pub(crate) fn pod_runs(pod: &Pod, seen: Timestamp) {
    let pulling = PULLED.lock().remove(pods::uid(pod)).map_or(Duration::ZERO, |(begun, ended)| ended - begun);
    for (name, help, took) in start_times(pod, seen, pulling, Timestamp::now()) {
        time(name, help, &[], POD_START.to_vec(), took);
    }
}

/// Times that a pod took to run: from hearing of it, and from its creation with and without the pulling of images.
fn start_times(
    pod: &Pod,
    seen: Timestamp,
    pulling: Duration,
    now: Timestamp,
) -> Vec<(&'static str, &'static str, Duration)> {
    let heard = "[ALPHA] Duration from hearing of a pod to its running in seconds";
    let mut times = vec![("kubelet_pod_start_duration_seconds", heard, between(seen, now))];
    if let Some(created) = pod.metadata.creation_timestamp.as_ref() {
        let total = between(created.0, now);
        let all = "[ALPHA] Duration from a pod's creation to its running in seconds";
        times.push(("kubelet_pod_start_total_duration_seconds", all, total));
        let without = "[ALPHA] Duration from a pod's creation to its running in seconds, without pulling images";
        times.push(("kubelet_pod_start_sli_duration_seconds", without, total.saturating_sub(pulling)));
    }
    times
}

/// Forgets what was noted of a pod that will never run.
pub(crate) fn pod_gone(uid: &str) {
    PULLED.lock().remove(uid);
}

/// Counts a status that the API server was told, `after` its first change.
pub(crate) fn status_told(after: Duration) {
    let buckets = vec![0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
    let help = "[ALPHA] Duration from the change of a pod's status to its update in the API server in seconds";
    time("kubelet_pod_status_sync_duration_seconds", help, &[], buckets, after);
}

/// Use of a certificate of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Shown to the API server.
    Client,
    /// Shown to clients of the kubelet.
    Serving,
}

/// Seconds since 1970 at which the client's and the serving certificate end.
static ENDS: Mutex<[Option<i64>; 2]> = Mutex::new([None, None]);

/// Notes when a certificate ends that is renewed by the kubelet.
pub(crate) fn certificate(role: Role, not_after: Option<i64>) {
    ENDS.lock()[role as usize] = not_after;
}

/// Families of what is left of the client's and the serving certificate.
const TTLS: [(&str, &str); 2] = [
    (
        "kubelet_certificate_manager_client_ttl_seconds",
        "[ALPHA] Seconds until the client certificate ends; below zero after that",
    ),
    (
        "kubelet_certificate_manager_server_ttl_seconds",
        "[ALPHA] Seconds until the serving certificate ends; below zero after that",
    ),
];

/// Tells how long certificates last from now on.
pub(crate) fn tell_certificates(now: Timestamp) {
    let ends = *ENDS.lock();
    for ((name, help), left) in TTLS.into_iter().zip(seconds_left(ends, now)) {
        #[allow(clippy::cast_precision_loss, reason = "seconds")]
        if let Some(left) = left {
            set(name, help, &[], left as f64);
        }
    }
}

fn seconds_left(ends: [Option<i64>; 2], now: Timestamp) -> [Option<i64>; 2] {
    ends.map(|end| Some(end?.saturating_sub(now.as_second())))
}

/// Counts a certificate that was replaced at an age in seconds.
pub(crate) fn certificate_replaced(role: Role, age: i64) {
    if role == Role::Serving {
        let buckets = [60, 3600, 14_400, 86_400, 604_800, 2_592_000, 7_776_000, 15_552_000, 31_104_000, 124_416_000];
        let help = "[ALPHA] Age in seconds of serving certificates when they were replaced";
        let age = Duration::from_secs(u64::try_from(age).unwrap_or(0));
        let buckets = buckets.into_iter().map(f64::from).collect();
        time("kubelet_certificate_manager_server_rotation_seconds", help, &[], buckets, age);
    }
}

/// Counts a failure to renew a certificate.
pub(crate) fn certificate_failed(role: Role) {
    match role {
        Role::Client => {
            let name = "kubelet_certificate_manager_client_expiration_renew_errors";
            count(name, "[ALPHA] Number of failed renewals of the client certificate", &[]);
        }
        Role::Serving => {
            let help = "[ALPHA] Number of failed renewals of the serving certificate";
            count("kubelet_server_expiration_renew_errors", help, &[]);
        }
    }
}

/// Counts a pod that is in the runtime and that nobody wants.
pub(crate) fn orphaned() {
    count("kubelet_orphaned_runtime_pods_total", "[ALPHA] Number of pods in the runtime that nobody wanted", &[]);
}

/// Counts a finished pull.
pub(crate) fn pull(size: u64, took: Duration) {
    let name = match size {
        0 => "N/A",
        _ => IMAGE_SIZES.iter().find(|(largest, _)| size <= *largest).map_or("GT100GB", |(_, name)| *name),
    };
    let help = "[ALPHA] Duration of image pulls in seconds, by size of the image";
    time("kubelet_image_pull_duration_seconds", help, &[("image_size_in_bytes", name)], PULLS.to_vec(), took);
}

/// Counts the end of a pod for want of a resource.
pub(crate) fn evicted(signal: &str) {
    let help = "[ALPHA] Number of pods that were evicted, by signal";
    count("kubelet_evictions", help, &[("eviction_signal", signal)]);
}

/// Counts the refusal of a pod.
pub(crate) fn refused(reason: &str) {
    let reason = match reason.strip_prefix("OutOf").is_some_and(|resource| resource.contains('/')) {
        true => "OutOfExtendedResources",
        false => reason,
    };
    let help = "[ALPHA] Number of pods that were refused, by reason";
    count("kubelet_admission_rejections_total", help, &[("reason", reason)]);
}

/// Counts an image that was removed: for `space` or for its `age`.
pub(crate) fn image_removed(reason: &str) {
    let help = "[ALPHA] Number of images that were removed, by reason";
    count("kubelet_image_garbage_collected_total", help, &[("reason", reason)]);
}

/// A request to one of the kubelet's ports, counted as under way until dropped.
pub(crate) struct CountedRequest {
    labels: [String; 4],
    begun: Instant,
}

/// Labels of requests.
const OF_REQUESTS: [&str; 4] = ["method", "path", "server_type", "long_running"];
/// First parts of paths that are counted by name.
const PATHS: [&str; 17] = [
    "healthz",
    "pods",
    "stats",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "configz",
    "runningpods",
    "pprof",
    "logs",
    "debug",
];
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"];

impl CountedRequest {
    /// Counts a request that begins. Answers for upstream's `Server.ServeHTTP`.
    #[must_use]
    pub(crate) fn begin(method: &str, path: &str, is_read_only: bool) -> Self {
        let known = |all: &[&str], text: &str| if all.contains(&text) { text.to_owned() } else { "other".to_owned() };
        let path = known(&PATHS, path_name(path));
        let server = if is_read_only { "readonly" } else { "readwrite" };
        let is_long = matches!(&*path, "exec" | "attach" | "debug");
        let labels = [known(&METHODS, method), path, server.to_owned(), is_long.to_string()];
        let it = Self { labels, begun: Instant::now() };
        let help = "[ALPHA] Number of requests";
        counter("kubelet_http_requests_total", help, &OF_REQUESTS).with_label_values(&it.values()).inc();
        it.in_flight().inc();
        it
    }

    fn values(&self) -> [&str; 4] {
        self.labels.each_ref().map(String::as_str)
    }

    fn in_flight(&self) -> shared::metrics::Gauge {
        let help = "[ALPHA] Number of requests that are being answered";
        gauge("kubelet_http_inflight_requests", help, &OF_REQUESTS).with_label_values(&self.values())
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.in_flight().dec();
        let help = "[ALPHA] Duration of requests in seconds";
        let durations = histogram("kubelet_http_requests_duration_seconds", help, &OF_REQUESTS, default_buckets());
        durations.with_label_values(&self.values()).observe(self.begun.elapsed().as_secs_f64());
    }
}

/// The first part of a path; of metrics the first two.
fn path_name(path: &str) -> &str {
    let path = path.trim_start_matches('/').trim_end_matches('/');
    let end = match path.strip_prefix("metrics/") {
        Some(rest) => "metrics/".len() + rest.find('/').unwrap_or(rest.len()),
        None => path.find('/').unwrap_or(path.len()),
    };
    &path[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_counted_under_few_names() {
        for (path, expected) in [
            ("/exec/ns/pod/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/cadvisor/", "metrics/cadvisor"),
            ("/", ""),
            ("", ""),
        ] {
            assert_eq!(path_name(path), expected, "{path}");
        }
        drop(CountedRequest::begin("BREW", "/teapot/1", true));
        let wanted =
            r#"kubelet_http_requests_total{long_running="false",method="other",path="other",server_type="readonly"} 1"#;
        assert!(shared::metrics::gather().contains(wanted));
    }

    #[test]
    fn time_to_run_is_told_with_and_without_pulls() {
        let at = |second: i64| Timestamp::from_second(second).expect("time");
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"creationTimestamp": at(1000).to_string()}})).expect("pod");
        let seconds = |pod: &Pod, pulling: u64| -> Vec<u64> {
            let times = start_times(pod, at(1002), Duration::from_secs(pulling), at(1040));
            times.into_iter().map(|(.., took)| took.as_secs()).collect()
        };
        assert_eq!(seconds(&pod, 30), [38, 40, 10]);
        assert_eq!(seconds(&pod, 90), [38, 40, 0]);
        assert_eq!(seconds(&Pod::default(), 30), [38]);
    }

    #[test]
    fn certificates_tell_how_long_they_last() {
        let now = Timestamp::from_second(1000).expect("time");
        assert_eq!(seconds_left([Some(1060), Some(940)], now), [Some(60), Some(-60)]);
        assert_eq!(seconds_left([None, Some(i64::MIN)], now), [None, Some(i64::MIN)]);
    }

    #[test]
    fn containers_are_counted_by_kind() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}],
            "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}]}}))
        .expect("pod");
        let kinds = ["a", "i", "e"].map(|name| container_type(&pod, name));
        assert_eq!(kinds, ["container", "init_container", "ephemeral_container"]);
    }
}
