//! One tenant asks for as much as it can: what do the others notice?
//!
//! Both are service accounts, so that flow control puts them into the same level, where only its queues tell them apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::client::{Client, JSON};
use crate::figure;
use crate::world::World;

/// Connections of the tenant that floods, and its requests at the same time on each.
const CONNECTIONS: usize = 8;
const STREAMS: usize = 25;
/// Requests of the other one that are timed, how many it sends in a second, and after how long it has seen enough on a
/// machine that is too slow for that.
const SAMPLES: u64 = 1000;
const RATE: u64 = 100;
const ENOUGH: Duration = Duration::from_secs(30);
const FLOODED: &str = "/api/v1/pods?limit=500&resourceVersion=0";
const ASKED: &str = "/api/v1/namespaces/default/configmaps/tenant";

async fn post(admin: &mut Client, path: &str, object: Value) -> anyhow::Result<Value> {
    let headers = [("content-type", JSON), ("accept", JSON)];
    Ok(serde_json::from_slice(&admin.call("POST", path, &headers, Bytes::from(object.to_string())).await?)?)
}

/// A new service account that may read, and the header that says so.
async fn tenant(admin: &mut Client, name: &str) -> anyhow::Result<String> {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    post(admin, accounts, json!({"metadata": {"name": name}})).await?;
    let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": name});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]});
    post(admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["https://test"]}});
    let token = post(admin, &format!("{accounts}/{name}/token"), review).await?;
    Ok(format!("Bearer {}", token["status"]["token"].as_str().context("a token")?))
}

/// Milliseconds that nine and nine in a hundred requests took at most.
async fn p99(client: &mut Client, token: &str) -> anyhow::Result<f64> {
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (begin, mut delays) = (Instant::now(), Vec::new());
    for _ in 0..SAMPLES {
        tick.tick().await;
        let since = Instant::now();
        if since - begin > ENOUGH {
            break;
        }
        client.read(ASKED, &[("accept", JSON), ("authorization", token)]).await?;
        delays.push(since.elapsed().as_secs_f64() * 1e3);
    }
    delays.sort_by(f64::total_cmp);
    Ok(delays[delays.len() * 99 / 100])
}

/// What came of a flood.
#[derive(Default)]
struct Answers {
    given: AtomicU64,
    refused: AtomicU64,
    over: AtomicBool,
}

async fn ask(mut client: Client, token: &str, answers: &Answers) -> anyhow::Result<()> {
    while !answers.over.load(Ordering::Relaxed) {
        let headers = [("accept", JSON), ("authorization", token)];
        let response = client.send("GET", FLOODED, &headers, Bytes::new()).await?;
        let count = if response.status() == 429 { &answers.refused } else { &answers.given };
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Floods until told to stop, on a thread of its own so that it does not delay who is timed.
fn flood(clients: Vec<Client>, token: String, answers: Arc<Answers>) -> std::thread::JoinHandle<anyhow::Result<()>> {
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let all = clients.iter().flat_map(|client| (0..STREAMS).map(|_| ask(client.clone(), &token, &answers)));
        runtime.block_on(join_all(all)).into_iter().collect()
    })
}

/// Needs the pods that are there.
pub async fn all(world: &World) -> anyhow::Result<()> {
    let mut admin = world.client().await?;
    let (one, other) = (tenant(&mut admin, "flooding").await?, tenant(&mut admin, "other").await?);
    post(
        &mut admin,
        "/api/v1/namespaces/default/configmaps",
        json!({"metadata": {"name": "tenant"}, "data": {"k": "v"}}),
    )
    .await?;
    let mut client = world.anonymous().await?;
    p99(&mut client, &other).await?;
    let idle = p99(&mut client, &other).await?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(world.anonymous().await?);
    }
    let answers = Arc::<Answers>::default();
    let flooding = flood(clients, one, answers.clone());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let flooded = p99(&mut client, &other).await;
    answers.over.store(true, Ordering::Relaxed);
    tokio::task::spawn_blocking(move || flooding.join())
        .await?
        .map_err(|_| anyhow::anyhow!("the flood ended in a panic"))??;
    #[allow(clippy::cast_precision_loss)]
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
    figure("flood by one tenant: its answers", count(&answers.given), "", None);
    figure("flood by one tenant: its refusals", count(&answers.refused), "", None);
    figure("another tenant's p99, idle", idle, "ms", None);
    let flooded = flooded?;
    figure("another tenant's p99, flooded", flooded, "ms", None);
    figure("another tenant's p99, flooded to idle", flooded / idle, "", Some(2.0));
    Ok(())
}
