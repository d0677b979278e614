//! What clients are warned of.

use proto::Value;
use serde_json::json;

use super::{prepared, target, warnings};

/// Warnings about a new object at a collection.
fn about(collection: &str, object: Value) -> Vec<String> {
    let (row, namespace) = target(collection);
    warnings(row, &prepared(row, &namespace, object), None)
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
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
            "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
            "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.overhead[memory]: fractional byte value \"4m\" is invalid, must be an integer",
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
        ]
    );
}

#[test]
fn terms_that_select_by_old_labels_or_select_nothing() {
    let old = json!({"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}]});
    let spec = json!({"affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [old]}},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "t"}}]}},
        "topologySpreadConstraints": [{"topologyKey": "beta.kubernetes.io/os", "labelSelector": {}}]});
    assert_eq!(
        about_pod(spec),
        [
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod",
            "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ]
    );
}

#[test]
fn ports_of_one_pod() {
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
            vec!["volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a\" with \"a/\""],
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
