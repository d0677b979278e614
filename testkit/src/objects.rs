//! Objects in etcd, as a server would have written them, and questions to the server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use proto::{protobuf, schema};
use serde_json::{Value, json};

use crate::http2::{Client, JSON, side_by_side};
use crate::world::World;

/// Requests at the same time.
pub const AT_ONCE: usize = 64;
const POLL: Duration = Duration::from_millis(20);
const GIVE_UP: Duration = Duration::from_mins(5);

/// A uid that only this number has.
pub fn uid(kind: u16, number: usize) -> String {
    format!("00000000-0000-4000-{kind:04x}-{number:012x}")
}

/// Writes objects to etcd: key below `/registry/` and object.
pub async fn store(world: &World, objects: impl Iterator<Item = (String, Value)>) -> anyhow::Result<()> {
    let client = world.etcd().await?;
    side_by_side(AT_ONCE, objects, |_, (key, object)| {
        let mut kv = client.kv_client();
        async move { Ok(kv.put(format!("/registry/{key}"), encode(&object)?, None).await.map(drop)?) }
    })
    .await
}

fn encode(object: &Value) -> anyhow::Result<Vec<u8>> {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    let schema = schema::kind_of(text("apiVersion"), text("kind")).context("a known kind")?;
    let mut object = object.clone();
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["managedFields"] = json!([{"manager": "kube-controller-manager", "operation": "Update",
        "apiVersion": text_of(&object, "apiVersion"), "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:a": {}, "f:b": {}}}}]);
    Ok(protobuf::encode_envelope(schema, &object))
}

fn text_of(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

/// Counts the objects of a collection.
pub async fn count(client: &mut Client, collection: &str) -> anyhow::Result<usize> {
    let list: Value = serde_json::from_slice(&client.get(&format!("{collection}?limit=1"), JSON).await?)?;
    let shown = list["items"].as_array().map_or(0, Vec::len);
    let more = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    Ok(shown + usize::try_from(more)?)
}

/// Waits until a collection holds exactly so many.
pub async fn wait_for(client: &mut Client, collection: &str, wanted: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut last = 0;
    while began.elapsed() < GIVE_UP {
        last = count(client, collection).await?;
        if last == wanted {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    bail!("{collection}: {last} of {wanted}")
}

/// POST of each body, [`AT_ONCE`] at a time over one connection.
pub async fn create_all(client: &Client, path: &str, bodies: Vec<Value>) -> anyhow::Result<()> {
    side_by_side(AT_ONCE, bodies.into_iter(), |_, body| {
        let mut client = client.clone();
        async move { post(&mut client, path, &body).await.map(drop) }
    })
    .await
}

/// POST of one object.
pub async fn post(client: &mut Client, path: &str, body: &Value) -> anyhow::Result<Value> {
    let answer = client.call("POST", path, &[("content-type", JSON)], Bytes::from(body.to_string())).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// A merge patch.
pub async fn patch(client: &mut Client, path: &str, body: &Value) -> anyhow::Result<()> {
    let headers = [("content-type", "application/merge-patch+json")];
    client.call("PATCH", path, &headers, Bytes::from(body.to_string())).await.map(drop)
}

/// A namespace with the account its pods need.
pub async fn namespace(client: &mut Client, name: &str) -> anyhow::Result<()> {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    post(client, "/api/v1/namespaces", &body).await?;
    wait_for(client, &format!("/api/v1/namespaces/{name}/serviceaccounts"), 1).await
}

/// Returns a container such as real workloads have.
pub fn container(name: &str, number: usize) -> Value {
    let env: Vec<Value> =
        (0..4).map(|i| json!({"name": format!("SETTING_{i}"), "value": format!("value-{i}-{number}")})).collect();
    json!({
        "name": name, "image": format!("registry.example.com/team/{name}:v1.2.{}", number % 10),
        "imagePullPolicy": "IfNotPresent", "command": ["/bin/server", "--listen=0.0.0.0:8080", "--log-level=info"],
        "env": env, "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10,
            "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/config", "readOnly": true}],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"
    })
}

/// The specification of a pod of a workload.
pub fn pod_spec(workload: usize) -> Value {
    json!({
        "serviceAccountName": "default", "automountServiceAccountToken": false,
        "containers": [container("web", workload), container("sidecar", workload)],
        "volumes": [{"name": "config", "configMap": {"name": "config", "defaultMode": 420}}],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler", "securityContext": {},
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]
    })
}

/// A pod of a workload that runs on a node; `owner` is its replica set.
pub fn running_pod(namespace: &str, number: usize, workload: usize, node: usize, owner: Option<Value>) -> Value {
    let ip = format!("10.{}.{}.{}", 64 + number / 65536, number / 256 % 256, number % 256);
    let since = "2026-01-01T00:00:10Z";
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": since});
    let status = |name: &str| {
        json!({"name": name, "ready": true, "started": true, "restartCount": 0,
            "image": format!("registry.example.com/team/{name}:v1.2.{}", workload % 10),
            "imageID": format!("registry.example.com/team/{name}@sha256:{workload:064x}"),
            "containerID": format!("containerd://{number:064x}"), "lastState": {},
            "state": {"running": {"startedAt": since}}})
    };
    let mut spec = pod_spec(workload);
    spec["nodeName"] = json!(format!("node-{node}"));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("web-{workload:04}-{number:06x}"), "namespace": namespace, "uid": uid(1, number),
            "generateName": format!("web-{workload:04}-"), "ownerReferences": owner.map(|o| json!([o])),
            "labels": {"app": format!("app-{workload}"), "pod-template-hash": format!("{workload:08x}"), "tier": "backend"},
            "annotations": {"example.com/config-hash": format!("{number:064x}")}},
        "spec": spec,
        "status": {"phase": "Running", "hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}], "podIP": ip,
            "podIPs": [{"ip": ip}], "qosClass": "Burstable", "startTime": since,
            "conditions": [condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"),
                condition("ContainersReady"), condition("PodScheduled")],
            "containerStatuses": [status("web"), status("sidecar")]}
    })
}
