//! Request metrics: counts, durations, response sizes and requests in flight. Answers for upstream's
//! `pkg/endpoints/metrics` (`MonitorRequest`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec};
use shared::metrics;

use super::graceful_shutdown::{GracefulShutdown, InFlight};
use crate::api::RequestInfo;
use crate::machinery::query::Query;

/// Request metrics, registered.
pub(super) struct Metrics {
    total: CounterVec,
    duration: HistogramVec,
    /// Objectives are set for this one.
    sli: HistogramVec,
    sizes: HistogramVec,
    long_running: GaugeVec,
    terminated: CounterVec,
    aborted: CounterVec,
    in_flight: GaugeVec,
    bodies: HistogramVec,
    /// By [`FIELD_VALIDATION`].
    validated: [Histogram; FIELD_VALIDATION.len()],
    /// Requests that are worked on: reading ones, changing ones.
    working: [Arc<AtomicUsize>; 2],
}

const COMPONENT: &str = "apiserver";
/// Values of `fieldValidation` as a label; anything else counts as the last.
const FIELD_VALIDATION: [&str; 5] = ["", "Ignore", "Warn", "Strict", "invalid"];

impl Default for Metrics {
    fn default() -> Self {
        let of_request = ["verb", "group", "version", "resource", "subresource", "scope", "component"];
        let timing = ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
        let total = [&timing[..], &["code"]].concat();
        let seconds = vec![
            0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0,
            60.0,
        ];
        Self {
            total: metrics::counter(
                "apiserver_request_total",
                "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
                &total,
            ),
            duration: metrics::histogram(
                "apiserver_request_duration_seconds",
                "[STABLE] Response latency distribution in seconds per request.",
                &timing,
                [&[0.005, 0.025], &seconds[..]].concat(),
            ),
            sli: metrics::histogram(
                "apiserver_request_sli_duration_seconds",
                "[ALPHA] Response latency distribution in seconds per request, excluding time that service level objectives do not count.",
                &of_request,
                seconds.clone(),
            ),
            sizes: metrics::histogram(
                "apiserver_response_sizes",
                "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
                &of_request,
                vec![1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9],
            ),
            long_running: metrics::gauge(
                "apiserver_longrunning_requests",
                "[STABLE] Gauge of all active long-running requests.",
                &of_request,
            ),
            terminated: metrics::counter(
                "apiserver_request_terminations_total",
                "[ALPHA] Number of requests which apiserver terminated in self-defense.",
                &[&of_request[..], &["code"]].concat(),
            ),
            aborted: metrics::counter(
                "apiserver_request_aborts_total",
                "[ALPHA] Number of requests whose response was aborted, possibly because of a timeout.",
                &of_request[..6],
            ),
            in_flight: metrics::gauge(
                "apiserver_current_inflight_requests",
                "[STABLE] Maximal number of requests in flight in the last second, by request kind.",
                &["request_kind"],
            ),
            bodies: metrics::histogram(
                "apiserver_request_body_size_bytes",
                "[ALPHA] Request body size in bytes, by resource and verb.",
                &["resource", "verb", "group"],
                metrics::linear(50_000.0, 100_000.0, 31),
            ),
            validated: FIELD_VALIDATION.map(|word| {
                let help = "[ALPHA] Response latency distribution in seconds, by field validation value.";
                metrics::histogram(
                    "field_validation_request_duration_seconds",
                    help,
                    &["field_validation"],
                    seconds.clone(),
                )
                .with_label_values(&[word])
            }),
            working: Default::default(),
        }
    }
}

/// The word for what a request does: its method, or a better one.
pub(super) fn verb(info: &RequestInfo, content_type: &str) -> &'static str {
    match (info.verb.as_str(), info.subresource.as_str()) {
        (_, "exec" | "attach" | "portforward" | "proxy") => "CONNECT",
        ("create", _) => "POST",
        ("update", _) => "PUT",
        ("patch", _) if content_type.starts_with("application/apply-patch+") => "APPLY",
        ("patch", _) => "PATCH",
        ("delete" | "deletecollection", _) => "DELETE",
        ("get", _) => "GET",
        ("list", _) => "LIST",
        ("watch", _) => "WATCH",
        _ => "other",
    }
}

/// Scope of a request as a label: `resource`, `namespace` or `cluster`.
pub(super) fn scope(info: &RequestInfo) -> &'static str {
    match (info.name.is_empty() && info.verb != "create", info.namespace.is_empty()) {
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    }
}

impl Metrics {
    /// A request for a resource that has been answered, or has begun to be.
    pub(super) fn count(&self, info: &RequestInfo, content_type: &str, dry_run: bool, code: u16, since: Instant) {
        if !info.is_resource {
            return;
        }
        let (verb, scope, dry) = (verb(info, content_type), scope(info), if dry_run { "All" } else { "" });
        let (group, version, resource, sub) = (&info.api_group, &info.api_version, &info.resource, &info.subresource);
        let code = code.to_string();
        let labels = [verb, dry, group, version, resource, sub, scope, COMPONENT, &code];
        self.total.with_label_values(&labels).inc();
        if matches!(verb, "WATCH" | "CONNECT") {
            return;
        }
        let took = since.elapsed().as_secs_f64();
        self.duration.with_label_values(&labels[..8]).observe(took);
        self.sli.with_label_values(&of_request(verb, info)).observe(took);
    }

    /// A request has been answered that may say how unknown fields are treated.
    pub(super) fn field_validation(&self, info: &RequestInfo, query: &Query, since: Instant) {
        if !info.is_resource || info.verb == "watch" {
            return;
        }
        let said = query.all("fieldValidation");
        let word = match said.as_slice() {
            [] => "",
            [one] => one.as_str(),
            _ => "invalid",
        };
        let at = FIELD_VALIDATION.iter().position(|known| *known == word).unwrap_or(FIELD_VALIDATION.len() - 1);
        self.validated[at].observe(since.elapsed().as_secs_f64());
    }

    /// So many bytes came with a request that writes.
    pub(super) fn body(&self, info: &RequestInfo, bytes: usize) {
        let verb = match info.verb.as_str() {
            "deletecollection" => "delete_collection",
            verb => verb,
        };
        #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
        self.bodies.with_label_values(&[&info.resource, verb, &info.api_group]).observe(bytes as f64);
    }

    /// A request that the server gave up in self-defence.
    pub(super) fn terminate(&self, info: &RequestInfo, content_type: &str, code: u16) {
        let code = code.to_string();
        let labels = [&of_request(verb(info, content_type), info)[..], &[code.as_str()]].concat();
        self.terminated.with_label_values(&labels).inc();
    }

    /// Counter of responses to a request that break off.
    pub(super) fn aborts(&self, info: &RequestInfo, content_type: &str) -> Counter {
        self.aborted.with_label_values(&of_request(verb(info, content_type), info)[..6])
    }

    /// A request that is worked on until the outcome is dropped.
    pub(super) fn begin(&self, info: &RequestInfo) -> CurrentRequest {
        let changes = !matches!(info.verb.as_str(), "get" | "list" | "watch");
        let count = self.working[usize::from(changes)].clone();
        count.fetch_add(1, Ordering::Relaxed);
        CurrentRequest(count)
    }

    /// Brings up to date what is only looked at when somebody asks.
    pub(super) fn publish(&self) {
        for (kind, count) in ["readOnly", "mutating"].iter().zip(&self.working) {
            #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
            self.in_flight.with_label_values(&[kind]).set(count.load(Ordering::Relaxed) as f64);
        }
    }

    /// Begins the measurement of a response while it is sent.
    pub(super) fn sending(&self, info: &RequestInfo, graceful_shutdown: &GracefulShutdown) -> ResponseMeasurement {
        let labels = of_request(verb(info, ""), info);
        let reads = matches!(labels[0], "GET" | "LIST");
        let goes_on = labels[0] == "WATCH";
        let running = goes_on.then(|| self.long_running.with_label_values(&labels));
        if let Some(gauge) = &running {
            gauge.inc();
        }
        let counted = if goes_on { graceful_shutdown.begin_watch() } else { graceful_shutdown.begin_response() };
        ResponseMeasurement {
            running,
            _counted: counted,
            sizes: reads.then(|| self.sizes.with_label_values(&labels)),
            sent: 0,
        }
    }
}

fn of_request<'a>(verb: &'a str, info: &'a RequestInfo) -> [&'a str; 7] {
    [verb, &info.api_group, &info.api_version, &info.resource, &info.subresource, scope(info), COMPONENT]
}

/// A request that is worked on.
pub(super) struct CurrentRequest(Arc<AtomicUsize>);

impl Drop for CurrentRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer on its way; measured when it is dropped.
pub(super) struct ResponseMeasurement {
    running: Option<Gauge>,
    _counted: InFlight,
    sizes: Option<Histogram>,
    sent: usize,
}

impl ResponseMeasurement {
    /// So many bytes more.
    pub(super) fn add(&mut self, bytes: usize) {
        self.sent += bytes;
    }
}

impl Drop for ResponseMeasurement {
    fn drop(&mut self) {
        if let Some(gauge) = &self.running {
            gauge.dec();
        }
        if let Some(sizes) = &self.sizes {
            #[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
            sizes.observe(self.sent as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::info::request_info;

    #[test]
    fn requests_have_upstreams_words() {
        for (method, line, content_type, want) in [
            ("GET", "/api/v1/pods", "", ("LIST", "cluster")),
            ("GET", "/api/v1/namespaces/a/pods?watch=1", "", ("WATCH", "namespace")),
            ("POST", "/api/v1/namespaces/a/pods", "application/json", ("POST", "resource")),
            ("PUT", "/api/v1/namespaces/a/pods/b", "application/json", ("PUT", "resource")),
            ("PATCH", "/api/v1/namespaces/a/pods/b", "application/merge-patch+json", ("PATCH", "resource")),
            ("PATCH", "/api/v1/namespaces/a/pods/b", "application/apply-patch+yaml", ("APPLY", "resource")),
            ("DELETE", "/api/v1/namespaces/a/pods", "", ("DELETE", "namespace")),
            ("POST", "/api/v1/namespaces/a/pods/b/exec", "", ("CONNECT", "resource")),
        ] {
            let (path, query) = line.split_once('?').unwrap_or((line, ""));
            let info = request_info(method, path, &Query::parse(query));
            assert_eq!((verb(&info, content_type), scope(&info)), want, "{method} {line}");
        }
    }
}
