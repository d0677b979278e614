//! Metrics of connections to kubelets, under upstream's names. Answers for upstream's `countSkipTLSMetric`.

use std::sync::LazyLock;

use prometheus::{Counter, CounterVec};
use shared::metrics;

/// Exec and attach of WebSocket clients, by what came of them.
static TRANSLATED: LazyLock<CounterVec> = LazyLock::new(|| {
    let help = "[ALPHA] Number of exec and attach requests translated from WebSocket, by HTTP status code.";
    metrics::counter("apiserver_stream_translator_requests_total", help, &["code"])
});

/// Port-forward of WebSocket clients, by what came of them.
static TUNNELLED: LazyLock<CounterVec> = LazyLock::new(|| {
    let help = "[ALPHA] Number of port-forward requests tunneled through WebSocket, by HTTP status code.";
    metrics::counter("apiserver_stream_tunnel_requests_total", help, &["code"])
});

/// Logs that were asked for; the second name is the older one.
static LOGS: LazyLock<[CounterVec; 2]> = LazyLock::new(|| {
    let help = "[ALPHA] Number of requests for pods/logs, by TLS verification of the kubelet.";
    ["insecure_backend_total", "pods_logs_insecure_backend_total"]
        .map(|name| metrics::counter(&format!("kube_apiserver_pod_logs_{name}"), help, &["usage"]))
});

static UNTRUSTED: LazyLock<[Counter; 2]> = LazyLock::new(|| {
    let help = "[ALPHA] Number of requests for pods/logs that failed because of the kubelet's TLS certificate.";
    ["backend_tls_failure_total", "pods_logs_backend_tls_failure_total"].map(|name| {
        metrics::counter(&format!("kube_apiserver_pod_logs_{name}"), help, &[]).with_label_values::<&str>(&[])
    })
});

/// An exec or attach of a WebSocket client has ended, or was refused.
pub(super) fn translated(code: u16) {
    TRANSLATED.with_label_values(&[code.to_string()]).inc();
}

/// A port-forward of a WebSocket client has begun, or was refused.
pub(super) fn tunnelled(code: u16) {
    TUNNELLED.with_label_values(&[code.to_string()]).inc();
}

/// Logs were asked for.
pub(super) fn logs(insecure: bool) {
    LazyLock::force(&UNTRUSTED);
    let usage = if insecure { "skip_tls_allowed" } else { "enforce_tls" };
    LOGS.iter().for_each(|counter| counter.with_label_values(&[usage]).inc());
}

/// Logs could not be read: the connection failed for this reason.
pub(super) fn logs_failed(error: &std::io::Error) {
    let certificate = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    if matches!(certificate, Some(rustls::Error::InvalidCertificate(_))) {
        UNTRUSTED.iter().for_each(Counter::inc);
    }
}
