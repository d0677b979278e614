//! Metrics of requests to etcd, under upstream's names.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

use parking_lot::RwLock;
use prometheus::{Counter, Histogram};
use shared::metrics;

/// A call.
#[derive(Clone, Copy, Debug)]
pub(super) enum StorageOperation {
    Get,
    List,
    Create,
    Update,
    Delete,
}

/// Words of the operations, in their order.
const WORDS: [&str; 5] = ["get", "list", "create", "update", "delete"];
const LABELS: [&str; 3] = ["operation", "group", "resource"];
/// Seconds.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// Keys on a lease when no more are put on it.
pub(super) static LEASED: LazyLock<Histogram> = LazyLock::new(|| {
    metrics::histogram(
        "etcd_lease_object_counts",
        "[ALPHA] Number of objects attached to a single etcd lease.",
        &[],
        vec![10.0, 50.0, 100.0, 500.0, 1000.0, 2500.0, 5000.0],
    )
    .with_label_values::<&str>(&[])
});

struct OperationMetrics {
    took: Histogram,
    asked: Counter,
    failed: Counter,
}

impl OperationMetrics {
    fn new(operation: &str, group: &str, resource: &str) -> Self {
        let labels = [operation, group, resource];
        let counter = |name: &str, help: &str| metrics::counter(name, help, &LABELS).with_label_values(&labels);
        Self {
            took: metrics::histogram(
                "etcd_request_duration_seconds",
                "[ALPHA] Etcd request latency in seconds, by operation and resource.",
                &LABELS,
                BUCKETS.to_vec(),
            )
            .with_label_values(&labels),
            asked: counter("etcd_requests_total", "[ALPHA] Number of etcd requests, by operation and resource."),
            failed: counter(
                "etcd_request_errors_total",
                "[ALPHA] Number of failed etcd requests, by operation and resource.",
            ),
        }
    }
}

/// A resource. What is never done with it takes no room.
#[derive(Default)]
struct ResourceMetrics {
    group: String,
    resource: String,
    each: [OnceLock<OperationMetrics>; 5],
}

/// Metrics of requests to etcd, by resource.
pub(super) struct Metrics(RwLock<HashMap<Box<str>, Arc<ResourceMetrics>>>);

impl Metrics {
    /// With the names of resources by their paths (`/registry/services/specs`).
    pub(super) fn new(named: &[(String, String, String)]) -> Self {
        LazyLock::force(&LEASED);
        let entry = |(path, group, resource): &(String, String, String)| {
            let path = path.strip_prefix("/registry").unwrap_or(path);
            (
                path.into(),
                Arc::new(ResourceMetrics {
                    group: group.clone(),
                    resource: resource.clone(),
                    each: Default::default(),
                }),
            )
        };
        Self(RwLock::new(named.iter().map(entry).collect()))
    }

    /// A call about a key below the cluster's prefix, begun at `since`, has ended.
    pub(super) fn observe(&self, tail: &str, operation: StorageOperation, since: Instant, failed: bool) {
        let of = self.of(tail);
        let at = operation as usize;
        let measured = of.each[at].get_or_init(|| OperationMetrics::new(WORDS[at], &of.group, &of.resource));
        measured.took.observe(since.elapsed().as_secs_f64());
        measured.asked.inc();
        if failed {
            measured.failed.inc();
        }
    }

    fn of(&self, tail: &str) -> Arc<ResourceMetrics> {
        let (one, two) = (upto(tail, 2), upto(tail, 3));
        {
            let known = self.0.read();
            if let Some(of) = known.get(two).or_else(|| known.get(one)) {
                return of.clone();
            }
        }
        let (group, resource) = names(one, two);
        let path = if group.is_empty() { one } else { two };
        let of = ResourceMetrics { group: group.to_owned(), resource: resource.to_owned(), each: Default::default() };
        self.0.write().entry(path.into()).or_insert_with(|| Arc::new(of)).clone()
    }
}

/// The beginning of a path before its slash of that number.
fn upto(path: &str, slash: usize) -> &str {
    path.match_indices('/').nth(slash - 1).map_or(path, |(at, _)| &path[..at])
}

/// Custom resources are below their group; other keys have no kind.
fn names<'t>(one: &'t str, two: &'t str) -> (&'t str, &'t str) {
    let first = one.trim_start_matches('/');
    match two.get(one.len()..).map(|rest| rest.trim_start_matches('/')) {
        Some(second) if first.contains('.') && !second.is_empty() => (first, second),
        _ => ("", first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_of_resources() {
        let named = |path: &str, group: &str, resource: &str| (path.to_owned(), group.to_owned(), resource.to_owned());
        let meters = Metrics::new(&[
            named("/registry/services/specs", "", "services"),
            named("/registry/services/endpoints", "", "endpoints"),
            named("/registry/minions", "", "nodes"),
            named("/registry/deployments", "apps", "deployments"),
        ]);
        for (tail, want) in [
            ("/services/specs/default/a", ("", "services")),
            ("/services/endpoints/", ("", "endpoints")),
            ("/minions/a", ("", "nodes")),
            ("/minions/", ("", "nodes")),
            ("/deployments/default/a", ("apps", "deployments")),
            ("/example.com/things/default/a", ("example.com", "things")),
            ("/example.com/others/", ("example.com", "others")),
            ("/masterleases/192.0.2.1", ("", "masterleases")),
        ] {
            let of = meters.of(tail);
            assert_eq!((of.group.as_str(), of.resource.as_str()), want, "{tail}");
        }
    }
}
