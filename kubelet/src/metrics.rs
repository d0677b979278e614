//! The kubelet's own metrics, under upstream's names: a function for each thing that is counted.
//!
//! Metrics of plugins are in `plugins/metrics.rs`; metrics that are computed for each scrape are in `stats/text.rs`.

pub(crate) mod node_start;
pub(crate) mod pod_certificates;
pub(crate) mod resizes;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Counters without labels, which are shown from the start on.
const PLAIN_COUNTERS: [(&str, &str); 14] = [
    ("kubelet_certificate_manager_client_expiration_renew_errors", "failed renewals of the client certificate"),
    ("kubelet_server_expiration_renew_errors", "failed renewals of the serving certificate"),
    ("kubelet_evented_pleg_connection_error_count", "failures to open a stream of the runtime's events"),
    ("kubelet_evented_pleg_connection_success_count", "streams of the runtime's events that were opened"),
    ("kubelet_image_volume_mounted_errors_total", "images that could not be mounted as volumes"),
    ("kubelet_image_volume_mounted_succeed_total", "images that were mounted as volumes"),
    ("kubelet_image_volume_requested_total", "images that containers want as volumes"),
    ("kubelet_lifecycle_handler_http_fallbacks_total", "hooks over HTTPS that succeeded over HTTP"),
    ("kubelet_orphaned_runtime_pods_total", "pods in the runtime that nobody wanted"),
    ("kubelet_sleep_action_terminated_early_total", "hooks that were to sleep longer than they were let"),
    ("kubelet_started_pods_errors_total", "pods that could not be started"),
    ("kubelet_started_pods_total", "pods whose start was tried"),
    ("kubelet_started_user_namespaced_pods_errors_total", "pods with user namespaces that could not be started"),
    ("kubelet_started_user_namespaced_pods_total", "pods with user namespaces whose start was tried"),
];

/// Counts one in a family without labels.
fn count_plain(name: &str) {
    plain(name).inc();
}

fn plain(name: &str) -> shared::metrics::Counter {
    let help = PLAIN_COUNTERS.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help);
    debug_assert!(!help.is_empty(), "{name} is in no table");
    // Those of image volumes are further than the rest.
    let stage = if name.contains("image_volume") { "BETA" } else { "ALPHA" };
    counter(name, &format!("[{stage}] Number of {help}"), &NO_LABELS).with_label_values(&NO_LABELS)
}

/// Shows the families that upstream shows before anything was counted in them.
pub(crate) fn show() {
    // Renewals are told of where certificates are renewed.
    let shown = PLAIN_COUNTERS.iter().filter(|(name, _)| !name.ends_with("expiration_renew_errors"));
    shown.for_each(|(name, _)| drop(plain(name)));
    ["", "true"].into_iter().for_each(|is_static| drop(restarts(is_static)));
    event_latency();
    first_network_start().set(0.0);
    node_start::show();
    resizes::show();
}

/// Age of the runtime's events when they come here.
fn event_latency() -> shared::metrics::Histogram {
    let help = "[ALPHA] Age of the runtime's events in seconds when they are seen";
    let name = "kubelet_evented_pleg_connection_latency_seconds";
    histogram(name, help, &NO_LABELS, default_buckets()).with_label_values(&NO_LABELS)
}

/// Counts a try to open a stream of the runtime's events.
pub(crate) fn events_opened(succeeded: bool) {
    count_plain(match succeeded {
        true => "kubelet_evented_pleg_connection_success_count",
        false => "kubelet_evented_pleg_connection_error_count",
    });
}

/// Counts an event of the runtime, given when it happened in nanoseconds since 1970.
pub(crate) fn event_seen(created_at: i64) {
    let Ok(created) = Timestamp::from_nanosecond(i128::from(created_at)) else { return };
    event_latency().observe(between(created, Timestamp::now()).as_secs_f64());
}

fn count(name: &str, help: &str, labels: &[(&str, &str)]) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    counter(name, help, &names).with_label_values(&values).inc();
}

fn time(name: &str, help: &str, labels: &[(&str, &str)], buckets: Vec<f64>, took: Duration) {
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().copied().unzip();
    histogram(name, help, &names, buckets).with_label_values(&values).observe(took.as_secs_f64());
}

/// A count as a gauge takes it.
pub(crate) fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
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

/// Counts a call of the runtime that makes a sandbox.
pub(crate) fn sandbox(handler: &str, took: Duration, failed: bool) {
    let labels = [("runtime_handler", handler)];
    let help = "[ALPHA] Duration of making sandboxes in seconds, by runtime handler";
    time("kubelet_run_podsandbox_duration_seconds", help, &labels, default_buckets(), took);
    if failed {
        let help = "[ALPHA] Number of sandboxes that could not be made, by runtime handler";
        count("kubelet_run_podsandbox_errors_total", help, &labels);
    }
}

/// Counts a try to start a pod, whatever came in its way.
pub(crate) fn pod_start(pod: &Pod, failed: bool) {
    let has_namespace = pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false));
    for (name, counts) in [
        ("kubelet_started_pods_total", true),
        ("kubelet_started_pods_errors_total", failed),
        ("kubelet_started_user_namespaced_pods_total", has_namespace),
        ("kubelet_started_user_namespaced_pods_errors_total", has_namespace && failed),
    ] {
        if counts {
            count_plain(name);
        }
    }
}

/// Counts an operation on pods' cgroups: `create`, `update` or `destroy`.
pub(crate) fn cgroup_operation(operation: &str, begun: Instant) {
    let help = "[ALPHA] Duration of operations on the cgroups of pods in seconds, by operation";
    let labels = [("operation_type", operation)];
    time("kubelet_cgroup_manager_duration_seconds", help, &labels, default_buckets(), begun.elapsed());
}

/// Says that the runtime is too old for upstream's next kubelets.
pub(crate) fn runtime_is_old() {
    let help = "[ALPHA] Version of Kubernetes that this version of the runtime will not be supported by";
    set("kubelet_cri_losing_support", help, &[("version", "1.36.0")], 1.0);
}

/// Counts the run of a plugin that gives credentials of registries.
pub(crate) fn credential_plugin(name: &str, took: Duration, failed: bool) {
    let labels = [("plugin_name", name)];
    let help = "[ALPHA] Duration of runs of credential provider plugins in seconds, by plugin";
    time("kubelet_credential_provider_plugin_duration", help, &labels, default_buckets(), took);
    if failed {
        let help = "[ALPHA] Number of failed runs of credential provider plugins, by plugin";
        count("kubelet_credential_provider_plugin_errors_total", help, &labels);
    }
}

/// Tells which configuration of credential provider plugins is in force.
pub(crate) fn credential_configuration(hash: &str) {
    let help = "[ALPHA] Hash of the configuration of credential provider plugins; the value is always 1";
    set("kubelet_credential_provider_config_info", help, &[("hash", hash)], 1.0);
}

/// Counts images that a container wants as volumes; `mounted` once the container was made or could not be.
pub(crate) fn image_volumes(images: usize, mounted: Option<bool>) {
    let name = match mounted {
        None => "kubelet_image_volume_requested_total",
        Some(true) => "kubelet_image_volume_mounted_succeed_total",
        Some(false) => "kubelet_image_volume_mounted_errors_total",
    };
    plain(name).inc_by(number(images));
}

/// Counts a hook over HTTPS that succeeded over HTTP.
pub(crate) fn http_fallback() {
    count_plain("kubelet_lifecycle_handler_http_fallbacks_total");
}

/// Counts a hook whose sleep was cut short.
pub(crate) fn sleep_cut_short() {
    count_plain("kubelet_sleep_action_terminated_early_total");
}

/// Counts a pod that went for a critical one, which was short of a resource.
pub(crate) fn preempted(resource: &str) {
    let help = "[ALPHA] Number of pods that went for critical ones, by the resource that was short";
    count("kubelet_preemptions", help, &[("preemption_signal", resource)]);
}

/// Counts a pod that its source took away and brought back under the same uid.
pub(crate) fn restarted(is_static: bool) {
    restarts(if is_static { "true" } else { "" }).inc();
}

fn restarts(is_static: &str) -> shared::metrics::Counter {
    let help = "[ALPHA] Number of pods that were removed and came back with the same uid, by whether they are static";
    counter("kubelet_restarted_pods_total", help, &["static"]).with_label_values(&[is_static])
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
    let times = start_times(pod, seen, pulling, Timestamp::now());
    let sli = times.iter().find(|(name, ..)| *name == START_SLI).map(|(.., took)| *took);
    if let Some(sli) = sli.filter(|_| !pods::host_network(pod))
        && !FIRST_NETWORK_POD_RAN.swap(true, Ordering::Relaxed)
    {
        first_network_start().set(sli.as_secs_f64());
    }
    for (name, help, took) in times {
        time(name, help, &[], POD_START.to_vec(), took);
    }
}

const START_SLI: &str = "kubelet_pod_start_sli_duration_seconds";
/// A pod with a network of its own has come to run.
static FIRST_NETWORK_POD_RAN: AtomicBool = AtomicBool::new(false);

fn first_network_start() -> shared::metrics::Gauge {
    let help = "[INTERNAL] Duration from the creation of the first pod with a network of its own to its running in seconds, \
                without pulling images";
    gauge("kubelet_first_network_pod_start_sli_duration_seconds", help, &NO_LABELS).with_label_values(&NO_LABELS)
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
        times.push((START_SLI, without, total.saturating_sub(pulling)));
    }
    times
}

/// Forgets what was noted of a pod that will never run.
pub(crate) fn pod_gone(uid: &str) {
    PULLED.lock().remove(uid);
    resizes::gone(uid);
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
    count_plain(match role {
        Role::Client => "kubelet_certificate_manager_client_expiration_renew_errors",
        Role::Serving => "kubelet_server_expiration_renew_errors",
    });
}

/// Tells how many pods are at a stage of their lives, by where they are known from and whether they are static.
pub(crate) fn working(lifecycle: &str, config: &str, is_static: &str, pods: usize) {
    let help = "[ALPHA] Number of pods that are worked on, by stage, by whether a source has them still, by whether they are \
                static";
    let labels = [("lifecycle", lifecycle), ("config", config), ("static", is_static)];
    set("kubelet_working_pods", help, &labels, number(pods));
}

/// Counts a pod that is in the runtime and that nobody wants.
pub(crate) fn orphaned() {
    count_plain("kubelet_orphaned_runtime_pods_total");
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

/// Counts the age of what was known of a signal when pods were about to be evicted for it.
pub(crate) fn eviction_stats_age(signal: &str, age: Duration) {
    let help = "[ALPHA] Age of statistics in seconds when pods were evicted for them, by signal";
    time("kubelet_eviction_stats_age_seconds", help, &[("eviction_signal", signal)], default_buckets(), age);
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

/// Tells how many pods that are gone had volumes or folders in the last sweep, and of how many they could not be taken down.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(crate) fn orphans_swept(pods: usize, failures: usize) {
    let help = "[ALPHA] Number of pods that were gone and whose volumes were taken down in the last sweep";
    set("kubelet_orphan_pod_cleaned_volumes", help, &[], pods as f64);
    let help = "[ALPHA] Number of pods that were gone and whose volumes could not be taken down in the last sweep";
    set("kubelet_orphan_pod_cleaned_volumes_errors", help, &[], failures as f64);
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
mod tests;
