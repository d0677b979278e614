//! Requests of a pod as a whole: containers, init containers, sidecars, overhead, pod-level resources and the amounts
//! that the kubelet has already granted during an in-place resize. Answers for upstream's
//! `k8s.io/component-helpers/resource` (`PodRequests`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use shared::types::is_sidecar;

use super::resource::{DEFAULT_MEMORY, DEFAULT_MILLI_CPU, Resource};

/// Amounts by resource.
type List = BTreeMap<String, Quantity>;

/// The pod's total request, and the same with upstream's stand-ins for containers that name no CPU or memory.
pub fn pod_requests(pod: &Pod) -> (Resource, Resource) {
    let Some(spec) = &pod.spec else { return (Resource::default(), Resource::default()) };
    (total(pod, spec, false), total(pod, spec, true))
}

fn total(pod: &Pod, spec: &PodSpec, non_zero: bool) -> Resource {
    let pod_level = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let fill = Fill {
        cpu: non_zero && !pod_level.is_some_and(|r| r.contains_key("cpu")),
        memory: non_zero && !pod_level.is_some_and(|r| r.contains_key("memory")),
    };
    let granted = Granted::of(pod);
    let mut sum = Resource::default();
    for container in &spec.containers {
        sum.add(&container_requests(container, &granted, fill));
    }
    let mut sidecars = Resource::default();
    let mut peak = Resource::default();
    for container in spec.init_containers.iter().flatten() {
        let mut wanted = container_requests(container, &granted, fill);
        if is_sidecar(container) {
            sum.add(&wanted);
            sidecars.add(&wanted);
            wanted = sidecars.clone();
        } else {
            wanted.add(&sidecars);
        }
        peak.max(&wanted);
    }
    sum.max(&peak);
    if let Some(list) = pod_level {
        let level = Resource::from_list(list);
        for name in list.keys() {
            if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
                sum.set(name, level.get(name));
            }
        }
    }
    if let Some(overhead) = &spec.overhead {
        sum.add(&Resource::from_list(overhead));
    }
    sum
}

#[derive(Clone, Copy)]
struct Fill {
    cpu: bool,
    memory: bool,
}

fn container_requests(container: &Container, granted: &Granted<'_>, fill: Fill) -> Resource {
    let written = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let actual = granted.by_name.get(container.name.as_str());
    let written = written.filter(|_| actual.is_none() || !granted.infeasible);
    let lists = || written.into_iter().chain(actual.into_iter().flatten().copied());
    let mut out = Resource::default();
    lists().for_each(|list| out.max(&Resource::from_list(list)));
    out.pods = 0;
    let named = |name: &str| lists().any(|list| list.contains_key(name));
    if fill.cpu && !named("cpu") {
        out.milli_cpu = DEFAULT_MILLI_CPU;
    }
    if fill.memory && !named("memory") {
        out.memory = DEFAULT_MEMORY;
    }
    out
}

/// Resources that the kubelet reports as granted per container; where a resize can never fit, only those count.
struct Granted<'a> {
    by_name: BTreeMap<&'a str, Vec<&'a List>>,
    infeasible: bool,
}

impl<'a> Granted<'a> {
    fn of(pod: &'a Pod) -> Self {
        let mut by_name: BTreeMap<&str, Vec<&List>> = BTreeMap::new();
        let mut infeasible = false;
        if let Some(status) = &pod.status {
            let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref());
            // Init containers that end are not resized.
            let ends = |name: &str| {
                init.into_iter().flatten().any(|c| c.name == name && c.restart_policy.as_deref() != Some("Always"))
            };
            let statuses =
                status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
            for s in statuses.filter(|s| !ends(&s.name)) {
                let Some(resources) = &s.resources else { continue };
                let lists = [resources.requests.as_ref(), s.allocated_resources.as_ref()];
                by_name.entry(s.name.as_str()).or_default().extend(lists.into_iter().flatten());
            }
            infeasible = status.conditions.iter().flatten().any(|c| {
                c.type_ == "PodResizePending" && c.status == "True" && c.reason.as_deref() == Some("Infeasible")
            });
        }
        Self { by_name, infeasible }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": value})).expect("pod")
    }

    fn cpu(amount: &str) -> serde_json::Value {
        json!({"requests": {"cpu": amount}})
    }

    #[test]
    fn totals() {
        for (what, spec, want, non_zero) in [
            ("one container", json!({"containers": [{"name": "a", "resources": cpu("1")}]}), 1000, 1000),
            ("nothing asked", json!({"containers": [{"name": "a"}, {"name": "b"}]}), 0, 200),
            (
                "a big init container wins",
                json!({"containers": [{"name": "a", "resources": cpu("1")}], "initContainers": [{"name": "i", "resources": cpu("3")}]}),
                3000,
                3000,
            ),
            (
                "a sidecar adds up with both",
                json!({"containers": [{"name": "a", "resources": cpu("1")}],
                       "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": cpu("1")}, {"name": "i", "resources": cpu("2")}]}),
                3000,
                3000,
            ),
            (
                "a sidecar after the init container does not",
                json!({"containers": [{"name": "a", "resources": cpu("1")}],
                       "initContainers": [{"name": "i", "resources": cpu("2")}, {"name": "s", "restartPolicy": "Always", "resources": cpu("1")}]}),
                2000,
                2000,
            ),
            (
                "overhead",
                json!({"containers": [{"name": "a", "resources": cpu("1")}], "overhead": {"cpu": "250m"}}),
                1250,
                1250,
            ),
            ("pod level", json!({"containers": [{"name": "a"}], "resources": {"requests": {"cpu": "5"}}}), 5000, 5000),
        ] {
            let (total, filled) = pod_requests(&pod(spec));
            assert_eq!(total.milli_cpu, want, "{what}");
            assert_eq!(filled.milli_cpu, non_zero, "{what} (non-zero)");
        }
    }

    #[test]
    fn resizes() {
        let granted = |name: &str, resources: serde_json::Value, allocated: serde_json::Value| {
            json!([{"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": resources, "allocatedResources": allocated}])
        };
        let refused = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        let two = json!({"cpu": "2"});
        for (what, status, want) in [
            ("the most counts", json!({"containerStatuses": granted("a", cpu("500m"), two.clone())}), 2000),
            ("what is in use", json!({"containerStatuses": granted("a", cpu("3"), two.clone())}), 3000),
            (
                "a wish that cannot be granted does not",
                json!({"containerStatuses": granted("a", cpu("500m"), json!({"cpu": "700m"})), "conditions": refused}),
                700,
            ),
            (
                "a kubelet that says nothing of it",
                json!({"containerStatuses": granted("a", json!(null), two.clone())}),
                1000,
            ),
            ("init containers are not resized", json!({"initContainerStatuses": granted("i", cpu("9"), two)}), 1000),
        ] {
            let spec = json!({"containers": [{"name": "a", "resources": cpu("1")}], "initContainers": [{"name": "i"}]});
            let pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status}));
            assert_eq!(pod_requests(&pod.expect("pod")).0.milli_cpu, want, "{what}");
        }
    }
}
