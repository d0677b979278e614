//! An owner with very many dependents goes.

use serde_json::json;

use crate::number;
use testkit::figures::figure;
use testkit::manager::Manager;
use testkit::objects::{count, create_all, namespace, post, wait_for};
use testkit::world::World;

const DEPENDENTS: usize = 10_000;
const MAPS: &str = "/api/v1/namespaces/bench/configmaps";

/// In the background.
pub async fn all(server: &str, binary: &str) -> anyhow::Result<()> {
    let world = World::start(server).await?;
    let mut client = world.client().await?;
    let mut manager = Manager::start(&world, binary)?;
    namespace(&mut client, "bench").await?;
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "owner"}});
    let owner = post(&mut client, "/api/v1/namespaces/bench/secrets", &owner).await?;
    let reference = json!([{"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner["metadata"]["uid"]}]);
    let map = |n: usize| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"key": "value"},
            "metadata": {"name": format!("dependent-{n}"), "ownerReferences": reference}})
    };
    create_all(&client, MAPS, (0..DEPENDENTS).map(map).collect()).await?;
    let others = count(&mut client, MAPS).await? - DEPENDENTS;
    manager.at_rest().await?;
    let work = async {
        client.call("DELETE", "/api/v1/namespaces/bench/secrets/owner", &[], bytes::Bytes::new()).await?;
        wait_for(&mut client, MAPS, others).await
    };
    let (cpu, took) = manager.cpu_of(work).await?;
    figure("garbage collection of 10,000 dependents", took.as_secs_f64(), "s", None);
    figure("garbage collection: CPU per dependent", cpu / number(DEPENDENTS), "ms", Some(0.1));
    Ok(())
}
