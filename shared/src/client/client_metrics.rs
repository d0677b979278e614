//! Client metrics beside requests, under client-go's names: transports, DNS lookups, exec plugins.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiResolver, Name};
use jiff::Timestamp;
use tower::Service;

use crate::metrics;

/// In seconds.
const LOOKUPS: [f64; 11] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];
/// In seconds: minutes to years.
const AGES: [f64; 11] = [
    600.0,
    1800.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// A transport was made. Each client has its own here, so that none is ever found made already.
pub(super) fn transport() {
    let created = "[ALPHA] Number of calls to get a new transport, partitioned by the result of the operation hit: \
        obtained from the cache, miss: created and added to the cache, uncacheable: created and not cached";
    metrics::counter("rest_client_transport_create_calls_total", created, &["result"])
        .with_label_values(&["miss"])
        .inc();
    let entries = "[ALPHA] Number of transport entries in the internal cache.";
    metrics::gauge("rest_client_transport_cache_entries", entries, &[]).with_label_values::<&str>(&[]).inc();
    age();
    let left = time_left();
    if left.get() == 0.0 {
        left.set(f64::INFINITY);
    }
}

fn age() -> metrics::Histogram {
    let help = "[ALPHA] Histogram of the number of seconds the last auth exec plugin client certificate lived before being \
        rotated. If auth exec plugin client certificates are unused, histogram will contain no data.";
    metrics::histogram("rest_client_exec_plugin_certificate_rotation_age", help, &[], AGES.to_vec())
        .with_label_values::<&str>(&[])
}

fn time_left() -> metrics::Gauge {
    let help = "[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec \
        plugin. The value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are \
        unused or manage no TLS certificates, the value will be +INF.";
    metrics::gauge("rest_client_exec_plugin_ttl_seconds", help, &[]).with_label_values::<&str>(&[])
}

/// A plugin's certificate ends then.
pub(super) fn certificate_ends(at: Timestamp, now: Timestamp) {
    time_left().set(at.duration_since(now).as_secs_f64());
}

/// A plugin's certificate, which was good since then, has been exchanged.
pub(super) fn certificate_rotated(since: Timestamp, now: Timestamp) {
    age().observe(now.duration_since(since).as_secs_f64());
}

/// A plugin was run, with what result.
pub(super) fn plugin_ran(result: &std::io::Result<std::process::ExitStatus>) {
    let (code, status) = match result {
        Ok(status) if status.success() => (0, "no_error"),
        Ok(status) => (status.code().unwrap_or(-1), "plugin_execution_error"),
        Err(_) => (1, "plugin_not_found_error"),
    };
    let help = "[ALPHA] Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, \
        plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit code \
        will be set to 0 if and only if the plugin call was successful.";
    metrics::counter("rest_client_exec_plugin_call_total", help, &["call_status", "code"])
        .with_label_values(&[status, &code.to_string()])
        .inc();
}

/// The system's resolver of host names, with a clock beside it.
#[derive(Clone)]
pub(super) struct Resolver(pub(super) GaiResolver);

impl Service<Name> for Resolver {
    type Response = GaiAddrs;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<GaiAddrs, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (host, since) = (name.to_string(), Instant::now());
        let lookup = self.0.call(name);
        Box::pin(async move {
            let found = lookup.await;
            let help = "[ALPHA] DNS resolver latency in seconds. Broken down by host.";
            metrics::histogram("rest_client_dns_resolution_duration_seconds", help, &["host"], LOOKUPS.to_vec())
                .with_label_values(&[&host])
                .observe(since.elapsed().as_secs_f64());
            found
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> String {
        metrics::gather()
    }

    #[tokio::test]
    async fn transports_lookups_and_plugins_are_counted() {
        transport();
        assert!(Resolver(GaiResolver::new()).call("localhost".parse().expect("a name")).await.is_ok());
        plugin_ran(&Err(std::io::ErrorKind::NotFound.into()));
        let shown = shown();
        for line in [
            "rest_client_transport_create_calls_total{result=\"miss\"} ",
            "rest_client_transport_cache_entries ",
            "rest_client_exec_plugin_certificate_rotation_age_count 0",
            "rest_client_exec_plugin_ttl_seconds ",
            "rest_client_dns_resolution_duration_seconds_count{host=\"localhost\"} ",
            "rest_client_exec_plugin_call_total{call_status=\"plugin_not_found_error\",code=\"1\"} ",
        ] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
    }
}
