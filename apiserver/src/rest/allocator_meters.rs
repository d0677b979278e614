//! Metrics of the allocators of cluster IPs and node ports, under upstream's names.

use std::sync::LazyLock;
use std::time::Instant;

use ipnet::IpNet;
use shared::metrics::{self, Counter, CounterVec, Gauge, GaugeVec, HistogramVec};

struct Addresses {
    allocated: GaugeVec,
    available: GaugeVec,
    taken: CounterVec,
    failed: CounterVec,
    seconds: HistogramVec,
}

static ADDRESSES: LazyLock<Addresses> = LazyLock::new(|| {
    let counter = |name: &str, help: &str| metrics::counter(name, help, &["cidr", "scope"]);
    Addresses {
        allocated: metrics::gauge(
            "kube_apiserver_clusterip_allocator_allocated_ips",
            "[ALPHA] Number of allocated cluster IPs, by service CIDR.",
            &["cidr"],
        ),
        available: metrics::gauge(
            "kube_apiserver_clusterip_allocator_available_ips",
            "[ALPHA] Number of available cluster IPs, by service CIDR.",
            &["cidr"],
        ),
        taken: counter(
            "kube_apiserver_clusterip_allocator_allocation_total",
            "[ALPHA] Number of cluster IP allocations, by service CIDR and scope (static or dynamic).",
        ),
        failed: counter(
            "kube_apiserver_clusterip_allocator_allocation_errors_total",
            "[ALPHA] Number of failed cluster IP allocations, by service CIDR and scope (static or dynamic).",
        ),
        seconds: metrics::histogram(
            "kube_apiserver_clusterip_allocator_allocation_duration_seconds",
            "[ALPHA] Duration of cluster IP allocations in seconds, by service CIDR.",
            &["cidr"],
            metrics::default_buckets(),
        ),
    }
});

struct Ports {
    allocated: Gauge,
    available: Gauge,
    taken: CounterVec,
    failed: CounterVec,
    repaired: CounterVec,
    unrepaired: Counter,
}

static PORTS: LazyLock<Ports> = LazyLock::new(|| {
    let gauge = |name: &str, help: &str| metrics::gauge(name, help, &[]).with_label_values::<&str>(&[]);
    let counter = |name: &str, help: &str| metrics::counter(name, help, &["scope"]);
    Ports {
        allocated: gauge(
            "kube_apiserver_nodeport_allocator_allocated_ports",
            "[ALPHA] Number of allocated node ports.",
        ),
        available: gauge(
            "kube_apiserver_nodeport_allocator_available_ports",
            "[ALPHA] Number of available node ports.",
        ),
        taken: counter(
            "kube_apiserver_nodeport_allocator_allocation_total",
            "[ALPHA] Number of node port allocations, by scope (static or dynamic).",
        ),
        failed: counter(
            "kube_apiserver_nodeport_allocator_allocation_errors_total",
            "[ALPHA] Number of failed node port allocations, by scope (static or dynamic).",
        ),
        repaired: metrics::counter(
            "apiserver_nodeport_repair_port_errors_total",
            "[ALPHA] Number of errors found by the node port repair loop, by error type.",
            &["type"],
        ),
        unrepaired: metrics::counter(
            "apiserver_nodeport_repair_reconcile_errors_total",
            "[ALPHA] Number of failed reconciliations of the node port repair loop.",
            &[],
        )
        .with_label_values::<&str>(&[]),
    }
});

/// Origin of an allocation.
#[derive(Clone, Copy)]
pub(super) enum AllocationScope {
    /// The client.
    Static,
    /// The server.
    Dynamic,
}

impl AllocationScope {
    fn word(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        }
    }
}

/// An address was to be taken of a range.
pub(super) fn address(range: &IpNet, chosen: AllocationScope, since: Instant, taken: bool) {
    let (cidr, all) = (range.to_string(), &*ADDRESSES);
    let counter = if taken { &all.taken } else { &all.failed };
    counter.with_label_values(&[cidr.as_str(), chosen.word()]).inc();
    if taken {
        all.seconds.with_label_values(&[cidr.as_str()]).observe(since.elapsed().as_secs_f64());
    }
}

/// So many addresses of a range of so many are taken.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(super) fn addresses(range: &IpNet, taken: u64, size: u64) {
    let cidr = range.to_string();
    ADDRESSES.allocated.with_label_values(&[cidr.as_str()]).set(taken as f64);
    ADDRESSES.available.with_label_values(&[cidr.as_str()]).set(size.saturating_sub(taken) as f64);
}

/// A port was to be taken.
pub(super) fn port(chosen: AllocationScope, taken: bool) {
    let counter = if taken { &PORTS.taken } else { &PORTS.failed };
    counter.with_label_values(&[chosen.word()]).inc();
}

/// So many ports are taken and so many free.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(super) fn ports(taken: usize, free: usize) {
    PORTS.allocated.set(taken as f64);
    PORTS.available.set(free as f64);
}

/// Shows what is counted of repairs before there is any.
pub(super) fn begin_repairs() {
    PORTS.unrepaired.inc_by(0.0);
}

/// So many ports were not taken by whom they should be.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(super) fn port_repaired(what: &str, count: usize) {
    if count > 0 {
        PORTS.repaired.with_label_values(&[what]).inc_by(count as f64);
    }
}

/// The taken ports could not be brought in line.
pub(super) fn port_repair_failed() {
    PORTS.unrepaired.inc();
}
