//! Tests of pod updates: gated pods, resizes, status, ephemeral containers.

use serde_json::{Value, json};

use super::Valid;

const PODS: &str = "/api/v1/namespaces/n/pods";
const ONLY: &str = "only cpu and memory resources are mutable";

fn pod(spec: Value) -> Valid {
    Valid::new(PODS, json!({"spec": spec}))
}

/// The errors of changes through the pod or a sub-resource, without what they show of the difference.
fn refused(pod: &Valid, through: &str, changes: &[super::Change]) -> Vec<String> {
    let object = pod.with(changes);
    let errors = match through {
        "" => super::validate_update(pod.row, pod.row, &object, &pod.object),
        name => super::validate_subresource(pod.row, name, &object, &pod.object),
    };
    super::lines(pod.row, errors).iter().map(|e| e.split("\n@@").next().unwrap_or(e).to_owned()).collect()
}

#[test]
fn other_containers() {
    let pod = pod(json!({"containers": [{"name": "c", "image": "i"}], "activeDeadlineSeconds": 9}));
    // Another name is a change like any other.
    let renamed = refused(&pod, "", &[("/spec/containers/0/name", json!("d"))]);
    assert!(renamed[0].starts_with("spec: Forbidden: pod updates may not change fields other than"), "{renamed:?}");
    // What is wrong by itself does not hide what else changed.
    let twice = refused(&pod, "", &[("/spec/schedulingGates", json!([{"name": "g"}])), ("/spec/hostname", json!("h"))]);
    assert_eq!(twice.len(), 2, "{twice:?}");
    assert!(twice[1].starts_with("spec: Forbidden: pod updates"), "{twice:?}");
    let later = refused(&pod, "", &[("/spec/activeDeadlineSeconds", json!(10)), ("/spec/hostname", json!("h"))]);
    assert_eq!(later, ["spec.activeDeadlineSeconds: Invalid value: 10: must be less than or equal to previous value"]);
}

#[test]
fn gated_pods_may_narrow_node_selection() {
    let affinity = |terms: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let preferred = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]}});
    let gated = |affinity: Value| {
        pod(
            json!({"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "g"}], "affinity": affinity}),
        )
    };
    let wish = json!({"matchExpressions": [{"key": "k", "operator": "Exists"}]});
    // What was only preferred may go; what was asked for may not.
    assert!(refused(&gated(preferred), "", &[("/spec/affinity", Value::Null)]).is_empty());
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    assert_eq!(
        refused(&gated(affinity(json!([wish]))), "", &[("/spec/affinity", Value::Null)]),
        [format!("{at}: Invalid value: []: no additions/deletions to non-empty NodeSelectorTerms list are allowed")]
    );
    assert!(refused(&gated(Value::Null), "", &[("/spec/affinity", affinity(json!([wish])))]).is_empty());
    // A term without expressions matches nothing; with some it would match more.
    let got = refused(&gated(affinity(json!([{}]))), "", &[("/spec/affinity", affinity(json!([wish])))]);
    assert_eq!(got.len(), 1);
    assert!(got[0].ends_with("only additions are allowed (no mutations or deletions)"), "{got:?}");
}

#[test]
fn resize() {
    let requests = json!({"requests": {"cpu": "1", "memory": "1Mi"}});
    let mut resized = pod(json!({
        "containers": [{"name": "a", "image": "i", "resources": requests}, {"name": "b", "image": "i", "resources": requests}],
        "initContainers": [
            {"name": "first", "image": "i"},
            {"name": "beside", "image": "i", "restartPolicy": "Always", "resources": requests},
        ],
    }));
    resized.object["status"]["qosClass"] = json!("Burstable");
    let no_init = "spec: Forbidden: resources for non-sidecar init containers are immutable";
    let table: [(&[super::Change], &[&str]); 8] = [
        (&[("/spec/containers/0/resources/limits", json!({"cpu": "2"}))], &[]),
        (
            &[("/spec/containers/0/image", json!("j")), ("/spec/containers/1/image", json!("j"))],
            &[
                "spec: Forbidden: only cpu and memory resources are mutable",
                "spec: Forbidden: only cpu and memory resources are mutable",
            ],
        ),
        (&[("/spec/initContainers/0/image", json!("j"))], &[no_init]),
        (&[("/spec/initContainers/0/resources/requests", json!({"cpu": "1"}))], &[no_init]),
        (
            &[("/spec/initContainers/1/image", json!("j"))],
            &["spec: Forbidden: only cpu and memory resources for sidecar containers are mutable"],
        ),
        (
            &[("/spec/containers/1/name", json!("c"))],
            &["spec.containers[1].name: Forbidden: containers may not be renamed or reordered on resize"],
        ),
        (
            &[("/spec/containers/1", Value::Null), ("/spec/initContainers/1", Value::Null)],
            &[
                "spec.containers: Forbidden: containers may not be added or removed on resize",
                "spec.initContainers: Forbidden: initContainers may not be added or removed on resize",
            ],
        ),
        (
            &[("/spec/resources", json!({"requests": {"cpu": "9"}}))],
            &[
                "[]: Forbidden: resize of pods with pod-level resources is forbidden when InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled",
            ],
        ),
    ];
    resized.sub("resize", &table);
    // The first running container tells of the node.
    resized.object["status"]["containerStatuses"] = json!([
        {"name": "a", "state": {"running": {}}, "resources": {}}, {"name": "b", "state": {"running": {}}}]);
    resized.sub("resize", &[(&[("/spec/containers/0/resources/requests/cpu", json!("2"))], &[])]);
    // Who has claims cannot be resized.
    let claims = json!({"requests": {"cpu": "1"}, "claims": [{"name": "r"}]});
    let mut claiming = pod(json!({
        "containers": [{"name": "a", "image": "i", "resources": claims}],
        "resourceClaims": [{"name": "r", "resourceClaimName": "r"}],
    }));
    claiming.object["status"]["qosClass"] = json!("Burstable");
    let no = format!("spec: Forbidden: {ONLY}");
    claiming.sub("resize", &[(&[("/spec/containers/0/resources/requests/cpu", json!("2"))], &[&no])]);
}

#[test]
fn ended_containers() {
    let rule = |codes: Value| json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": codes}}]);
    let mut ended = pod(json!({
        "restartPolicy": "OnFailure",
        "containers": [
            {"name": "a", "image": "i"},
            {"name": "b", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rule(json!([3]))},
        ],
        "initContainers": [{"name": "i", "image": "i"}, {"name": "s", "image": "i", "restartPolicy": "Always"}],
    }));
    let status = |name: &str, code: i64| json!({"name": name, "state": {"terminated": {"exitCode": code}}});
    let running = |name: &str| json!([{"name": name, "state": {"running": {}}}]);
    let why = "Forbidden: may not be transitioned to non-terminated state";
    for (kind, name, code, allowed) in [
        ("containerStatuses", "a", 1, true),
        ("containerStatuses", "a", 0, false),
        ("containerStatuses", "b", 3, true),
        ("containerStatuses", "b", 4, false),
        ("containerStatuses", "unknown", 1, false),
        ("initContainerStatuses", "i", 0, false),
        ("initContainerStatuses", "unknown", 1, false),
        ("initContainerStatuses", "i", 1, true),
        ("initContainerStatuses", "s", 0, true),
        ("ephemeralContainerStatuses", "e", 1, false),
    ] {
        ended.object["status"] = json!({kind: [status(name, code)]});
        let pointer: &'static str = Box::leak(format!("/status/{kind}").into_boxed_str());
        let want = if allowed { vec![] } else { vec![format!("status.{kind}[0].state: {why}")] };
        assert_eq!(refused(&ended, "status", &[(pointer, running(name))]), want, "{kind} {name} {code}");
    }
    // A rule of any container may restart them all.
    let all = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [9]}}]);
    let mut together = pod(json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}));
    together.object["status"] =
        json!({"containerStatuses": [status("a", 1)], "ephemeralContainerStatuses": [status("e", 1)]});
    let pointer = "/status/containerStatuses";
    assert_eq!(refused(&together, "status", &[(pointer, running("a"))]).len(), 1);
    together.object["spec"]["containers"][0]["restartPolicyRules"] = all;
    assert_eq!(refused(&together, "status", &[(pointer, running("a"))]), [""; 0]);
    assert_eq!(refused(&together, "status", &[("/status/ephemeralContainerStatuses", running("e"))]).len(), 1);
    // One sidecar does not free the others.
    ended.object["status"] = json!({"initContainerStatuses": [status("s", 0), status("i", 0)]});
    let got = refused(&ended, "status", &[("/status/initContainerStatuses", running("i"))]);
    assert_eq!(got, [format!("status.initContainerStatuses[1].state: {why}")]);
}

#[test]
fn status() {
    let mut bound = pod(json!({"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}));
    bound.object["status"] = json!({"nominatedNodeName": "X Y"});
    bound.sub("status", &[
        // What is there may stay.
        (&[("/status/phase", json!("Running"))], &[]),
        (&[("/status/nominatedNodeName", json!("m"))], &[
            "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node",
        ]),
        (&[("/status/observedGeneration", json!(-1))], &[
            "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
        ]),
        (&[("/status/conditions", json!([{"type": "Ready", "status": "True", "observedGeneration": -2}]))], &[
            "status.conditions[0].observedGeneration: Invalid value: -2: must be a non-negative integer",
        ]),
        (&[("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}]))], &[
            r#"status.podIPs: Invalid value: [{"IP":"10.0.0.1"},{"IP":"10.0.0.1"}]: may specify no more than one IP for each IP family"#,
        ]),
        (&[("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "fd00::2"}]))], &[
            r#"status.podIPs: Invalid value: [{"IP":"10.0.0.1"},{"IP":"fd00::1"},{"IP":"fd00::2"}]: may specify no more than one IP for each IP family"#,
        ]),
        (&[("/status/hostIP", json!("10.0.0.1")), ("/status/hostIPs", json!([{"ip": "10.0.0.1"}, {"ip": "x"}]))], &[
            r#"status.hostIPs[1]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
            "status.hostIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x",
            r#"status.hostIPs: Invalid value: [{"IP":"10.0.0.1"},{"IP":"x"}]: may specify no more than one IP for each IP family"#,
        ]),
    ]);
    // An address that was there before may be anything.
    let mut odd = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    odd.object["status"] = json!({"podIPs": [{"ip": "x"}], "hostIP": "y", "hostIPs": [{"ip": "y"}]});
    odd.sub("status", &[(&[("/status/phase", json!("Running"))], &[])]);
    let odd = refused(&bound, "status", &[("/status/conditions", json!([{"type": "a b", "status": "True"}]))]);
    assert!(
        odd[0].starts_with(r#"status.conditions[0].Type: Invalid value: "a b": name part must consist"#),
        "{odd:?}"
    );
}

#[test]
fn claims_for_extended_resources() {
    let asks = json!({"requests": {"a.b/gpu": "1"}, "limits": {"a.b/gpu": "1"}});
    let pod = pod(json!({"containers": [{"name": "c", "image": "i", "resources": asks}]}));
    let mapping =
        |fields: [&str; 3]| json!({"containerName": fields[0], "resourceName": fields[1], "requestName": fields[2]});
    let claim = |name: &str, mappings: Value| {
        [("/status/extendedResourceClaimStatus", json!({"resourceClaimName": name, "requestMappings": mappings}))]
    };
    let fine = mapping(["c", "a.b/gpu", "r"]);
    let at = "status.extendedResourceClaimStatus";
    let twice = |field: &str, value: &str| format!("{at}.requestMappings[1].{field}: Duplicate value: {value:?}");
    pod.sub("status", &[
        (&claim("x", json!([fine, mapping(["c", "a.b/gpu", "s"])])), &[]),
        (&claim("", json!([])), &[
            &format!("{at}.requestMappings: Required value: at least one request mapping is required"),
            &format!("{at}.resourceClaimName: Required value"),
        ]),
        (&claim("x", json!([mapping(["d", "a.b/gpu", "r"]), mapping(["c", "cpu", "r"])])), &[
            &format!(r#"{at}.requestMappings[0].containerName: Invalid value: "d": must match the name of an entry in spec.initContainers.name or spec.containers.name"#),
            &format!(r#"{at}.requestMappings[1].resourceName: Invalid value: "cpu": must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"#),
        ]),
        (&claim("x", json!([fine, fine])), &[
            &twice("containerName", "c"),
            &twice("resourceName", "a.b/gpu"),
            &twice("requestName", "r"),
        ]),
        (&claim("x", json!([mapping(["c", "a.b/gpu", "a.b"])])), &[
            &format!(r#"{at}.requestName: Invalid value: "a.b": must not contain dots"#),
        ]),
    ]);
}

#[test]
fn metadata_of_changed_pods() {
    let pod = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    let label: &[super::Change] = &[("/metadata/labels", json!({"a": "-"}))];
    // Upstream looks at that of all kinds twice, at a pod's beside what it was, and, where the pod is judged, by
    // itself.
    for (through, times) in [("", 4), ("resize", 4), ("ephemeralcontainers", 4), ("status", 3)] {
        assert_eq!(refused(&pod, through, label).len(), times, "{through}");
    }
}

#[test]
fn annotations_of_changed_pods() {
    const COST: &str = "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost";
    const ARMOR: &str = "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1c";
    let pod = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    let cost = r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer"#;
    let armor = "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Forbidden: may not add AppArmor annotations";
    // An update is judged as a whole and by what it changes.
    assert_eq!(refused(&pod, "", &[(COST, json!("x"))]), [cost, cost]);
    for through in ["", "status"] {
        assert_eq!(refused(&pod, through, &[(COST, json!("1"))]), [""; 0]);
        assert_eq!(refused(&pod, through, &[(ARMOR, json!("unconfined"))]), [armor]);
    }
    assert_eq!(refused(&pod, "status", &[(COST, json!("x"))]), [cost]);
}

#[test]
fn ephemeral_containers() {
    let mut pod = pod(json!({"containers": [{"name": "c", "image": "i"}]}));
    let one = json!({"name": "e", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"});
    pod.object["spec"]["ephemeralContainers"] = json!([one]);
    let pointer = "/spec/ephemeralContainers";
    assert_eq!(
        refused(&pod, "ephemeralcontainers", &[(pointer, Value::Null)]),
        ["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be removed\n"]
    );
    let mut other = one.clone();
    other["image"] = json!("j");
    let errors = super::validate_subresource(
        pod.row,
        "ephemeralcontainers",
        &pod.with(&[(pointer, json!([other]))]),
        &pod.object,
    );
    let lines = super::lines(pod.row, errors);
    assert_eq!(lines.len(), 1);
    let want = "existing ephemeral containers \"e\" may not be changed\n@@ -1,6 +1,6 @@\n {\n  \"Name\": \"e\",\n- \"Image\": \"i\",\n+ \"Image\": \"j\",\n";
    assert!(lines[0].contains(want), "{}", lines[0]);
}
