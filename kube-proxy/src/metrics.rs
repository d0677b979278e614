//! The proxy's own metrics, by upstream's names.

use std::time::Duration;

use prometheus::{CounterVec, GaugeVec, HistogramVec};
use shared::metrics::{counter, exponential, gauge, histogram};

use crate::backend::SyncExtent;
use crate::plan::{Family, WithoutLocal};

fn label(family: Family) -> &'static str {
    family.address_type()
}

fn sync_duration() -> HistogramVec {
    histogram(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "SyncProxyRules latency in seconds",
        &["ip_family"],
        exponential(0.001, 2.0, 15),
    )
}

fn last_sync() -> GaugeVec {
    gauge(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "The last time proxy rules were successfully synced",
        &["ip_family"],
    )
}

fn last_queued() -> GaugeVec {
    gauge(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "The last time a sync of proxy rules was queued",
        &["ip_family"],
    )
}

fn changes(what: &str) -> CounterVec {
    counter(
        &format!("kubeproxy_sync_proxy_rules_{what}_changes_total"),
        &format!("Cumulative proxy rules {what} changes"),
        &[],
    )
}

fn failures(mode: &str) -> CounterVec {
    let name = match mode {
        "nftables" => "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        _ => "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    };
    counter(name, "Cumulative proxy rule sync failures", &["ip_family"])
}

fn now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}

/// A sync has ended well.
pub(crate) fn synced(family: Family, took: Duration, written: SyncExtent) {
    let took = took.as_secs_f64();
    sync_duration().with_label_values(&[label(family)]).observe(took);
    if let Some(duration) = sync_duration_of(written) {
        duration.with_label_values(&[label(family)]).observe(took);
    }
    last_sync().with_label_values(&[label(family)]).set(now());
}

fn sync_duration_of(written: SyncExtent) -> Option<HistogramVec> {
    let (name, help) = match written {
        SyncExtent::Everything => {
            ("kubeproxy_sync_full_proxy_rules_duration_seconds", "Duration of syncs of all rules")
        }
        SyncExtent::Changes => {
            ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "Duration of syncs of changes alone")
        }
        SyncExtent::Nothing => return None,
    };
    Some(histogram(name, help, &["ip_family"], exponential(0.001, 2.0, 15)))
}

/// Rules for endpoints that changed so long ago are written.
pub(crate) fn programmed(family: Family, after: Duration) {
    histogram(
        "kubeproxy_network_programming_duration_seconds",
        "Time from a change of endpoints to the rules for it",
        &["ip_family"],
        programming_buckets(),
    )
    .with_label_values(&[label(family)])
    .observe(after.as_secs_f64());
}

/// A quarter, half and 1 to 59 seconds, then each 5 to 115, then each 30 to 300.
fn programming_buckets() -> Vec<f64> {
    let seconds = |from: u32, count: u32, step: u32| (0..count).map(move |n| f64::from(from + n * step));
    [0.25, 0.5].into_iter().chain(seconds(1, 59, 1)).chain(seconds(60, 12, 5)).chain(seconds(120, 7, 30)).collect()
}

/// Stale chains or sets could not be deleted.
pub(crate) fn cleanup_failed(family: Family) {
    counter(
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        "Failures to delete stale chains and sets",
        &["ip_family"],
    )
    .with_label_values(&[label(family)])
    .inc();
}

/// Ports of services without an endpoint here, though their policy asks for one.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(crate) fn without_local_endpoints(family: Family, count: WithoutLocal) {
    let family_metric = gauge(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "Services with a Local traffic policy and no endpoint on this node",
        &["ip_family", "traffic_policy"],
    );
    for (policy, count) in [("internal", count.internal), ("external", count.external)] {
        family_metric.with_label_values(&[label(family), policy]).set(count as f64);
    }
}

/// Changes that wait to be planned: of services, and of their endpoints.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(crate) fn pending((services, endpoints): (usize, usize)) {
    for (what, count) in [("service", services), ("endpoint", endpoints)] {
        let name = format!("kubeproxy_sync_proxy_rules_{what}_changes_pending");
        let help = format!("Pending proxy rules {what} changes");
        gauge(&name, &help, &[]).with_label_values::<&str>(&[]).set(count as f64);
    }
}

/// Rules of iptables tables: those that the kernel has, and those that the last sync wrote.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(crate) fn iptables_rules(family: Family, table: &str, total: usize, written: usize) {
    let labels = ["ip_family", "table"];
    let total_rules = gauge("kubeproxy_sync_proxy_rules_iptables_total", "iptables rules owned by kube-proxy", &labels);
    total_rules.with_label_values(&[label(family), table]).set(total as f64);
    let last = gauge("kubeproxy_sync_proxy_rules_iptables_last", "iptables rules written by the last sync", &labels);
    last.with_label_values(&[label(family), table]).set(written as f64);
}

/// A sync has failed: of all rules, or of changes alone.
pub(crate) fn failed(mode: &str, family: Family, partial: bool) {
    failures(mode).with_label_values(&[label(family)]).inc();
    if partial && mode != "nftables" {
        counter(
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "Cumulative partial proxy rule sync failures",
            &["ip_family"],
        )
        .with_label_values(&[label(family)])
        .inc();
    }
}

/// A change waits to be written.
pub(crate) fn queued(family: Family) {
    last_queued().with_label_values(&[label(family)]).set(now());
}

/// A pass over the connection-tracking table has ended.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(crate) fn conntrack_reconciled(family: Family, deleted: usize, took: Duration) {
    histogram(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "Duration of a pass over connection tracking, in seconds",
        &["ip_family"],
        exponential(0.001, 2.0, 15),
    )
    .with_label_values(&[label(family)])
    .observe(took.as_secs_f64());
    counter(
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "Entries of stale UDP flows deleted from connection tracking",
        &["ip_family"],
    )
    .with_label_values(&[label(family)])
    .inc_by(deleted as f64);
}

/// A Service changed.
pub(crate) fn service_changed() {
    changes("service").with_label_values::<&str>(&[]).inc();
}

/// An `EndpointSlice` changed.
pub(crate) fn endpoint_changed() {
    changes("endpoint").with_label_values::<&str>(&[]).inc();
}

/// Somebody asked for our health.
pub(crate) fn count_probe(path: &str, code: u16) {
    let name = if path == "/livez" { "kubeproxy_proxy_livez_total" } else { "kubeproxy_proxy_healthz_total" };
    counter(name, "Cumulative proxy health checks by HTTP status", &["code"])
        .with_label_values(&[&code.to_string()])
        .inc();
}
