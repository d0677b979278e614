//! Usage of pods, services and claims, and the changes of them that matter.

use super::*;
use serde_json::{Value, json};

fn shown(usage: &Usage) -> Value {
    usage.iter().map(|(k, q)| (k.clone(), json!(q.to_string()))).collect::<serde_json::Map<_, _>>().into()
}

fn a_pod(spec: Value, phase: &str) -> Pod {
    serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).expect("pod")
}

#[test]
fn pods_use_the_larger_of_running_and_starting() {
    let c = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "1", "example.com/gpu": "1"}}});
    let spec = json!({"containers": [c("100m"), c("200m")], "initContainers": [c("1")], "overhead": {"cpu": "50m"}});
    assert_eq!(
        shown(&pod(&a_pod(spec.clone(), "Running"), Timestamp::UNIX_EPOCH)),
        json!({"count/pods": "1", "cpu": "1050m", "limits.cpu": "2050m", "pods": "1", "requests.cpu": "1050m"})
    );
    assert_eq!(shown(&pod(&a_pod(spec, "Succeeded"), Timestamp::UNIX_EPOCH)), json!({"count/pods": "1"}));
}

#[test]
fn pods_count_until_their_grace_period_ends_however_long_it_is() {
    for (grace, want) in [(30, false), (i64::MAX, true), (i64::MIN, false)] {
        let mut pod = a_pod(json!({"containers": []}), "Running");
        pod.metadata = serde_json::from_value(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}),
        )
        .expect("metadata");
        assert_eq!(counts(&pod, "2026-01-01T00:01:00Z".parse().expect("time")), want, "{grace}");
    }
}

#[test]
fn what_is_tracked() {
    for (name, want) in [
        ("requests.cpu", true),
        ("requests.example.com/gpu", true),
        ("requests.hugepages-2Mi", true),
        ("fast.storageclass.storage.k8s.io/requests.storage", true),
        ("example.com/gpu", false),
        ("limits.example.com/gpu", false),
        ("gpu.deviceclass.resource.k8s.io/devices", true),
        ("requests.x.kubernetes.io/y", false),
        ("requests.gpu", false),
        ("count/secrets", false),
        ("bananas", false),
    ] {
        assert_eq!(tracked(name, false), want, "{name}");
    }
    assert!(!tracked("requests.deviceclass.resource.kubernetes.io/gpu", false));
    assert!(tracked("requests.deviceclass.resource.kubernetes.io/gpu", true));
}

#[test]
fn what_is_resized_counts_as_the_most_of_all() {
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
    let container = json!({"name": "c", "resources": cpu("2")});
    let status = |has: Value, promised: &str| {
        json!([{"name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "resources": has, "allocatedResources": {"cpu": promised}}])
    };
    let refused = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    let later = json!([{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]);
    let with = |mut spec: Value, overhead: Value| {
        spec["overhead"] = overhead;
        spec
    };
    let running = || json!({"containers": [container]});
    for (what, spec, conditions, statuses, want) in [
        ("not started", running(), json!([]), json!([]), ("2", "2")),
        ("smaller before", running(), json!([]), status(cpu("1"), "1"), ("2", "2")),
        ("larger before", running(), json!([]), status(cpu("3"), "2"), ("3", "3")),
        ("promised", running(), json!([]), status(cpu("1"), "4"), ("4", "2")),
        ("later", running(), later, status(cpu("1"), "1"), ("2", "2")),
        ("never", running(), refused.clone(), status(cpu("1"), "1"), ("1", "1")),
        ("never, and not told what it has", running(), refused, status(Value::Null, "1"), ("2", "2")),
        (
            "a sidecar",
            json!({"containers": [], "initContainers": [{"name": "c", "restartPolicy": "Always", "resources": cpu("2")}]}),
            json!([]),
            status(cpu("3"), "1"),
            ("3", "3"),
        ),
        (
            "an init container",
            json!({"containers": [], "initContainers": [container]}),
            json!([]),
            status(cpu("3"), "1"),
            ("2", "2"),
        ),
        (
            "the pod as a whole",
            json!({"containers": [container], "resources": cpu("5")}),
            json!([]),
            status(cpu("3"), "1"),
            ("5", "5"),
        ),
        ("with overhead", with(running(), json!({"cpu": "1"})), json!([]), status(cpu("3"), "1"), ("4", "4")),
    ] {
        let place = if spec["containers"] == json!([]) { "initContainerStatuses" } else { "containerStatuses" };
        let object = json!({"spec": spec, "status": {"phase": "Running", "conditions": conditions, place: statuses}});
        let used = shown(&pod(&serde_json::from_value(object).expect("pod"), Timestamp::UNIX_EPOCH));
        assert_eq!((&used["requests.cpu"], &used["limits.cpu"]), (&json!(want.0), &json!(want.1)), "{what}");
    }
}

#[test]
fn resizes_matter() {
    let at = |has: Value, reason: &str| -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running",
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
            "containerStatuses": [{"name": "c", "resources": has}]}}))
        .expect("pod")
    };
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    for (old, new, want) in [
        (at(cpu("1"), "Deferred"), at(cpu("1"), "Deferred"), false),
        (at(cpu("2"), "Deferred"), at(cpu("1"), "Deferred"), true),
        (at(cpu("1"), "Deferred"), at(cpu("1"), "Infeasible"), true),
        (at(Value::Null, "Deferred"), at(cpu("1"), "Deferred"), false),
    ] {
        assert_eq!(gives_back(&old, &new, Timestamp::UNIX_EPOCH), want);
    }
}

#[test]
fn services_and_claims() {
    let s: Service =
        serde_json::from_value(json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}}))
            .expect("service");
    assert_eq!(
        shown(&service(&s)),
        json!({"count/services": "1", "services": "1", "services.loadbalancers": "1", "services.nodeports": "2"})
    );
    let c: PersistentVolumeClaim = serde_json::from_value(
        json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}}),
    )
    .expect("claim");
    assert_eq!(
        shown(&claim(&c)),
        json!({"count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1", "requests.storage": "1Gi",
            "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1", "fast.storageclass.storage.k8s.io/requests.storage": "1Gi"})
    );
}

#[test]
fn changes_that_matter() {
    let plain = json!({"containers": [{"name": "c"}]});
    let bounded = json!({"containers": [{"name": "c"}], "activeDeadlineSeconds": 5});
    for (old, new, want) in [
        (a_pod(plain.clone(), "Running"), a_pod(plain.clone(), "Failed"), true),
        (a_pod(plain.clone(), "Failed"), a_pod(plain.clone(), "Failed"), false),
        (a_pod(plain.clone(), "Pending"), a_pod(plain.clone(), "Running"), false),
        (a_pod(plain, "Running"), a_pod(bounded, "Running"), true),
    ] {
        assert_eq!(gives_back(&old, &new, Timestamp::UNIX_EPOCH), want);
    }
    let claim = |v: Value| -> PersistentVolumeClaim { serde_json::from_value(v).expect("claim") };
    let plain = claim(json!({"spec": {"volumeAttributesClassName": "a"}}));
    for (status, want) in [
        (json!({"phase": "Bound"}), false),
        (json!({"currentVolumeAttributesClassName": "a"}), false),
        (json!({"currentVolumeAttributesClassName": "b"}), true),
        (json!({"allocatedResources": {"storage": "1Gi"}}), true),
    ] {
        let new = claim(json!({"spec": {"volumeAttributesClassName": "a"}, "status": status}));
        assert_eq!(claim_changes(&plain, &new, true), want);
        let amount = new.status.as_ref().is_some_and(|s| s.allocated_resources.is_some());
        assert_eq!(claim_changes(&plain, &new, false), amount);
    }
    let both =
        claim(json!({"spec": {"volumeAttributesClassName": "a"}, "status": {"currentVolumeAttributesClassName": "b"}}));
    for (operator, class, want) in [("In", "b", true), ("In", "c", false), ("NotIn", "a", true), ("Exists", "", true)] {
        let spec = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": operator, "values": [class]}]}});
        let spec: ResourceQuotaSpec = serde_json::from_value(spec).expect("quota");
        assert_eq!(claim_in_scope(&spec, &both, true), want, "{operator} {class}: any of its classes will do");
        assert!(!claim_in_scope(&spec, &both, false), "{operator} {class}: without the gate there is no such scope");
    }
    assert!(claim_in_scope(&ResourceQuotaSpec::default(), &both, false));
    let uneven = claim(json!({"spec": {"resources": {"requests": {"storage": "1500m"}}}}));
    assert_eq!(shown(&super::claim(&uneven))["requests.storage"], "2");
}

#[test]
fn scopes() {
    let plain = a_pod(json!({"containers": [{"name": "c"}], "priorityClassName": "high"}), "Running");
    let quota = |v: Value| -> ResourceQuotaSpec { serde_json::from_value(v).expect("quota") };
    let class = |op: &str, v: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": op, "values": v}]}});
    for (spec, want) in [
        (json!({}), true),
        (json!({"scopes": ["BestEffort"]}), true),
        (json!({"scopes": ["BestEffort", "Terminating"]}), false),
        (json!({"scopes": ["NotTerminating"]}), true),
        (class("In", json!(["high"])), true),
        (class("NotIn", json!(["high"])), false),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), false),
    ] {
        assert_eq!(in_scope(&quota(spec.clone()), &plain), want, "{spec}");
    }
}
