//! Attacks by free text: names that are paths, annotations that are read as something, line breaks.

use serde_json::{Value, json};

use super::{Attack, attack, expect};
use crate::client::{Arena, MINE, mine, of_group, pod};

pub fn all() -> Vec<Attack> {
    vec![
        attack("40 owners named ?watch=true", |arena| {
            let owners: Vec<Value> = (0..40).map(|number| owner("v1", "ConfigMap", "?watch=true", number)).collect();
            owned_by(arena, "watching", &json!(owners));
            garbage_is_collected(arena);
        }),
        attack("an owner named p/log?follow=true", |arena| {
            let endless = json!({"containers": [{"name": "main", "image": "busybox:1.36", "command": ["yes", "xxxxxxxxxxxxxxxxxxxxxxxx"]}]});
            expect(&arena.post(&mine("pods", ""), &pod("p", &endless)), &[201], "the pod");
            arena.wait_until_running("p");
            owned_by(arena, "reading", &json!([owner("v1", "Pod", "p/log?follow=true", 1)]));
            garbage_is_collected(arena);
        }),
        attack("an owner that is a path through the node's proxy", |arena| {
            owned_by(arena, "proxying", &json!([owner("v1", "Node", "node-1:10250/proxy/pods", 1)]));
            garbage_is_collected(arena);
        }),
        attack("owners whose names no segment can be", |arena| {
            let names = ["..", ".", "a/b", "%2e%2e", "a%", "a\nb", "a b", "\u{202e}x", "x\u{0}y", &"x".repeat(100_000)];
            for (number, name) in names.iter().enumerate() {
                owned_by(arena, &format!("odd-{number}"), &json!([owner("v1", "ConfigMap", name, number)]));
            }
            garbage_is_collected(arena);
        }),
        attack("owners of kinds that nobody knows", |arena| {
            let owners: Vec<Value> =
                (0..100).map(|n| owner(&format!("g{n}.example/v1"), &format!("Kind{n}"), "x", n)).collect();
            owned_by(arena, "unknown", &json!(owners));
            owned_by(arena, "no-version", &json!([owner("a/b/c", "Pod", "x", 1)]));
            garbage_is_collected(arena);
        }),
        attack("an object that owns itself", |arena| {
            let path = mine("configmaps", "ouroboros");
            let made = arena.post(&mine("configmaps", ""), &json!({"metadata": {"name": "ouroboros"}}));
            let uid = made.json()["metadata"]["uid"].clone();
            let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "ouroboros", "uid": uid, "blockOwnerDeletion": true}]);
            expect(&arena.patch(&path, &json!({"metadata": {"ownerReferences": owners}})), &[200], "the reference");
            expect(&arena.ask("DELETE", &format!("{path}?propagationPolicy=Foreground")), &[200, 202], "DELETE");
            garbage_is_collected(arena);
            // It waits for itself, upstream too, until somebody takes the reference away.
            expect(&arena.patch(&path, &json!({"metadata": {"ownerReferences": null}})), &[200], "the way out");
            arena.wait_until_gone(&path, 30);
        }),
        attack("a circle of owners that is deleted in the foreground", circle_of_owners),
        attack("token Secrets of accounts that are paths", |arena| {
            for (number, account) in
                ["?watch=true", "eve/token", "../serviceaccounts/eve", "..", "eve\n", "eve%2f"].iter().enumerate()
            {
                let secret = json!({"metadata": {"name": format!("token-{number}"), "annotations": {
                    "kubernetes.io/service-account.name": account, "kubernetes.io/service-account.uid": "x"}},
                    "type": "kubernetes.io/service-account-token"});
                expect(&arena.post(&mine("secrets", ""), &secret), &[201, 403, 422], account);
            }
        }),
        attack("autoscalers of targets and metrics that are paths", |arena| {
            for (number, name) in ["x?watch=true", "..", "a/b", "x#y"].iter().enumerate() {
                let metric = json!({"type": "Object", "object": {"describedObject": {"apiVersion": "v1", "kind": "Service", "name": name},
                    "metric": {"name": name}, "target": {"type": "Value", "value": "1"}}});
                let scaler = json!({"metadata": {"name": format!("odd-{number}")}, "spec": {"maxReplicas": 2, "metrics": [metric],
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}}});
                expect(
                    &arena.post(&of_group("autoscaling/v2", "horizontalpodautoscalers", ""), &scaler),
                    &[201, 422],
                    name,
                );
            }
        }),
        attack("annotations that controllers read as numbers and JSON", read_annotations),
        attack("annotations on pods with line breaks, controls and too much", |arena| {
            let text = "a\nE1126 00:00:00.000000 1 x.go:1] \"forged\"\r\n\u{1b}[2J\u{0}";
            let mut noisy = pod("noisy", &json!({}));
            noisy["metadata"]["annotations"] = json!({"a": text.repeat(1000), "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "x"});
            expect(&arena.post(&mine("pods", ""), &noisy), &[201], "with controls");
            noisy["metadata"] = json!({"name": "mirror", "annotations": {"kubernetes.io/config.mirror": text}});
            expect(&arena.post(&mine("pods", ""), &noisy), &[403, 422], "a mirror of nothing");
            noisy["metadata"] = json!({"name": "large", "annotations": {"a": "x".repeat(300_000)}});
            expect(&arena.post(&mine("pods", ""), &noisy), &[422], "too much");
        }),
        attack("names of objects that are no names", |arena| {
            for name in ["..", ".", "a/b", "%2e", "a\nb", "A", "", "-", &"x".repeat(254)] {
                let made = arena.post(&mine("configmaps", ""), &json!({"metadata": {"name": name}}));
                expect(&made, &[422], name);
                let made = arena.post(
                    &mine("services", ""),
                    &json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}}),
                );
                expect(&made, &[422], name);
            }
            let made = arena.post(&mine("configmaps", ""), &json!({"metadata": {"generateName": "y".repeat(300)}}));
            expect(&made, &[201, 422], "a long prefix");
        }),
        attack("keys of ConfigMaps that are paths", |arena| {
            for key in ["../x", "a/b", "..", ".", "a\nb", ""] {
                let made =
                    arena.post(&mine("configmaps", ""), &json!({"metadata": {"name": "keys"}, "data": {key: "x"}}));
                expect(&made, &[422], key);
            }
        }),
        attack("names within a pod that are paths", |arena| {
            let changes = [
                json!({"containers": [{"name": "a/b", "image": "busybox:1.36"}]}),
                json!({"containers": [{"name": "..", "image": "busybox:1.36"}]}),
                json!({"volumes": [{"name": "../x", "emptyDir": {}}]}),
                json!({"hostname": "../x"}),
                json!({"subdomain": "a\nb"}),
                json!({"nodeName": "../../x"}),
                json!({"serviceAccountName": "../eve"}),
                json!({"schedulerName": "a\nb"}),
                json!({"runtimeClassName": "../x"}),
                json!({"imagePullSecrets": [{"name": "../x"}]}),
            ];
            for (number, change) in changes.iter().enumerate() {
                let made = arena.post(&mine("pods", ""), &pod(&format!("paths-{number}"), change));
                expect(&made, &[201, 403, 422], &change.to_string());
            }
        }),
        attack("events about objects with names of any kind", |arena| {
            for (number, name) in ["../x", "?watch=true", "a\nb", &"n".repeat(50_000)].iter().enumerate() {
                let event = json!({"metadata": {"name": format!("odd.{number}")}, "reason": name, "message": name, "type": "Normal",
                    "involvedObject": {"kind": name, "name": name, "namespace": MINE, "uid": name, "fieldPath": name},
                    "source": {"component": name, "host": name}});
                expect(&arena.post(&mine("events", ""), &event), &[201, 422], name);
            }
        }),
        attack("claims and volumes that name paths", |arena| {
            let claim = json!({"metadata": {"name": "claim", "annotations": {"pv.kubernetes.io/bind-completed": "\n",
                "volume.kubernetes.io/selected-node": "../node-1", "volume.kubernetes.io/storage-provisioner": "a/b?c"}},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "../x", "storageClassName": "", "resources": {"requests": {"storage": "1"}}}});
            expect(&arena.post(&mine("persistentvolumeclaims", ""), &claim), &[201, 422], "a claim");
            let mounted = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "?watch=true"}}]});
            expect(&arena.post(&mine("pods", ""), &pod("claims", &mounted)), &[201, 422], "a pod");
        }),
        attack("resource claims reserved for paths", |arena| {
            let group = "resource.k8s.io/v1";
            let claim = json!({"metadata": {"name": "device"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}]}}});
            expect(&arena.post(&of_group(group, "resourceclaims", ""), &claim), &[201], "the claim");
            let reserved = json!({"status": {"allocation": {"devices": {}}, "reservedFor": [
                {"resource": "pods", "name": "?watch=true", "uid": "x"}, {"resource": "pods", "name": "../x", "uid": "y"}]}});
            let answer = arena.patch(&of_group(group, "resourceclaims", "device/status"), &reserved);
            expect(&answer, &[200, 403, 422], "its status");
        }),
        attack("ingresses and policies with odd hosts, paths and addresses", |arena| {
            let ingress = |host: &str, path: &str| {
                json!({"metadata": {"name": "odd"}, "spec": {"rules": [{"host": host, "http": {"paths": [
                {"path": path, "pathType": "Exact", "backend": {"service": {"name": "x", "port": {"number": 1}}}}]}}]}})
            };
            for (host, path) in [("a\nb", "/"), ("x", "a"), ("x", "/../x"), ("x", "//"), ("x", "/%2f")] {
                let answer = arena.post(&of_group("networking.k8s.io/v1", "ingresses", ""), &ingress(host, path));
                expect(&answer, &[422], path);
            }
            let policy = json!({"metadata": {"name": "odd"}, "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["::/0"]}}]}]}});
            let answer = arena.post(&of_group("networking.k8s.io/v1", "networkpolicies", ""), &policy);
            expect(&answer, &[422], "a policy");
        }),
    ]
}

fn owner(version: &str, kind: &str, name: &str, number: usize) -> Value {
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": format!("11111111-1111-1111-1111-{number:012}")})
}

/// Makes a ConfigMap with these owners; what upstream refuses, it may refuse.
fn owned_by(arena: &Arena, name: &str, owners: &Value) {
    let object = json!({"metadata": {"name": name, "ownerReferences": owners}});
    expect(&arena.post(&mine("configmaps", ""), &object), &[201, 422], name);
}

/// Asserts that a ReplicaSet goes after the Deployment it belongs to.
fn garbage_is_collected(arena: &Arena) {
    let deployment = json!({"metadata": {"name": "short"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "busybox:1.36"}]}}}});
    let sets = of_group("apps/v1", "replicasets", "");
    let count = || arena.ask("GET", &sets).json()["items"].as_array().map_or(usize::MAX, Vec::len);
    expect(&arena.post(&of_group("apps/v1", "deployments", ""), &deployment), &[201], "the Deployment");
    arena.cluster.until("the ReplicaSet is there", 10, || if count() == 1 { Ok(()) } else { Err(count().to_string()) });
    let path = of_group("apps/v1", "deployments", "short?propagationPolicy=Background");
    expect(&arena.ask("DELETE", &path), &[200], "DELETE");
    arena
        .cluster
        .until("the ReplicaSet is collected", 10, || if count() == 0 { Ok(()) } else { Err(count().to_string()) });
}

fn circle_of_owners(arena: &Arena) {
    let names = ["circle-0", "circle-1", "circle-2"];
    let uids: Vec<Value> = names
        .iter()
        .map(|name| {
            arena.post(&mine("configmaps", ""), &json!({"metadata": {"name": name}})).json()["metadata"]["uid"].clone()
        })
        .collect();
    for (number, name) in names.iter().enumerate() {
        let next = (number + 1) % names.len();
        let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": names[next], "uid": uids[next], "blockOwnerDeletion": true}]);
        expect(
            &arena.patch(&mine("configmaps", name), &json!({"metadata": {"ownerReferences": owners}})),
            &[200],
            name,
        );
    }
    let first = mine("configmaps", names[0]);
    expect(&arena.ask("DELETE", &format!("{first}?propagationPolicy=Foreground")), &[200, 202], "DELETE");
    for name in names {
        arena.wait_until_gone(&mine("configmaps", name), 30);
    }
}

fn read_annotations(arena: &Arena) {
    let values =
        ["9223372036854775807", "99999999999999999999", "-1", "1e999", "NaN", "", "\n", "{", "null", "[[[[", "0x10"];
    for (number, value) in values.iter().enumerate() {
        let annotations = json!({"deployment.kubernetes.io/revision": value, "deployment.kubernetes.io/desired-replicas": value,
            "deployment.kubernetes.io/max-replicas": value, "deprecated.daemonset.template.generation": value,
            "kubectl.kubernetes.io/last-applied-configuration": value, "batch.kubernetes.io/job-tracking": value,
            "endpoints.kubernetes.io/last-change-trigger-time": value, "autoscaling.alpha.kubernetes.io/metrics": value,
            "pod.alpha.kubernetes.io/init-container-statuses": value, "controller.kubernetes.io/hostname": value});
        let template = json!({"metadata": {"labels": {"n": format!("n{number}")}, "annotations": annotations},
            "spec": {"containers": [{"name": "main", "image": "busybox:1.36"}]}});
        let spec =
            json!({"replicas": 0, "selector": {"matchLabels": {"n": format!("n{number}")}}, "template": template});
        let metadata = json!({"name": format!("read-{number}"), "annotations": annotations});
        for resource in ["deployments", "replicasets"] {
            let answer = arena.post(&of_group("apps/v1", resource, ""), &json!({"metadata": metadata, "spec": spec}));
            expect(&answer, &[201], resource);
        }
        let mut counted = pod(&format!("read-{number}"), &json!({}));
        counted["metadata"]["annotations"] = json!({"controller.kubernetes.io/pod-deletion-cost": value,
            "batch.kubernetes.io/job-completion-index": value, "kubernetes.io/limit-ranger": value});
        expect(&arena.post(&mine("pods", ""), &counted), &[201, 422], value);
    }
}
