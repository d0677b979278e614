//! Pods that spread over zones, each Deployment's over its own.

use serde_json::json;

use testkit::http2::side_by_side;
use testkit::scheduling::process::Scheduler;
use testkit::scheduling::watch::Pods;
use testkit::scheduling::{self, PODS};

/// Pods, and of how many Deployments; of the rate, the first and the last tenth are left out.
const COUNT: usize = 5_000;
const DEPLOYMENTS: usize = 50;
const EDGE: usize = COUNT / 10;
/// Requests at the same time.
const AT_ONCE: usize = 64;

/// Pods placed in a second that wait when the scheduler starts.
#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
pub async fn rate(apiserver: &str, binary: &str) -> anyhow::Result<f64> {
    let world = scheduling::world(apiserver).await?;
    scheduling::create_nodes(&world).await?;
    let client = world.client().await?;
    side_by_side(AT_ONCE, 0..COUNT, |_, number| {
        let client = client.clone();
        async move { scheduling::post(client, PODS, scheduling::encoded("Pod", &pod(number))?).await }
    })
    .await?;
    let mut pods = Pods::watch(&world).await?;
    let _scheduler = Scheduler::start(&world, binary)?;
    pods.until_bound(COUNT).await?;
    let at = |n: usize| pods.bound[n].1;
    Ok((COUNT - 2 * EDGE) as f64 / (at(COUNT - EDGE - 1) - at(EDGE)).as_secs_f64())
}

fn pod(number: usize) -> serde_json::Value {
    let mut pod = scheduling::pod(&format!("spread-{number}"), "default-scheduler");
    let app = format!("app-{}", number % DEPLOYMENTS);
    pod["metadata"]["labels"] = json!({"app": app});
    pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": app}}}]);
    pod
}
