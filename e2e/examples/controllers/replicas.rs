//! A Deployment of many replicas, its end, the end of its namespace; what an idle manager takes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::number;
use testkit::figures::figure;
use testkit::http2::Client;
use testkit::manager::Manager;
use testkit::objects::{create_all, namespace, patch, pod_spec, post, wait_for};
use testkit::world::World;

const REPLICAS: usize = 1000;
const IDLE: Duration = Duration::from_secs(60);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/bench/deployments";
const PODS: &str = "/api/v1/namespaces/bench/pods";

/// All of them.
pub async fn all(server: &str, binary: &str) -> anyhow::Result<()> {
    let world = World::start(server).await?;
    let mut client = world.client().await?;
    let mut manager = Manager::start(&world, binary)?;
    namespace(&mut client, "bench").await?;
    manager.at_rest().await?;
    idle(&manager).await;

    let rate = bare_loop(&mut client).await?;
    post(&mut client, DEPLOYMENTS, &deployment()).await?;
    manager.at_rest().await?;

    let (cpu, took) = manager.cpu_of(scale(&mut client, REPLICAS)).await?;
    figure("create rate of a bare client loop", rate, "pods/s", None);
    let own = number(REPLICAS) / took.as_secs_f64();
    figure("Deployment of 1,000 replicas: rate", own, "pods/s", None);
    figure("Deployment of 1,000 replicas: share of the bare loop's rate (at least)", own / rate, "", Some(0.8));
    figure("Deployment of 1,000 replicas: CPU per pod", cpu / number(REPLICAS), "ms", Some(0.15));

    let (cpu, took) = manager.cpu_of(scale(&mut client, 0)).await?;
    figure("scale to 0: rate", number(REPLICAS) / took.as_secs_f64(), "pods/s", None);
    figure("scale to 0: CPU per pod", cpu / number(REPLICAS), "ms", Some(0.15));

    manager.cpu_of(scale(&mut client, REPLICAS)).await?;
    let (cpu, took) = manager.cpu_of(delete_namespace(&mut client)).await?;
    figure("deletion of a namespace of 1,000 pods", took.as_secs_f64(), "s", None);
    figure("deletion of a namespace: CPU per pod", cpu / number(REPLICAS), "ms", Some(0.15));
    Ok(())
}

async fn idle(manager: &Manager) {
    let before = manager.cpu();
    tokio::time::sleep(IDLE).await;
    let share = (manager.cpu() - before).as_secs_f64() / IDLE.as_secs_f64();
    figure("idle CPU", share * 100.0, "%", Some(0.2));
    // Not right after the start, when what ran once has just been let go and what runs now and then has not run yet.
    figure("RSS, empty cluster", manager.rss_mb(), "MB", Some(16.0));
}

fn deployment() -> Value {
    let labels = json!({"app": "web"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(0)}}})
}

/// Creates the same pods by a client that does nothing else.
async fn bare_loop(client: &mut Client) -> anyhow::Result<f64> {
    namespace(client, "bare").await?;
    let pods = "/api/v1/namespaces/bare/pods";
    let body = json!({"apiVersion": "v1", "kind": "Pod", "spec": pod_spec(0),
        "metadata": {"generateName": "web-", "labels": {"app": "web"}}});
    let began = Instant::now();
    create_all(client, pods, vec![body; REPLICAS]).await?;
    let rate = number(REPLICAS) / began.elapsed().as_secs_f64();
    client.call("DELETE", pods, &[], bytes::Bytes::new()).await?;
    wait_for(client, pods, 0).await?;
    Ok(rate)
}

async fn scale(client: &mut Client, replicas: usize) -> anyhow::Result<()> {
    patch(client, &format!("{DEPLOYMENTS}/web"), &json!({"spec": {"replicas": replicas}})).await?;
    wait_for(client, PODS, replicas).await
}

async fn delete_namespace(client: &mut Client) -> anyhow::Result<()> {
    client.call("DELETE", "/api/v1/namespaces/bench", &[], bytes::Bytes::new()).await?;
    wait_for(client, PODS, 0).await?;
    while client.get("/api/v1/namespaces/bench", "application/json").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
