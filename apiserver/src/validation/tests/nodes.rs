//! Nodes, new and changed.

use serde_json::{Value, json};

use super::Valid;

fn node() -> Valid {
    Valid::new("/api/v1/nodes", json!({}))
}

#[test]
fn swap_is_there_or_not() {
    let swap = |bytes: i64| [("/status/nodeInfo/swap", json!({"capacity": bytes}))];
    node().create(&[
        (&swap(1), &[]),
        (&swap(0), &["metadata.nodeSwapStatus.capacity: Invalid value: 0: must be greater than zero"]),
    ]);
}

#[test]
fn node_update_runs_create_and_update_validation() {
    let (ranges, taint) = (json!(["x"]), json!([{"key": "k"}]));
    node().update(&[
        (&[("/spec/podCIDRs", ranges)], &[
            r#"spec.podCIDRs[0]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
        ]),
        (&[("/spec/taints", taint)], &[
            "metadata.taints[0].effect: Required value",
            "metadata.taints[0].effect: Required value",
        ]),
    ]);
    node().sub(
        "status",
        &[(
            &[("/status/capacity", json!({"pods": "500m"}))],
            &[r#"status.capacity.pods: Invalid value: "500m": must be an integer"#],
        )],
    );
}

#[test]
fn configuration_from_config_maps() {
    let map = |more: Value| {
        let mut map = json!({"namespace": "n", "name": "m", "kubeletConfigKey": "k"});
        proto::merge::merge_patch::apply(&mut map, more);
        json!({"configMap": map})
    };
    let version = || json!({"uid": "u", "resourceVersion": "1"});
    let wished = |source| [("/spec/configSource", source)];
    node().update(&[
        (&wished(map(json!({}))), &[]),
        (&wished(json!({})), &[
            r#"spec.configSource: Invalid value: {"ConfigMap":null}: exactly one reference subfield must be non-nil"#,
        ]),
        (&wished(map(version())), &[
            "spec.configSource.configMap.uid: Forbidden: uid must not be set in spec",
            "spec.configSource.configMap.resourceVersion: Forbidden: resourceVersion must not be set in spec",
        ]),
        (&wished(map(json!({"namespace": null, "name": null, "kubeletConfigKey": ".."}))), &[
            "spec.configSource.configMap.namespace: Required value",
            "spec.configSource.configMap.name: Required value",
            r#"spec.configSource.configMap.kubeletConfigKey: Invalid value: "..": must not be '..'"#,
        ]),
    ]);
    node().sub("status", &[
        (&[("/status/config", json!({"active": map(version())}))], &[]),
        (&[("/status/config", json!({"assigned": map(json!({})), "lastKnownGood": {}}))], &[
            "status.config.assigned.configMap.uid: Required value",
            "status.config.assigned.configMap.resourceVersion: Required value",
            r#"status.config.lastKnownGood: Invalid value: {"ConfigMap":null}: exactly one reference subfield must be non-nil"#,
        ]),
    ]);
}
