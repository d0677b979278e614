//! Load: one kind of request, as much of it as an API server can take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use serde_json::json;
use tokio::task::JoinSet;

use testkit::http2::{Client, JSON, PROTOBUF, Watch};
use testkit::objects::{running_pod, store, wait_for};
use testkit::world::World;

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Pods that there are.
const COUNT: usize = 2_000;
/// Time for which requests are counted, after the time that they are not.
const COUNTED: Duration = Duration::from_secs(5);
const WARM: Duration = Duration::from_secs(1);
/// Connections, and requests at the same time on each.
const CONNECTIONS: usize = 8;
const STREAMS: usize = 8;
/// Watchers, the updates that each sees, and how many of them are under way: so many that nobody waits for a write that
/// waits for the disk.
const WATCHERS: usize = 200;
const UPDATES: u64 = 1_600;
const WRITERS: u64 = 16;
/// Stands once in every event.
const MARK: u8 = b'@';
/// Longer than any of this takes.
const GIVE_UP: Duration = Duration::from_mins(2);

async fn with_pods(apiserver: &str) -> anyhow::Result<World> {
    let world = World::start(apiserver).await?;
    let pod = |n: usize| {
        let pod = running_pod("default", n, n / 50, n % 100, None);
        (format!("pods/default/{}", name(&pod)), pod)
    };
    store(&world, (0..COUNT).map(pod)).await?;
    wait_for(&mut world.client().await?, PODS, COUNT).await?;
    Ok(world)
}

fn name(object: &serde_json::Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// A rate, and how well the server's threads shared the work: its processor time, divided by that of the busiest of them.
/// However busy the machine is, what only one thread can do shows in it.
pub struct Load {
    /// Done in a second.
    pub rate: f64,
    /// Number of threads that would have sufficed, were they all as busy as the busiest.
    pub spread: f64,
}

impl Load {
    fn of(rate: f64, world: &World) -> Self {
        let threads = world.server().cpu_of_threads();
        let busiest = threads.iter().max().map_or(f64::NAN, Duration::as_secs_f64);
        Self { rate, spread: threads.iter().sum::<Duration>().as_secs_f64() / busiest }
    }
}

/// GETs of pods answered in a second.
pub async fn reads(apiserver: &str) -> anyhow::Result<Load> {
    let world = with_pods(apiserver).await?;
    let paths = (0..COUNT).map(|n| format!("{PODS}/{}", name(&running_pod("default", n, n / 50, n % 100, None))));
    saturate(&world, &paths.collect::<Vec<_>>(), JSON).await
}

/// LISTs of all pods answered in a second.
pub async fn lists(apiserver: &str) -> anyhow::Result<Load> {
    let world = with_pods(apiserver).await?;
    saturate(&world, &[format!("{PODS}?resourceVersion=0")], PROTOBUF).await
}

/// Answers in a second to clients that ask without a pause.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
async fn saturate(world: &World, paths: &[String], accept: &'static str) -> anyhow::Result<Load> {
    let clients = try_join_all((0..CONNECTIONS).map(|_| world.client())).await?;
    let answered = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for at in 0..CONNECTIONS * STREAMS {
        let (client, paths, answered) = (clients[at % CONNECTIONS].clone(), paths.to_vec(), Arc::clone(&answered));
        tasks.spawn(ask(client, paths, at, accept, answered));
    }
    tokio::time::sleep(WARM).await;
    let (before, began) = (answered.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(COUNTED).await;
    let count = answered.load(Ordering::Relaxed) - before;
    let took = began.elapsed();
    if let Some(ended) = tasks.try_join_next() {
        ended??;
    }
    tasks.shutdown().await;
    Ok(Load::of(count as f64 / took.as_secs_f64(), world))
}

/// Asks for one path after another until it is stopped.
async fn ask(
    mut client: Client,
    paths: Vec<String>,
    from: usize,
    accept: &'static str,
    answered: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    for path in paths.iter().cycle().skip(from) {
        client.read(path, &[("accept", accept)]).await?;
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Events delivered in a second, of objects that change as fast as they can be written.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn watches(apiserver: &str) -> anyhow::Result<Load> {
    let world = World::start(apiserver).await?;
    let mut writer = world.client().await?;
    for number in 0..WRITERS {
        writer.call("POST", MAPS, &[("content-type", JSON)], Bytes::from(map(number, 0))).await?;
    }
    let seen = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let clients = try_join_all((0..CONNECTIONS).map(|_| world.client())).await?;
    for at in 0..WATCHERS {
        let mut client = clients[at % CONNECTIONS].clone();
        let watch = client.watch(&format!("{MAPS}?watch=1&labelSelector=watched%3Dtrue"), JSON).await?;
        tasks.spawn(follow(watch, Arc::clone(&seen)));
    }
    // What there was before is told first.
    let first = WRITERS * WATCHERS as u64;
    until(&seen, first).await?;
    let began = Instant::now();
    let writes = (0..WRITERS).map(|number| {
        let mut writer = writer.clone();
        async move {
            for round in 1..=UPDATES / WRITERS {
                let path = format!("{MAPS}/watched-{number}");
                writer.call("PUT", &path, &[("content-type", JSON)], Bytes::from(map(number, round))).await?;
            }
            anyhow::Ok(())
        }
    });
    join_all(writes).await.into_iter().collect::<anyhow::Result<()>>()?;
    let delivered = UPDATES * WATCHERS as u64;
    until(&seen, first + delivered).await?;
    let took = began.elapsed();
    tasks.shutdown().await;
    Ok(Load::of(delivered as f64 / took.as_secs_f64(), &world))
}

/// An object of about 2 KB.
fn map(number: u64, round: u64) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("watched-{number}"), "labels": {"watched": "true"}},
        "data": {"round": format!("{}{round}", char::from(MARK)), "filler": "0123456789abcdef".repeat(120)}})
    .to_string()
}

async fn follow(mut watch: Watch, seen: Arc<AtomicU64>) {
    while let Ok(bytes) = watch.next().await {
        let events = memchr::memchr_iter(MARK, &bytes).count();
        seen.fetch_add(events as u64, Ordering::Relaxed);
    }
}

async fn until(seen: &AtomicU64, wanted: u64) -> anyhow::Result<()> {
    let give_up = Instant::now() + GIVE_UP;
    while seen.load(Ordering::Relaxed) < wanted {
        anyhow::ensure!(Instant::now() < give_up, "{} of {wanted} events", seen.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}
