//! In-place resize, the pure part: what a pod has and what it asks for, whether the node has room for the difference,
//! and what has to be done about a running container. Answers for upstream's `pkg/kubelet/allocation` and for
//! `computePodResizeAction`.
//!
//! A worker only ever sees the pod with the resources that are allocated to it. The pod's status says what its
//! containers have, so that a restarted kubelet needs no other record.

use super::observed::{Observed, State};
use crate::resources::Amounts;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::Serialize;
use shared::types::is_sidecar;
use std::sync::Arc;

/// Actions of a resize on a running container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The container has what is allocated to it.
    Keep,
    /// The runtime changes its cgroup.
    Update,
    /// The container's resize policy wants it to be started anew.
    Restart,
}

/// A resize that is under way or waits: what the status tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Reason and message while the resize waits for the node.
    pub pending: Option<(String, String)>,
    /// Some container does not have yet what is allocated.
    pub running: bool,
    /// Reason why the last try failed.
    pub error: Option<String>,
}

fn both(resources: Option<&ResourceRequirements>) -> (Amounts, Amounts) {
    (Amounts::requests(resources), Amounts::limits(resources))
}

/// Plans what gives a container that was given `given` the resources of its spec.
pub fn action(container: &Container, given: &ResourceRequirements) -> Action {
    let ((requests, limits), (old_requests, old_limits)) = (both(container.resources.as_ref()), both(Some(given)));
    let cpu = requests.cpu != old_requests.cpu || limits.cpu != old_limits.cpu;
    let memory = requests.memory != old_requests.memory || limits.memory != old_limits.memory;
    let restarts = |name: &str| {
        let policies = container.resize_policy.iter().flatten();
        policies.into_iter().any(|policy| policy.resource_name == name && policy.restart_policy == "RestartContainer")
    };
    match (cpu, memory) {
        (false, false) => Action::Keep,
        _ if (cpu && restarts("cpu")) || (memory && restarts("memory")) => Action::Restart,
        _ => Action::Update,
    }
}

/// The containers whose resources may change while they run.
fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|s| s.init_containers.iter().flatten().filter(|c| is_sidecar(c)).chain(s.containers.iter()))
}

/// Some running container does not have what is allocated to it.
pub fn under_way(pod: &Pod, observed: &Observed) -> bool {
    resizable(pod).any(|container| {
        let running = observed.latest(&container.name).filter(|found| found.state == State::Running);
        running.and_then(|found| found.given.as_ref()).is_some_and(|given| action(container, given) != Action::Keep)
    })
}

/// Reports whether two versions of a pod ask for different resources.
pub fn differs(a: &Pod, b: &Pod) -> bool {
    resizable(a).any(|one| {
        let other = resizable(b).find(|other| other.name == one.name);
        other.is_some_and(|other| both(one.resources.as_ref()) != both(other.resources.as_ref()))
    })
}

/// Reports whether two versions of a pod request different amounts of one resource.
pub fn changes_requests(a: &Pod, b: &Pod, of: fn(&Amounts) -> Option<i64>) -> bool {
    resizable(a).any(|one| {
        let other = resizable(b).find(|other| other.name == one.name);
        let amount = |container: &Container| of(&Amounts::requests(container.resources.as_ref()));
        other.is_some_and(|other| amount(one) != amount(other))
    })
}

/// Changes of containers' resources between two versions of a pod: resource, requirement, operation. Answers for
/// upstream's `recordContainerResizeOperations`.
pub fn changes(old: &Pod, new: &Pod) -> Vec<[&'static str; 3]> {
    let mut found = Vec::new();
    for container in resizable(new) {
        let Some(before) = resizable(old).find(|other| other.name == container.name) else { continue };
        let (requests, limits) = both(container.resources.as_ref());
        let (old_requests, old_limits) = both(before.resources.as_ref());
        for (requirement, before, now) in [("requests", old_requests, requests), ("limits", old_limits, limits)] {
            for (resource, before, now) in [("cpu", before.cpu, now.cpu), ("memory", before.memory, now.memory)] {
                let operation = match (before, now) {
                    (None, Some(_)) => "add",
                    (Some(_), None) => "remove",
                    (Some(before), Some(now)) if now > before => "increase",
                    (Some(before), Some(now)) if now < before => "decrease",
                    _ => continue,
                };
                found.push([resource, requirement, operation]);
            }
        }
    }
    found
}

/// `pod` with the resources that `find` knows for its containers.
fn with(pod: &Arc<Pod>, find: impl Fn(&str) -> Option<ResourceRequirements>) -> Arc<Pod> {
    let mut changed = Pod::clone(pod);
    if let Some(spec) = &mut changed.spec {
        let sidecars = spec.init_containers.iter_mut().flatten().filter(|c| is_sidecar(c));
        for container in sidecars.chain(&mut spec.containers) {
            if let Some(found) = find(&container.name) {
                let claims = container.resources.as_ref().and_then(|own| own.claims.clone());
                container.resources = Some(ResourceRequirements { claims, ..found });
            }
        }
    }
    if differs(pod, &changed) { Arc::new(changed) } else { Arc::clone(pod) }
}

/// The pod with the resources that `allocated` has.
pub fn with_allocation(pod: &Arc<Pod>, allocated: &Pod) -> Arc<Pod> {
    with(pod, |name| {
        let container = resizable(allocated).find(|container| container.name == name)?;
        Some(container.resources.clone().unwrap_or_default())
    })
}

/// The pod with the resources that its containers have according to its status.
pub fn as_reported(pod: &Arc<Pod>) -> Arc<Pod> {
    with(pod, |name| reported(pod, name, None))
}

/// Returns the resources that the status reports of a container; of the one with this id if one is given.
pub fn reported(pod: &Pod, name: &str, id: Option<&str>) -> Option<ResourceRequirements> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let own = all.into_iter().find(|status| status.name == name)?;
    let same = |id: &str| own.container_id.as_deref().is_some_and(|full| full.ends_with(id));
    own.resources.clone().filter(|_| id.is_none_or(same))
}

#[derive(Serialize)]
struct Given<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Given<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Given<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// The message of an event about a resize: `Pod resize started: {…}`.
pub fn message(what: &str, pod: &Pod, error: Option<&str>) -> String {
    fn list(containers: Option<&Vec<Container>>) -> Vec<Given<'_>> {
        let all = containers.into_iter().flatten();
        all.map(|c| Given { name: &c.name, resources: c.resources.clone().unwrap_or_default() }).collect()
    }
    let spec = pod.spec.as_ref();
    let summary = Summary {
        init_containers: list(spec.and_then(|s| s.init_containers.as_ref())),
        containers: list(spec.map(|s| &s.containers)),
        generation: pod.metadata.generation.unwrap_or(0),
        error,
    };
    format!("Pod resize {what}: {}", serde_json::to_string(&summary).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::observed::Container as Found;
    use serde_json::{Value, json};

    fn resources(cpu: &str, memory: &str) -> Value {
        json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": memory}})
    }

    fn pod(cpu: &str, memory: &str) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json!({
            "metadata": {"name": "p", "generation": 2},
            "spec": {
                "initContainers": [{"name": "once", "resources": resources(cpu, memory)},
                                   {"name": "side", "restartPolicy": "Always", "resources": resources("1", "1Mi")}],
                "containers": [{"name": "c", "resources": resources(cpu, memory), "resizePolicy": [
                    {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                    {"resourceName": "memory", "restartPolicy": "RestartContainer"}]}],
            },
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": "containerd://1", "resources": resources("100m", "1Mi")}]},
        })).expect("pod"))
    }

    #[test]
    fn a_container_is_updated_or_restarted_as_its_policy_says() {
        for (cpu, memory, expected) in [
            ("100m", "1Mi", Action::Keep),
            ("0.1", "1024Ki", Action::Keep),
            ("200m", "1Mi", Action::Update),
            ("100m", "2Mi", Action::Restart),
            ("200m", "2Mi", Action::Restart),
        ] {
            let pod = pod(cpu, memory);
            let given = reported(&pod, "c", Some("1")).expect("reported");
            let container = &pod.spec.as_ref().expect("spec").containers[0];
            assert_eq!(action(container, &given), expected, "{cpu} {memory}");
            let found = |id: &str| Found {
                name: "c".into(),
                state: State::Running,
                given: reported(&pod, "c", Some(id)),
                ..Found::default()
            };
            let observed = |id: &str| Observed { containers: vec![found(id)], ..Observed::default() };
            assert_eq!(under_way(&pod, &observed("1")), expected != Action::Keep);
            assert!(!under_way(&pod, &observed("2")), "the status is about another container");
        }
    }

    #[test]
    fn what_a_pod_has_is_kept_apart_from_what_it_asks_for() {
        let (old, new) = (pod("100m", "1Mi"), pod("200m", "1Mi"));
        assert!(differs(&new, &old) && !differs(&old, &pod("0.1", "1Mi")));
        for held in [with_allocation(&new, &old), as_reported(&new)] {
            assert!(!differs(&held, &old));
            let once = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.init_containers.clone()).expect("list")[0].clone();
            assert_eq!(once(&held), once(&new), "an init container that ends is not resized");
        }
        assert!(Arc::ptr_eq(&as_reported(&old), &old), "nothing to hold apart, nothing to copy");
    }

    #[test]
    fn changes_are_told_by_resource_requirement_and_operation() {
        let pod = |resources: Value| -> Pod {
            let once = json!([{"name": "once", "resources": {"requests": {"cpu": "1"}}}]);
            let containers = json!([{"name": "c", "resources": resources}]);
            serde_json::from_value(json!({"spec": {"containers": containers, "initContainers": once}})).expect("pod")
        };
        let old = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}));
        let new = pod(json!({"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": "1"}}));
        let expected = [
            ["cpu", "requests", "decrease"],
            ["memory", "requests", "increase"],
            ["cpu", "limits", "add"],
            ["memory", "limits", "remove"],
        ];
        assert_eq!(changes(&old, &new), expected);
        assert!(changes(&old, &old).is_empty());
    }

    #[test]
    fn events_tell_the_resources() {
        let small: Pod = serde_json::from_value(json!({"metadata": {"generation": 3}, "spec": {"containers":
            [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}))
        .expect("pod");
        let expected = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}],"generation":3}"#;
        assert_eq!(message("started", &small, None), format!("Pod resize started: {expected}"));
        assert!(message("error", &small, Some("no")).ends_with(r#""generation":3,"error":"no"}"#));
    }
}
