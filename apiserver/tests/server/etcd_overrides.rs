//! Resources that `--etcd-servers-overrides` keeps in an etcd of their own.

use serde_json::json;

use crate::harness::{Cluster, etcd_is_missing};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// A server that keeps config maps and events in the etcd of another one, below a prefix of its own.
async fn start_beside(other: &Cluster) -> Cluster {
    let there = format!("http://127.0.0.1:{}", other.etcd_port());
    Cluster::start_with(|_, _| {
        vec![
            "--etcd-prefix=/apart".to_owned(),
            format!("--etcd-servers-overrides=/configmaps#{there},/events#{there},unknown.example.com/things#{there}"),
        ]
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_live_in_the_etcd_that_their_resource_names() {
    if etcd_is_missing() {
        return;
    }
    let other = Cluster::start().await;
    let cluster = start_beside(&other).await;
    // As if it were written before the resource was kept elsewhere.
    let left = cluster.etcd_client().await;
    left.kv_client().put("/apart/configmaps/default/left", "{}", None).await.expect("written");

    let first = cluster.post(MAPS, json!({"metadata": {"name": "a"}})).await.ok();
    let from = first["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
    cluster.post("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).await.ok();
    let event = json!({
        "metadata": {"name": "e"}, "eventTime": "2024-01-01T00:00:00.000000Z", "reason": "R", "action": "A", "type": "Normal",
        "reportingController": "example.com/c", "reportingInstance": "i", "regarding": {"namespace": "default"},
    });
    cluster.post(EVENTS, event).await.ok();

    assert!(other.stored("/apart/configmaps/default/a").await.is_some());
    assert!(cluster.stored("/apart/configmaps/default/a").await.is_none());
    assert!(cluster.stored("/apart/secrets/default/s").await.is_some());
    let (_, lease) = other.stored("/apart/events/default/e").await.expect("the event is there");
    assert_ne!(lease, 0, "its lease is one of that etcd");

    cluster.patch(&format!("{MAPS}/a"), "merge-patch+json", json!({"data": {"k": "v"}})).await.ok();
    cluster.delete(&format!("{MAPS}/a")).await.ok();
    cluster.post(MAPS, json!({"metadata": {"name": "b"}})).await.ok();
    let seen = cluster.watch(&format!("{MAPS}?watch=1&timeoutSeconds=10&resourceVersion={from}"), 3).await;
    let seen: Vec<_> = seen.iter().map(|e| (e["type"].as_str(), e["object"]["metadata"]["name"].as_str())).collect();
    assert_eq!(
        seen,
        [(Some("MODIFIED"), Some("a")), (Some("DELETED"), Some("a")), (Some("ADDED"), Some("b"))],
        "a watch follows that etcd's revisions"
    );
    for query in ["", "?resourceVersion=0", "?limit=1"] {
        let list = cluster.get(&format!("{MAPS}{query}")).await.ok();
        let names: Vec<_> = list["items"].as_array().into_iter().flatten().map(|o| &o["metadata"]["name"]).collect();
        assert_eq!(names, ["b"], "{query:?}: what was left in the main etcd is not shown");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_servers_read_overridden_resources() {
    if etcd_is_missing() {
        return;
    }
    let other = Cluster::start().await;
    let mut cluster = start_beside(&other).await;
    cluster.post(MAPS, json!({"metadata": {"name": "a"}})).await.ok();
    cluster.stop_server();
    cluster.start_server().await;
    assert_eq!(cluster.get(&format!("{MAPS}/a")).await.ok()["metadata"]["name"], "a");
    assert_eq!(cluster.get(&format!("{MAPS}/a?resourceVersion=0")).await.ok()["metadata"]["name"], "a");
}
