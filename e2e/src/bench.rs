//! The figures that the project is held to, one JSON line each: name, value, unit and the limit it is held against.
//! Needs no running cluster and leaves none.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::layout::{Layout, Network};
use crate::pod_watch::PodWatch;
use crate::{control_plane, down, machine, shell, up};

const BINARIES: [&str; 5] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];
/// Memory that each may use when idle, in MB, in the order of [`BINARIES`].
const RSS_LIMITS: [f64; 5] = [32.0, 16.0, 14.0, 14.0, 10.0];
const STARTS: usize = 7;
const PODS: usize = 15;
const IDLE: Duration = Duration::from_secs(60);
/// Longest wait for one pod.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures everything.
///
/// # Errors
/// When something does not start; figures already printed stand.
pub fn bench(layout: &Layout, busybox: &Path) -> Result<()> {
    for binary in BINARIES {
        let bytes = fs::metadata(layout.binary(binary)).with_context(|| format!("{binary} is not built"))?.len();
        figure(&format!("binary size: {binary}"), to_mb(bytes), "MB", Some(30.0));
    }
    up::up(layout.clone(), 1, up::ControlPlane::Processes, None)?;
    let layout = &Layout { network: Network::of(&layout.root), ..layout.clone() };
    let measured = with_cluster(layout, busybox);
    down::down(layout)?;
    measured
}

fn with_cluster(layout: &Layout, busybox: &Path) -> Result<()> {
    std::thread::sleep(IDLE);
    for (binary, limit) in BINARIES.iter().zip(RSS_LIMITS) {
        figure(&format!("idle RSS: {binary}"), rss(layout, binary)?, "MB", Some(limit));
    }
    start_up(layout)?;
    up::load(layout, busybox)?;
    pod_start(layout)?;
    std::thread::sleep(IDLE);
    for binary in BINARIES {
        figure(&format!("RSS a minute after {PODS} pods were run: {binary}"), rss(layout, binary)?, "MB", None);
    }
    Ok(())
}

fn figure(name: &str, value: f64, unit: &str, limit: Option<f64>) {
    println!("{}", json!({"name": name, "value": (value * 100.0).round() / 100.0, "unit": unit, "limit": limit}));
}

#[allow(clippy::cast_precision_loss, reason = "figures are printed with two digits")]
fn to_mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// exec → `/readyz`, each time on an etcd of its own that holds nothing. For comparison: what etcd itself takes.
fn start_up(layout: &Layout) -> Result<()> {
    let mut times = Vec::new();
    for round in 0..STARTS {
        let folder = layout.root.join(format!("bench-etcd-{round}"));
        let etcd = Killed(start_etcd(&folder)?);
        let mut command = control_plane::machine(layout)?.processes.remove(1).command;
        for argument in &mut command {
            if argument.starts_with("--etcd-servers=") {
                "--etcd-servers=http://127.0.0.1:22379".clone_into(argument);
            }
            if argument.starts_with("--bind-address=") {
                "--bind-address=127.0.0.1".clone_into(argument);
            }
            if argument.starts_with("--secure-port=") {
                "--secure-port=26443".clone_into(argument);
            }
        }
        let began = Instant::now();
        let server = Killed(quiet(Command::new(&command[0]).args(&command[1..]))?);
        wait_http("https://127.0.0.1:26443/readyz")?;
        times.push(milliseconds(began));
        drop(server);
        drop(etcd);
        fs::remove_dir_all(&folder).ok();
    }
    figure("kube-apiserver: exec to /readyz on an empty etcd, median", median(times), "ms", Some(300.0));
    Ok(())
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn quiet(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start it")
}

fn start_etcd(folder: &Path) -> Result<Child> {
    let (client, peer) = ("http://127.0.0.1:22379", "http://127.0.0.1:22380");
    let data = folder.display().to_string();
    let child = quiet(Command::new("etcd").args([
        "--data-dir",
        &data,
        "--listen-client-urls",
        client,
        "--advertise-client-urls",
        client,
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        &format!("default={peer}"),
        "--unsafe-no-fsync",
    ]))?;
    wait_http("http://127.0.0.1:22379/health")?;
    Ok(child)
}

fn wait_http(url: &str) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(20);
    while shell::run("curl", &["-skf", "--noproxy", "*", "-o", "/dev/null", "--max-time", "2", url]).is_err() {
        if Instant::now() > limit {
            bail!("{url} does not answer");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// `kubectl run` of an image that is there → the pod is Running, as its watchers see it.
fn pod_start(layout: &Layout) -> Result<()> {
    let mut times = Vec::new();
    let mut watch = PodWatch::begin(&layout.admin_conf())?;
    for number in 0..PODS {
        let name = format!("bench-{number}");
        let began = Instant::now();
        shell::kubectl(layout, &["run", &name, "--image=busybox:1.36", "--restart=Never", "--", "sleep", "1000"])?;
        watch.until(PATIENCE, |pods| pods.get(&name).is_some_and(|pod| pod.phase == "Running"))?;
        times.push(milliseconds(began));
    }
    figure("kubectl run of a present image to Running, median", median(times), "ms", Some(400.0));
    shell::kubectl(layout, &["delete", "pods", "--all", "--now"]).map(drop)
}

fn rss(layout: &Layout, binary: &str) -> Result<f64> {
    let node = layout.network.node(1).name;
    let machine = if matches!(binary, "kubelet" | "kube-proxy") { node.as_str() } else { crate::layout::CONTROL_PLANE };
    let file = layout.machine(machine).join(format!("{binary}.pid"));
    let pid = machine::alive(&file).with_context(|| format!("{binary} is not running"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is a number")?;
    Ok(to_mb(kib * 1024))
}
