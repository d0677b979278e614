//! The API against real etcd: what clients rely on, over HTTPS with a client certificate.
#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod harness;

use bytes::Bytes;
use harness::{Cluster, etcd_is_missing};
use serde_json::{Value, json};

const NS: &str = "/api/v1/namespaces/default";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {"serviceAccountName": "default", "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
}

async fn with_account(c: &Cluster) {
    c.post(&format!("{NS}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await;
}

fn revision(o: &Value) -> String {
    o["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_live_and_die() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let maps = format!("{NS}/configmaps");

    let a = c.post(&maps, json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).await;
    assert_eq!(a.code, 201, "{}", a.json());
    let a = a.json();
    assert!(a["metadata"]["uid"].is_string() && a["metadata"]["managedFields"][0]["manager"] == "test");
    let again = c.post(&maps, json!({"metadata": {"name": "a"}})).await;
    assert_eq!((again.code, again.json()["reason"].as_str()), (409, Some("AlreadyExists")));
    let dry = c.post(&format!("{maps}?dryRun=All"), json!({"metadata": {"generateName": "g-"}, "unknown": 1})).await;
    assert_eq!((dry.code, dry.header("warning")), (201, r#"299 - "unknown field \"unknown\"""#));
    assert_eq!(
        c.get(&format!("{maps}?fieldSelector=metadata.name=a")).await.json()["items"].as_array().map(Vec::len),
        Some(1)
    );

    // The key and the envelope are upstream's, the revision is not part of the value.
    let (stored, _) = c.stored("/registry/configmaps/default/a").await.expect("stored");
    assert!(stored.starts_with(b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap"));

    let path = format!("{maps}/a");
    let mut newer = a.clone();
    newer["data"]["k"] = json!("2");
    let put = c.put(&path, &newer).await;
    assert_eq!(put.code, 200);
    let stale = c.put(&path, &newer).await;
    assert_eq!((stale.code, stale.json()["reason"].as_str()), (409, Some("Conflict")));
    // A write that changes nothing moves nothing.
    let same = c.put(&path, &put.json()).await.json();
    assert_eq!(revision(&same), revision(&put.json()));

    for (kind, patch, want) in [
        ("merge-patch+json", json!({"data": {"m": "1"}}), "m"),
        ("json-patch+json", json!([{"op": "add", "path": "/data/j", "value": "1"}]), "j"),
        ("strategic-merge-patch+json", json!({"data": {"s": "1"}}), "s"),
    ] {
        let p = c.patch(&path, kind, patch).await;
        assert_eq!((p.code, p.json()["data"][want].as_str()), (200, Some("1")), "{kind}");
    }
    let apply = |v: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": v}});
    let conflict = c.patch(&format!("{path}?fieldManager=m2"), "apply-patch+yaml", apply("3")).await;
    assert_eq!(conflict.code, 409, "{}", conflict.json());
    let forced = c.patch(&format!("{path}?fieldManager=m2&force=true"), "apply-patch+yaml", apply("3")).await;
    assert_eq!((forced.code, forced.json()["data"]["k"].as_str()), (200, Some("3")));

    let table =
        c.send("GET", &maps, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json", None).await.json();
    assert_eq!((&table["kind"], &table["rows"][0]["cells"][1]), (&json!("Table"), &json!(4)));
    let proto = c.send("GET", &path, "application/vnd.kubernetes.protobuf", None).await;
    assert!(proto.bytes.starts_with(b"k8s\0"));
    let back = c.send("PUT", &path, "application/vnd.kubernetes.protobuf", Some(proto.bytes)).await;
    assert_eq!(back.code, 200);

    // Finalizers hold, their removal lets go.
    c.patch(&path, "merge-patch+json", json!({"metadata": {"finalizers": ["test/x"]}})).await;
    let held = c.delete(&path).await;
    assert_eq!(held.code, 200);
    assert!(held.json()["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(c.patch(&path, "merge-patch+json", json!({"metadata": {"finalizers": null}})).await.code, 200);
    let gone = c.get(&path).await.json();
    assert_eq!(gone["message"], r#"configmaps "a" not found"#);

    let too_large = c.send("POST", &maps, "application/json", Some(Bytes::from(vec![b' '; (3 << 20) + 1]))).await;
    assert_eq!(
        (too_large.code, too_large.json()["message"].as_str()),
        (413, Some("Request entity too large: limit is 3145728"))
    );
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "reason": "r"});
    assert_eq!(c.post(&format!("{NS}/events"), event).await.code, 201);
    assert!(c.stored("/registry/events/default/e").await.is_some_and(|(_, lease)| lease != 0));
    assert_eq!(c.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.json()["reason"], "r");
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_see_every_change_once() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let maps = format!("{NS}/configmaps");
    let map = |name: &str, color: &str| json!({"metadata": {"name": name, "labels": {"color": color}}});
    c.post(&maps, map("a", "red")).await;
    let start = c.get(&maps).await.json();
    let from = revision(&start);

    c.post(&maps, map("b", "blue")).await;
    c.patch(&format!("{maps}/b"), "merge-patch+json", json!({"metadata": {"labels": {"color": "red"}}})).await;
    c.patch(&format!("{maps}/a"), "merge-patch+json", json!({"metadata": {"labels": {"color": "blue"}}})).await;
    c.delete(&format!("{maps}/b")).await;

    let seen = |frames: &[Value]| -> Vec<String> {
        frames
            .iter()
            .map(|f| {
                format!(
                    "{} {}",
                    f["type"].as_str().unwrap_or(""),
                    f["object"]["metadata"]["name"].as_str().unwrap_or("")
                )
            })
            .collect()
    };
    let frames = c.watch(&format!("{maps}?watch=1&timeoutSeconds=5&resourceVersion={from}"), 4).await;
    assert_eq!(seen(&frames), ["ADDED b", "MODIFIED b", "MODIFIED a", "DELETED b"]);
    let revisions: Vec<u64> = frames.iter().map(|f| revision(&f["object"]).parse().expect("a number")).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
    // Through a selector, coming into it is ADDED and leaving it DELETED, at the revision of the change.
    let red =
        c.watch(&format!("{maps}?watch=1&timeoutSeconds=5&labelSelector=color=red&resourceVersion={from}"), 3).await;
    assert_eq!(seen(&red), ["ADDED b", "DELETED a", "DELETED b"]);
    assert_eq!(revision(&red[1]["object"]), revisions[2].to_string());

    let initial = c
        .watch(&format!("{maps}?watch=1&timeoutSeconds=5&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"), 2)
        .await;
    assert_eq!(seen(&initial)[0], "ADDED a");
    assert_eq!(
        (&initial[1]["type"], &initial[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"]),
        (&json!("BOOKMARK"), &json!("true"))
    );

    let old = c.watch(&format!("{maps}?watch=1&resourceVersion=1"), 1).await;
    assert_eq!(old[0]["type"], "ADDED", "etcd still knows what came after its first revision: {old:?}");
    assert_eq!(c.get(&format!("{maps}?resourceVersion=999999")).await.code, 504);

    // A live watch survives the restart of etcd.
    let live = format!("{maps}?watch=1&timeoutSeconds=30&resourceVersion={}", revision(&c.get(&maps).await.json()));
    let mut c = c;
    c.kill_etcd();
    c.start_etcd();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while c.post(&maps, map("late", "green")).await.code != 201 {
        assert!(std::time::Instant::now() < until, "writes work again after etcd is back");
    }
    assert_eq!(seen(&c.watch(&live, 1).await), ["ADDED late"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_list_share_one_revision() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let maps = format!("{NS}/configmaps");
    for i in 0..7 {
        c.post(&maps, json!({"metadata": {"name": format!("m{i}")}})).await;
    }
    let first = c.get(&format!("{maps}?limit=3")).await.json();
    assert_eq!(
        (first["items"].as_array().map(Vec::len), &first["metadata"]["remainingItemCount"]),
        (Some(3), &json!(4))
    );
    // What happens in between does not show.
    c.delete(&format!("{maps}/m5")).await;
    let token = first["metadata"]["continue"].as_str().expect("a token").to_owned();
    let rest = c.get(&format!("{maps}?limit=500&continue={token}")).await.json();
    let names: Vec<&str> =
        rest["items"].as_array().expect("items").iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
    assert_eq!(names, ["m3", "m4", "m5", "m6"]);
    assert_eq!(revision(&rest), revision(&first));
    let exact = c.get(&format!("{maps}?resourceVersion={}&resourceVersionMatch=Exact", revision(&first))).await.json();
    assert_eq!(exact["items"].as_array().map(Vec::len), Some(7));

    // After a compaction the token is worth a fresh one.
    let now: i64 = revision(&c.get(&maps).await.json()).parse().expect("a number");
    c.etcd_client().await.kv_client().compact(now, None).await.expect("compacted");
    let gone = c.get(&format!("{maps}?limit=3&continue={token}")).await;
    assert_eq!((gone.code, gone.json()["reason"].as_str()), (410, Some("Expired")));
    let fresh = gone.json()["metadata"]["continue"].as_str().expect("a fresh token").to_owned();
    let rest = c.get(&format!("{maps}?continue={fresh}")).await.json();
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(3));

    let all = c.delete(&maps).await;
    assert_eq!((all.code, &all.json()["kind"]), (200, &json!("ConfigMapList")));
    assert_eq!(c.get(&maps).await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn services_never_share_an_address() {
    if etcd_is_missing() {
        return;
    }
    let mut c = Cluster::start().await;
    let services = format!("{NS}/services");
    let service = |name: &str, port: Option<u16>| {
        let mut p = json!({"port": 80});
        if let Some(n) = port {
            p["nodePort"] = json!(n);
        }
        json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [p]}})
    };
    let mut seen = std::collections::BTreeSet::from([("10.96.0.1".to_owned(), 0)]);
    let mut take = |s: Value| {
        let key = (
            s["spec"]["clusterIP"].as_str().unwrap_or("").to_owned(),
            s["spec"]["ports"][0]["nodePort"].as_u64().unwrap_or(0),
        );
        assert!(!key.0.is_empty() && key.1 >= 30000, "{s}");
        assert!(seen.iter().all(|(ip, port)| *ip != key.0 && *port != key.1), "{key:?} twice");
        seen.insert(key);
    };
    for i in 0..20 {
        take(c.post(&services, service(&format!("a{i}"), None)).await.json());
    }
    c.stop_server();
    c.start_server().await;
    for i in 0..20 {
        take(c.post(&services, service(&format!("b{i}"), None)).await.json());
    }
    let fixed = c.post(&services, service("fixed", Some(30001))).await.json();
    assert_eq!(fixed["spec"]["ports"][0]["nodePort"], 30001);
    let twice = c.post(&services, service("twice", Some(30001))).await.json();
    assert_eq!(
        twice["message"],
        r#"Service "twice" is invalid: spec.ports[0].nodePort: Invalid value: 30001: provided port is already allocated"#
    );
    assert_eq!(c.get(&format!("{services}/twice")).await.code, 404);
    c.delete(&format!("{services}/fixed")).await;
    assert_eq!(c.post(&services, service("again", Some(30001))).await.code, 201);
    assert_eq!(c.get(&format!("{services}/kubernetes")).await.json()["spec"]["clusterIP"], "10.96.0.1");
    let endpoints = c.get(&format!("{NS}/endpoints/kubernetes")).await.json();
    assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], "192.0.2.10");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_scaled_evicted_and_deleted() {
    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    with_account(&c).await;
    let pods = format!("{NS}/pods");
    let made = c.post(&pods, pod("p")).await;
    assert_eq!(made.code, 201, "{}", made.json());
    assert_eq!(
        (&made.json()["status"]["phase"], &made.json()["status"]["qosClass"]),
        (&json!("Pending"), &json!("BestEffort"))
    );
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    assert_eq!(c.post(&format!("{pods}/p/binding"), binding.clone()).await.code, 201);
    assert_eq!(c.post(&format!("{pods}/p/binding"), binding).await.code, 409);
    let bound = c.get(&format!("{pods}/p")).await.json();
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["status"]["conditions"][0]["type"]),
        (&json!("n1"), &json!("PodScheduled"))
    );

    // Status writes leave the rest alone.
    let status = json!({"metadata": {"labels": {"x": "y"}}, "spec": {"nodeName": "n2"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let status = c.patch(&format!("{pods}/p/status"), "strategic-merge-patch+json", status).await.json();
    assert_eq!((&status["status"]["phase"], &status["spec"]["nodeName"]), (&json!("Running"), &json!("n1")));

    let budget =
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}});
    assert_eq!(c.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await.code, 201);
    let evicted = c.post(&format!("{pods}/p/eviction"), json!({"metadata": {"name": "p"}})).await;
    assert_eq!((evicted.code, evicted.header("retry-after")), (429, "10"));

    // A running pod is only marked; the kubelet's delete without grace ends it.
    let marked = c.delete(&format!("{pods}/p")).await.json();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let zero = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": marked["metadata"]["uid"]}});
    let ended = c.send("DELETE", &format!("{pods}/p"), "application/json", Some(Bytes::from(zero.to_string()))).await;
    assert_eq!(ended.code, 200);
    assert_eq!(c.get(&format!("{pods}/p")).await.code, 404);
    let before = c.get(&pods).await.json()["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
    c.post(&pods, pod("q")).await;
    let ended = c.delete(&format!("{pods}/q")).await.json();
    assert_eq!(ended["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(c.get(&format!("{pods}/q")).await.code, 404, "an unscheduled pod goes at once");
    // Those who watch are told beforehand.
    let told = c.watch(&format!("{pods}?watch=1&fieldSelector=metadata.name%3Dq&resourceVersion={before}"), 3).await;
    let kinds: Vec<_> = told.iter().map(|e| e["type"].as_str().unwrap_or("")).collect();
    assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED"]);
    for event in &told[1..] {
        assert_eq!(event["object"]["metadata"]["deletionTimestamp"], ended["metadata"]["deletionTimestamp"]);
    }
    assert_eq!(told[2]["object"]["metadata"]["resourceVersion"], ended["metadata"]["resourceVersion"]);

    let rc = json!({"metadata": {"name": "r"}, "spec": {"replicas": 1, "selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    c.post(&format!("{NS}/replicationcontrollers"), rc).await;
    let scale = format!("{NS}/replicationcontrollers/r/scale");
    let scaled = c.patch(&scale, "merge-patch+json", json!({"spec": {"replicas": 4}})).await.json();
    assert_eq!(
        (&scaled["kind"], &scaled["spec"]["replicas"], &scaled["status"]["selector"]),
        (&json!("Scale"), &json!(4), &json!("a=b"))
    );
    let rc = c.get(&format!("{NS}/replicationcontrollers/r")).await.json();
    assert_eq!((&rc["spec"]["replicas"], &rc["metadata"]["generation"]), (&json!(4), &json!(2)));

    // A namespace waits for its content.
    c.post("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    let ending = c.delete("/api/v1/namespaces/n").await.json();
    assert_eq!(ending["status"]["phase"], "Terminating");
    let mut finalized = c.get("/api/v1/namespaces/n").await.json();
    finalized["spec"]["finalizers"] = json!([]);
    assert_eq!(c.put("/api/v1/namespaces/n/finalize", &finalized).await.code, 200);
    assert_eq!(c.get("/api/v1/namespaces/n").await.code, 404);
}

/// A cache that has missed something is found out and read anew.
#[tokio::test(flavor = "multi_thread")]
async fn inconsistent_caches_are_reinitialized() {
    use apiserver::{cache, rows, storage};

    if etcd_is_missing() {
        return;
    }
    let c = Cluster::start().await;
    let maps = format!("{NS}/configmaps");
    for name in ["a", "b"] {
        c.post(&maps, json!({"metadata": {"name": name}})).await.ok();
    }
    let servers = vec![format!("http://127.0.0.1:{}", c.etcd_port())];
    let options = storage::Options { servers, prefix: "/registry".to_owned(), ..storage::Options::default() };
    let store = storage::Store::connect(&options).await.expect("etcd");
    let (caches, asks) = cache::CacheRegistry::new(store, 1 << 20, storage::Caching::default());
    let followers: Vec<_> =
        asks.into_iter().enumerate().map(|(i, asks)| tokio::spawn(caches.clone().run(i, asks))).collect();
    let row = rows::builtin("", "configmaps").expect("a row");
    let cacher = caches.cacher(&row);
    cacher.wait_ready().await;
    let (all, sequence) = (cacher.len(), cacher.sequence());
    caches.check().await;
    assert_eq!(cacher.sequence(), sequence, "what is the same is left alone");

    cacher.delete("default/a", cacher.revision());
    assert_eq!(cacher.len(), all - 1);
    caches.check().await;
    cacher.wait_ready().await;
    assert_eq!(cacher.len(), all);
    assert!(cacher.get("default/a").is_some());
    let metrics = c.get("/metrics").await.text();
    for status in ["success", "failure"] {
        let line = format!(
            r#"apiserver_storage_consistency_checks_total{{group="",resource="configmaps",status="{status}"}} 1"#
        );
        assert!(metrics.contains(&line), "{status}");
    }

    let answer = c.delete("/metrics").await;
    assert_eq!((answer.code, answer.text().as_str()), (200, "metrics reset\n"));
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert!(!c.get("/metrics").await.text().contains("apiserver_storage_consistency_checks_total"));
    assert!(c.get("/metrics/slis").await.text().contains("kubernetes_healthchecks_total{"));
    assert_eq!(c.delete("/metrics/slis").await.text(), "metrics reset\n");
    assert!(!c.get("/metrics/slis").await.text().contains("kubernetes_healthchecks_total{"));
    followers.iter().for_each(tokio::task::JoinHandle::abort);
}
