//! Memory and CPU that many objects and many idle watches take.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use proto::{protobuf, schema};

use testkit::figures::figure;
use testkit::http2::{JSON, PROTOBUF};
use testkit::pods;
use testkit::world::World;

/// Writers to etcd at the same time.
const WRITERS: usize = 16;

/// Adds pods below the server, as they stand in etcd, until there are so many.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn more_pods(world: &World, have: usize, want: usize) -> anyhow::Result<()> {
    let etcd = world.etcd().await?;
    let path = |number: usize| format!("/registry/pods/default/{}", pods::name(number));
    let found = etcd.kv_client().get(path(0), None).await?;
    let stored = found.kvs().first().context("the first pod is not in etcd")?.value().to_vec();
    let schema = schema::kind("", "v1", "Pod").context("no schema of pods")?;
    let mut pod = protobuf::decode(schema, protobuf::unwrap(&stored)?.raw)?;
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    let before = world.rss_mb();
    let next = AtomicUsize::new(have);
    try_join_all((0..WRITERS).map(|_| {
        let (mut kv, next, mut pod) = (etcd.kv_client(), &next, pod.clone());
        async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= want {
                    return anyhow::Ok(());
                }
                pod["metadata"]["name"] = pods::name(number).into();
                pod["metadata"]["labels"] = pods::pod(number)["metadata"]["labels"].take();
                pod["spec"]["nodeName"] = format!("node-{}", number / pods::PER_NODE).into();
                kv.put(path(number), protobuf::encode_envelope(schema, &pod), None).await?;
            }
        }
    }))
    .await?;
    let last = format!("/api/v1/namespaces/default/pods/{}?resourceVersion=0", pods::name(want - 1));
    let mut client = world.client().await?;
    let give_up = Instant::now() + Duration::from_secs(20);
    while client.get(&last, PROTOBUF).await.is_err() {
        ensure!(Instant::now() < give_up, "the cache does not follow");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let each = (world.rss_mb() - before) * 1e3 / (want - have) as f64;
    figure(&format!("RSS of each further pod up to {want}"), each, "KB", Some(8.0));
    Ok(())
}

/// Watches that nothing happens to.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn idle_watches(world: &World, count: usize) -> anyhow::Result<()> {
    const PER_CONNECTION: usize = 50;
    const SECONDS: u64 = 5;
    let before = world.rss_mb();
    let mut open = Vec::new();
    for _ in 0..count / PER_CONNECTION {
        let mut client = world.client().await?;
        for _ in 0..PER_CONNECTION {
            let path = "/api/v1/namespaces/nowhere/secrets?watch=1&allowWatchBookmarks=true&resourceVersion=0";
            open.push(client.watch(path, PROTOBUF).await?);
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    figure(
        &format!("{count} idle watches: memory of each"),
        (world.rss_mb() - before) * 1e3 / count as f64,
        "KB",
        None,
    );
    let from = world.cpu();
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let cpu = (world.cpu() - from).as_secs_f64() * 1e3 / SECONDS as f64;
    figure(&format!("{count} idle watches: CPU per second"), cpu, "ms", None);
    let mut client = world.client().await?;
    let began = Instant::now();
    client.get("/api/v1/namespaces/default", JSON).await?;
    figure(&format!("{count} idle watches: somebody else's get"), began.elapsed().as_secs_f64() * 1e3, "ms", None);
    Ok(())
}
