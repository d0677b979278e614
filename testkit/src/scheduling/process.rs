//! The scheduler as a process.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::Process;
use crate::world::World;

/// CPU time in one [`WINDOW`] below which the scheduler is at rest.
const REST: Duration = Duration::from_millis(5);
const WINDOW: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_mins(2);
/// Histogram of the time from seeing a pod to sending its binding.
const WAITED: &str = "scheduler_pod_seen_to_bind_duration_seconds_bucket{le=\"";

/// See the module.
pub struct Scheduler {
    pub process: Process,
    port: u16,
    /// Time of the start.
    pub began: Instant,
}

impl Scheduler {
    /// Starts it with the client limits lifted.
    pub fn start(world: &World, binary: &str) -> anyhow::Result<Self> {
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": world.kubeconfig()?, "qps": 100_000.0, "burst": 100_000},
            "leaderElection": {"leaderElect": false},
        });
        let path = world.dir().join("scheduler.json");
        fs::write(&path, config.to_string())?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(binary);
        command.arg(format!("--config={}", path.display()));
        command.args([format!("--secure-port={port}"), "--bind-address=127.0.0.1".to_owned()]);
        command.arg("--authorization-always-allow-paths=/metrics");
        for (flag, file) in [("tls-cert-file", "server.crt"), ("tls-private-key-file", "server.key")] {
            command.arg(format!("--{flag}={}", world.dir().join(file).display()));
        }
        let began = Instant::now();
        let process = Process::start(&mut command, &world.dir().join("scheduler.log"))?;
        Ok(Self { process, port, began })
    }

    /// Waits until all that was to be told, events above all, has been.
    pub async fn rest(&self) {
        let until = Instant::now() + PATIENCE;
        let mut before = self.process.cpu();
        while Instant::now() < until {
            tokio::time::sleep(WINDOW).await;
            let now = self.process.cpu();
            if now - before < REST {
                return;
            }
            before = now;
        }
    }

    /// Cumulative counts of pods by the time they waited until their bindings were sent, as `(seconds, pods)`; upstream
    /// has no such metric.
    pub async fn waited(&self, world: &World) -> anyhow::Result<Vec<(f64, f64)>> {
        let text = world.text_of(self.port, "/metrics").await?;
        let bucket = |line: &str| {
            let (limit, count) = line.strip_prefix(WAITED)?.split_once("\"} ")?;
            Some((limit.replace("+Inf", "inf").parse().ok()?, count.parse().ok()?))
        };
        Ok(text.lines().filter_map(bucket).collect())
    }
}

/// The wait that so many of the pods between two readings did not exceed, in milliseconds: the limit of its bucket.
pub fn quantile_ms(before: &[(f64, f64)], after: &[(f64, f64)], q: f64) -> f64 {
    let counts: Vec<(f64, f64)> = after
        .iter()
        .map(|(limit, n)| (*limit, n - before.iter().find(|(l, _)| l == limit).map_or(0.0, |(_, n)| *n)))
        .collect();
    let all = counts.last().map_or(0.0, |(_, n)| *n);
    counts.iter().find(|(_, n)| all > 0.0 && *n >= q * all).map_or(f64::NAN, |(limit, _)| limit * 1e3)
}
