//! The other tenant: a Deployment behind a Service, which goes on working whatever its neighbour does.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Arena, THEIRS};
use e2e::testing::run;

const NODE_PORT: u16 = 30_080;
/// Seconds that a rollout may take, from the change to an answer of the new pod through the Service.
const SECONDS: u64 = 10;

/// The other tenant's Deployment, by the number of its last rollout.
pub struct Bystander {
    rollout: u32,
}

impl Bystander {
    /// Deploys and waits until three rollouts have gone through.
    pub fn move_in(arena: &Arena) -> Self {
        let script = "mkdir -p /www; echo $ROLLOUT >/www/index.html; exec httpd -f -p 8080 -h /www";
        let probe = json!({"httpGet": {"port": 8080}, "periodSeconds": 1});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": THEIRS}, "spec": {
                "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
                "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                    "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "web", "image": "busybox:1.36", "command": ["sh", "-c", script],
                        "env": [{"name": "ROLLOUT", "value": "0"}], "readinessProbe": probe}]}}}});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": THEIRS},
            "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}]}});
        for object in [deployment, service] {
            arena.cluster.feed("create -f -", &object.to_string());
        }
        let mut bystander = Self { rollout: 0 };
        for _ in 0..3 {
            bystander.rolls_out(arena, "nobody attacks");
        }
        bystander
    }

    /// Rolls out a new template and returns after how long the Service answered from it.
    pub fn rolls_out(&mut self, arena: &Arena, after: &str) -> Duration {
        self.rollout += 1;
        let number = self.rollout.to_string();
        let began = Instant::now();
        let patch = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "web", "env": [{"name": "ROLLOUT", "value": number}]}]}}}});
        let said =
            arena.cluster.try_kubectl(&["-n", THEIRS, "patch", "deployment", "web", "-p", &patch.to_string()], None);
        assert!(said.ok, "after {after}: the Deployment cannot be changed: {}", said.err);
        let url = format!("http://10.89.0.11:{NODE_PORT}/");
        arena.cluster.until(&format!("after {after}: rollout {number} answers"), SECONDS, || {
            let answer = run("curl", &["-sS", "--noproxy", "*", "--max-time", "1", &url], None);
            if answer.out.trim() == number { Ok(()) } else { Err(answer.out + &answer.err) }
        });
        began.elapsed()
    }
}
