//! The workload of all rounds: a Deployment whose template changes in every round, and a ReplicaSet for each.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use testkit::http2::{Client, JSON, side_by_side};
use testkit::objects::{patch, post};
use testkit::world::World;

/// Pods of the Deployment that become ready at once.
const AT_ONCE: usize = 16;
/// Replicas of the ReplicaSet of a round.
pub const OF_ROUND: usize = 150;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const GIVE_UP: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_millis(50);

/// See the module.
pub struct Workload {
    client: Client,
    kubelet: tokio::task::JoinHandle<()>,
}

/// Replicas of the Deployment.
pub fn replicas() -> u64 {
    crate::number("HANDOVER_REPLICAS", 20)
}

/// Pods that it may have beyond its replicas.
pub fn surge() -> u64 {
    replicas() / 4
}

/// Name of the ReplicaSet of a round.
pub fn of_round(round: u64) -> String {
    format!("round-{round:04}")
}

fn template(app: &str, version: u64) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"automountServiceAccountToken": false,
        "containers": [{"name": "c", "image": "i", "env": [{"name": "VERSION", "value": version.to_string()}]}]}})
}

impl Workload {
    /// With a Deployment whose pods somebody runs.
    pub async fn begin(world: &World) -> Self {
        let mut client = world.client().await.expect("a connection");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        // A controller may have been faster.
        post(&mut client, "/api/v1/namespaces/default/serviceaccounts", &account).await.ok();
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": replicas(), "selector": {"matchLabels": {"app": "web"}}, "template": template("web", 0),
                "strategy": {"rollingUpdate": {"maxSurge": surge(), "maxUnavailable": replicas() / 6}}}});
        post(&mut client, DEPLOYMENTS, &deployment).await.expect("a deployment");
        let kubelet = tokio::spawn(run_pods(world.client().await.expect("a connection")));
        Self { client, kubelet }
    }

    /// Begins a round: a new template, and a new set.
    pub async fn roll_out(&mut self, round: u64) {
        let change = json!({"spec": {"template": template("web", round + 1)}});
        patch(&mut self.client, &format!("{DEPLOYMENTS}/web"), &change).await.expect("a new template");
        let app = of_round(round);
        let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": app},
            "spec": {"replicas": OF_ROUND, "selector": {"matchLabels": {"app": app}}, "template": template(&app, 0)}});
        post(&mut self.client, SETS, &set).await.expect("a replica set");
    }

    /// Ends a round when its set is complete.
    pub async fn await_replicas(&mut self, round: u64) {
        let path = format!("{SETS}/{}", of_round(round));
        self.until(&path, |set| set["status"]["replicas"] == OF_ROUND).await;
        self.client.call("DELETE", &path, &[], bytes::Bytes::new()).await.expect("deleted");
    }

    /// Waits until the last template has been rolled out.
    pub async fn await_rollout(&mut self) {
        let done = |d: &Value| {
            let (want, status) = (json!(replicas()), &d["status"]);
            status["observedGeneration"] == d["metadata"]["generation"]
                && [&status["replicas"], &status["updatedReplicas"], &status["availableReplicas"]]
                    .iter()
                    .all(|n| **n == want)
        };
        self.until(&format!("{DEPLOYMENTS}/web"), done).await;
    }

    async fn until(&mut self, path: &str, is: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let bytes = self.client.get(path, JSON).await.expect("an answer");
            let object: Value = serde_json::from_slice(&bytes).expect("JSON");
            if is(&object) {
                return;
            }
            assert!(began.elapsed() < GIVE_UP, "{path} does not become what it shall be: {object:#}");
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

/// Says of every pod of the Deployment that it is ready.
async fn run_pods(mut client: Client) {
    let path = format!("{PODS}?labelSelector=app%3Dweb&fieldSelector=status.phase%21%3DRunning");
    loop {
        let listed = client.get(&path, JSON).await;
        let list: Value = listed.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        let run = |_, pod: Value| {
            let mut client = client.clone();
            async move {
                let at = "2026-01-01T00:00:00Z";
                let status = json!({"phase": "Running", "startTime": at,
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}]});
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                // It may have gone meanwhile.
                patch(&mut client, &format!("{PODS}/{name}/status"), &json!({"status": status})).await.ok();
                anyhow::Ok(())
            }
        };
        side_by_side(AT_ONCE, pods.into_iter(), run).await.ok();
        tokio::time::sleep(POLL).await;
    }
}
