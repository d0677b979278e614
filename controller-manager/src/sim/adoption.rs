//! Adoption of orphans that are not what the cache says any more.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use serde_json::{Value, json};

use super::faults::Fault;
use super::http::Server;
use super::manager::Manager;
use super::store::key;
use crate::engine::object;
use crate::engine::owned::settle;
use crate::engine::pod::Pod;

fn put(server: &Server, plural: &str, object: Value) {
    let row = super::http::rows().find(|r| r.plural == plural && r.is_stored()).expect("a served resource");
    server.store.lock().put(&key(row), object);
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"containers": []}})
}

fn set() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "ns", "uid": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {}}}})
}

/// Settles a set with orphans of which the server has the first and the last; the names of those that it owns then.
async fn settled(server: &Arc<Server>) -> Result<Vec<String>, String> {
    let (cx, _shutdown) = Manager::context(server, &[], None);
    let set: ReplicaSet = serde_json::from_value(set()).expect("a set");
    let cached = ["a", "gone", "z"].map(|name| Arc::new(serde_json::from_value::<Pod>(pod(name)).expect("a pod")));
    let executor = cx.executor("test", "test");
    let owned = settle(&executor.rest, &set, |_: &Pod| true, cached.to_vec()).await.map_err(|e| e.to_string())?;
    Ok(owned.iter().map(|pod| object::name(&pod.metadata).to_owned()).collect())
}

fn server() -> Arc<Server> {
    let server = Server::new(Fault::None);
    put(&server, "replicasets", set());
    for name in ["a", "z"] {
        put(&server, "pods", pod(name));
    }
    server
}

fn patched(server: &Server) -> usize {
    server.log.lock().iter().filter(|line| line.starts_with("PATCH")).count()
}

#[tokio::test(start_paused = true)]
async fn orphan_that_is_gone_is_not_owned() {
    let server = server();
    assert_eq!(settled(&server).await, Ok(vec!["a".to_owned(), "z".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn adoption_that_fails_keeps_no_other_from_being_tried() {
    let server = server();
    *server.refusing.lock() = Some(("PATCH pods".to_owned(), "not now".to_owned()));
    let why = settled(&server).await.expect_err("a set that does not have its orphans is looked at again");
    assert!(why.contains("not now"), "{why}");
    assert_eq!(patched(&server), 3);
}
