//! Tables of admission.

use super::*;
use serde_json::json;

fn pod(spec: serde_json::Value) -> Arc<Pod> {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    Arc::new(serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("pod"))
}

fn cpu(amount: &str) -> serde_json::Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]})
}

#[test]
fn a_pod_that_does_not_fit_is_refused_with_a_reason() {
    let node: Node =
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"disk": "ssd"}}})).expect("node");
    let allocatable =
        BTreeMap::from([("cpu".to_owned(), Quantity("2".into())), ("pods".to_owned(), Quantity("3".into()))]);
    let port = json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]});
    let others = [pod(cpu("1500m")), pod(port.clone())];
    let measure = |pressure: Pressure| Measure {
        node: Some(&node),
        allocatable: &allocatable,
        others: &others,
        pressure,
        sysctls: &[],
        tolerations_compare: false,
        going_down: false,
        app_armor: false,
        declared_features: None,
    };
    let calm = measure(Pressure::default());
    let refuse = |pod: &Pod, measure: &Measure<'_>| {
        refuse(pod, measure).or_else(|| shortages(pod, measure).first().map(Shortage::refusal))
    };
    let reason = |spec: serde_json::Value| refuse(&pod(spec), &calm).map(|(reason, _)| reason);
    assert_eq!(reason(json!({})), None);
    assert_eq!(reason(cpu("500m")), None);
    assert_eq!(
        refuse(&pod(cpu("501m")), &calm),
        Some((
            "OutOfcpu".into(),
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000"
                .into()
        ))
    );
    assert_eq!(reason(port).as_deref(), Some("NodePorts"));
    let bound = |ip: &str, protocol: &str| {
        json!({"containers": [{"name": "c", "ports": [
            {"containerPort": 1, "hostPort": 81, "hostIP": ip, "protocol": protocol}]}]})
    };
    let here = [pod(bound("127.0.0.1", "TCP"))];
    let busy = Measure { others: &here, ..calm };
    for (ip, protocol, fits) in [
        ("127.0.0.1", "TCP", false),
        ("0.0.0.0", "TCP", false),
        ("", "TCP", false),
        ("127.0.0.1", "UDP", true),
        ("10.0.0.1", "TCP", true),
    ] {
        assert_eq!(refuse(&pod(bound(ip, protocol)), &busy).is_none(), fits, "{ip} {protocol}");
    }
    assert_eq!(reason(json!({"nodeSelector": {"disk": "hdd"}})).as_deref(), Some("NodeAffinity"));
    let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
    assert_eq!(
        refuse(&pod(strict.clone()), &calm),
        Some((
            "SupplementalGroupsPolicyNotSupported".into(),
            "Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node".into()
        ))
    );
    assert_eq!(reason(json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}})), None);
    let mut able = node.clone();
    able.status = serde_json::from_value(json!({"features": {"supplementalGroupsPolicy": true}})).expect("status");
    assert_eq!(refuse(&pod(strict), &Measure { node: Some(&able), ..measure(Pressure::default()) }), None);
    let armored = pod(json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}));
    assert_eq!(
        refuse_features(&armored, &calm),
        Some((
            "AppArmor".into(),
            "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host".into()
        ))
    );
    assert_eq!(refuse_features(&armored, &Measure { app_armor: true, ..measure(Pressure::default()) }), None);
    assert_eq!(reason(json!({"nodeSelector": {"disk": "ssd"}})), None);
    assert_eq!(reason(json!({"os": {"name": "linux"}})), None);
    assert_eq!(reason(json!({"os": {"name": "windows"}})).as_deref(), Some("PodOSNotSupported"));
    let unsafe_sysctl = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}});
    assert_eq!(
        refuse(&pod(unsafe_sysctl), &calm),
        Some((
            "SysctlForbidden".into(),
            "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted".into()
        ))
    );
    let short = measure(Pressure { memory: true, ..Pressure::default() });
    assert_eq!(refuse(&pod(json!({})), &short).map(|(reason, _)| reason).as_deref(), Some("Evicted"));
    assert_eq!(refuse(&pod(cpu("1m")), &short), None);
    let key = "node.kubernetes.io/memory-pressure";
    for (toleration, fits) in [
        (json!({"key": key, "operator": "Exists"}), true),
        (json!({"key": "", "operator": "Exists", "effect": "NoSchedule"}), true),
        (json!({"key": key, "operator": "Equal", "value": "x"}), false),
        (json!({"key": key, "operator": "Exists", "effect": "NoExecute"}), false),
    ] {
        let tolerant = pod(json!({"tolerations": [toleration]}));
        assert_eq!(refuse(&tolerant, &short).is_none(), fits, "{toleration}");
    }
}

#[test]
fn features_that_the_node_does_not_declare_keep_pods_out() {
    let allocatable = BTreeMap::from([("pods".to_owned(), Quantity("3".into()))]);
    let needs = pod(json!({"containers": [{"name": "c", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]}));
    let has = [declared_features::RESTARTS_ALL.to_owned()];
    let lacks =
        "Pod was rejected: Pod requires node features that are not available: RestartAllContainersOnContainerExits";
    for (declared, refused) in [(None, None), (Some(&has[..]), None), (Some(&[][..]), Some(lacks))] {
        let measure = Measure {
            node: None,
            allocatable: &allocatable,
            others: &[],
            pressure: Pressure::default(),
            sysctls: &[],
            tolerations_compare: false,
            going_down: false,
            app_armor: false,
            declared_features: declared,
        };
        let refusal = refuse(&needs, &measure);
        assert_eq!(refusal, refused.map(|text: &str| ("PodFeatureUnsupported".to_owned(), text.to_owned())));
    }
}

#[test]
fn taints_and_shutdowns_keep_pods_out() {
    let tainted: Node = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": [
        {"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "NoSchedule"}]}}))
    .expect("node");
    let allocatable = BTreeMap::from([("pods".to_owned(), Quantity("3".into()))]);
    let measure = |going_down: bool| Measure {
        node: Some(&tainted),
        allocatable: &allocatable,
        others: &[],
        pressure: Pressure::default(),
        sysctls: &[],
        tolerations_compare: false,
        going_down,
        app_armor: false,
        declared_features: None,
    };
    let reason = |spec: serde_json::Value, going_down: bool| {
        refuse(&pod(spec), &measure(going_down)).map(|(reason, _)| reason).unwrap_or_default()
    };
    assert_eq!(reason(json!({}), false), "TaintToleration");
    assert_eq!(reason(json!({"tolerations": [{"key": "a", "operator": "Exists"}]}), false), "");
    assert_eq!(
        reason(json!({"nodeSelector": {"kubernetes.io/os": "windows"}}), false),
        "PodOSSelectorNodeLabelDoesNotMatch"
    );
    assert_eq!(reason(json!({"tolerations": [{"operator": "Exists"}]}), true), "NodeShutdown");
}

#[test]
fn a_resize_that_does_not_fit_waits_or_is_infeasible() {
    let allocatable =
        BTreeMap::from([("cpu".to_owned(), Quantity("2".into())), ("memory".to_owned(), Quantity("1Gi".into()))]);
    let others = [pod(cpu("1500m"))];
    let none = ExclusiveResources::default();
    let verdict = |spec: serde_json::Value| refuse_resize((&pod(spec), &pod(cpu("1m"))), &allocatable, &others, none);
    let refused = |reason: &str, text: &str| Some((reason.to_owned(), text.to_owned()));
    assert_eq!(verdict(cpu("500m")), None);
    let detail = |spec: serde_json::Value| verdict(spec).and_then(|(reason, text)| infeasible_detail(&reason, &text));
    assert_eq!((detail(cpu("501m")), detail(cpu("3"))), (None, Some("insufficient_node_allocatable")));
    assert_eq!(
        verdict(cpu("501m")),
        refused("Deferred", "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000")
    );
    assert_eq!(
        verdict(cpu("3")),
        refused("Infeasible", "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000")
    );
    let both = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "3", "memory": "2Gi"}}}]});
    assert_eq!(
        verdict(both),
        refused("Infeasible", "Node didn't have enough capacity: memory, requested: 2147483648, capacity: 1073741824")
    );
}

#[test]
fn what_a_static_policy_has_placed_is_not_resized() {
    let guaranteed = |cpu: &str, memory: &str| {
        let amounts = json!({"cpu": cpu, "memory": memory});
        pod(json!({"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}))
    };
    let burstable = |cpu: &str| pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}));
    let quantity = |text: &str| Quantity(text.to_owned());
    let allocatable = BTreeMap::from([("cpu".to_owned(), quantity("4")), ("memory".to_owned(), quantity("4Gi"))]);
    let (cpu, memory) =
        (ExclusiveResources { cpu: true, memory: false }, ExclusiveResources { cpu: false, memory: true });
    let of_cpu = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    let of_memory = "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
    for (wanted, held, exclusive, expected) in [
        (guaranteed("2", "1Gi"), guaranteed("1", "1Gi"), cpu, Some(of_cpu)),
        (guaranteed("1", "2Gi"), guaranteed("1", "1Gi"), cpu, None),
        (guaranteed("1", "2Gi"), guaranteed("1", "1Gi"), memory, Some(of_memory)),
        (guaranteed("2", "1Gi"), guaranteed("1000m", "1024Mi"), memory, None),
        (guaranteed("2", "2Gi"), guaranteed("1", "1Gi"), ExclusiveResources::default(), None),
        (burstable("2"), burstable("1"), cpu, None),
    ] {
        let refusal = refuse_resize((&wanted, &held), &allocatable, &[], exclusive);
        if let (Some((reason, text)), Some(expected)) = (&refusal, expected) {
            let manager = if expected == of_cpu { "cpu" } else { "memory" };
            let detail = format!("guaranteed_pod_{manager}_manager_static_policy");
            assert_eq!(infeasible_detail(reason, text), Some(detail.as_str()));
        }
        let expected = expected.map(|text| ("Infeasible".to_owned(), text.to_owned()));
        assert_eq!(refusal, expected, "{wanted:?}");
    }
}
