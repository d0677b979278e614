//! Resource lists (`cpu: 100m, memory: 1Gi`) as quota and limit ranges count them. Pure arithmetic. Answers for
//! upstream's `k8s.io/apiserver/pkg/quota/v1` (`Add`, `Subtract`, `LessThanOrEqual`).

use std::collections::{BTreeMap, BTreeSet};

use proto::quantity::{Format, Quantity};
use serde_json::Value;

use crate::machinery::tree;

/// Resource name → quantity.
pub(super) type List = BTreeMap<String, Quantity>;

/// Reads the resource list at a JSON pointer; what does not parse is left out (validation has said so).
pub(super) fn read(object: &Value, pointer: &str) -> List {
    let mut list = List::new();
    for (name, value) in tree::find(object, pointer).and_then(Value::as_object).into_iter().flatten() {
        let parsed = match value {
            Value::String(text) => Quantity::parse(text).ok(),
            Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
            _ => None,
        };
        if let Some(quantity) = parsed {
            list.insert(name.clone(), quantity);
        }
    }
    list
}

/// The tree form.
pub(super) fn write(list: &List) -> Value {
    Value::Object(list.iter().map(|(k, v)| (k.clone(), Value::String(v.to_string()))).collect())
}

/// A count.
pub(super) fn count(n: i64) -> Quantity {
    Quantity::from_int(n, Format::DecimalSI)
}

/// Sum by name.
pub(super) fn add(a: &List, b: &List) -> List {
    let mut sum = a.clone();
    for (name, quantity) in b {
        match sum.get_mut(name) {
            Some(own) => own.add(quantity),
            None => drop(sum.insert(name.clone(), quantity.clone())),
        }
    }
    sum
}

/// Difference by name; names only in `b` come out negative.
pub(super) fn subtract(a: &List, b: &List) -> List {
    let mut rest = a.clone();
    for (name, quantity) in b {
        rest.entry(name.clone()).or_insert_with(|| count(0)).sub(quantity);
    }
    rest
}

/// The greater by name.
pub(super) fn max(a: &List, b: &List) -> List {
    let mut greatest = a.clone();
    for (name, quantity) in b {
        if greatest.get(name).is_none_or(|own| own < quantity) {
            greatest.insert(name.clone(), quantity.clone());
        }
    }
    greatest
}

/// Only the given names.
pub(super) fn mask(list: &List, names: &BTreeSet<String>) -> List {
    list.iter().filter(|(k, _)| names.contains(*k)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// The names in a list.
pub(super) fn names(list: &List) -> BTreeSet<String> {
    list.keys().cloned().collect()
}

/// The names whose amount is over the limit that stands for them.
pub(super) fn exceeding(list: &List, limits: &List) -> BTreeSet<String> {
    list.iter().filter(|(k, v)| limits.get(*k).is_some_and(|limit| *v > limit)).map(|(k, _)| k.clone()).collect()
}

/// `cpu=1,memory=2Gi`.
pub(super) fn describe(list: &List) -> String {
    list.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
}

/// Sums the `requests` or `limits` of a pod: the containers together, or the peak of initialization when that is more;
/// sidecars add to both; then overhead.
pub(super) fn of_pod(pod: &Value, which: &str) -> List {
    total(pod, which, |container| container_amounts(container, which))
}

/// Sums a pod that may be in the middle of a resize: each container counts with the maximum of requested, allocated and
/// actual resources, without the requested ones when the resize is infeasible.
pub(super) fn of_resized_pod(pod: &Value, which: &str) -> List {
    let hopeless = tree::list(pod, "/status/conditions").iter().find(|c| tree::text(c, "/type") == "PodResizePending");
    let hopeless = hopeless.is_some_and(|c| tree::text(c, "/reason") == "Infeasible");
    let statuses = ["/status/containerStatuses", "/status/initContainerStatuses"];
    let statuses: Vec<&Value> = statuses.iter().flat_map(|s| tree::list(pod, s)).collect();
    total(pod, which, |container| {
        let own = container_amounts(container, which);
        let status = statuses.iter().find(|s| tree::name_field(s) == tree::name_field(container));
        let Some(status) = status.filter(|s| tree::has(s, "/resources")) else { return own };
        let mut given = container_amounts(status, which);
        if which == "requests" {
            given = max(&given, &read(status, "/allocatedResources"));
        }
        if hopeless { given } else { max(&own, &given) }
    })
}

fn container_amounts(container: &Value, which: &str) -> List {
    read(container, &format!("/resources/{which}"))
}

fn total(pod: &Value, which: &str, of: impl Fn(&Value) -> List) -> List {
    let mut total = List::new();
    for container in tree::list(pod, "/spec/containers") {
        total = add(&total, &of(container));
    }
    let (mut sidecars, mut peak) = (List::new(), List::new());
    for container in tree::list(pod, "/spec/initContainers") {
        if tree::text(container, "/restartPolicy") == "Always" {
            let own = of(container);
            total = add(&total, &own);
            sidecars = add(&sidecars, &own);
            peak = max(&peak, &sidecars);
        } else {
            // These are never resized.
            peak = max(&peak, &add(&container_amounts(container, which), &sidecars));
        }
    }
    total = max(&total, &peak);
    let whole = read(pod, &format!("/spec/resources/{which}"));
    for (name, quantity) in whole {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            total.insert(name, quantity);
        }
    }
    let overhead = read(pod, "/spec/overhead");
    if which == "requests" {
        return add(&total, &overhead);
    }
    for (name, quantity) in overhead {
        if let Some(limit) = total.get_mut(&name).filter(|l| !l.is_zero()) {
            limit.add(&quantity);
        }
    }
    total
}
