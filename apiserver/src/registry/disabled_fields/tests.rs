//! Tests of fields dropped by disabled gates.

use super::*;
use crate::rows::builtin;
use serde_json::json;
use shared::flags::FlagSet;

#[test]
fn disabled_fields_are_dropped() {
    let gated = FieldGates::new(&FeatureGates::default());
    let taint = json!([{"key": "a", "effect": "NoSchedule"}]);
    for (group, plural, object, old, want) in [
        (
            "",
            "pods",
            json!({"spec": {"containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGTERM"}}], "workloadRef": {"name": "w"}}}),
            None,
            json!({"spec": {"containers": [{"name": "c"}]}}),
        ),
        (
            "",
            "pods",
            json!({"spec": {"containers": [{"lifecycle": {"stopSignal": "SIGTERM", "preStop": {}}}]}}),
            None,
            json!({"spec": {"containers": [{"lifecycle": {"preStop": {}}}]}}),
        ),
        (
            "",
            "persistentvolumeclaims",
            json!({"spec": {"dataSourceRef": {"kind": "Foo", "name": "x", "namespace": "n"}}}),
            None,
            json!({"spec": {}}),
        ),
        (
            "",
            "persistentvolumeclaims",
            json!({"spec": {"dataSourceRef": {"kind": "Foo", "name": "x"}}}),
            None,
            json!({"spec": {"dataSourceRef": {"kind": "Foo", "name": "x"}}}),
        ),
        // What was let in stays usable.
        (
            "",
            "pods",
            json!({"spec": {"workloadRef": {"name": "w"}}}),
            Some(json!({"spec": {"workloadRef": {"name": "v"}}})),
            json!({"spec": {"workloadRef": {"name": "w"}}}),
        ),
        (
            "resource.k8s.io",
            "resourceslices",
            json!({"spec": {"devices": [{"name": "d", "taints": taint, "capacity": {"m": {"value": "1", "requestPolicy": {}}}}]}}),
            Some(json!({"spec": {"devices": [{"name": "d"}]}})),
            json!({"spec": {"devices": [{"name": "d", "capacity": {"m": {"value": "1"}}}]}}),
        ),
        (
            "resource.k8s.io",
            "resourceclaimtemplates",
            json!({"spec": {"spec": {"devices": {"requests": [{"exactly": {"count": 1, "capacity": {}}}]}}}}),
            None,
            json!({"spec": {"spec": {"devices": {"requests": [{"exactly": {"count": 1}}]}}}}),
        ),
        (
            "apps",
            "statefulsets",
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0, "maxUnavailable": 1}}}}),
            None,
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}),
        ),
    ] {
        let row = builtin(group, plural).expect("a row");
        let mut object = object;
        gated.drop_disabled_fields(&row, &mut object, old.as_ref());
        assert_eq!(object, want, "{plural}");
    }
}

fn without(gates: &[&str]) -> FieldGates {
    let off = gates.iter().map(|gate| ((*gate).to_owned(), false)).collect();
    FieldGates::new(&FeatureGates::default().with(&off).expect("gates"))
}

/// Gates that are on by default and may be turned off: what goes, and that what is in use stays.
#[test]
fn fields_in_use_are_kept_when_a_gate_is_disabled() {
    let pod = |container: Value| json!({"spec": {"containers": [container]}});
    for (gate, group, plural, object, want) in [
        ("UserNamespacesSupport", "", "pods", json!({"spec": {"hostUsers": false}}), json!({"spec": {}})),
        (
            "PodLevelResources",
            "",
            "pods",
            json!({"spec": {"resources": {"limits": {"cpu": "1"}}, "nodeName": "n"}}),
            json!({"spec": {"nodeName": "n"}}),
        ),
        (
            "EnvFiles",
            "",
            "pods",
            pod(json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]})),
            pod(json!({"env": [{"name": "A", "valueFrom": {}}]})),
        ),
        (
            "ContainerRestartRules",
            "",
            "pods",
            json!({"spec": {"containers": [{"restartPolicy": "Never", "restartPolicyRules": [{}]}],
                "initContainers": [{"restartPolicy": "Always"}, {"restartPolicy": "OnFailure"}]}}),
            json!({"spec": {"containers": [{}], "initContainers": [{"restartPolicy": "Always"}, {}]}}),
        ),
        (
            "ProcMountType",
            "",
            "pods",
            pod(json!({"securityContext": {"procMount": "Unmasked"}})),
            pod(json!({"securityContext": {"procMount": "Default"}})),
        ),
        (
            "HPAConfigurableTolerance",
            "autoscaling",
            "horizontalpodautoscalers",
            json!({"spec": {"behavior": {"scaleUp": {"tolerance": "0.1", "selectPolicy": "Max"}}}}),
            json!({"spec": {"behavior": {"scaleUp": {"selectPolicy": "Max"}}}}),
        ),
        (
            "DeploymentReplicaSetTerminatingReplicas",
            "apps",
            "deployments",
            json!({"status": {"terminatingReplicas": 1, "replicas": 2}}),
            json!({"status": {"replicas": 2}}),
        ),
        (
            "DRAPrioritizedList",
            "resource.k8s.io",
            "resourceclaims",
            json!({"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": [{"name": "s"}]}]}}}),
            json!({"spec": {"devices": {"requests": [{"name": "r"}]}}}),
        ),
        (
            "VolumeAttributesClass",
            "",
            "persistentvolumeclaims",
            json!({"spec": {"volumeAttributesClassName": "gold"}}),
            json!({"spec": {}}),
        ),
    ] {
        let row = builtin(group, plural).expect("a row");
        let settled = |gated: FieldGates, old: Option<&Value>| {
            let mut object = object.clone();
            gated.drop_disabled_fields(&row, &mut object, old);
            object
        };
        assert_eq!(settled(without(&[gate]), None), want, "{gate}");
        assert_eq!(settled(without(&[gate]), Some(&want)), want, "{gate}");
        assert_eq!(settled(without(&[gate]), Some(&object)), object, "{gate}: in use");
        assert_eq!(settled(without(&[]), None), object, "{gate}: on");
    }
}

/// A claim's request counts as use of the gate for its status; tolerations do not.
#[test]
fn unrequested_claim_results_are_dropped() {
    let row = builtin("resource.k8s.io", "resourceclaims").expect("a row");
    let claim = |exactly: Value, result: Value| {
        json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
            "status": {"allocation": {"allocationTimestamp": "t", "devices": {"results": [result]}}}})
    };
    let plain = json!({"request": "r", "tolerations": [{"operator": "Exists"}]});
    let with = |field: &str, value: Value| {
        let mut result = plain.clone();
        result[field] = value;
        result
    };
    for (gate, asked, field, value) in [
        ("DRAAdminAccess", json!({"adminAccess": true}), "adminAccess", json!(true)),
        ("DRAConsumableCapacity", json!({"capacity": {"requests": {"m": "1"}}}), "consumedCapacity", json!({"m": "1"})),
        ("DRAConsumableCapacity", json!({"capacity": {"requests": {"m": "1"}}}), "shareID", json!("u")),
    ] {
        let settled = |asked: &Value| {
            let mut object = claim(asked.clone(), with(field, value.clone()));
            let old = json!({"spec": object["spec"]});
            without(&[gate]).drop_disabled_fields(&row, &mut object, Some(&old));
            object
        };
        assert_eq!(settled(&asked), claim(asked, with(field, value.clone())), "{gate} {field}");
        assert_eq!(settled(&json!({"count": 1})), claim(json!({"count": 1}), plain.clone()), "{gate} {field}");
    }
}

#[test]
fn fields_are_kept_independently() {
    let row = builtin("storage.k8s.io", "volumeattachments").expect("a row");
    let coded = || json!({"errorCode": 8, "message": "m"});
    let status = |attach: Value, detach: Value| json!({"status": {"attachError": attach, "detachError": detach}});
    let mut object = status(coded(), coded());
    without(&["MutableCSINodeAllocatableCount"]).drop_disabled_fields(
        &row,
        &mut object,
        Some(&status(coded(), json!({}))),
    );
    assert_eq!(object, status(coded(), json!({"message": "m"})));
}

#[test]
fn max_unavailable_is_defaulted_behind_its_gate() {
    let row = builtin("apps", "statefulsets").expect("a row");
    let set = |update: Value| json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": update}}});
    let gate = |on: bool| {
        let flag = format!("--feature-gates=MaxUnavailableStatefulSet={on}");
        FieldGates::new(&FlagSet::of("kube-apiserver", &[&flag]).expect("flags").feature_gates())
    };
    for (on, sent, want) in [
        (true, json!({"partition": 0}), json!({"partition": 0, "maxUnavailable": 1})),
        (true, json!({"maxUnavailable": "10%"}), json!({"maxUnavailable": "10%"})),
        (true, Value::Null, Value::Null),
        (false, json!({"partition": 0}), json!({"partition": 0})),
        (false, json!({"maxUnavailable": 2}), json!({})),
    ] {
        let mut object = set(sent.clone());
        gate(on).drop_disabled_fields(&row, &mut object, None);
        assert_eq!(object, set(want), "{on} {sent}");
    }
}

#[test]
fn device_health_is_dropped_even_if_stored() {
    let row = builtin("", "pods").expect("a row");
    let said = json!({"status": {"containerStatuses": [{"name": "c", "allocatedResourcesStatus": [{"name": "r"}]}]}});
    let mut object = said.clone();
    without(&[]).drop_disabled_fields(&row, &mut object, Some(&said));
    assert_eq!(object, json!({"status": {"containerStatuses": [{"name": "c"}]}}));
}

#[test]
fn allocatable_count_is_immutable_without_its_gate() {
    let row = builtin("storage.k8s.io", "csinodes").expect("a row");
    let node =
        |count: i64| json!({"spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": count}}]}});
    let refused = |gated: FieldGates, count| gated.validate_gated(&row, "", &node(count), Some(&node(3))).len();
    let gate = "MutableCSINodeAllocatableCount";
    assert_eq!([refused(without(&[gate]), 4), refused(without(&[gate]), 3), refused(without(&[]), 4)], [1, 0, 0]);
}

#[test]
fn image_volumes_are_dropped_with_their_mounts() {
    let row = builtin("apps", "deployments").expect("a row");
    let of = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
    let mut object = of(json!({
        "volumes": [{"name": "i", "image": {"reference": "r"}}, {"name": "e", "emptyDir": {}}],
        "containers": [{"volumeMounts": [{"name": "i", "mountPath": "/i"}, {"name": "e", "mountPath": "/e"}]}],
    }));
    without(&["ImageVolume"]).drop_disabled_fields(&row, &mut object, None);
    let want = of(json!({
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": [{"volumeMounts": [{"name": "e", "mountPath": "/e"}]}],
    }));
    assert_eq!(object, want);
}

/// Every path leads to a field.
#[test]
fn paths_are_of_fields() {
    let known = |name: &str| FeatureGates::default().all().any(|(gate, _, _)| name == gate);
    assert!(RULES.iter().all(|(gate, _)| known(gate)));
    for kind in all() {
        let spec = kind.pod_template.map(|template| template.keys("spec").join("."));
        let of_pods = spec.iter().flat_map(|spec| OF_PODS.iter().map(|gated| (spec.as_str(), gated)));
        for (within, gated) in kind.gated.iter().map(|gated| (gated.within, gated)).chain(of_pods) {
            assert!(known(gated.gate), "{}", gated.gate);
            let row = builtin(kind.resource.group, kind.resource.plural).expect("a row");
            for field in gated.fields {
                let storage = row.storage();
                let mut message = storage.schema();
                let path = format!("{within}.{field}");
                let parts: Vec<&str> = path.split('.').filter(|part| *part != "*").map(name).collect();
                for (i, part) in parts.iter().enumerate() {
                    let found = message.and_then(|m: &proto::schema::Message| m.field(part));
                    assert!(found.is_some(), "{} {path}: {part}", kind.resource);
                    if i + 1 < parts.len() {
                        message = found.and_then(|f| f.message());
                    }
                }
            }
        }
    }
}
