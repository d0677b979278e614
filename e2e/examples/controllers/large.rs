//! A cluster of 5,000 nodes and 50,000 pods: memory, the cost of heartbeats, a restart.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::number;
use testkit::figures::figure;
use testkit::manager::Manager;
use testkit::objects::{pod_spec, post, running_pod, store, uid, wait_for};
use testkit::world::World;

/// Nodes, over which pods are spread.
pub const NODES: usize = 5000;
const PODS: usize = 50_000;
/// Replicas of each workload.
pub const REPLICAS: usize = 50;
const WATCHED: Duration = Duration::from_secs(30);
/// After this the process has given back what its start took.
const SETTLED: Duration = Duration::from_secs(35);
const BEAT: Duration = Duration::from_secs(10);

/// All of them.
pub async fn all(server: &str, binary: &str) -> anyhow::Result<()> {
    let world = World::start(server).await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    post(&mut world.client().await?, "/api/v1/namespaces/default/serviceaccounts", &account).await?;
    store(&world, (0..NODES).map(node)).await?;
    store(&world, (0..NODES).map(|n| lease(n, 0))).await?;
    store(&world, (0..PODS / REPLICAS).map(replica_set)).await?;
    store(&world, (0..PODS).map(pod)).await?;

    let mut manager = synced(&world, binary, 1).await?;
    manager.at_rest().await?;
    tokio::time::sleep(SETTLED).await;
    figure("RSS, 5,000 nodes and 50,000 pods", manager.rss_mb(), "MB", Some(250.0));
    heartbeats(&world, &manager).await?;
    drop(manager);

    let mut manager = synced(&world, binary, 2).await?;
    figure("restart to synced caches", manager.since.elapsed().as_secs_f64(), "s", Some(3.0));
    figure("restart: CPU until synced", manager.cpu().as_secs_f64() * 1e3, "ms", None);
    manager.at_rest().await?;
    Ok(())
}

/// A manager whose caches are complete: controllers begin with that, and a deployment that waits for it gets its
/// replica set.
async fn synced(world: &World, binary: &str, number: usize) -> anyhow::Result<Manager> {
    // The server has closed connections on which nothing was asked for long.
    let mut client = world.client().await?;
    let labels = json!({"app": format!("late-{number}")});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("late-{number}")},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(0)}}});
    post(&mut client, "/apis/apps/v1/namespaces/default/deployments", &deployment).await?;
    let manager = Manager::start(world, binary)?;
    wait_for(&mut client, "/apis/apps/v1/namespaces/default/replicasets", PODS / REPLICAS + number).await?;
    Ok(manager)
}

/// Every node renews its lease every ten seconds.
async fn heartbeats(world: &World, manager: &Manager) -> anyhow::Result<()> {
    let before = manager.cpu();
    let began = Instant::now();
    let (mut round, per_slot, slots) = (1, NODES / 100, 100);
    while began.elapsed() < WATCHED {
        for slot in 0..slots {
            let due = began + BEAT * (round - 1) + BEAT / 100 * slot;
            tokio::time::sleep_until(due.into()).await;
            let from = usize::try_from(slot)? * per_slot;
            store(world, (from..from + per_slot).map(|n| lease(n, round))).await?;
        }
        round += 1;
    }
    let share = (manager.cpu() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    figure("CPU under 5,000 heartbeats every 10 s", share * 100.0, "%", Some(2.0));
    figure("CPU per heartbeat", share * BEAT.as_secs_f64() * 1e3 / number(NODES), "ms", None);
    Ok(())
}

/// A node as its kubelet reports it.
pub fn node(n: usize) -> (String, Value) {
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "Kubelet", "message": "kubelet is posting what it sees",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let images: Vec<Value> = (0..20)
        .map(|i| {
            json!({"names": [format!("registry.example.com/team/image-{i}@sha256:{n:064x}"),
            format!("registry.example.com/team/image-{i}:v1")], "sizeBytes": 50_000_000})
        })
        .collect();
    let amounts = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "200Gi"});
    let name = format!("node-{n}");
    let object = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": uid(2, n),
            "annotations": {"node.alpha.kubernetes.io/ttl": "300", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": format!("z{}", n % 3),
                "node.kubernetes.io/instance-type": "large", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64"}},
        "spec": {"podCIDR": format!("10.{}.{}.0/24", n / 256, n % 256)},
        "status": {"capacity": amounts, "allocatable": amounts, "images": images,
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": name}],
            "nodeInfo": {"kubeletVersion": "v1.35.4", "containerRuntimeVersion": "containerd://2.1.0", "osImage": "Debian",
                "kernelVersion": "6.12", "operatingSystem": "linux", "architecture": "amd64", "machineID": uid(3, n),
                "systemUUID": uid(4, n), "bootID": uid(5, n), "kubeProxyVersion": ""},
            "conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                condition("PIDPressure", "False"), condition("Ready", "True")]}});
    (format!("minions/{name}"), object)
}

/// A node's lease, as renewed in a round.
pub fn lease(n: usize, round: u32) -> (String, Value) {
    let name = format!("node-{n}");
    let renewed = format!("2026-01-01T00:{:02}:00.000000Z", round % 60);
    let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease", "uid": uid(6, n),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid(2, n)}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}});
    (format!("leases/kube-node-lease/{name}"), object)
}

/// A set of [`REPLICAS`] pods.
pub fn replica_set(workload: usize) -> (String, Value) {
    let labels = json!({"app": format!("app-{workload}"), "pod-template-hash": format!("{workload:08x}")});
    let name = format!("web-{workload:04}");
    let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": "default", "uid": uid(7, workload), "generation": 1, "labels": labels},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(workload)}},
        "status": {"replicas": REPLICAS, "fullyLabeledReplicas": REPLICAS, "readyReplicas": REPLICAS,
            "availableReplicas": REPLICAS, "observedGeneration": 1, "terminatingReplicas": 0}});
    (format!("replicasets/default/{name}"), object)
}

/// A pod of a set.
pub fn pod(number: usize) -> (String, Value) {
    let workload = number / REPLICAS;
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("web-{workload:04}"),
        "uid": uid(7, workload), "controller": true, "blockOwnerDeletion": true});
    let object = running_pod("default", number, workload, number % NODES, Some(owner));
    (format!("pods/default/{}", object["metadata"]["name"].as_str().unwrap_or_default()), object)
}
