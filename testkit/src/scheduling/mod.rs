//! Nodes and pods as scheduler_perf has them, and many requests at once.

pub mod process;
pub mod watch;

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::try_join_all;
use proto::{protobuf, schema};
use serde_json::{Value, json};

use crate::http2::{Client, JSON, PROTOBUF, side_by_side};
use crate::world::World;

/// Nodes of the cluster.
pub const NODES: usize = 5_000;
/// Pods of all benches.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// Requests at the same time, over this many connections.
const AT_ONCE: usize = 64;
const CONNECTIONS: usize = 4;

/// A node of a number.
pub fn node(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node_name(number), "labels": {
            "kubernetes.io/hostname": node_name(number), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3)}},
        "status": {
            "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110"},
            "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    })
}

/// Returns the name of the node with this number.
pub fn node_name(number: usize) -> String {
    format!("node-{number:05}")
}

/// A plain pod for a scheduler.
pub fn pod(name: &str, scheduler: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "plain"}},
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": false,
            "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10",
                "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}],
        },
    })
}

/// An object as clients that speak protobuf send it.
pub fn encoded(kind: &str, object: &Value) -> anyhow::Result<Bytes> {
    let schema = schema::kind("", "v1", kind).ok_or_else(|| anyhow::anyhow!("no schema of {kind}"))?;
    Ok(Bytes::from(protobuf::encode_envelope(schema, object)))
}

/// `count` requests, many at a time; how long it took.
pub async fn many<F, Fut>(world: &World, count: usize, request: F) -> anyhow::Result<Duration>
where
    F: Fn(Client, usize) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let clients = try_join_all((0..CONNECTIONS).map(|_| world.client())).await?;
    let began = Instant::now();
    side_by_side(AT_ONCE, 0..count, |i, number| request(clients[i % CONNECTIONS].clone(), number)).await?;
    Ok(began.elapsed())
}

/// Creates something with protobuf.
pub async fn post(mut client: Client, path: &str, body: Bytes) -> anyhow::Result<()> {
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    client.call("POST", path, &headers, body).await.map(drop)
}

/// An etcd and a server that takes nodes for ready that say so: nobody here takes away the taint of new nodes.
pub async fn world(apiserver: &str) -> anyhow::Result<World> {
    World::start_with(apiserver, &["--disable-admission-plugins=TaintNodesByCondition"]).await
}

/// Creates what pods need to be admitted, and the nodes.
pub async fn create_nodes(world: &World) -> anyhow::Result<()> {
    let mut client = world.client().await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.call("POST", accounts, &[("content-type", JSON)], Bytes::from(account.to_string())).await?;
    many(world, NODES, async |client, number| post(client, "/api/v1/nodes", encoded("Node", &node(number))?).await)
        .await
        .map(drop)
}

/// Creates `count` pods called `prefix-…`.
pub async fn create_pods(world: &World, prefix: &str, scheduler: &str, count: usize) -> anyhow::Result<Duration> {
    many(world, count, async |client, number| {
        post(client, PODS, encoded("Pod", &pod(&format!("{prefix}-{number}"), scheduler))?).await
    })
    .await
}
