//! A server that comes back on the same etcd.

use serde_json::{Value, json};

use crate::harness::{Cluster, Identity, etcd_is_missing, eventually};

const NS: &str = "/api/v1/namespaces/default";

fn revision(o: &Value) -> &str {
    o["metadata"]["resourceVersion"].as_str().expect("a revision")
}

fn seen(frames: &[Value]) -> Vec<String> {
    frames
        .iter()
        .map(|f| {
            format!("{} {}", f["type"].as_str().unwrap_or(""), f["object"]["metadata"]["name"].as_str().unwrap_or(""))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_everything() {
    if etcd_is_missing() {
        return;
    }
    let mut cluster = Cluster::start().await;
    let maps = format!("{NS}/configmaps");
    cluster.post(&maps, json!({"metadata": {"name": "a"}, "data": {"k": "v"}})).await.ok();
    let start = cluster.get(&maps).await.ok();
    cluster.post(&maps, json!({"metadata": {"name": "b"}})).await.ok();
    cluster.delete(&format!("{maps}/a")).await.ok();
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let service = cluster.post(&format!("{NS}/services"), service).await.ok();
    cluster.post(&format!("{NS}/serviceaccounts"), json!({"metadata": {"name": "robot"}})).await.ok();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = cluster.post(&format!("{NS}/serviceaccounts/robot/token"), request).await.ok()["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let paths = ["configmaps", "services", "serviceaccounts", "secrets"].map(|plural| format!("{NS}/{plural}"));
    let clusterwide = [
        "/api/v1/namespaces",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ];
    let mut before = Vec::new();
    for path in paths.iter().map(String::as_str).chain(clusterwide) {
        before.push((path.to_owned(), cluster.get(path).await.ok()["items"].clone()));
    }

    cluster.stop_server();
    cluster.start_server().await;

    for (path, items) in before {
        assert_eq!(cluster.get(&path).await.ok()["items"], items, "{path}");
    }
    // Watches go on from what a list says now, and from before the restart: etcd knows what happened.
    let now = cluster.get(&maps).await.ok();
    cluster.post(&maps, json!({"metadata": {"name": "c"}})).await.ok();
    cluster.delete(&format!("{maps}/b")).await.ok();
    let path = format!("{maps}?watch=1&timeoutSeconds=5&resourceVersion={}", revision(&now));
    assert_eq!(seen(&cluster.watch(&path, 2).await), ["ADDED c", "DELETED b"]);
    let path = format!("{maps}?watch=1&timeoutSeconds=5&resourceVersion={}", revision(&start));
    assert_eq!(seen(&cluster.watch(&path, 4).await), ["ADDED b", "DELETED a", "ADDED c", "DELETED b"]);
    let exact =
        cluster.get(&format!("{maps}?resourceVersion={}&resourceVersionMatch=Exact", revision(&start))).await.ok();
    assert_eq!(exact["items"], start["items"]);
    // What was taken is still taken, and who was known is still known.
    let address = &service["spec"]["clusterIP"];
    let twice = json!({"metadata": {"name": "t"}, "spec": {"clusterIP": address, "ports": [{"port": 80}]}});
    let message = format!(
        "Service \"t\" is invalid: spec.clusterIPs: Invalid value: [{address}]: failed to allocate IP {}: provided IP is already allocated",
        address.as_str().unwrap_or("")
    );
    cluster.post(&format!("{NS}/services"), twice).await.fails(422, "Invalid", &message);
    assert_eq!(cluster.client(Identity::Token(token)).get(&maps).await.code, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_history_is_gone() {
    if etcd_is_missing() {
        return;
    }
    let mut cluster = Cluster::start().await;
    let maps = format!("{NS}/configmaps");
    let start = cluster.get(&maps).await.ok();
    let page = cluster.get("/api/v1/namespaces?limit=1").await.ok();
    cluster.post(&maps, json!({"metadata": {"name": "a"}})).await.ok();
    let made = cluster.post(&maps, json!({"metadata": {"name": "b"}})).await.ok();
    cluster.stop_server();
    let at = revision(&made).parse().expect("a number");
    cluster.etcd_client().await.kv_client().compact(at, None).await.expect("compacted");
    cluster.start_server().await;
    let path = format!("{maps}?watch=1&timeoutSeconds=5&resourceVersion={}", revision(&start));
    let old = cluster.watch(&path, 1).await;
    assert_eq!((&old[0]["type"], &old[0]["object"]["reason"]), (&json!("ERROR"), &json!("Expired")));
    let message = old[0]["object"]["message"].as_str().unwrap_or("");
    assert!(message.starts_with(&format!("too old resource version: {} (", revision(&start))), "{message}");
    let path = format!("{maps}?resourceVersion={}&resourceVersionMatch=Exact", revision(&start));
    cluster.get(&path).await.fails(410, "Expired", "The resourceVersion for the provided list is too old.");
    // A list that was begun goes on inconsistently, if the client wants that.
    let token = page["metadata"]["continue"].as_str().expect("there are more");
    let gone = cluster.get(&format!("/api/v1/namespaces?limit=1&continue={token}")).await;
    assert_eq!(gone.code, 410, "{}", gone.text());
    let token = gone.json()["metadata"]["continue"].as_str().expect("a token").to_owned();
    let rest = cluster.get(&format!("/api/v1/namespaces?continue={token}")).await.ok();
    assert!(rest["items"].as_array().is_some_and(|items| !items.is_empty()));
    assert!(revision(&rest).parse::<i64>().expect("a number") >= at);
}

#[tokio::test(flavor = "multi_thread")]
async fn continue_token_expires_with_compaction() {
    if etcd_is_missing() {
        return;
    }
    let cluster = Cluster::start_with(|_, _| vec!["--etcd-compaction-interval=1s".to_owned()]).await;
    let maps = format!("{NS}/configmaps");
    for name in ["a", "b", "c"] {
        cluster.post(&maps, json!({"metadata": {"name": name}})).await.ok();
    }
    // Nothing changes: whoever keeps what he has would know all of it forever.
    let page = cluster.get(&format!("{maps}?limit=1")).await.ok();
    let next = format!("{maps}?limit=1&continue={}", page["metadata"]["continue"].as_str().expect("there are more"));
    let gone = eventually("an expired token", async || {
        let answer = cluster.get(&next).await;
        (answer.code == 410).then_some(answer)
    })
    .await;
    let token = gone.json()["metadata"]["continue"].as_str().expect("a token").to_owned();
    let rest = cluster.get(&format!("{maps}?continue={token}")).await.ok();
    assert_eq!(rest["items"].as_array().map(Vec::len), Some(2));
}
