//! Gates that allow more: what is refused without them, let pass with them, and let be where it is in use.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shared::flags::FeatureGates;

use super::{Change, Valid, lines, pod_spec};
use crate::registry::behavior;
use crate::validation::ValidationOptions;

fn gated(gate: &str) -> ValidationOptions {
    let gates = FeatureGates::default().with(&BTreeMap::from([(gate.to_owned(), true)])).expect("a gate");
    ValidationOptions::new(&gates)
}

impl Valid {
    fn created(&self, relaxed: ValidationOptions, new: &Value) -> Vec<String> {
        lines(self.row, behavior(self.row).validate_create(relaxed, (self.row, self.row), new))
    }

    fn updated(&self, relaxed: ValidationOptions, new: &Value, old: &Value) -> Vec<String> {
        lines(
            self.row,
            behavior(self.row).validate_update(relaxed.for_update(self.row, old), (self.row, self.row), (new, old)),
        )
    }
}

fn deployment() -> Valid {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    Valid::new("/apis/apps/v1/namespaces/n/deployments", json!({"spec": spec}))
}

#[test]
fn stored_use_of_a_gate_is_kept_without_it() {
    const POD: &str = "/spec/template/spec";
    let at = |path: &str| -> &'static str { Box::leak(format!("{POD}{path}").into_boxed_str()) };
    let rules = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]);
    let scaler = json!({"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "metrics": [{"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}}]});
    let scaler = Valid::new("/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers", json!({"spec": scaler}));
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let ingress = json!({"spec": {"defaultBackend": backend}});
    let ingress = Valid::new("/apis/networking.k8s.io/v1/namespaces/n/ingresses", ingress);
    let dns = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    let table: [(&str, Valid, Vec<Change>, String); 8] = [
        (
            "HPAScaleToZero",
            scaler,
            vec![("/spec/minReplicas", json!(0))],
            "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1".to_owned(),
        ),
        (
            "RelaxedServiceNameValidation",
            ingress,
            vec![("/spec/defaultBackend/service/name", json!("1-s"))],
            format!(r#"spec.defaultBackend.service.name: Invalid value: "1-s": {dns}"#),
        ),
        (
            "TaintTolerationComparisonOperators",
            deployment(),
            vec![(at("/tolerations"), json!([{"key": "k", "operator": "Gt", "value": "-10", "effect": "NoSchedule"}]))],
            r#"spec.template.spec.tolerations[0].operator: Unsupported value: "Gt": supported values: "Equal", "Exists", "Lt", "Gt""#.to_owned(),
        ),
        (
            "RestartAllContainersOnContainerExits",
            deployment(),
            vec![(at("/containers/0/restartPolicy"), json!("Never")), (at("/containers/0/restartPolicyRules"), rules("RestartAllContainers"))],
            r#"spec.template.spec.containers[0].restartPolicyRules[0].action: Unsupported value: "RestartAllContainers": supported values: "Restart""#.to_owned(),
        ),
        (
            "RestartAllContainersOnContainerExits",
            deployment(),
            vec![
                (at("/initContainers"), json!([{"name": "s", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
                    "restartPolicy": "Always", "restartPolicyRules": rules("Restart")}])),
            ],
            "spec.template.spec.initContainers[0].restartPolicyRules: Forbidden: restartPolicyRules are not allowed for init containers with restart policy Always".to_owned(),
        ),
        (
            "UserNamespacesHostNetworkSupport",
            deployment(),
            vec![(at("/hostNetwork"), json!(true)), (at("/hostUsers"), json!(false))],
            "spec.template.spec.hostNetwork: Forbidden: when `hostUsers` is false".to_owned(),
        ),
        (
            "SELinuxMount",
            deployment(),
            vec![(at("/securityContext"), json!({"seLinuxChangePolicy": "MountOption"}))],
            r#"spec.template.spec.securityContext.seLinuxChangePolicy: Unsupported value: "MountOption": supported values: "Recursive""#.to_owned(),
        ),
        (
            "UserNamespacesHostNetworkSupport",
            deployment(),
            vec![(at("/hostPID"), json!(true)), (at("/hostUsers"), json!(false))],
            "spec.template.spec.HostPID: Forbidden: when `hostUsers` is false".to_owned(),
        ),
    ];
    let off = ValidationOptions::default();
    for (gate, valid, changes, refused) in table {
        let object = valid.with(&changes);
        // The other namespaces of the host stay apart.
        let ever = if refused.contains("HostPID") { vec![refused.clone()] } else { Vec::new() };
        assert_eq!(valid.created(off, &object), std::slice::from_ref(&refused), "{gate}");
        assert_eq!(valid.created(gated(gate), &object), ever, "{gate}");
        assert_eq!(valid.updated(off, &object, &valid.object), [refused], "{gate}");
        assert_eq!(valid.updated(off, &object, &object), ever, "{gate}: in use");
    }
}

#[test]
fn selectors_ask_whether_a_device_is_shared() {
    let selector = json!({"cel": {"expression": "device.allowMultipleAllocations == true"}});
    let class = json!({"metadata": {"name": "c"}, "spec": {"selectors": [selector]}});
    let class = Valid { object: class, ..Valid::new("/apis/resource.k8s.io/v1/deviceclasses", json!({})) };
    let refused = class.created(ValidationOptions::default(), &class.object);
    assert!(refused.len() == 1 && refused[0].contains("undefined field 'allowMultipleAllocations'"), "{refused:?}");
    assert_eq!(class.created(gated("DRAConsumableCapacity"), &class.object), [""; 0]);
    // What is stored was compiled before.
    let labelled = class.with(&[("/metadata/labels", json!({"a": "b"}))]);
    assert_eq!(class.updated(ValidationOptions::default(), &labelled, &class.object), [""; 0]);
}

#[test]
fn device_constraints_have_one_attribute() {
    let devices = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]});
    let claim = json!({"spec": {"devices": devices}});
    let claim = Valid::new("/apis/resource.k8s.io/v1/namespaces/n/resourceclaims", claim);
    let with = |constraint: Value| claim.with(&[("/spec/devices/constraints", json!([constraint]))]);
    let (off, on) = (ValidationOptions::default(), gated("DRAConsumableCapacity"));
    let at = "spec.devices.constraints[0]";
    assert_eq!(claim.created(off, &with(json!({}))), [format!("{at}.matchAttribute: Required value")]);
    assert_eq!(
        claim.created(on, &with(json!({}))),
        [format!(
            r#"{at}: Required value: exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#
        )]
    );
    assert_eq!(claim.created(on, &with(json!({"distinctAttribute": "a.b/c"}))), [""; 0]);
    assert_eq!(claim.created(on, &with(json!({"distinctAttribute": "c"}))).len(), 1);
}

/// Gates that are on by default: rules that go with them.
#[test]
fn gates_that_are_off_ask_less() {
    let without = |gate: &str| {
        let gates = FeatureGates::default().with(&BTreeMap::from([(gate.to_owned(), false)])).expect("a gate");
        ValidationOptions::new(&gates)
    };
    let mut costly = deployment();
    let annotations = json!({"controller.kubernetes.io/pod-deletion-cost": "much"});
    costly.object["spec"]["template"]["metadata"]["annotations"] = annotations;
    let driver = json!({"metadata": {"name": "a.b"}, "spec": {"attachRequired": true, "podInfoOnMount": false,
        "storageCapacity": false, "fsGroupPolicy": "File"}});
    let driver = Valid { object: driver, ..Valid::new("/apis/storage.k8s.io/v1/csidrivers", json!({})) };
    for (gate, valid) in [("PodDeletionCost", costly), ("SELinuxMountReadWriteOncePod", driver)] {
        assert_eq!(valid.created(ValidationOptions::new(&FeatureGates::default()), &valid.object).len(), 1, "{gate}");
        assert_eq!(valid.created(without(gate), &valid.object), [""; 0], "{gate}");
    }
}

/// Users may not set the keys that the scheduler would add, where they are not merged.
#[test]
fn unmerged_match_label_keys() {
    let without = |gates: &[&str]| {
        let off = gates.iter().map(|gate| ((*gate).to_owned(), false)).collect();
        ValidationOptions::new(&FeatureGates::default().with(&off).expect("gates"))
    };
    let (merge, keys) = ("MatchLabelKeysInPodTopologySpreadSelectorMerge", "MatchLabelKeysInPodTopologySpread");
    let constraint = |labels: Value| {
        let spread = json!([{"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "ScheduleAnyway",
            "matchLabelKeys": ["a"], "labelSelector": {"matchLabels": labels}}]);
        [("/spec/template/spec/topologySpreadConstraints", spread)]
    };
    let both = r#"spec.template.spec.topologySpreadConstraints[0].matchLabelKeys[0]: Invalid value: "a": exists in both matchLabelKeys and labelSelector"#;
    let valid = deployment();
    let (doubled, single) = (valid.with(&constraint(json!({"a": "b"}))), valid.with(&constraint(json!({"c": "d"}))));
    assert_eq!(valid.created(without(&[]), &doubled), [""; 0]);
    assert_eq!(valid.created(without(&[merge]), &doubled), [both]);
    assert_eq!(valid.created(without(&[merge]), &single), [""; 0]);
    assert_eq!(valid.updated(without(&[merge]), &doubled, &single), [both]);
    assert_eq!(valid.updated(without(&[merge]), &doubled, &doubled), [""; 0]);
    // Without the other gate new keys go before anybody looks.
    assert_eq!(valid.created(without(&[merge, keys]), &doubled), [both]);
    assert_eq!(valid.created(without(&[keys]), &doubled), [both]);
    // What breaks the newer rule keeps the older one.
    let twice = json!([{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "Exists"}]);
    let twice = valid.with(&constraint(json!({})).map(|(at, mut spread)| {
        spread[0]["labelSelector"] = json!({"matchExpressions": twice});
        (at, spread)
    }));
    assert_eq!(valid.updated(without(&[]), &twice, &twice), [both]);
}

#[test]
fn numbers_to_compare_with_are_plain() {
    let relaxed = gated("TaintTolerationComparisonOperators");
    let valid = deployment();
    const EMPTY: &str = "must be non-empty";
    const PLAIN: &str = "must be a valid decimal integer in canonical form";
    const NONE: &str = "invalid syntax";
    for (value, wrong) in [
        ("0", vec![]),
        ("950", vec![]),
        ("-3", vec![]),
        ("", vec![EMPTY, NONE]),
        ("-0", vec![PLAIN]),
        ("07", vec![PLAIN]),
        ("+1", vec![PLAIN]),
        ("1.5", vec![PLAIN, NONE]),
        ("-", vec![PLAIN, NONE]),
        ("high", vec![PLAIN, NONE]),
        ("9223372036854775808", vec!["value out of range"]),
    ] {
        let tolerations = json!([{"key": "k", "operator": "Lt", "value": value}]);
        let got = valid.created(relaxed, &valid.with(&[("/spec/template/spec/tolerations", tolerations)]));
        let want = wrong.into_iter().map(|why| {
            let number = if matches!(why, EMPTY | PLAIN) {
                String::new()
            } else {
                format!("strconv.ParseInt: parsing {value:?}: ")
            };
            format!("spec.template.spec.tolerations[0].value: Invalid value: {value:?}: {number}{why}")
        });
        assert_eq!(got, want.collect::<Vec<_>>(), "{value}");
    }
}

/// Gates that are on by default and allow more.
#[test]
fn gates_that_are_off_ask_more() {
    let without = |gate: &str| {
        let gates = FeatureGates::default().with(&BTreeMap::from([(gate.to_owned(), false)])).expect("a gate");
        ValidationOptions::new(&gates)
    };
    let on = ValidationOptions::new(&FeatureGates::default());
    let why = "spec.volumeAttributesClassName: Forbidden: update is forbidden when the VolumeAttributesClass feature gate is disabled";
    let spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "volumeAttributesClassName": "a",
        "csi": {"driver": "d", "volumeHandle": "h"}});
    let volume = Valid::new("/api/v1/persistentvolumes", json!({"spec": spec}));
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeAttributesClassName": "a"});
    let mut claim = Valid::new("/api/v1/namespaces/n/persistentvolumeclaims", json!({"spec": spec}));
    claim.object["status"] = json!({"phase": "Bound"});
    for valid in [volume, claim] {
        let other = valid.with(&[("/spec/volumeAttributesClassName", json!("b"))]);
        assert_eq!(valid.updated(on, &other, &valid.object), [""; 0]);
        assert_eq!(valid.updated(without("VolumeAttributesClass"), &other, &valid.object), [why]);
        assert_eq!(valid.updated(without("VolumeAttributesClass"), &valid.object, &valid.object), [""; 0]);
    }
    let nowhere = deployment();
    let nowhere = nowhere.with(&[("/spec/template/spec/containers/0/env", json!([{"name": "A", "valueFrom": {}}]))]);
    let files = deployment().created(without("EnvFiles"), &nowhere);
    assert!(
        files[0].ends_with("must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`")
    );
    let mut spec = pod_spec();
    spec["nodeName"] = json!("n");
    let pod = Valid::new("/api/v1/namespaces/n/pods", json!({"spec": spec}));
    let nominated = pod.with(&[("/status/nominatedNodeName", json!("m"))]);
    for (relaxed, count) in [(on, 1), (without("ClearingNominatedNodeNameAfterBinding"), 0)] {
        let options = relaxed.for_update(pod.row, &pod.object);
        assert_eq!(
            behavior(pod.row).validate_subresource(options, pod.row, "status", (&nominated, &pod.object)).len(),
            count
        );
    }
}

#[test]
fn services_may_begin_with_a_digit() {
    let body = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}});
    let valid = Valid::new("/api/v1/namespaces/n/services", body);
    let digit = valid.with(&[("/metadata/name", json!("1s"))]);
    assert_eq!(valid.created(ValidationOptions::default(), &digit).len(), 1);
    assert_eq!(valid.created(gated("RelaxedServiceNameValidation"), &digit), [""; 0]);
}

#[test]
fn volumes_may_move() {
    let node = |name: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}]}]}});
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/d"}, "nodeAffinity": node("a")});
    let valid = Valid::new("/api/v1/persistentvolumes", json!({"spec": spec}));
    let moved = valid.with(&[("/spec/nodeAffinity", node("b"))]);
    let refused = valid.updated(ValidationOptions::default(), &moved, &valid.object);
    assert!(
        refused.len() == 1 && refused[0].contains("field is immutable, except for updating from beta label to GA"),
        "{refused:?}"
    );
    assert_eq!(valid.updated(gated("MutablePVNodeAffinity"), &moved, &valid.object), [""; 0]);
}

#[test]
fn suspended_jobs_change() {
    let pod = json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never",
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t"}]}}});
    let spec = json!({"suspend": true, "manualSelector": true, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}});
    let fresh = Valid::new("/apis/batch/v1/namespaces/n/jobs", json!({"spec": spec}));
    let started = fresh.with(&[("/status", json!({"startTime": "2026-01-01T00:00:00Z"}))]);
    let idle = json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Suspended", "status": "True"}]});
    let idle = fresh.with(&[("/status", idle)]);
    let mut busy = idle.clone();
    busy["status"]["active"] = json!(1);
    let placed: Vec<Change> = vec![
        ("/spec/template/spec/nodeSelector", json!({"disk": "ssd"})),
        (
            "/spec/template/spec/affinity/nodeAffinity",
            json!({"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}),
        ),
    ];
    let apart: Vec<Change> = vec![("/spec/template/spec/affinity", json!({}))];
    let larger: Vec<Change> = vec![("/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": "2"}}))];
    let other: Vec<Change> = vec![("/spec/template/spec/containers/0/image", json!("z"))];
    let (off, places) = (ValidationOptions::default(), gated("MutableSchedulingDirectivesForSuspendedJobs"));
    let resources = gated("MutablePodResourcesForSuspendedJobs");
    let table = [
        (off, &fresh.object, &placed, None),
        (off, &fresh.object, &apart, Some("spec.template")),
        (off, &started, &placed, Some("spec.template")),
        (off, &idle, &placed, Some("spec.template")),
        (off, &fresh.object, &larger, Some("spec.template")),
        (places, &idle, &placed, None),
        (places, &busy, &placed, Some("spec.template")),
        // It is the controller who says that a job is suspended.
        (places, &fresh.object, &placed, Some("spec.template")),
        (places, &idle, &larger, Some("spec.template")),
        (resources, &idle, &larger, None),
        (resources, &busy, &larger, Some("spec.template")),
        (resources, &started, &larger, Some("spec.template")),
        (resources, &idle, &other, Some("spec.template.spec")),
    ];
    for (i, (relaxed, old, changes, want)) in table.into_iter().enumerate() {
        let mut new = old.clone();
        for (pointer, value) in changes {
            super::set(&mut new, pointer, value.clone());
        }
        let got = fresh.updated(relaxed, &new, old);
        let fields: Vec<&str> = got.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(fields, want.into_iter().collect::<Vec<_>>(), "{i}: {got:?}");
    }
}

#[test]
fn pods_are_resized_as_a_whole() {
    let resources =
        json!({"requests": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}, "limits": {"hugepages-2Mi": "2Mi"}});
    let mut spec = pod_spec();
    spec["resources"] = resources;
    let mut pod = Valid::new("/api/v1/namespaces/n/pods", json!({"spec": spec}));
    pod.object["status"]["qosClass"] = json!("Burstable");
    let gate = gated("InPlacePodLevelResourcesVerticalScaling");
    let huge =
        json!({"requests": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}});
    let table: [(Change, &[&str]); 4] = [
        (("/spec/resources/requests/cpu", json!("2")), &[]),
        (
            ("/spec/resources/requests/cpu", Value::Null),
            &["spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"],
        ),
        (
            ("/spec/resources", Value::Null),
            &[
                "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing",
                "spec.resources: Forbidden: pod-level resources cannot be removed",
            ],
        ),
        (("/spec/resources", huge), &["spec: Forbidden: only cpu and memory resources are mutable at pod-level"]),
    ];
    for (change, want) in table {
        let new = pod.with(std::slice::from_ref(&change));
        let options = gate.for_update(pod.row, &pod.object);
        let errors = behavior(pod.row).validate_subresource(options, pod.row, "resize", (&new, &pod.object));
        assert_eq!(lines(pod.row, errors), want, "{change:?}");
    }
}
