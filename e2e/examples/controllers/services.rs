//! 10,000 Services with 100,000 endpoints: one pod changes.

use serde_json::{Value, json};

use crate::number;
use testkit::figures::figure;
use testkit::http2::Client;
use testkit::manager::Manager;
use testkit::objects::{patch, post, running_pod, store, uid, wait_for};
use testkit::world::World;

const SERVICES: usize = 10_000;
const PODS: usize = 100_000;
const EACH: usize = PODS / SERVICES;
const CHANGES: usize = 1000;
const AT_ONCE: usize = 8;
/// Services between two that change, of both rounds.
const APART: usize = SERVICES / (2 * CHANGES);
/// With those of the server's own service.
const ALL: usize = SERVICES + 1;

/// All of them in one namespace, which is the hardest.
pub async fn all(server: &str, binary: &str) -> anyhow::Result<()> {
    let world = World::start(server).await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    post(&mut world.client().await?, "/api/v1/namespaces/default/serviceaccounts", &account).await?;
    store(&world, (0..SERVICES).map(service)).await?;
    store(&world, (0..PODS).map(pod)).await?;
    store(&world, std::iter::once(node())).await?;
    // Only now: the server closes connections on which nothing is asked for long.
    let mut client = world.client().await?;

    let mut manager = Manager::start(&world, binary)?;
    wait_for(&mut client, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", ALL).await?;
    wait_for(&mut client, "/api/v1/namespaces/default/endpoints", ALL).await?;
    figure(
        "10,000 Services with 100,000 endpoints: start to all slices",
        manager.since.elapsed().as_secs_f64(),
        "s",
        None,
    );
    manager.at_rest().await?;
    figure("RSS, 10,000 Services with 100,000 endpoints", manager.rss_mb(), "MB", None);

    let (cpu, _) = manager.cpu_of(changes(&mut client, 0, CHANGES)).await?;
    figure("one pod of a Service changes: CPU", cpu / number(CHANGES), "ms", Some(0.2));
    let mut clients = Vec::new();
    for _ in 0..AT_ONCE {
        clients.push(world.client().await?);
    }
    let share = CHANGES / AT_ONCE;
    let busy = clients.iter_mut().enumerate().map(|(n, client)| changes(client, CHANGES + n * share, share));
    let (cpu, _) = manager.cpu_of(async { futures::future::try_join_all(busy).await.map(drop) }).await?;
    figure("one pod of a Service changes, 8 at once: CPU", cpu / number(CHANGES), "ms", Some(0.2));
    let path =
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name=web-0000";
    let slices: Value = serde_json::from_slice(&client.get(path, "application/json").await?)?;
    let ready = |e: &&Value| e["conditions"]["ready"] == json!(true);
    let left = slices["items"][0]["endpoints"].as_array().map_or(0, |all| all.iter().filter(ready).count());
    anyhow::ensure!(left == EACH - 1, "the slice shows {left} ready endpoints");
    Ok(())
}

/// One pod of each of so many services stops being ready, one after another.
async fn changes(client: &mut Client, first: usize, count: usize) -> anyhow::Result<()> {
    for change in (first..).take(count) {
        let name = name(change * APART * EACH);
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T00:00:00Z"}]}});
        patch(client, &format!("/api/v1/namespaces/default/pods/{name}/status"), &status).await?;
    }
    Ok(())
}

fn service(n: usize) -> (String, Value) {
    let name = format!("web-{n:04}");
    let object = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "uid": uid(8, n), "labels": {"app": format!("app-{n}")}},
        "spec": {"clusterIP": "None", "clusterIPs": ["None"], "type": "ClusterIP", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "selector": {"app": format!("app-{n}"), "tier": "backend"},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}]}});
    (format!("services/specs/default/{name}"), object)
}

fn name(number: usize) -> String {
    format!("web-{:04}-{number:06x}", number / EACH)
}

fn pod(number: usize) -> (String, Value) {
    let object = running_pod("default", number, number / EACH, 0, None);
    (format!("pods/default/{}", name(number)), object)
}

fn node() -> (String, Value) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "uid": uid(2, 0)},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    ("minions/node-0".to_owned(), object)
}
