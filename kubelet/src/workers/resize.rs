//! In-place resize, the pure part: what a pod has and what it asks for, whether the node has room for the difference,
//! and what has to be done about a running container. Answers for upstream's `pkg/kubelet/allocation` and for
//! `computePodResizeAction`.
//!
//! A worker only ever sees the pod with the resources that are allocated to it. Records of them outlive the kubelet
//! ([`super::records`]); of a pod without one its status says what its containers have.

use super::observed::{Observed, State};
use super::records::PodResources;
use crate::resources::{Amounts, pod_requests};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
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

/// Amounts that a pod asks for as a whole.
fn whole(pod: &Pod) -> (Amounts, Amounts) {
    both(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()))
}

/// Plans what gives a container of a pod what it shall have: a container without a limit of its own has its pod's.
pub fn action_in(spec: &PodSpec, observed: &Observed, container: &Container, given: &ResourceRequirements) -> Action {
    match (action(container, given), &observed.whole) {
        (Action::Keep, Some(whole)) => {
            let (old, new) = (Amounts::limits(Some(whole)), Amounts::limits(spec.resources.as_ref()));
            let own = Amounts::limits(container.resources.as_ref());
            let inherits = |of: fn(&Amounts) -> Option<i64>| of(&own).is_none() && of(&old) != of(&new);
            let changes = inherits(|amounts| amounts.cpu) || inherits(|amounts| amounts.memory);
            if changes { Action::Update } else { Action::Keep }
        }
        (action, _) => action,
    }
}

/// The containers whose resources may change while they run.
pub(super) fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|s| s.init_containers.iter().flatten().filter(|c| is_sidecar(c)).chain(s.containers.iter()))
}

/// Some running container does not have what is allocated to it.
pub fn of_containers(pod: &Pod, observed: &Observed) -> bool {
    let Some(spec) = &pod.spec else { return false };
    resizable(pod).any(|container| {
        let running = observed.latest(&container.name).filter(|found| found.state == State::Running);
        let given = running.and_then(|found| found.given.as_ref());
        given.is_some_and(|given| action_in(spec, observed, container, given) != Action::Keep)
    })
}

/// A container, or the pod as a whole, does not have what is allocated to it.
pub fn under_way(pod: &Pod, observed: &Observed) -> bool {
    let is_whole = observed.whole.as_ref().is_none_or(|given| both(Some(given)) == whole(pod));
    !is_whole || of_containers(pod, observed)
}

/// Reports whether two versions of a pod ask for different resources.
pub fn differs(a: &Pod, b: &Pod) -> bool {
    let mut containers = resizable(a);
    let of_containers = containers.any(|one| {
        let other = resizable(b).find(|other| other.name == one.name);
        other.is_some_and(|other| both(one.resources.as_ref()) != both(other.resources.as_ref()))
    });
    of_containers || whole(a) != whole(b)
}

/// Reports whether two versions of a pod request different amounts of one resource.
pub fn changes_requests(a: &Pod, b: &Pod, of: fn(&Amounts) -> Option<i64>) -> bool {
    resizable(a).any(|one| {
        let other = resizable(b).find(|other| other.name == one.name);
        let amount = |container: &Container| of(&Amounts::requests(container.resources.as_ref()));
        other.is_some_and(|other| amount(one) != amount(other))
    })
}

/// Reports whether a resize changes the memory of a container that may swap and goes on running, which is not supported.
/// Upstream's `disallowResizeForSwappableContainers`.
pub fn resizes_swap(pod: &Pod, held: &Pod, swaps: impl Fn(&Pod, &Container) -> bool) -> bool {
    let memory = |container: &Container| Amounts::requests(container.resources.as_ref()).memory;
    let restarts = |container: &Container| {
        let policies = container.resize_policy.iter().flatten();
        let policy = policies.into_iter().find(|policy| policy.resource_name == "memory");
        policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    resizable(pod).any(|one| {
        let other = resizable(held).find(|other| other.name == one.name);
        other.is_some_and(|other| {
            memory(one) != memory(other) && !restarts(one) && (swaps(pod, one) || swaps(held, other))
        })
    })
}

/// Reports whether a pod requests more of some resource than another version of it.
pub fn requests_more(pod: &Pod, than: &Pod) -> bool {
    let requests = |pod: &Pod| pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    let (new, old) = (requests(pod), requests(than));
    new.cpu > old.cpu || new.memory > old.memory
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

/// `pod` with the resources that `find` knows for its containers, and those that it has as a whole where they are known.
fn with(
    pod: &Arc<Pod>,
    whole: Option<ResourceRequirements>,
    find: impl Fn(&str) -> Option<ResourceRequirements>,
) -> Arc<Pod> {
    let mut changed = Pod::clone(pod);
    if let Some(spec) = &mut changed.spec {
        spec.resources = whole.or(spec.resources.take());
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
    with(pod, allocated.spec.as_ref().and_then(|spec| spec.resources.clone()), |name| {
        let container = resizable(allocated).find(|container| container.name == name)?;
        Some(container.resources.clone().unwrap_or_default())
    })
}

/// The pod with the resources that its containers have according to its status.
pub fn as_reported(pod: &Arc<Pod>) -> Arc<Pod> {
    let whole = pod.status.as_ref().and_then(|status| status.resources.clone());
    with(pod, whole, |name| reported(pod, name, None))
}

/// The pod with the resources that are recorded for its containers.
pub fn as_recorded(pod: &Arc<Pod>, record: &PodResources) -> Arc<Pod> {
    with(pod, record.of_pod().cloned(), |name| record.of_container(name).cloned())
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
    fn what_a_pod_has_as_a_whole_is_resized_too() {
        let limits = |cpu: &str| json!({"requests": {"cpu": "1"}, "limits": {"cpu": cpu, "memory": "1Gi"}});
        let pod = |cpu: &str| -> Arc<Pod> {
            let own = json!({"name": "own", "resources": {"limits": {"cpu": "1", "memory": "1Mi"}}});
            let spec = json!({"containers": [own, {"name": "c"}], "resources": limits(cpu)});
            Arc::new(serde_json::from_value(json!({"spec": spec})).expect("a pod"))
        };
        let (old, new) = (pod("2"), pod("3"));
        assert!(differs(&new, &old) && !differs(&old, &pod("2000m")));
        assert!(!differs(&with_allocation(&new, &old), &old));
        let given = |pod: &Pod, name: &str| {
            let containers = pod.spec.as_ref().expect("a spec").containers.iter();
            let resources = containers.filter(|c| c.name == name).find_map(|c| c.resources.clone());
            Found {
                name: name.into(),
                state: State::Running,
                given: Some(resources.unwrap_or_default()),
                ..Found::default()
            }
        };
        let observed = |whole: Option<&Pod>| Observed {
            containers: vec![given(&old, "own"), given(&old, "c")],
            whole: whole.and_then(|pod| pod.spec.as_ref()?.resources.clone()),
            ..Observed::default()
        };
        assert!(under_way(&new, &observed(Some(&old))) && !under_way(&new, &observed(Some(&new))));
        assert!(!under_way(&new, &observed(None)), "not without the gate");
        let spec = new.spec.as_ref().expect("a spec");
        for (container, expected) in spec.containers.iter().zip([Action::Keep, Action::Update]) {
            let given = container.resources.clone().unwrap_or_default();
            let action = action_in(spec, &observed(Some(&old)), container, &given);
            assert_eq!(action, expected, "{} has a limit of its own or its pod's", container.name);
        }
    }

    #[test]
    fn containers_that_may_swap_are_resized_by_restarts_alone() {
        let pod = |memory: &str, policy: &str| -> Pod {
            let resources = json!({"requests": {"cpu": "1", "memory": memory}});
            let policies = json!([{"resourceName": "memory", "restartPolicy": policy}]);
            let container = json!({"name": "c", "resources": resources, "resizePolicy": policies});
            serde_json::from_value(json!({"spec": {"containers": [container]}})).expect("a pod")
        };
        let held = pod("1Gi", "NotRequired");
        for (asked, swaps, expected) in [
            (pod("2Gi", "NotRequired"), true, true),
            (pod("2Gi", "NotRequired"), false, false),
            (pod("2Gi", "RestartContainer"), true, false),
            (pod("1024Mi", "NotRequired"), true, false),
        ] {
            assert_eq!(resizes_swap(&asked, &held, |_, _| swaps), expected, "{asked:?} {swaps}");
        }
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
