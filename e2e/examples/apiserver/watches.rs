//! Watches: what opening one costs, and what one change costs for each of its watchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;

use testkit::figures::figure;
use testkit::http2::{JSON, PROTOBUF, Watch};
use testkit::world::World;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// All of them.
pub async fn all(world: &World) -> anyhow::Result<()> {
    opening(world).await?;
    let small = Load {
        watchers: 100,
        connections: 100,
        rate: 50,
        accept: JSON,
        seconds: 8,
        limit: 0.012,
        delays: Some((2.0, 15.0)),
    };
    fan_out(world, "100 watchers, 50 updates/s, JSON", &small).await?;
    // As the informers of one program, which share its connection.
    let shared = Load { connections: 4, ..small };
    fan_out(world, "100 watchers on 4 connections, 50 updates/s, JSON", &shared).await?;
    // More than two cores can take in: what counts is what each event costs.
    let large =
        Load { watchers: 1000, connections: 1000, rate: 100, accept: PROTOBUF, seconds: 8, limit: 0.010, delays: None };
    fan_out(world, "1000 watchers, 100 updates/s, protobuf", &large).await
}

async fn opening(world: &World) -> anyhow::Result<()> {
    const COUNT: usize = 500;
    let mut client = world.client().await?;
    let path = "/api/v1/pods?watch=1&resourceVersion=0&fieldSelector=spec.nodeName%3Dnone";
    let open = async {
        let mut open = Vec::new();
        for _ in 0..COUNT {
            open.push(client.watch(path, PROTOBUF).await?);
            if open.len() == 50 {
                open.clear();
            }
        }
        Ok(())
    };
    let (_, cpu) = world.cpu_of(open).await?;
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    figure("opening a watch: CPU", cpu / COUNT as f64, "ms", Some(0.1));
    Ok(())
}

struct Load {
    watchers: usize,
    connections: usize,
    rate: u64,
    accept: &'static str,
    seconds: u64,
    limit: f64,
    /// Limits of the median and the 99th percentile, in milliseconds.
    delays: Option<(f64, f64)>,
}

/// An object of about 5.8 KB in JSON; `stamp` is the time it was sent, in microseconds since `epoch`.
fn object(stamp: u64) -> String {
    let filler: String = "0123456789abcdef".repeat(330);
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched", "namespace": "default"},
        "data": {"stamp": format!("<{stamp:020}>").replace(['<', '>'], "@"), "filler": filler}})
    .to_string()
}

/// Stamps in some bytes.
fn stamps(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let begins = memchr::memchr_iter(b'@', bytes).filter(|i| bytes.get(i + 21) == Some(&b'@'));
    begins.filter_map(|i| std::str::from_utf8(&bytes[i + 1..i + 21]).ok()?.parse().ok())
}

async fn follow(mut watch: Watch, epoch: Instant, seen: Arc<AtomicU64>, delays: Arc<Mutex<Vec<f64>>>) {
    let mut rest: Vec<u8> = Vec::new();
    while let Ok(bytes) = watch.next().await {
        let now = u64::try_from(epoch.elapsed().as_micros()).unwrap_or(u64::MAX);
        rest.extend_from_slice(&bytes);
        let found: Vec<u64> = stamps(&rest).collect();
        if let Some(last) = memchr::memrchr(b'@', &rest)
            && !found.is_empty()
        {
            rest.drain(..=last);
        }
        for stamp in found {
            seen.fetch_add(1, Ordering::Relaxed);
            #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
            delays.lock().push(now.saturating_sub(stamp) as f64 / 1e3);
        }
    }
}

async fn fan_out(world: &World, name: &str, load: &Load) -> anyhow::Result<()> {
    let epoch = Instant::now();
    let (seen, delays) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut writer = world.client().await?;
    let headers = [("content-type", JSON), ("accept", PROTOBUF)];
    // It may be there from before.
    let _ = writer.call("POST", MAPS, &headers, Bytes::from(object(0))).await;
    let mut tasks = JoinSet::new();
    for some in (0..load.connections).collect::<Vec<_>>().chunks(50) {
        for client in try_join_all(some.iter().map(|_| world.client())).await? {
            let mut client = client;
            for _ in 0..load.watchers / load.connections {
                let watch = client.watch(&format!("{MAPS}?watch=1"), load.accept).await?;
                tasks.spawn(follow(watch, epoch, seen.clone(), delays.clone()));
            }
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    seen.store(0, Ordering::Relaxed);
    delays.lock().clear();
    let before = world.cpu();
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / load.rate));
    let total = load.rate * load.seconds;
    for _ in 0..total {
        tick.tick().await;
        let stamp = u64::try_from(epoch.elapsed().as_micros()).unwrap_or(0);
        writer.call("PUT", &format!("{MAPS}/watched"), &headers, Bytes::from(object(stamp))).await?;
    }
    let expected = total * load.watchers as u64;
    let give_up = Instant::now() + Duration::from_secs(20);
    while seen.load(Ordering::Relaxed) < expected && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cpu = (world.cpu() - before).as_secs_f64() * 1e3;
    let arrived = seen.load(Ordering::Relaxed);
    let mut delays = std::mem::take(&mut *delays.lock());
    delays.sort_by(f64::total_cmp);
    let at = |p: usize| delays.get(delays.len() * p / 100).copied().unwrap_or(f64::NAN);
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    figure(&format!("{name}: CPU per delivered event"), cpu / arrived.max(1) as f64, "ms", Some(load.limit));
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    figure(&format!("{name}: delivered"), arrived as f64 / expected as f64, "", Some(1.0));
    figure(&format!("{name}: p50"), at(50), "ms", load.delays.map(|(median, _)| median));
    figure(&format!("{name}: p99"), at(99), "ms", load.delays.map(|(_, last)| last));
    tasks.shutdown().await;
    Ok(())
}
