//! Pods as large clusters have them, of 4 KB in protobuf and less than 6 KB in JSON as they are stored: two containers,
//! some environment, labels that many share and one that is unique.

use bytes::Bytes;
use proto::{protobuf, schema};
use serde_json::{Value, json};

/// Pods per node.
pub const PER_NODE: usize = 100;

fn container(name: &str, number: usize) -> Value {
    let env: Vec<Value> = (0..3)
        .map(|i| json!({"name": format!("SETTING_{i}_OF_{}", name.to_uppercase()), "value": format!("value-{i}-{number}")}))
        .collect();
    json!({
        "name": name,
        "image": format!("registry.example.com/team/{name}:v1.2.{}", number % 10),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/server", "--listen=0.0.0.0:8080", "--log-level=info"],
        "env": env,
        "ports": [{"name": format!("{name}-http"), "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10,
            "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/config", "readOnly": true}, {"name": "cache", "mountPath": "/var/cache"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File"
    })
}

/// The pod of a number.
pub fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(number),
            "namespace": "default",
            "labels": {"app": format!("app-{}", number % 50), "pod-template-hash": format!("{:08x}", number % 500),
                "tier": "backend", "instance": format!("i-{number}")},
            "annotations": {"example.com/config-hash": format!("{number:064x}")}
        },
        "spec": {
            "nodeName": format!("node-{}", number / PER_NODE),
            "automountServiceAccountToken": false,
            "serviceAccountName": "default",
            "containers": [container("web", number), container("sidecar", number)],
            "volumes": [{"name": "config", "configMap": {"name": "config"}}, {"name": "cache", "emptyDir": {}}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "batch", "effect": "NoSchedule"}]
        }
    })
}

/// Returns the name of the pod with this number.
pub fn name(number: usize) -> String {
    format!("web-{:05}-{:08x}", number, number.wrapping_mul(2_654_435_761) & 0xffff_ffff)
}

/// Encodes the pod with this number as a protobuf client sends it.
pub fn encoded(number: usize) -> anyhow::Result<Bytes> {
    let schema = schema::kind("", "v1", "Pod").ok_or_else(|| anyhow::anyhow!("no schema of pods"))?;
    Ok(Bytes::from(protobuf::encode_envelope(schema, &pod(number))))
}
