//! New objects of the core group, and what pods are asked through their subresources.

use serde_json::{Value, json};

use super::{Change, Valid};

#[test]
fn events_are_judged_before_their_metadata() {
    let (stored, namespace) = super::target("/api/v1/namespaces/n/events");
    let (newer, _) = super::target("/apis/events.k8s.io/v1/namespaces/n/events");
    let event = json!({"metadata": {"name": "x", "uid": "u"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingComponent": "a/b", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal",
        "involvedObject": {"namespace": "n"}});
    let object = super::prepared(stored, &namespace, event);
    let event = Valid { row: stored, object: object.clone() };
    let (label, action): (Change, Change) = (("/metadata/labels", json!({"k": "-"})), ("/action", json!("")));
    let refused = |row, object: &Value| -> Vec<String> {
        let errors = super::validate_create(row, stored, object);
        errors.iter().map(|e| e.field.clone()).collect()
    };
    for (row, changes, fields) in [
        // Through the older API metadata is looked at when nothing else is wrong.
        (stored, vec![label.clone()], vec!["metadata.labels"]),
        (stored, vec![label.clone(), action.clone()], vec!["action"]),
        (newer, vec![label, action], vec!["action", "metadata.labels"]),
        (newer, vec![("/metadata/name", json!("A_B"))], vec!["metadata.name"]),
        (stored, vec![("/metadata/name", json!("A_B"))], vec![]),
    ] {
        assert_eq!(refused(row, &event.with(&changes)), fields, "{} {changes:?}", row.group);
    }
}

/// An event of either API: when it is about what, and where it is.
#[test]
fn namespaces_of_events() {
    let (row, _) = super::target("/api/v1/namespaces/n/events");
    let misplaced = r#"involvedObject.namespace: Invalid value: {}: does not match event.namespace"#;
    for (namespace, about, timed, fits) in [
        ("foo", "bar", false, false),
        ("aoeu-_-aoeu", "aoeu-_-aoeu", false, true),
        ("default", "", false, true),
        ("kube-system", "", false, false),
        ("other", "", false, false),
        ("kube-system", "", true, true),
        ("default", "", true, true),
        ("other", "", true, false),
        ("other", "another", true, true),
    ] {
        let mut event = json!({"metadata": {"name": "x"}, "involvedObject": {"namespace": about}, "reason": "r",
            "reportingComponent": "a", "reportingInstance": "i", "action": "a"});
        if timed {
            event["eventTime"] = json!("2026-01-01T00:00:00.000000Z");
        }
        let event = super::prepared(row, namespace, event);
        let got: Vec<_> = super::validate_create(row, row, &event).iter().map(ToString::to_string).collect();
        let told = got.contains(&misplaced.replace("{}", &format!("{about:?}")));
        assert_eq!(!told, fits, "{namespace} {about} {timed}: {got:?}");
    }
}

#[test]
fn limits() {
    let range = Valid::new("/api/v1/namespaces/n/limitranges", json!({"spec": {"limits": []}}));
    let of = |limit: Value| [("/spec/limits", json!([limit]))];
    let container = |more: Value| {
        let mut limit = json!({"type": "Container"});
        proto::merge::merge_patch::apply(&mut limit, more);
        of(limit)
    };
    range.create(&[
        (
            &container(json!({"min": {"cpu": "5m"}, "max": {"cpu": "100m"}, "default": {"cpu": "50m"},
                "defaultRequest": {"cpu": "10m"}, "maxLimitRequestRatio": {"cpu": "10"}})),
            &[],
        ),
        (&of(json!({"type": "thirdparty.com/foo", "max": {"cpu": "100m"}, "default": {"cpu": "50m"}})), &[]),
        (&of(json!({"type": "PersistentVolumeClaim", "min": {"storage": "5Gi"}})), &[]),
        (
            &[("/spec/limits", json!([{"type": "Pod"}, {"type": "Pod"}]))],
            &[r#"spec.limits[1].type: Duplicate value: "Pod""#],
        ),
        (
            &of(json!({"type": "foo"})),
            &[r#"spec.limits[0].type: Invalid value: "foo": must be a standard limit type or fully qualified"#],
        ),
        (
            &of(json!({"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}})),
            &[
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
            ],
        ),
        (&container(json!({"min": {"cpu": "10m"}, "max": {"cpu": "5m"}})), &[
            r#"spec.limits[0].min[cpu]: Invalid value: "10m": min value 10m is greater than max value 5m"#,
        ]),
        (&container(json!({"min": {"cpu": "100m"}, "max": {"cpu": "1"}, "defaultRequest": {"cpu": "50m"}})), &[
            r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "50m": min value 100m is greater than default request value 50m"#,
        ]),
        (&container(json!({"max": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}})), &[
            r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "2": default request value 2 is greater than max value 1"#,
        ]),
        (&container(json!({"default": {"cpu": "500m"}, "defaultRequest": {"cpu": "800m"}})), &[
            r#"spec.limits[0].defaultRequest[cpu]: Invalid value: "800m": default request value 800m is greater than default limit value 500m"#,
        ]),
        (&container(json!({"min": {"cpu": "1"}, "max": {"cpu": "3"}, "default": {"cpu": "4"}})), &[
            r#"spec.limits[0].default[cpu]: Invalid value: "3": default value 4 is greater than max value 3"#,
        ]),
        (&container(json!({"maxLimitRequestRatio": {"cpu": "800m"}})), &[
            r#"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "800m": ratio 800m is less than 1"#,
        ]),
        (&container(json!({"min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "10"}})), &[
            r#"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "10": ratio 10 is greater than max/min = 2.000000"#,
        ]),
        (&container(json!({"default": {"a.b/c": "2"}, "defaultRequest": {"a.b/c": "1"}})), &[
            r#"spec.limits[0].defaultRequest[a.b/c]: Invalid value: "1": default value 2 must equal to defaultRequest value 1 in a.b/c"#,
        ]),
        (&of(json!({"type": "PersistentVolumeClaim"})), &[
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
        ]),
    ]);
}

#[test]
fn scopes_of_quotas() {
    let quota = |hard: Value, scopes: Value| {
        let (row, namespace) = super::target("/api/v1/namespaces/n/resourcequotas");
        let body = json!({"metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": scopes}});
        let errors = super::validate_create(row, row, &super::prepared(row, &namespace, body));
        errors.iter().map(|e| e.body()).collect::<Vec<_>>()
    };
    let no = |scopes: &str, why: &str| format!("Invalid value: {scopes}: {why}");
    let applied = "unsupported scope applied to resource";
    for (hard, scopes, want) in [
        (json!({"cpu": "1", "pods": "1", "a.b/c": "1"}), json!(["Terminating"]), vec![]),
        (json!({"pods": "1"}), json!(["BestEffort"]), vec![]),
        (json!({"cpu": "1"}), json!(["BestEffort"]), vec![no(r#"["BestEffort"]"#, applied)]),
        (json!({"services": "1"}), json!(["NotBestEffort"]), vec![no(r#"["NotBestEffort"]"#, applied)]),
        (json!({"requests.storage": "1"}), json!(["VolumeAttributesClass"]), vec![]),
        (json!({"pods": "1"}), json!(["VolumeAttributesClass"]), vec![no(r#"["VolumeAttributesClass"]"#, applied)]),
        (
            json!({"pods": "1"}),
            json!(["Terminating", "NotTerminating"]),
            vec![no(r#"["Terminating","NotTerminating"]"#, "conflicting scopes")],
        ),
        (json!({"pods": "1"}), json!(["Odd"]), vec![no(r#"["Odd"]"#, "unsupported scope")]),
    ] {
        assert_eq!(quota(hard.clone(), scopes.clone()), want, "{hard} {scopes}");
    }
}

#[test]
fn addresses_of_endpoints() {
    let endpoints = Valid::new("/api/v1/namespaces/n/endpoints", json!({}));
    let port = || json!({"name": "a", "port": 80, "protocol": "TCP"});
    let subset = |more: Value| {
        let mut subset = json!({"addresses": [{"ip": "10.10.1.1"}], "ports": [port()]});
        proto::merge::merge_patch::apply(&mut subset, more);
        [("/subsets", json!([subset]))]
    };
    let special = |ip: &str, why: &str| format!("subsets[0].addresses[0].ip: Invalid value: {ip:?}: may not be {why}");
    let at = |ip: &str| subset(json!({"addresses": [{"ip": ip}]}));
    let local = "in the link-local range (169.254.0.0/16, fe80::/10)";
    let multicast = "in the link-local multicast range (224.0.0.0/24, ff02::/10)";
    endpoints.create(&[
        (&subset(json!({})), &[]),
        (&subset(json!({"ports": null})), &[]),
        (&subset(json!({"addresses": null, "notReadyAddresses": [{"ip": "10.10.1.1"}]})), &[]),
        (
            &subset(json!({"addresses": null})),
            &["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"],
        ),
        (&at("127.0.0.1"), &[&special("127.0.0.1", "in the loopback range (127.0.0.0/8, ::1/128)")]),
        (&at("169.254.169.254"), &[&special("169.254.169.254", local)]),
        (&at("224.0.0.1"), &[&special("224.0.0.1", multicast)]),
        (&at("::"), &[&special("::", "unspecified (::)")]),
        (
            &subset(json!({"ports": [port(), {"port": 81, "protocol": "TCP"}]})),
            &["subsets[0].ports[1].name: Required value"],
        ),
        (
            &subset(json!({"ports": [{"port": 66000, "protocol": "SCTPX"}]})),
            &[
                "subsets[0].ports[0].port: Invalid value: 66000: must be between 1 and 65535, inclusive",
                r#"subsets[0].ports[0].protocol: Unsupported value: "SCTPX": supported values: "SCTP", "TCP", "UDP""#,
            ],
        ),
    ]);
    // What is there may stay as long as all of it stays.
    let mut odd = Valid::new("/api/v1/namespaces/n/endpoints", json!({}));
    odd.object = odd.with(&at("127.0.0.1"));
    odd.update(&[
        (&[("/metadata/labels", json!({"a": "b"}))], &[]),
        (&at("127.0.0.2"), &[&special("127.0.0.2", "in the loopback range (127.0.0.0/8, ::1/128)")]),
    ]);
}

#[test]
fn kinds_of_secrets() {
    let (row, namespace) = super::target("/api/v1/namespaces/n/secrets");
    let json_ok = "eyJhdXRocyI6e319";
    for (kind, data, want) in [
        ("Opaque", json!({"..": "eA=="}), vec![r#"data[..]: Invalid value: "..": must not be '..'"#]),
        ("kubernetes.io/dockercfg", json!({}), vec!["data[.dockercfg]: Required value"]),
        ("kubernetes.io/dockercfg", json!({".dockercfg": json_ok}), vec![]),
        (
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": ""}),
            vec![
                r#"data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": unexpected end of JSON input"#,
            ],
        ),
        (
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": "W10="}),
            vec![
                r#"data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": json: cannot unmarshal array into Go value of type map[string]interface {}"#,
            ],
        ),
        (
            "kubernetes.io/basic-auth",
            json!({}),
            vec!["data[username]: Required value", "data[password]: Required value"],
        ),
        ("kubernetes.io/basic-auth", json!({"password": "eA=="}), vec![]),
        ("kubernetes.io/ssh-auth", json!({"ssh-privatekey": ""}), vec!["data[ssh-privatekey]: Required value"]),
        ("kubernetes.io/tls", json!({"tls.crt": ""}), vec!["data[tls.key]: Required value"]),
        (
            "kubernetes.io/service-account-token",
            json!({}),
            vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        ),
    ] {
        let body = json!({"metadata": {"name": "s"}, "type": kind, "data": data});
        let errors = super::validate_create(row, row, &super::prepared(row, &namespace, body));
        assert_eq!(super::lines(row, errors), want, "{kind} {data}");
    }
}

fn pod(spec: Value) -> Valid {
    Valid::new("/api/v1/namespaces/n/pods", json!({"spec": spec}))
}

fn refused(old: &Valid, through: &str, changes: &[Change]) -> Vec<String> {
    super::lines(old.row, super::validate_subresource(old.row, through, &old.with(changes), &old.object))
}

/// A pod is a static one as soon as it says so, with whatever value.
#[test]
fn static_pods() {
    let mut mirror = pod(super::pod_spec());
    mirror.object["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": ""});
    let cpu: &[Change] = &[("/spec/containers/0/resources", json!({"requests": {"cpu": "1"}}))];
    assert_eq!(refused(&mirror, "resize", cpu), ["[]: Forbidden: static pods cannot be resized"]);
    assert_eq!(
        refused(&mirror, "ephemeralcontainers", &[]),
        ["[]: Forbidden: static pods do not support ephemeral containers"]
    );
}

/// Upstream's table of resizes, by the resources of the container before and after.
#[test]
fn resizes() {
    let (class, only) = (
        |class: &str| format!("spec: Invalid value: {class:?}: Pod QOS Class may not change as a result of resizing"),
        "spec: Forbidden: only cpu and memory resources are mutable".to_owned(),
    );
    let gone = |key: &str| format!("spec.containers[0].resources.{key}: Forbidden: resource {key} cannot be removed");
    let both = |cpu: &str, memory: &str| {
        let list = json!({"cpu": cpu, "memory": memory});
        json!({"requests": list, "limits": list})
    };
    let requests = |list: Value| json!({"requests": list});
    for (was, now, of, want) in [
        (both("100m", "100Mi"), both("200m", "50Mi"), "Guaranteed", vec![]),
        (
            both("100m", "100Mi"),
            requests(json!({"cpu": "1", "memory": "1Mi"})),
            "Guaranteed",
            vec![class("Guaranteed"), gone("limits")],
        ),
        (requests(json!({"cpu": "1"})), requests(json!({"cpu": "2", "memory": "1Mi"})), "Burstable", vec![]),
        (
            requests(json!({"cpu": "1", "memory": "1Mi"})),
            requests(json!({"cpu": "1"})),
            "Burstable",
            vec![gone("requests")],
        ),
        (requests(json!({"cpu": "1"})), json!({}), "Burstable", vec![class("Burstable"), gone("requests")]),
        (json!({}), requests(json!({"cpu": "1"})), "BestEffort", vec![class("BestEffort")]),
        (
            requests(json!({"cpu": "1", "ephemeral-storage": "1Gi"})),
            requests(json!({"cpu": "1", "ephemeral-storage": "2Gi"})),
            "Burstable",
            vec![only],
        ),
    ] {
        let mut old = pod(json!({"containers": [{"name": "c", "image": "i", "resources": was}]}));
        old.object["status"]["qosClass"] = json!(of);
        assert_eq!(refused(&old, "resize", &[("/spec/containers/0/resources", now.clone())]), want, "{was} {now}");
    }
    let mut windows = pod(json!({"os": {"name": "windows"}, "containers": [{"name": "c", "image": "i"}]}));
    windows.object["status"]["qosClass"] = json!("BestEffort");
    assert_eq!(refused(&windows, "resize", &[]), ["[]: Forbidden: windows pods cannot be resized"]);
}

#[test]
fn classes_in_the_status() {
    let mut old = pod(super::pod_spec());
    let change: &[Change] = &[("/status/qosClass", json!("Burstable"))];
    let stays = r#"status.qosClass: Invalid value: "Burstable": field is immutable"#;
    // Also where none was there.
    assert_eq!(refused(&old, "status", change), [stays]);
    old.object["status"]["qosClass"] = json!("BestEffort");
    assert_eq!(refused(&old, "status", change), [stays]);
    assert_eq!(refused(&old, "status", &[("/status/phase", json!("Running"))]), [""; 0]);
}

#[test]
fn networks_of_nodes() {
    let node = Valid::new("/api/v1/nodes", json!({}));
    let of = |networks: Value| [("/spec/podCIDRs", networks)];
    let one = |networks: &str| {
        format!("spec.podCIDRs: Invalid value: {networks}: may specify no more than one CIDR for each IP family")
    };
    node.create(&[
        (&of(json!(["192.168.0.0/16"])), &[]),
        (&of(json!(["192.168.0.0/16", "2000::/10"])), &[]),
        (&of(json!(["192.168.0.0/16", "10.0.0.0/8"])), &[&one(r#"["192.168.0.0/16","10.0.0.0/8"]"#)]),
        (&of(json!(["192.168.0.0/16", "192.168.0.0/16"])), &[&one(r#"["192.168.0.0/16","192.168.0.0/16"]"#)]),
        (&of(json!(["10.0.0.0/8", "2000::/10", "2001::/32"])), &[&one(r#"["10.0.0.0/8","2000::/10","2001::/32"]"#)]),
        (&of(json!(["10.0.0.0/8", "x"])), &[
            r#"spec.podCIDRs[1]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
            "spec.podCIDRs: Internal error: invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[1]: <nil> (invalid CIDR address: x)",
            &one(r#"["10.0.0.0/8","x"]"#),
        ]),
    ]);
}
