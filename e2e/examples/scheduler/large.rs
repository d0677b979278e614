//! 5,000 nodes with 150,000 pods: start and memory. The pods are put into etcd as the API server writes them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::schema;
use serde_json::{Value, json};

use testkit::figures::figure;
use testkit::http2::{JSON, side_by_side};
use testkit::scheduling::process::Scheduler;
use testkit::scheduling::watch::Pods;
use testkit::scheduling::{self, NODES, PODS};
use testkit::world::World;

/// Pods on nodes.
const COUNT: usize = 150_000;
/// Pods of one template.
const REPLICAS: usize = 300;
const AT_ONCE: usize = 64;
/// For the server to take them in.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running pod as a deployment's are.
fn running(number: usize) -> Value {
    let app = format!("app-{}", number / REPLICAS);
    let set = format!("{app}-7d4b9c6f5d");
    let name = format!("{set}-{number:06}");
    let uid = format!("00000000-0000-4000-8000-{number:012}");
    let moment = "2026-01-02T03:04:05Z";
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": moment});
    let requests = json!({"cpu": "100m", "memory": "128Mi"});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": uid, "creationTimestamp": moment, "generation": 1,
            "generateName": format!("{set}-"), "labels": {"app": app, "pod-template-hash": "7d4b9c6f5d"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": format!("{app}-uid"),
                "controller": true, "blockOwnerDeletion": true}]},
        "spec": {
            "nodeName": scheduling::node_name(number % NODES), "schedulerName": "default-scheduler", "priority": 0,
            "serviceAccountName": "default", "serviceAccount": "default",
            "volumes": [{"name": format!("kube-api-access-{number:05x}"), "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}],
            "containers": [{"name": "web", "image": "registry.example.com/team/web:v1", "args": ["--listen=0.0.0.0:8080"],
                "env": [{"name": "POD", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                "resources": {"requests": requests},
                "volumeMounts": [{"name": format!("kube-api-access-{number:05x}"), "readOnly": true,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {"phase": "Running", "startTime": moment, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "qosClass": "Burstable",
            "conditions": (["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition)),
            "containerStatuses": [{"name": "web", "image": "registry.example.com/team/web:v1", "imageID": format!("sha256:{number:064x}"),
                "containerID": format!("containerd://{number:064x}"), "ready": true, "started": true, "restartCount": 0,
                "state": {"running": {"startedAt": moment}}, "allocatedResources": requests, "resources": {"requests": requests}}]},
    });
    proto::defaulting::apply(schema::pod(), &mut pod);
    pod
}

async fn store(world: &World) -> anyhow::Result<()> {
    let client = world.etcd().await?;
    side_by_side(AT_ONCE, 0..COUNT, |_, number| {
        let mut kv = client.kv_client();
        async move {
            let pod = running(number);
            let key = format!("/registry/pods/default/{}", pod["metadata"]["name"].as_str().unwrap_or_default());
            Ok(kv.put(key, scheduling::encoded("Pod", &pod)?.to_vec(), None).await.map(drop)?)
        }
    })
    .await
}

/// All figures.
pub async fn all(apiserver: &str, binary: &str) -> anyhow::Result<()> {
    let world = scheduling::world(apiserver).await?;
    scheduling::create_nodes(&world).await?;
    store(&world).await?;
    let mut client = world.client().await?;
    // A consistent read: the server knows all of them afterwards. It may have lost track of so many, and read them anew.
    let until = Instant::now() + PATIENCE;
    while let Err(error) = client.get(&format!("{PODS}?limit=1"), JSON).await {
        anyhow::ensure!(Instant::now() < until, error);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let waiting = scheduling::pod("waiting", "default-scheduler");
    scheduling::post(client.clone(), PODS, scheduling::encoded("Pod", &waiting)?).await?;
    let mut pods = Pods::watch(&world).await?;
    let scheduler = Scheduler::start(&world, binary)?;
    pods.until_bound(1).await?;
    let (_, bound) = pods.bound[0];
    figure(
        "start to the first binding, 5,000 nodes, 150,000 pods",
        (bound - scheduler.began).as_secs_f64(),
        "s",
        Some(3.0),
    );
    figure("CPU until then", scheduler.process.cpu().as_secs_f64(), "s", None);
    tokio::time::sleep(Duration::from_secs(5)).await;
    figure("RSS, 5,000 nodes, 150,000 pods", scheduler.process.rss_mb(), "MB", Some(200.0));
    // Every pod changes once, as kubelets report.
    let changes = Bytes::from_static(br#"{"metadata":{"annotations":{"a":"b"}}}"#);
    let before = scheduler.process.cpu();
    const CHANGED: usize = 5_000;
    scheduling::many(&world, CHANGED, async |mut client, number| {
        let name = running(number)["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let headers = [("content-type", "application/merge-patch+json")];
        client.call("PATCH", &format!("{PODS}/{name}"), &headers, changes.clone()).await.map(drop)
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = (scheduler.process.cpu() - before).as_secs_f64() * 1e6;
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    figure("a change of a running pod: CPU of kube-scheduler", used / CHANGED as f64, "us", None);
    Ok(())
}
