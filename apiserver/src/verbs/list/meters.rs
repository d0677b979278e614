//! Metrics of lists that are read from etcd, under upstream's names.

use std::sync::LazyLock;

use proto::resources::Resource;
use shared::metrics::{self, CounterVec};

const LABELS: [&str; 2] = ["group", "resource"];

/// Lists that are read from etcd.
struct Read {
    lists: CounterVec,
    fetched: CounterVec,
    evaluated: CounterVec,
    returned: CounterVec,
}

static READ: LazyLock<Read> = LazyLock::new(|| {
    let counter = |name: &str, help: &str| metrics::counter(name, help, &LABELS);
    Read {
        lists: counter("apiserver_storage_list_total", "[ALPHA] Number of LIST requests served from storage."),
        fetched: counter(
            "apiserver_storage_list_fetched_objects_total",
            "[ALPHA] Number of objects read from storage for LIST requests.",
        ),
        evaluated: counter(
            "apiserver_storage_list_evaluated_objects_total",
            "[ALPHA] Number of objects evaluated against selectors for LIST requests from storage.",
        ),
        returned: counter(
            "apiserver_storage_list_returned_objects_total",
            "[ALPHA] Number of objects returned for LIST requests from storage.",
        ),
    }
});

/// A list from etcd: objects read, objects tested, objects returned.
#[expect(clippy::cast_precision_loss, reason = "a metric's value is a float")]
pub(super) fn read(row: &Resource, fetched: usize, evaluated: usize, returned: usize) {
    let labels = [&*row.group, &*row.plural];
    READ.lists.with_label_values(&labels).inc();
    for (counter, count) in [(&READ.fetched, fetched), (&READ.evaluated, evaluated), (&READ.returned, returned)] {
        counter.with_label_values(&labels).inc_by(count as f64);
    }
}
