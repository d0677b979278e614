//! Pods for two schedulers: so many in each round that they nearly fill the nodes, so that whoever binds on an old view of
//! the cluster gives a node more than it has.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use testkit::http2::{Client, JSON};
use testkit::objects::post;
use testkit::world::World;

/// Nodes, and pods that each has room for.
const NODES: usize = 40;
pub const ROOM: usize = 4;
/// Pods of a round.
pub const PODS: usize = 150;

const COLLECTION: &str = "/api/v1/namespaces/default/pods";
const GIVE_UP: Duration = Duration::from_mins(3);
const POLL: Duration = Duration::from_millis(50);

/// See the module.
pub struct Placed {
    client: Client,
}

impl Placed {
    /// With nodes, and nobody on them.
    pub async fn begin(world: &World) -> Self {
        let mut client = world.client().await.expect("a connection");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        post(&mut client, "/api/v1/namespaces/default/serviceaccounts", &account).await.expect("an account");
        for n in 0..NODES {
            let room = json!({"cpu": ROOM.to_string(), "pods": "110"});
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{n:02}")},
                "status": {"capacity": room, "allocatable": room}});
            post(&mut client, "/api/v1/nodes", &node).await.expect("a node");
        }
        Self { client }
    }

    /// Makes the pods of a round.
    pub async fn create(&mut self, round: u64) {
        for n in 0..PODS {
            // No kubelet ends them, and none says that its node is ready.
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("round-{round:04}-{n:03}"), "labels": {"round": round.to_string()}},
                "spec": {"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
            post(&mut self.client, COLLECTION, &pod).await.expect("a pod");
        }
    }

    /// Ends a round when all of its pods have nodes.
    pub async fn await_bound(&mut self, round: u64) {
        let path = format!("{COLLECTION}?labelSelector=round%3D{round}");
        let began = Instant::now();
        loop {
            let bytes = self.client.get(&path, JSON).await.expect("an answer");
            let list: Value = serde_json::from_slice(&bytes).expect("JSON");
            let pods = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            if pods.len() == PODS && pods.iter().all(|pod| pod["spec"]["nodeName"].is_string()) {
                break;
            }
            let waiting = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_null()).count();
            assert!(began.elapsed() < GIVE_UP, "{waiting} of {} pods have no node", pods.len());
            tokio::time::sleep(POLL).await;
        }
        self.client.call("DELETE", &path, &[], bytes::Bytes::new()).await.expect("deleted");
    }
}
