//! 10,000 Services with 100,000 endpoints: one pod changes.

use serde_json::{Value, json};

use crate::cluster::{patch, post, running_pod, store, uid, wait_for};
use crate::manager::Manager;
use crate::world::World;
use crate::{figure, number};

const SERVICES: usize = 10_000;
const PODS: usize = 100_000;
const EACH: usize = PODS / SERVICES;
const CHANGES: usize = 1000;
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

    let work = async {
        for change in 0..CHANGES {
            // One pod of each of many services stops being ready.
            let name = name(change * EACH * (SERVICES / CHANGES));
            let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-02T00:00:00Z"}]}});
            patch(&mut client, &format!("/api/v1/namespaces/default/pods/{name}/status"), &status).await?;
        }
        Ok(())
    };
    let (cpu, _) = manager.cpu_of(work).await?;
    figure("one pod of a Service changes: CPU", cpu / number(CHANGES), "ms", Some(0.2));
    let path =
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name=web-0000";
    let slices: Value = serde_json::from_slice(&client.get(path, "application/json").await?)?;
    let ready = |e: &&Value| e["conditions"]["ready"] == json!(true);
    let left = slices["items"][0]["endpoints"].as_array().map_or(0, |all| all.iter().filter(ready).count());
    anyhow::ensure!(left == EACH - 1, "the slice shows {left} ready endpoints");
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
