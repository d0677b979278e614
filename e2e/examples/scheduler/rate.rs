//! 5,000 nodes and 5,000 plain pods: the rate, what it costs, and the delay while there is little to do.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use testkit::figures::figure;
use testkit::http2::JSON;
use testkit::scheduling::process::{Scheduler, quantile_ms};
use testkit::scheduling::watch::Pods;
use testkit::scheduling::{self, NODES, PODS};
use testkit::world::World;

/// Pods of each measurement.
const COUNT: usize = 5_000;
/// Of each rate, the first and the last tenth are left out.
const EDGE: usize = COUNT / 10;
/// Pods that come one by one, this far apart.
const SINGLE: usize = 2_000;
const PAUSE: Duration = Duration::from_millis(10);

#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
fn rate(pods: &Pods) -> f64 {
    let times: Vec<_> = pods.bound.iter().map(|(_, bound)| *bound).collect();
    (COUNT - 2 * EDGE) as f64 / (times[COUNT - EDGE - 1] - times[EDGE]).as_secs_f64()
}

/// Bindings a second of a client that does nothing else.
async fn bare(world: &World) -> anyhow::Result<f64> {
    scheduling::create_pods(world, "bare", "nobody", COUNT).await?;
    let mut pods = Pods::watch(world).await?;
    let bind = scheduling::many(world, COUNT, async |mut client, number| {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": format!("bare-{number}")},
            "target": {"kind": "Node", "name": scheduling::node_name(number % NODES)}});
        let path = format!("{PODS}/bare-{number}/binding");
        client.call("POST", &path, &[("content-type", JSON)], Bytes::from(binding.to_string())).await.map(drop)
    });
    futures::try_join!(bind, pods.until_bound(COUNT))?;
    Ok(rate(&pods))
}

/// All figures.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn all(apiserver: &str, binary: &str) -> anyhow::Result<()> {
    let world = scheduling::world(apiserver).await?;
    scheduling::create_nodes(&world).await?;
    let alone = bare(&world).await?;
    figure("bindings of a client that does nothing else", alone, "1/s", None);

    scheduling::create_pods(&world, "waiting", "default-scheduler", COUNT).await?;
    let mut pods = Pods::watch(&world).await?;
    let before = world.cpu();
    let scheduler = Scheduler::start(&world, binary)?;
    pods.until_bound(COUNT).await?;
    figure(
        "start to the first binding, 5,000 nodes, 5,000 pods waiting",
        (pods.bound[0].1 - scheduler.began).as_secs_f64(),
        "s",
        Some(3.0),
    );
    figure("plain pods, 5,000 nodes: rate", rate(&pods), "pods/s", None);
    figure("plain pods, 5,000 nodes: part of the bare rate", rate(&pods) / alone, "", Some(0.8));
    let used = scheduler.process.cpu().as_secs_f64() * 1e3;
    figure("plain pods, 5,000 nodes: CPU from exec, start included", used / COUNT as f64, "ms/pod", None);
    figure(
        "plain pods, 5,000 nodes: CPU of kube-apiserver",
        (world.cpu() - before).as_secs_f64() * 1e3 / COUNT as f64,
        "ms/pod",
        None,
    );
    figure("plain pods, 5,000 nodes: RSS", scheduler.process.rss_mb(), "MB", None);

    scheduler.rest().await;
    let used = scheduler.process.cpu().as_secs_f64() * 1e3;
    figure("plain pods, 5,000 nodes: CPU from exec, events included", used / COUNT as f64, "ms/pod", None);
    let before = scheduler.process.cpu();
    let mut pods = Pods::watch(&world).await?;
    let create = scheduling::create_pods(&world, "burst", "default-scheduler", COUNT);
    futures::try_join!(create, pods.until_bound(COUNT))?;
    let used = (scheduler.process.cpu() - before).as_secs_f64() * 1e3;
    figure("plain pods, 5,000 nodes: CPU, decoding and binding included", used / COUNT as f64, "ms/pod", Some(0.25));
    figure("plain pods created and bound at once: rate", rate(&pods), "pods/s", None);
    scheduler.rest().await;
    let used = (scheduler.process.cpu() - before).as_secs_f64() * 1e3;
    figure("plain pods, 5,000 nodes: CPU, events included", used / COUNT as f64, "ms/pod", None);

    let waited = scheduler.waited(&world).await?;
    let before = scheduler.process.cpu();
    let mut pods = Pods::watch(&world).await?;
    let mut client = world.client().await?;
    let trickle = async {
        let mut ticks = tokio::time::interval(PAUSE);
        for number in 0..SINGLE {
            ticks.tick().await;
            let body = scheduling::encoded("Pod", &scheduling::pod(&format!("single-{number}"), "default-scheduler"))?;
            scheduling::post(client.clone(), PODS, body).await?;
        }
        client.get("/version", "*/*").await.map(drop)
    };
    futures::try_join!(trickle, pods.until_bound(SINGLE))?;
    let used = (scheduler.process.cpu() - before).as_secs_f64() * 1e3;
    figure("100 pods/s: pod seen to binding seen, median", pods.quantile_ms(0.5), "ms", None);
    figure("100 pods/s: pod seen to binding seen, p99", pods.quantile_ms(0.99), "ms", None);
    figure("100 pods/s: CPU", used / SINGLE as f64, "ms/pod", None);
    let sent = scheduler.waited(&world).await?;
    figure("100 pods/s: pod seen to binding sent, median", quantile_ms(&waited, &sent, 0.5), "ms", None);
    figure("100 pods/s: pod seen to binding sent, p99", quantile_ms(&waited, &sent, 0.99), "ms", Some(5.0));
    Ok(())
}
