//! Costs of an event, and of an object in memory, in a cluster of one size and in one of ten times that: whatever grows with
//! what exists, and not with what changes, shows as a ratio. Costs are processor time, less what the process takes when
//! nothing happens.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{large, number};
use testkit::figures::figure;
use testkit::http2::Client;
use testkit::manager::Manager;
use testkit::objects::{count, patch, pod_spec, post, running_pod, store, uid, wait_for};
use testkit::world::World;

/// An event may cost so many times as much where there is ten times as much.
const RATIO: f64 = 2.0;
/// A task may hold its thread for so long, in milliseconds.
const HELD: f64 = 100.0;
const AT: &str = "2026-01-01T00:00:00Z";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Objects as they lie in etcd.
type Objects = Box<dyn Iterator<Item = (String, Value)> + Send>;

/// A kind of objects, and of what happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Nodes,
    Pods,
    Indexes,
    Claims,
    Services,
    Namespaces,
    Replicas,
    Ordinals,
}

/// Time for which an idle process is measured.
const IDLE: Duration = Duration::from_secs(12);

const ROWS: [(Row, &str, [usize; 2], usize); 8] = [
    (Row::Nodes, "nodes, node reports its status", [5_000, 50_000], 1_000),
    (Row::Pods, "pods of many sets, pod becomes unready", [15_000, 150_000], 1_000),
    (Row::Indexes, "indexes of a Job, pod succeeds", [10_000, 100_000], 200),
    (Row::Claims, "claims bound to volumes, claim is bound", [1_000, 10_000], 100),
    (Row::Services, "Services, pod becomes unready", [1_000, 10_000], 200),
    (Row::Namespaces, "namespaces, namespace comes", [200, 2_000], 50),
    (Row::Replicas, "replicas of a Deployment, pod is replaced", [1_000, 10_000], 100),
    (Row::Ordinals, "replicas of a StatefulSet, pod becomes unready", [1_000, 10_000], 500),
];

/// All of them, or those that `ROW` is part of the name of.
pub async fn all(server: &str, binary: &str) -> anyhow::Result<()> {
    let only = std::env::var("ROW").unwrap_or_default();
    for (row, name, sizes, events) in ROWS.into_iter().filter(|(_, name, ..)| name.contains(&only)) {
        let (mut costs, mut memory) = (Vec::new(), Vec::new());
        for size in sizes {
            let (cost, rss, held) = measure(server, binary, row, size, events).await?;
            figure(&format!("{size} {name}: CPU"), cost, "ms", None);
            figure(&format!("{size} {name}: RSS"), rss, "MB", None);
            figure(&format!("{size} {name}: longest poll of a task"), held, "ms", Some(HELD));
            costs.push(cost);
            memory.push(rss / number(size));
        }
        for (what, each) in [("CPU", costs), ("RSS of each", memory)] {
            let [small, large] = each.as_slice() else { continue };
            figure(&format!("{name}: {what}, ten times as many to one"), large / small, "", Some(RATIO));
        }
    }
    Ok(())
}

async fn measure(server: &str, binary: &str, row: Row, size: usize, events: usize) -> anyhow::Result<(f64, f64, f64)> {
    let world = World::start(server).await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    post(&mut world.client().await?, "/api/v1/namespaces/default/serviceaccounts", &account).await?;
    store(&world, objects(row, size)).await?;
    let mut client = world.client().await?;
    // The pods' nodes are not there: a pod that was collected would count as an event, and others would fail.
    let flags = ["--v=2", "--controllers=*,-pod-garbage-collector-controller"];
    let mut manager = Manager::start_with(&world, binary, &flags)?;
    // A process that has not come to its work yet is at rest, too.
    testkit::objects::namespace(&mut client, "marker").await?;
    manager.at_rest().await?;
    let rss = manager.rss_mb();
    // The server closes connections on which nothing is asked for long.
    let mut client = world.client().await?;
    let began = Instant::now();
    let before = manager.cpu();
    tokio::time::sleep(IDLE).await;
    let idle = (manager.cpu() - before).as_secs_f64() * 1e3 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    let (cpu, _) = manager.cpu_of(happen(&mut client, row, size, events)).await?;
    let cpu = cpu - idle * began.elapsed().as_secs_f64();
    Ok((cpu / number(events), rss, manager.longest_hold_ms()?))
}

fn objects(row: Row, size: usize) -> Objects {
    match row {
        Row::Nodes => Box::new((0..size).flat_map(|n| [large::node(n), large::lease(n, 0)])),
        Row::Pods => {
            let (nodes, sets) =
                ((0..large::NODES).map(large::node), (0..size / large::REPLICAS).map(large::replica_set));
            Box::new(nodes.chain(sets).chain((0..size).map(large::pod)))
        }
        Row::Indexes => Box::new(std::iter::once(job(size))),
        Row::Claims => Box::new((0..size).flat_map(|n| [claim(n, true), volume(n, true)])),
        Row::Services => Box::new((0..size).flat_map(|n| [service(n), pod(n, n, None)])),
        Row::Namespaces => Box::new((0..size).map(space)),
        Row::Replicas => {
            let owner = || reference("ReplicaSet", "web-0000", uid(7, 0));
            Box::new(deployment(size).into_iter().chain((0..size).map(move |n| pod(n, 0, Some(owner())))))
        }
        Row::Ordinals => Box::new(std::iter::once(stateful_set(size)).chain((0..size).map(ordinal))),
    }
}

async fn happen(client: &mut Client, row: Row, size: usize, events: usize) -> anyhow::Result<()> {
    match row {
        Row::Nodes => {
            for n in 0..events {
                let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T00:00:00Z",
                    "reason": "Kubelet", "message": "kubelet is posting what it sees"});
                let path = format!("/api/v1/nodes/node-{n}/status");
                patch(client, &path, &json!({"status": {"conditions": [condition]}})).await?;
            }
        }
        Row::Pods => {
            for n in 0..events {
                unready(client, &large::pod(n * (size / events)).1).await?;
            }
        }
        Row::Indexes => {
            let mut done = 0;
            while done < events {
                let pods = pods_of(client, "app=work").await?;
                let running = pods.iter().filter(|p| p["status"]["phase"] == "Pending").take(events - done);
                for pod in running {
                    let status = json!({"status": {"phase": "Succeeded", "startTime": AT}});
                    patch(client, &status_of(pod), &status).await?;
                    done += 1;
                }
            }
        }
        Row::Claims => {
            for n in (size..).take(events) {
                post(client, "/api/v1/persistentvolumes", &volume(n, false).1).await?;
                post(client, "/api/v1/namespaces/default/persistentvolumeclaims", &claim(n, false).1).await?;
            }
            for n in (size..).take(events) {
                let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/claim-{n}");
                while get(client, &path).await?["status"]["phase"] != "Bound" {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            }
        }
        Row::Services => {
            for n in 0..events {
                unready(client, &pod(n, n, None).1).await?;
            }
        }
        Row::Namespaces => {
            for n in (size..).take(events) {
                testkit::objects::namespace(client, &format!("space-{n}")).await?;
            }
        }
        Row::Replicas => {
            for n in 0..events {
                let name = &pod(n, 0, None).1["metadata"]["name"];
                let path = format!("{PODS}/{}?gracePeriodSeconds=0", name.as_str().unwrap_or_default());
                client.call("DELETE", &path, &[], bytes::Bytes::new()).await?;
                wait_for(client, PODS, size).await?;
            }
        }
        Row::Ordinals => {
            for n in 0..events {
                unready(client, &ordinal(n).1).await?;
                // Each is looked at by itself.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
    anyhow::ensure!(row != Row::Replicas || count(client, PODS).await? == size, "a pod too many");
    Ok(())
}

async fn get(client: &mut Client, path: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_slice(&client.get(path, testkit::http2::JSON).await?)?)
}

async fn pods_of(client: &mut Client, selector: &str) -> anyhow::Result<Vec<Value>> {
    let list = get(client, &format!("{PODS}?labelSelector={}", selector.replace('=', "%3D"))).await?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn status_of(pod: &Value) -> String {
    format!("{PODS}/{}/status", pod["metadata"]["name"].as_str().unwrap_or_default())
}

async fn unready(client: &mut Client, pod: &Value) -> anyhow::Result<()> {
    let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T00:00:00Z"});
    patch(client, &status_of(pod), &json!({"status": {"conditions": [condition]}})).await
}

fn reference(kind: &str, name: &str, uid: String) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true})
}

/// A pod of the workload that runs.
fn pod(number: usize, workload: usize, owner: Option<Value>) -> (String, Value) {
    let object = running_pod("default", number, workload, 0, owner);
    (format!("pods/default/{}", object["metadata"]["name"].as_str().unwrap_or_default()), object)
}

/// All but a thousand indexes are done.
fn job(size: usize) -> (String, Value) {
    let labels = json!({"app": "work", "batch.kubernetes.io/controller-uid": uid(10, 0), "batch.kubernetes.io/job-name": "work"});
    let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid(10, 0)}});
    let mut spec = pod_spec(0);
    spec["restartPolicy"] = json!("Never");
    let done = size - 1000;
    let object = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "work", "namespace": "default", "uid": uid(10, 0), "generation": 1, "labels": {"app": "work"}},
        "spec": {"completions": size, "parallelism": 50, "completionMode": "Indexed", "backoffLimit": 6, "suspend": false,
            "podReplacementPolicy": "TerminatingOrFailed", "selector": selector, "template": {"metadata": {"labels": labels}, "spec": spec}},
        "status": {"succeeded": done, "completedIndexes": format!("0-{}", done - 1), "startTime": AT,
            "uncountedTerminatedPods": {}}});
    ("jobs/default/work".to_owned(), object)
}

fn claim(n: usize, bound: bool) -> (String, Value) {
    let name = format!("claim-{n}");
    let mut object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}}}});
    if bound {
        object["metadata"]["uid"] = json!(uid(11, n));
        object["metadata"]["annotations"] =
            json!({"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"});
        object["spec"]["volumeName"] = json!(format!("volume-{n}"));
        object["status"] = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
    }
    (format!("persistentvolumeclaims/default/{name}"), object)
}

fn volume(n: usize, bound: bool) -> (String, Value) {
    let name = format!("volume-{n}");
    let mut object = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain", "nfs": {"server": "nfs", "path": "/v"}}});
    if bound {
        object["metadata"]["uid"] = json!(uid(12, n));
        object["metadata"]["annotations"] = json!({"pv.kubernetes.io/bound-by-controller": "yes"});
        object["spec"]["claimRef"] = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
            "name": format!("claim-{n}"), "uid": uid(11, n)});
        object["status"] = json!({"phase": "Bound"});
    }
    (format!("persistentvolumes/{name}"), object)
}

fn service(n: usize) -> (String, Value) {
    let name = format!("web-{n:04}");
    let object = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "uid": uid(8, n)},
        "spec": {"clusterIP": "None", "clusterIPs": ["None"], "type": "ClusterIP", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "selector": {"app": format!("app-{n}")},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}});
    (format!("services/specs/default/{name}"), object)
}

fn space(n: usize) -> (String, Value) {
    let name = format!("space-{n}");
    let object = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "uid": uid(13, n), "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
    (format!("namespaces/{name}"), object)
}

/// A Deployment whose pods are those of [`pod`].
fn deployment(size: usize) -> [(String, Value); 2] {
    let labels = json!({"app": "app-0"});
    let of_set = json!({"app": "app-0", "pod-template-hash": format!("{:08x}", 0)});
    let notes = json!({"deployment.kubernetes.io/revision": "1", "deployment.kubernetes.io/desired-replicas": size.to_string(),
        "deployment.kubernetes.io/max-replicas": (size + size / 4).to_string()});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "uid": uid(14, 0), "generation": 1,
            "annotations": {"deployment.kubernetes.io/revision": "1"}},
        "spec": {"replicas": size, "selector": {"matchLabels": labels}, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(0)}}});
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "web-0000", "namespace": "default", "uid": uid(7, 0), "generation": 1, "labels": of_set,
            "annotations": notes, "ownerReferences": [reference("Deployment", "web", uid(14, 0))]},
        "spec": {"replicas": size, "selector": {"matchLabels": of_set},
            "template": {"metadata": {"labels": of_set}, "spec": pod_spec(0)}}});
    [("deployments/default/web".to_owned(), deployment), ("replicasets/default/web-0000".to_owned(), set)]
}

fn stateful_set(size: usize) -> (String, Value) {
    let labels = json!({"app": "db"});
    let object = json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "default", "uid": uid(15, 0), "generation": 1},
        "spec": {"replicas": size, "serviceName": "db", "podManagementPolicy": "Parallel", "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "OnDelete"}, "selector": {"matchLabels": labels},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(0)}}});
    ("statefulsets/default/db".to_owned(), object)
}

fn ordinal(n: usize) -> (String, Value) {
    let mut pod = running_pod("default", n, 0, 0, Some(reference("StatefulSet", "db", uid(15, 0))));
    let name = format!("db-{n}");
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["labels"] = json!({"app": "db", "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": n.to_string()});
    (format!("pods/default/{name}"), pod)
}
