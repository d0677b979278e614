//! The scheduler as a process.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::process::Process;
use crate::world::World;

/// See the module.
pub struct Scheduler {
    pub process: Process,
    /// When it was started.
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
        for (flag, file) in [("tls-cert-file", "server.crt"), ("tls-private-key-file", "server.key")] {
            command.arg(format!("--{flag}={}", world.dir().join(file).display()));
        }
        let began = Instant::now();
        let process = Process::start(&mut command, &world.dir().join("scheduler.log"))?;
        Ok(Self { process, began })
    }
}
