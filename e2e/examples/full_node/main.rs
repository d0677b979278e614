//! Costs of a node that is full: what 110 pods at once take the kubelet beyond what they take the runtime, and what the
//! kubelet costs when they run; one JSON line each.
//!
//! `cargo run --release -p ironclad-e2e --example full_node -- CLUSTER ARCHIVE` starts a cluster of one node by the program
//! `CLUSTER`, with the binaries beside it, and takes it down again. `ARCHIVE` is the image of busybox. The same sandboxes and
//! containers are first asked from the node's runtime directly, all at once, by turns with the kubelet's.

mod process;
mod runtime;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use e2e::layout::{Layout, Network};
use e2e::pod_watch::PodWatch;
use e2e::shell;
use serde_json::json;
use testkit::figures::{figure, median};

/// Pods that a node takes by default.
const PODS: usize = 110;
/// Pods and sandboxes are made so often, by turns.
const ROUNDS: usize = 2;
/// Time for the node to come to rest, and time for which its rest is measured.
const REST: Duration = Duration::from_secs(60);
/// Pages that are asked for: so many that the kernel's clock of hundredths tells their cost.
const SCRAPES: u32 = 20;
/// Time that all pods may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [cluster, archive] = args.as_slice() else { bail!("usage: full_node CLUSTER ARCHIVE") };
    let root = std::env::temp_dir().join(format!("full-node-{}", std::process::id()));
    let node = Node { cluster: cluster.clone(), root };
    let measured = node.run(&["up"]).and_then(|_| node.measure(archive));
    node.run(&["down"])?;
    std::fs::remove_dir_all(&node.root).ok();
    measured
}

/// A cluster of one node.
struct Node {
    cluster: PathBuf,
    root: PathBuf,
}

impl Node {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let root = self.root.to_string_lossy();
        shell::run(&self.cluster.to_string_lossy(), &[&["--run", &root], arguments].concat())
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let config = format!("--kubeconfig={}", self.root.join("admin.conf").display());
        shell::run("kubectl", &[&[config.as_str()], arguments].concat())
    }

    fn measure(&self, archive: &Path) -> Result<()> {
        self.run(&["load", &archive.to_string_lossy()])?;
        let layout = Layout::new(&self.root)?;
        let machine = layout.machine("node-1");
        let kubelet = process::Process::of(&machine.join("kubelet.pid"))?;
        let runtime = runtime::Runtime::of(&machine.join("containerd.pid"), &Network::of(&layout.root).node(1).cgroup)?;
        std::thread::sleep(REST);
        figure("kubelet without pods: RSS", kubelet.rss()?, "MB", Some(14.0));
        let mut ratios = Vec::new();
        for round in 1..=ROUNDS {
            let direct = runtime.start(PODS)?.as_secs_f64();
            runtime.remove()?;
            let pods = self.start()?.as_secs_f64();
            figure(&format!("{PODS} sandboxes and containers by the runtime alone, round {round}"), direct, "s", None);
            figure(&format!("{PODS} pods at once until all are Ready, round {round}"), pods, "s", None);
            ratios.push(pods / direct);
            if round < ROUNDS {
                let patience = format!("--timeout={}s", PATIENCE.as_secs());
                self.kubectl(&["delete", "pods", "--all", "--now", &patience])?;
            }
        }
        figure("pods at once: time for each of the runtime's alone", median(ratios), "", Some(1.2));
        self.at_rest(&kubelet)
    }

    /// Makes all pods and returns the time until they are Ready.
    fn start(&self) -> Result<Duration> {
        let pod = |number: usize| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("full-{number}")}, "spec": {
                "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "enableServiceLinks": false,
                "containers": [{"name": "main", "image": "busybox:1.36", "command": ["sleep", "100000"]}]}})
        };
        let list = json!({"apiVersion": "v1", "kind": "List", "items": (0..PODS).map(pod).collect::<Vec<_>>()});
        let file = self.root.join("pods.json");
        std::fs::write(&file, list.to_string()).context("cannot write the pods")?;
        let mut watch = PodWatch::begin(&self.root.join("admin.conf"))?;
        let began = Instant::now();
        self.kubectl(&["create", "-f", &file.to_string_lossy()])?;
        watch.until(PATIENCE, |pods| pods.values().filter(|pod| pod.is_ready).count() == PODS)?;
        Ok(began.elapsed())
    }

    /// Measures the kubelet when all pods run.
    fn at_rest(&self, kubelet: &process::Process) -> Result<()> {
        std::thread::sleep(REST);
        figure(&format!("kubelet with {PODS} pods: RSS"), kubelet.rss()?, "MB", Some(20.0));
        let before = kubelet.cpu()?;
        std::thread::sleep(REST);
        let idle = (kubelet.cpu()? - before).as_secs_f64() / REST.as_secs_f64();
        figure(&format!("kubelet with {PODS} pods: idle CPU of a core"), idle * 100.0, "%", Some(0.5));
        for (page, limit) in [("metrics/cadvisor", Some(15.0)), ("metrics/resource", None), ("stats/summary", None)] {
            let path = format!("/api/v1/nodes/node-1/proxy/{page}");
            // The first one learns what is remembered from then on.
            let length = self.kubectl(&["get", "--raw", &path])?.len();
            let (before, began) = (kubelet.cpu()?, Instant::now());
            for _ in 0..SCRAPES {
                self.kubectl(&["get", "--raw", &path])?;
            }
            let own = (kubelet.cpu()? - before).as_secs_f64() - idle * began.elapsed().as_secs_f64();
            let each = own * 1e3 / f64::from(SCRAPES);
            figure(&format!("scrape of /{page} with {PODS} pods: CPU"), each, "ms", limit);
            #[allow(clippy::cast_precision_loss, reason = "megabytes")]
            figure(&format!("/{page} with {PODS} pods: size"), length as f64 / 1e6, "MB", None);
        }
        figure(&format!("kubelet with {PODS} pods after scrapes: RSS"), kubelet.rss()?, "MB", None);
        Ok(())
    }
}
