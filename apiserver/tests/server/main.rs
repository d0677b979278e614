//! The API as clients meet it: one server and one etcd for all tests of this binary.
#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

#[path = "../harness/mod.rs"]
mod harness;

mod access;
mod admission;
mod aggregation;
mod audit;
mod authentication;
mod authorization;
mod bad_input;
mod bad_requests;
mod cbor;
mod configured;
mod connections;
mod conversion;
mod corrupt_objects;
mod custom;
mod custom_objects;
mod definitions;
mod devices;
mod discovery;
mod egress;
mod elections;
mod encryption;
mod etcd_members;
mod etcd_overrides;
mod etcd_tls;
mod families;
mod faults;
mod flowcontrol;
mod forms;
mod gates;
mod heads;
mod impersonation;
mod lifecycle;
mod misfits;
mod mutations;
mod objects;
mod old_objects;
mod optional;
mod ownership;
mod peers;
mod plugins;
mod policies;
mod reads;
mod restart;
mod runtime_config;
mod security;
mod service_ranges;
mod services;
mod serving;
mod storage_versions;
mod stored_versions;
mod strategies;
mod strict;
mod traces;
mod uncached;
mod upstream;
mod versions;
mod webhooks;
mod writes;

use harness::{Client, Cluster, Identity, etcd_is_missing};
use tokio::sync::OnceCell;

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

/// The server that tests share, or `None` where there is no etcd. Each test has a namespace of its own.
async fn cluster() -> Option<&'static Cluster> {
    if etcd_is_missing() {
        return None;
    }
    Some(CLUSTER.get_or_init(Cluster::start).await)
}

/// An administrator's client of the shared server, with a new namespace that has a service account.
async fn workspace(name: &str) -> Option<(Client, String)> {
    let c = cluster().await?.client(Identity::Admin);
    c.post("/api/v1/namespaces", serde_json::json!({"metadata": {"name": name}})).await.ok();
    let path = format!("/api/v1/namespaces/{name}");
    c.post(&format!("{path}/serviceaccounts"), serde_json::json!({"metadata": {"name": "default"}})).await.ok();
    Some((c, path))
}
