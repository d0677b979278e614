//! Single objects: create, get and the patches, 32 at once.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::try_join_all;
use serde_json::json;

use testkit::figures::figure;
use testkit::http2::{JSON, PROTOBUF, side_by_side};
use testkit::pods;
use testkit::world::World;

/// Requests at the same time, over this many connections.
const AT_ONCE: usize = 32;
const CONNECTIONS: usize = 4;
const ROUND: usize = 3000;
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Runs `count` requests, [`AT_ONCE`] at a time; seconds it took and milliseconds of the server's CPU for each.
async fn run<F, Fut>(world: &World, count: usize, request: F) -> anyhow::Result<(f64, f64)>
where
    F: Fn(testkit::http2::Client, usize) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let clients = try_join_all((0..CONNECTIONS).map(|_| world.client())).await?;
    let began = Instant::now();
    let all = side_by_side(AT_ONCE, 0..count, |i, number| request(clients[i % CONNECTIONS].clone(), number));
    let ((), cpu) = world.cpu_of(all).await?;
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    let each = cpu / count as f64;
    Ok((began.elapsed().as_secs_f64(), each))
}

/// Puts the same values into etcd without an API server.
async fn raw_puts(world: &World, values: &[Bytes]) -> anyhow::Result<f64> {
    let client = world.etcd().await?;
    let began = Instant::now();
    side_by_side(AT_ONCE, values.iter().enumerate(), |_, (number, value)| {
        let mut kv = client.kv_client();
        async move { Ok(kv.put(format!("/bench/{number}"), value.to_vec(), None).await.map(drop)?) }
    })
    .await?;
    let took = began.elapsed().as_secs_f64();
    client.kv_client().delete("/bench/", Some(etcd_client::DeleteOptions::new().with_prefix())).await?;
    #[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
    Ok(values.len() as f64 / took)
}

/// Creates the pods all other figures are about.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn create(world: &World, count: usize) -> anyhow::Result<()> {
    let mut client = world.client().await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.call("POST", accounts, &[("content-type", JSON)], Bytes::from(account.to_string())).await?;
    let values: Vec<Bytes> = (0..count).map(pods::encoded).collect::<anyhow::Result<_>>()?;
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    let before = world.etcd_cpu();
    let (seconds, cpu) = run(world, count, |mut client, number| {
        let body = values[number].clone();
        async move { client.call("POST", PODS, &headers, body).await.map(drop) }
    })
    .await?;
    let rate = count as f64 / seconds;
    let etcd = (world.etcd_cpu() - before).as_secs_f64() * 1e3 / count as f64;
    // Not before: etcd 3.4 keeps the room that a busy interval's writes took, and copies all of it for each guarded write.
    let raw = raw_puts(world, &values).await?;
    figure("create a pod, 32 at once: CPU", cpu, "ms", Some(0.4));
    figure("create a pod, 32 at once: CPU of etcd", etcd, "ms", None);
    figure("create a pod, 32 at once: rate", rate, "1/s", None);
    figure("raw puts of etcd: rate", raw, "1/s", None);
    figure("creates per raw put of etcd", rate / raw, "", Some(0.7));
    let one = client.get(&format!("{PODS}/{}", pods::name(0)), PROTOBUF).await?.len();
    let json = client.get(&format!("{PODS}/{}", pods::name(0)), JSON).await?.len();
    figure("size of a pod, protobuf", one as f64, "B", None);
    figure("size of a pod, JSON", json as f64, "B", None);
    // The first list fills the cache.
    client.get("/api/v1/pods?resourceVersion=0&limit=1", PROTOBUF).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    figure("RSS with the pods", world.rss_mb(), "MB", Some(110.0));
    Ok(())
}

/// GET and PATCH.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn all(world: &World) -> anyhow::Result<()> {
    for (what, accept) in [("protobuf", PROTOBUF), ("JSON", JSON)] {
        let (seconds, cpu) = run(world, ROUND, |mut client, number| async move {
            client.get(&format!("{PODS}/{}", pods::name(number % 1000)), accept).await.map(drop)
        })
        .await?;
        figure(&format!("get a pod, {what}, 32 at once: CPU"), cpu, "ms", Some(0.1));
        figure(&format!("get a pod, {what}, 32 at once: rate"), ROUND as f64 / seconds, "1/s", None);
    }
    for (what, kind) in [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ] {
        let headers = [("content-type", kind), ("accept", JSON)];
        let (seconds, cpu) = run(world, ROUND, |mut client, number| async move {
            let name = pods::name(number % 1000);
            let mut patch = json!({"metadata": {"annotations": {"example.com/round": format!("{what}-{number}")}}});
            let mut path = format!("{PODS}/{name}");
            if what == "apply" {
                patch["apiVersion"] = "v1".into();
                patch["kind"] = "Pod".into();
                patch["metadata"]["name"] = name.into();
                path.push_str("?fieldManager=bench-apply&force=true");
            }
            client.call("PATCH", &path, &headers, Bytes::from(patch.to_string())).await.map(drop)
        })
        .await?;
        figure(&format!("patch a pod, {what}, 32 at once: CPU"), cpu, "ms", Some(0.6));
        figure(&format!("patch a pod, {what}, 32 at once: rate"), ROUND as f64 / seconds, "1/s", Some(2000.0));
    }
    Ok(())
}
