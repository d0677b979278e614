//! One tenant asks for as much as it can: what do the others notice?
//!
//! Both are service accounts, so that flow control puts them into the same level, where only its queues tell them apart.
//! The tenant that floods runs on this machine, too, on a thread that gives way to everybody, as one elsewhere would not
//! take the server's processors. With the server it keeps both of a small machine's busy, so what the other one notices is
//! compared with what it notices while two such threads are busy without asking for anything: the rest is the kernel's.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use testkit::figures::figure;
use testkit::http2::{Client, JSON};
use testkit::world::World;

/// Connections of the tenant that floods, and its requests at the same time on each.
const CONNECTIONS: usize = 8;
const STREAMS: usize = 25;
/// Rounds in which both kinds of business take turns; with requests of the other tenant that are timed in each,
/// requests it sends in a second, and the time after which a machine is too slow for that.
const ROUNDS: usize = 5;
const SAMPLES: usize = 300;
const RATE: u64 = 100;
const ENOUGH: Duration = Duration::from_secs(15);
/// The least that the kernel gives way to.
const NICE: &str = "19";
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

/// Milliseconds that each of some requests took.
async fn delays(client: &mut Client, token: &str) -> anyhow::Result<Vec<f64>> {
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (begin, mut delays) = (Instant::now(), Vec::new());
    while delays.len() < SAMPLES && begin.elapsed() < ENOUGH {
        tick.tick().await;
        let since = Instant::now();
        client.read(ASKED, &[("accept", JSON), ("authorization", token)]).await?;
        delays.push(since.elapsed().as_secs_f64() * 1e3);
    }
    Ok(delays)
}

/// Percentile of delays.
fn percentile(mut delays: Vec<f64>, percent: usize) -> f64 {
    delays.sort_by(f64::total_cmp);
    delays.get(delays.len() * percent / 100).copied().unwrap_or(f64::NAN)
}

/// Answers to a flood.
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

/// Does something until told to stop, on a thread that gives way to everybody, with its connections.
fn beside<F>(answers: &Arc<Answers>, work: impl FnOnce(Arc<Answers>) -> F + Send + 'static) -> Beside
where
    F: Future<Output = anyhow::Result<()>>,
{
    let answers = answers.clone();
    answers.over.store(false, Ordering::Relaxed);
    let thread = std::thread::spawn({
        let answers = answers.clone();
        move || {
            let thread = nix::unistd::gettid().to_string();
            let niced = Command::new("renice").args(["-n", NICE, "-p", &thread]).output()?.status;
            anyhow::ensure!(niced.success(), "renice: {niced}");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(work(answers))
        }
    });
    Beside { thread, answers }
}

struct Beside {
    thread: std::thread::JoinHandle<anyhow::Result<()>>,
    answers: Arc<Answers>,
}

impl Beside {
    async fn stop(self) -> anyhow::Result<()> {
        self.answers.over.store(true, Ordering::Relaxed);
        let ended = tokio::task::spawn_blocking(move || self.thread.join()).await?;
        ended.map_err(|_| anyhow::anyhow!("it ended in a panic"))?
    }
}

/// Computes.
async fn toil(answers: Arc<Answers>) -> anyhow::Result<()> {
    while !answers.over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Asks for lists.
async fn flood(
    connect: impl AsyncFn() -> anyhow::Result<Client>,
    token: &str,
    answers: &Answers,
) -> anyhow::Result<()> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(connect().await?);
    }
    let all = clients.iter().flat_map(|client| (0..STREAMS).map(|_| ask(client.clone(), token, answers)));
    join_all(all).await.into_iter().collect()
}

/// Needs the pods that are there.
pub async fn all(world: &World) -> anyhow::Result<()> {
    let mut admin = world.client().await?;
    let (one, other) = (tenant(&mut admin, "flooding").await?, tenant(&mut admin, "other").await?);
    let object = json!({"metadata": {"name": "tenant"}, "data": {"k": "v"}});
    post(&mut admin, "/api/v1/namespaces/default/configmaps", object).await?;
    let mut client = world.anonymous().await?;
    delays(&mut client, &other).await?;
    let idle = delays(&mut client, &other).await?;
    let answers = Arc::<Answers>::default();
    let (mut beside_toil, mut beside_flood) = (Vec::new(), Vec::new());
    let (mut cpu, mut time) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        let toiling = [beside(&answers, toil), beside(&answers, toil)];
        beside_toil.extend(delays(&mut client, &other).await?);
        for thread in toiling {
            thread.stop().await?;
        }
        let (connect, token) = (world.door(), one.clone());
        let (since, before) = (Instant::now(), world.cpu());
        let flooding = beside(&answers, async move |answers| flood(connect, &token, &answers).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        beside_flood.extend(delays(&mut client, &other).await?);
        flooding.stop().await?;
        cpu += world.cpu() - before;
        time += since.elapsed();
    }
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    figure("flood by one tenant: lists of 500 pods answered", rate(&answers.given), "/s", None);
    figure("flood by one tenant: refusals", rate(&answers.refused), "/s", None);
    figure("flood by one tenant: cores of the server", cpu.as_secs_f64() / time.as_secs_f64(), "", None);
    let of = |delays: &[f64], percent| percentile(delays.to_vec(), percent);
    for (when, delays) in [("idle", &idle), ("on a busy machine", &beside_toil), ("flooded", &beside_flood)] {
        figure(&format!("another tenant's p50, {when}"), of(delays, 50), "ms", None);
        figure(&format!("another tenant's p99, {when}"), of(delays, 99), "ms", None);
    }
    let ratio = of(&beside_flood, 99) / of(&beside_toil, 99);
    figure("another tenant's p99, flooded to on a busy machine", ratio, "", Some(2.0));
    Ok(())
}
