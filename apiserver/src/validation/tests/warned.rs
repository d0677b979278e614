//! Tests of warnings.

use proto::Value;
use serde_json::json;
use shared::flags::FlagSet;

use super::{prepared, target, warnings};
use crate::validation::ValidationOptions;

/// Warnings about a new object at a collection.
fn about(collection: &str, object: Value) -> Vec<String> {
    let (row, namespace) = target(collection);
    warnings(row, "", &prepared(row, &namespace, object), None)
}

fn about_pod(spec: Value) -> Vec<String> {
    about("/api/v1/namespaces/n/pods", json!({"metadata": {"name": "p"}, "spec": spec}))
}

#[test]
fn pods_are_warned_about() {
    let containers = json!([{"name": "c", "image": "i", "env": [{"name": "A"}, {"name": "A"}, {"name": "A", "value": "$(A)"}, {"name": "A", "value": "$(A) b"}]}]);
    let object = json!({"metadata": {"name": "a.b"}, "spec": {"containers": containers,
        "nodeSelector": {"beta.kubernetes.io/os": "linux"}, "overhead": {"memory": "4m"},
        "volumes": [{"name": "v", "rbd": {"image": "i", "monitors": ["m"]}}, {"name": "w", "storageos": {}}]}});
    assert_eq!(
        about("/api/v1/namespaces/n/pods", object),
        [
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
            "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
            "spec.overhead[memory]: fractional byte value \"4m\" is invalid, must be an integer",
            "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
        ]
    );
}

#[test]
fn node_selector_term_warnings() {
    let old = json!({"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}]});
    let spec = json!({"affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [old]}},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "t"}}]}},
        "topologySpreadConstraints": [{"topologyKey": "beta.kubernetes.io/os", "labelSelector": {}}]});
    assert_eq!(
        about_pod(spec),
        [
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
            "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod",
        ]
    );
}

#[test]
fn values_that_no_label_has_are_not_preferred() {
    let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": ["a", "-"]}]});
    let spec = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}}});
    let got = about_pod(spec);
    let at = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[1]";
    assert_eq!(got.len(), 1, "{got:?}");
    assert!(got[0].starts_with(&format!("{at}: - is invalid, a valid label must be an empty string or")), "{got:?}");
}

#[test]
fn duplicate_port_warnings() {
    let ports = |ports: Value| json!({"name": "c", "image": "i", "ports": ports});
    let table = [
        (
            json!([{"containerPort": 80}]),
            json!([{"containerPort": 80}]),
            "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
        ),
        (
            json!([{"containerPort": 80, "hostPort": 80}]),
            json!([{"containerPort": 80}]),
            "spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[0]",
        ),
        (
            json!([{"containerPort": 80, "hostPort": 80}]),
            json!([{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}]),
            "spec.containers[1].ports[0]: dangerously ambiguous port definition with spec.containers[0].ports[0]",
        ),
        (
            json!([{"containerPort": 80, "name": "a"}]),
            json!([{"containerPort": 81, "name": "a"}]),
            "spec.containers[1].ports[0]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
        ),
        (
            json!([]),
            json!([{"containerPort": 80, "hostIP": "10.0.0.1"}]),
            "spec.containers[1].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:10.0.0.1}",
        ),
    ];
    for (one, other, want) in table {
        assert_eq!(about_pod(json!({"containers": [ports(one), ports(other)]})), [want]);
    }
    // Whose containers run one after the other have definitions in common, and no names.
    let init = |policy: Value| json!({"name": "i", "image": "i", "restartPolicy": policy, "ports": [{"containerPort": 80, "name": "a", "hostIP": "10.0.0.1"}]});
    let spec = |policy| json!({"initContainers": [init(policy)], "containers": [ports(json!([{"containerPort": 80, "name": "a"}]))]});
    let (one, other) = ("spec.containers[0].ports[0]", "spec.initContainers[0].ports[0]");
    let lone = format!(
        "{other}: hostIP set without hostPort: {{Name:a HostPort:0 ContainerPort:80 Protocol:TCP HostIP:10.0.0.1}}"
    );
    let over = format!("{one}: overlapping port definition with {other}");
    let named = format!(
        "{one}: duplicate port name \"a\" with {other}, services and probes that select ports by name will use {other}"
    );
    assert_eq!(about_pod(spec(Value::Null)), [lone.clone(), over.clone()]);
    assert_eq!(about_pod(spec(json!("Always"))), [lone, over, named]);
    let apart = json!([{"containerPort": 80, "hostPort": 80}, {"containerPort": 80, "hostPort": 81}, {"containerPort": 80, "protocol": "UDP"}]);
    assert_eq!(about_pod(json!({"containers": [ports(apart)]})), [""; 0]);
}

#[test]
fn files_in_each_others_way() {
    let map = |items: Value| json!([{"name": "v", "configMap": {"name": "m", "items": items}}]);
    let projected = json!([{"name": "v", "projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "a"}]}},
        {"serviceAccountToken": {"path": "a/b"}}, {}]}}]);
    let table = [
        (
            map(json!([{"key": "k", "path": "a/"}, {"key": "l", "path": "a"}])),
            vec!["volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a\" with \"a\""],
        ),
        (map(json!([{"key": "k", "path": "d/a"}, {"key": "l", "path": "d/ab"}])), vec![]),
        (
            projected,
            vec![
                "volume \"v\" (Projected): overlapping paths: \"a/b\" (ServiceAccountToken) with \"a\" (Secret \"s\")",
                "volume \"v\" (Projected) has no sources provided",
            ],
        ),
    ];
    for (volumes, want) in table {
        assert_eq!(about_pod(json!({"volumes": volumes})), want);
    }
}

#[test]
fn deprecated_volume_warnings() {
    let map = json!({"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "a"}, {"key": "l", "path": "a"}]}});
    let spec = json!({"volumes": [map, {"name": "w", "gitRepo": {"repository": "r"}}]});
    let files = "volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a\" with \"a\"";
    for (gates, what) in [
        ("", "deprecated in v1.11, and disabled by default in v1.33+"),
        ("--feature-gates=GitRepoVolumeDriver=true", "deprecated in v1.11"),
    ] {
        let flags: Vec<&str> = [gates].into_iter().filter(|flag| !flag.is_empty()).collect();
        let gates = FlagSet::of("kube-apiserver", &flags).expect("flags").feature_gates();
        let (row, namespace) = target("/api/v1/namespaces/n/pods");
        let pod = prepared(row, &namespace, json!({"metadata": {"name": "x"}, "spec": spec}));
        let told = crate::registry::behavior(row).warnings(ValidationOptions::new(&gates), row, "", &pod, None);
        assert_eq!(told, [format!("spec.volumes[1].gitRepo: {what}"), files.to_owned()]);
    }
}

#[test]
fn other_kinds_are_warned_about() {
    let old = "volume.beta.kubernetes.io/storage-class";
    let table = [
        (
            "/api/v1/persistentvolumes",
            json!({"metadata": {"annotations": {old: "x"}}, "spec": {"persistentVolumeReclaimPolicy": "Recycle", "cephfs": {"monitors": ["m"]}}}),
            vec![
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead",
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
            ],
        ),
        ("/api/v1/persistentvolumes", json!({"spec": {"quobyte": {"registry": "r:1", "volume": "v"}}}), vec![]),
        (
            "/apis/node.k8s.io/v1/runtimeclasses",
            json!({"handler": "h", "scheduling": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}}),
            vec!["scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/os\" instead"],
        ),
        (
            "/apis/storage.k8s.io/v1/namespaces/n/csistoragecapacities",
            json!({"storageClassName": "c", "nodeTopology": {"matchLabels": {"beta.kubernetes.io/os": "linux"},
                "matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]}}),
            vec![
                "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ],
        ),
        (
            "/api/v1/namespaces/n/persistentvolumeclaims",
            json!({"spec": {"resources": {"requests": {"storage": "200m"}}}}),
            vec!["spec.resources.requests[storage]: fractional byte value \"200m\" is invalid, must be an integer"],
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "failure-domain.beta.kubernetes.io/zone", "values": ["z"]}]}]}),
            vec![
                "allowedTopologies[0].matchLabelExpressions[0].key: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
            ],
        ),
        (
            "/api/v1/namespaces/n/resourcequotas",
            json!({"spec": {"hard": {"cpu": "2", "limits.cpu": "1", "requests.memory": "1Gi", "limits.memory": "1Gi"}}}),
            vec!["ResourceQuota cpu (2) should be less than limits.cpu (1)"],
        ),
        (
            "/api/v1/namespaces/n/secrets",
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}}),
            vec!["tls: failed to find any PEM data in certificate input"],
        ),
        (
            "/apis/storage.k8s.io/v1/csidrivers",
            json!({"spec": {"tokenRequests": [{"audience": "a"}]}}),
            vec![
                "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes",
            ],
        ),
        (
            "/apis/batch/v1/namespaces/n/jobs",
            json!({"spec": {"completionMode": "Indexed", "completions": 100_001, "parallelism": 10_001}}),
            vec![
                "spec: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
            ],
        ),
        (
            "/api/v1/nodes",
            json!({"spec": {"externalID": "x"}}),
            vec!["spec.externalID: this field is deprecated, and is unused by Kubernetes"],
        ),
        (
            "/api/v1/namespaces/n/serviceaccounts",
            json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}),
            vec![
                "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets",
            ],
        ),
        (
            "/apis/apps/v1/namespaces/n/statefulsets",
            json!({"spec": {"revisionHistoryLimit": -1}}),
            vec![
                "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended",
            ],
        ),
        (
            "/apis/apps/v1/namespaces/n/deployments",
            json!({"metadata": {"name": "a.b"}, "spec": {"template": {"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "x"}}}}}),
            vec![
                "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
                "spec.template.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
            ],
        ),
    ];
    for (collection, object, want) in table {
        assert_eq!(about(collection, object), want, "{collection}");
    }
}

#[test]
fn pods_are_warned_about_in_order() {
    let seccomp = "container.seccomp.security.alpha.kubernetes.io/c";
    let spec = json!({
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "t"}]}},
        "containers": [{"name": "c", "resources": {"limits": {"memory": "500m", "ephemeral-storage": "500m"}, "requests": {"memory": "500m"}}}],
        "imagePullSecrets": [{"name": ""}, {"name": ""}],
        "nodeSelector": {"beta.kubernetes.io/os": "linux"},
        // What is said for the pod is not said for the container.
        "securityContext": {"seccompProfile": {"type": "Unconfined"}},
        "terminationGracePeriodSeconds": -1,
        "volumes": [{"name": "v", "gitRepo": {"repository": "r"}}],
    });
    let pod = json!({"metadata": {"name": "a.b", "annotations": {seccomp: "x"}}, "spec": spec});
    let container = "spec.containers[0].resources";
    let whole = "fractional byte value \"500m\" is invalid, must be an integer";
    assert_eq!(
        about("/api/v1/namespaces/n/pods", pod),
        [
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            "spec.imagePullSecrets[1].name: duplicate name \"\"",
            "spec.imagePullSecrets[0].name: invalid empty name \"\"",
            "spec.imagePullSecrets[1].name: invalid empty name \"\"",
            &format!(
                "metadata.annotations[{seccomp}]: non-functional in v1.27+; use the \"seccompProfile\" field instead"
            ),
            &format!("{container}.limits[memory]: {whole}"),
            &format!("{container}.requests[memory]: {whole}"),
            &format!("{container}.limits[ephemeral-storage]: {whole}"),
            &format!("{container}.requests[ephemeral-storage]: {whole}"),
            "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in matching no pod",
        ]
    );
}

#[test]
fn odd_spellings_are_warned_about() {
    const ODD: &str = "will be considered invalid in a future Kubernetes release: use";
    let ip = |path: &str| format!("{path}: non-standard IP address \"1.1.1.01\" {ODD} \"1.1.1.1\"");
    let vague = |path: &str| {
        format!(
            "{path}: CIDR value \"10.0.0.9/24\" is ambiguous in this context (should be \"10.0.0.0/24\" or \"10.0.0.9/32\"?)"
        )
    };
    let address = json!(["1.1.1.01"]);
    let block = json!([{"ipBlock": {"cidr": "10.0.0.9/24"}}]);
    let table = [
        (
            "/api/v1/namespaces/n/pods",
            json!({"metadata": {"name": "p"}, "spec": {"dnsConfig": {"nameservers": address}, "hostAliases": [{"ip": "1.1.1.01"}]}}),
            vec![ip("spec.dnsConfig.nameservers[0]"), ip("spec.hostAliases[0].ip")],
        ),
        (
            "/api/v1/namespaces/n/services",
            json!({"spec": {"externalIPs": address, "loadBalancerSourceRanges": ["10.0.0.9/24"]}}),
            vec![ip("spec.externalIPs[0]"), vague("spec.loadBalancerSourceRanges[0]")],
        ),
        (
            "/api/v1/namespaces/n/endpoints",
            json!({"subsets": [{"notReadyAddresses": [{"ip": "1.1.1.01"}]}]}),
            vec![ip("subsets[0].notReadyAddresses[0].ip")],
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": address}]}),
            vec![ip("endpoints[0].addresses[0]")],
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": address}],
                "metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}}}),
            vec![],
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/n/networkpolicies",
            json!({"spec": {"ingress": [{"from": block}], "egress": [{"to": block}]}}),
            vec![vague("spec.ingress[0].from[0].ipBlock.cidr"), vague("spec.egress[0].to[0].ipBlock.cidr")],
        ),
        ("/api/v1/nodes", json!({"spec": {"podCIDRs": ["10.0.0.9/24"]}}), vec![vague("spec.podCIDRs[0]")]),
    ];
    for (collection, object, want) in table {
        assert_eq!(about(collection, object), want, "{collection}");
    }
    for (collection, status, want) in [
        ("/api/v1/namespaces/n/pods", json!({"hostIPs": [{"ip": "1.1.1.01"}]}), "status.hostIPs[0].ip"),
        (
            "/api/v1/namespaces/n/services",
            json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.01"}]}}),
            "status.loadBalancer.ingress[0]",
        ),
    ] {
        let (row, _) = target(collection);
        assert_eq!(warnings(row, "status", &json!({"status": status}), Some(&json!({}))), [ip(want)]);
    }
}

#[test]
fn headless_service_warnings() {
    let spec = json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"], "loadBalancerIP": "1.1.1.1",
        "externalIPs": ["1.1.1.2"], "sessionAffinity": "ClientIP", "externalName": "x", "trafficDistribution": "PreferClose"});
    let want = [
        "spec.loadBalancerIP is ignored for headless services",
        "spec.externalIPs is ignored for headless services",
        "spec.SessionAffinity is ignored for headless services",
        "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
    ];
    assert_eq!(about("/api/v1/namespaces/n/services", json!({"spec": spec})), want);
}

#[test]
fn unknown_format_warnings() {
    let (row, _) = target("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
    let definition = |formats: &[(&str, &str)]| {
        let properties: serde_json::Map<String, Value> = formats
            .iter()
            .enumerate()
            .map(|(i, (kind, format))| {
                (format!("p{i}"), json!({"type": "array", "items": {"type": kind, "format": format}}))
            })
            .collect();
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": properties}});
        json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}})
    };
    let known = [("string", "date-time"), ("string", "k8s-short-name"), ("integer", "int32"), ("number", "odd")];
    assert!(warnings(row, "", &definition(&known), None).is_empty());
    let (old, new) = (definition(&[("string", "odd")]), definition(&[("string", "odd"), ("string", "odder")]));
    assert_eq!(warnings(row, "", &new, Some(&old)), ["unrecognized format \"odder\""]);
}

#[test]
fn unchanged_templates_do_not_warn() {
    let old_annotation = json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "x"}}});
    for (collection, object) in [
        (
            "/apis/apps/v1/namespaces/n/daemonsets",
            json!({"metadata": {"generation": 1}, "spec": {"template": old_annotation}}),
        ),
        ("/api/v1/namespaces/n/podtemplates", json!({"template": old_annotation})),
    ] {
        let (row, namespace) = target(collection);
        let old = prepared(row, &namespace, object);
        assert_eq!(warnings(row, "", &old, None).len(), 1, "{collection}");
        let mut new = old.clone();
        if collection.contains("daemonsets") {
            new["metadata"]["generation"] = json!(2);
            new["spec"]["minReadySeconds"] = json!(5);
        }
        assert!(warnings(row, "", &new, Some(&old)).is_empty(), "{collection}");
    }
}

#[test]
fn drivers_have_small_letters() {
    let about_slice = |driver: &str| {
        about("/apis/resource.k8s.io/v1/resourceslices", json!({"spec": {"driver": driver, "pool": {"name": "p"}}}))
    };
    assert_eq!(about_slice("gpu.example.com"), [""; 0]);
    assert_eq!(
        about_slice("GPU.example.com"),
        [r#"spec.driver: driver names should be lowercase; "GPU.example.com" contains uppercase characters"#]
    );
}
