//! Time for which tasks hold their thread with very many objects of a kind.
//!
//! `HELD_OBJECTS` says how many (300), `HELD_LIMIT` for how many milliseconds of processor time at most (250). Without
//! optimisation a poll takes ten to thirty times as long: a few hundred objects under this limit stand for thousands in a
//! release, where `e2e/examples/controllers` measures up to 100,000.

use std::time::Duration;

use proto::resources::Resource;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::faults::Fault;
use super::http::{Server, rows};
use super::kubelet;
use super::manager::Manager;
use super::store::{Name, key};
use super::verbs;

fn setting(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn row(kind: &str) -> &'static Resource {
    rows().find(|r| r.kind == kind && r.is_stored()).unwrap_or_else(|| panic!("no {kind}"))
}

/// Stores an object as it is.
fn put(server: &Server, kind: &str, name: &str, mut object: Value) {
    let row = row(kind);
    (object["apiVersion"], object["kind"]) = (json!(row.api_version()), json!(row.kind));
    object["metadata"]["name"] = json!(name);
    if row.namespaced {
        object["metadata"]["namespace"] = json!("ns");
    }
    if object["metadata"]["uid"].is_null() {
        object["metadata"]["uid"] = json!(format!("{kind}-{name}"));
    }
    object["metadata"]["generation"] = json!(1);
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.store.lock().put(&key(row), object);
}

fn patch(server: &Server, kind: &str, name: &str, with: Value) {
    let row = row(kind);
    let name: Name = (if row.namespaced { "ns".to_owned() } else { String::new() }, name.to_owned());
    let merge = "application/merge-patch+json";
    verbs::patch(&mut server.store.lock(), row, &name, "", merge, with).expect("patched");
}

fn owner(kind: &str, name: &str) -> Value {
    let row = row(kind);
    json!([{"apiVersion": row.api_version(), "kind": kind, "name": name, "uid": format!("{kind}-{name}"),
        "controller": true, "blockOwnerDeletion": true}])
}

fn labels() -> Value {
    json!({"app": "web"})
}

fn template() -> Value {
    json!({"metadata": {"labels": labels()}, "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30}})
}

fn pod(server: &Server, name: &str, owner: Value, node: usize) {
    let at = "2026-01-01T00:00:10Z";
    let mut pod = template();
    (pod["metadata"]["ownerReferences"], pod["spec"]["nodeName"]) = (owner, json!(format!("node-{node}")));
    pod["status"] = json!({"phase": "Running", "podIP": format!("10.0.{}.{}", node / 256, node % 256),
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}]});
    put(server, "Pod", name, pod);
}

fn nodes(server: &Server, count: usize) {
    for n in 0..count {
        let node = super::scenario::node(&format!("node-{n}"));
        put(server, "Node", &format!("node-{n}"), node);
    }
}

fn claim(server: &Server, name: &str, bound: bool) {
    let (volume, phase) = if bound { (json!(format!("pv-{name}")), "Bound") } else { (Value::Null, "Pending") };
    let notes = json!({"pv.kubernetes.io/bind-completed": "yes"});
    put(
        server,
        "PersistentVolumeClaim",
        name,
        json!({
        "metadata": {"labels": labels(), "annotations": if bound { notes } else { Value::Null }, "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": phase}}),
    );
    let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": name,
        "uid": format!("PersistentVolumeClaim-{name}")});
    put(
        server,
        "PersistentVolume",
        &format!("pv-{name}"),
        json!({
        "metadata": {"finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp/v"},
            "claimRef": if bound { reference } else { Value::Null }},
        "status": {"phase": if bound { "Bound" } else { "Available" }}}),
    );
}

/// Very many of something, and then a change.
struct Load {
    what: &'static str,
    objects: fn(&Server, usize),
    change: fn(&Server, usize),
}

const LOADS: &[Load] = &[
    Load {
        what: "namespaces",
        objects: |server, count| {
            for n in 0..count {
                put(server, "Namespace", &format!("space-{n}"), json!({"spec": {}, "status": {"phase": "Active"}}));
            }
        },
        change: |server, _| put(server, "Namespace", "late", json!({"spec": {}, "status": {"phase": "Active"}})),
    },
    Load {
        what: "nodes under a daemon set",
        objects: |server, count| {
            nodes(server, count);
            put(
                server,
                "DaemonSet",
                "agent",
                json!({"spec": {"selector": {"matchLabels": labels()}, "template": template(),
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%"}}}}),
            );
        },
        change: |server, _| patch(server, "Node", "node-1", json!({"spec": {"unschedulable": true}})),
    },
    Load {
        what: "replicas of a deployment",
        objects: |server, count| {
            let selector = json!({"matchLabels": labels()});
            nodes(server, 10);
            put(
                server,
                "Deployment",
                "web",
                json!({"spec": {"replicas": count, "selector": selector, "template": template(),
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}}}),
            );
        },
        change: |server, _| patch(server, "Deployment", "web", json!({"spec": {"replicas": 3}})),
    },
    Load {
        what: "replicas of a stateful set with claims",
        objects: |server, count| {
            nodes(server, 10);
            let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}]);
            put(
                server,
                "StatefulSet",
                "web",
                json!({"spec": {"replicas": count, "serviceName": "web", "podManagementPolicy": "Parallel",
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
                "selector": {"matchLabels": labels()}, "template": template(), "volumeClaimTemplates": claims,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}}),
            );
            for n in 0..count {
                claim(server, &format!("data-web-{n}"), true);
                pod(server, &format!("web-{n}"), owner("StatefulSet", "web"), n % 10);
            }
        },
        change: |server, _| patch(server, "StatefulSet", "web", json!({"spec": {"replicas": 5}})),
    },
    Load {
        what: "claims that wait, and volumes for them",
        objects: |server, count| {
            for n in 0..count {
                claim(server, &format!("c{n}"), false);
            }
        },
        change: |server, _| claim(server, "late", false),
    },
    Load {
        what: "pods with claims of their own",
        objects: |server, count| {
            nodes(server, 10);
            for n in 0..count {
                claim(server, &format!("c{n}"), true);
                let mut pod = template();
                pod["spec"]["nodeName"] = json!(format!("node-{}", n % 10));
                pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": format!("c{n}")}},
                    {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}}}}}}]);
                put(server, "Pod", &format!("p{n}"), pod);
            }
        },
        change: |server, count| {
            for n in 0..count {
                let name: Name = ("ns".to_owned(), format!("c{n}"));
                let row = row("PersistentVolumeClaim");
                verbs::delete(&mut server.store.lock(), row, &name, &json!({})).expect("deleted");
            }
        },
    },
    Load {
        what: "indexes of a job",
        objects: |server, count| {
            nodes(server, 10);
            let mut template = template();
            template["spec"]["restartPolicy"] = json!("Never");
            template["metadata"]["annotations"] = json!({"sim/run": "succeed"});
            put(
                server,
                "Job",
                "work",
                json!({"spec": {"completions": count, "parallelism": count / 2, "completionMode": "Indexed",
                "backoffLimit": 6, "selector": {"matchLabels": labels()}, "template": template}}),
            );
        },
        change: |server, _| patch(server, "Job", "work", json!({"spec": {"suspend": true}})),
    },
    Load {
        what: "jobs of a cron job",
        objects: |server, count| {
            let job = json!({"spec": {"template": template()}});
            put(
                server,
                "CronJob",
                "often",
                json!({"spec": {"schedule": "* * * * *", "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
                "concurrencyPolicy": "Allow", "suspend": true, "jobTemplate": job}}),
            );
            for n in 0..count {
                let at = "2026-01-01T00:00:00Z";
                put(
                    server,
                    "Job",
                    &format!("often-{n}"),
                    json!({"metadata": {"ownerReferences": owner("CronJob", "often")},
                    "spec": {"completions": 1, "parallelism": 1, "selector": {"matchLabels": {"job": n.to_string()}}, "template": template()},
                    "status": {"succeeded": 1, "startTime": at, "completionTime": at, "conditions": [{"type": "Complete", "status": "True"}]}}),
                );
            }
        },
        change: |server, _| patch(server, "CronJob", "often", json!({"spec": {"successfulJobsHistoryLimit": 1}})),
    },
    Load {
        what: "endpoints of a service",
        objects: |server, count| {
            put(
                server,
                "Service",
                "web",
                json!({"spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "type": "ClusterIP",
                "ipFamilies": ["IPv4"], "selector": labels(), "ports": [{"port": 80, "protocol": "TCP"}]}}),
            );
            nodes(server, 10);
            for n in 0..count {
                pod(server, &format!("p{n}"), Value::Null, n % 10);
            }
        },
        change: |server, _| patch(server, "Pod", "p1", json!({"metadata": {"labels": {"app": "other"}}})),
    },
    Load {
        what: "dependents of an owner",
        objects: |server, count| {
            put(server, "ConfigMap", "owner", json!({}));
            for n in 0..count {
                put(
                    server,
                    "Secret",
                    &format!("s{n}"),
                    json!({"metadata": {"ownerReferences": owner("ConfigMap", "owner")}}),
                );
            }
        },
        change: |server, _| {
            let name: Name = ("ns".to_owned(), "owner".to_owned());
            verbs::delete(
                &mut server.store.lock(),
                row("ConfigMap"),
                &name,
                &json!({"propagationPolicy": "Foreground"}),
            )
            .expect("deleted");
        },
    },
];

#[tokio::test(start_paused = true)]
async fn no_task_holds_its_thread_for_long() {
    let (count, limit) = (setting("HELD_OBJECTS", 300), Duration::from_millis(setting("HELD_LIMIT", 250) as u64));
    let only = std::env::var("HELD").unwrap_or_default();
    let mut late = Vec::new();
    for load in LOADS.iter().filter(|load| load.what.contains(&only)) {
        let began = std::time::Instant::now();
        let server = Server::new(Fault::None);
        put(&server, "Namespace", "ns", json!({"spec": {}, "status": {"phase": "Active"}}));
        (load.objects)(&server, count);
        let kubelet = tokio::spawn(kubelet::run(std::sync::Arc::clone(&server)));
        shared::run::measure_polls();
        let manager = Manager::start(&server, &[]).await;
        sleep(Duration::from_secs(45)).await;
        (load.change)(&server, count);
        sleep(Duration::from_secs(45)).await;
        let polls = shared::run::measured_polls();
        manager.kill();
        kubelet.abort();
        let text = format!("{count} {}: {polls:?}", load.what);
        eprintln!("{text} in {:?}", began.elapsed());
        if polls.longest > limit {
            late.push(text);
        }
    }
    assert!(late.is_empty(), "longer than {limit:?}:\n{}", late.join("\n"));
}
