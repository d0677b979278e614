//! Cost of writing rules: the back ends of the modes alone, in a network namespace, no API server.
//!
//! `cargo run --release -p ironclad-kube-proxy --example sync [MODE SERVICES ENDPOINTS]` prints one JSON line a run; without
//! arguments it runs every mode at the sizes that have limits. Beside each first sync stands what the mode's tool needs for
//! the same rules in one go; nothing that writes through the tool can be faster.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_proxy::backend::{Backend, Options};
use kube_proxy::detect::LocalDetector;
use kube_proxy::mode;
use kube_proxy::plan::{Delta, Desired, Family, NodeFacts};
use kube_proxy::settings::{from_flags, parse};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use shared::flags::{FeatureGates, FlagSet};

type Failed = Box<dyn std::error::Error>;

/// Mode, services, endpoints of each; limits: seconds of a first sync, milliseconds of a changed endpoint.
const RUNS: &[(&str, u32, u32, f64, f64)] = &[
    ("iptables", 500, 4, 4.0, 40.0),
    ("iptables", 5_000, 4, 4.0, 40.0),
    ("iptables", 10_000, 10, 15.0, 40.0),
    ("nftables", 500, 4, 5.0, 10.0),
    ("nftables", 5_000, 4, 5.0, 10.0),
    ("nftables", 10_000, 10, 15.0, 10.0),
    ("ipvs", 5_000, 4, 5.0, 10.0),
];
/// Endpoints that are changed, one after the other.
const CHANGES: u32 = 51;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, services, endpoints] = arguments.as_slice() {
        unshare(CloneFlags::CLONE_NEWNET)?;
        run(tool("ip", &["link", "set", "lo", "up"]), "")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return runtime.block_on(measure(mode, services.parse()?, endpoints.parse()?));
    }
    for (mode, services, endpoints, ..) in RUNS {
        // A process each: memory is that of one run alone.
        let this = std::env::current_exe()?;
        Command::new(this).args([*mode, &services.to_string(), &endpoints.to_string()]).status()?;
    }
    Ok(())
}

async fn measure(mode: &str, services: u32, endpoints: u32) -> Result<(), Failed> {
    let mode = mode::named(mode).ok_or("no such mode")?;
    let mut first = backend(mode)?;
    if let Err(error) = first.check_support().await {
        eprintln!("skipped: {}: {error}", mode.name);
        return Ok(());
    }
    let mut desired = Desired::default();
    for number in 0..services {
        plan(&mut desired, number, endpoints, 0);
    }
    let empty = timed(first.sync(&desired, &BTreeSet::new())).await?;
    let memory = resident()? / 1_024;
    drop(first);
    let (bound_of, bound) = bound(mode.name)?;
    let mut again = backend(mode)?;
    let over = timed(again.sync(&desired, &BTreeSet::new())).await?;
    let mut changes = Vec::new();
    for round in 1..=CHANGES {
        let began = Instant::now();
        let delta = plan(&mut desired, round % services, endpoints, round);
        again.sync(&desired, &delta.ports).await?;
        changes.push(began.elapsed());
    }
    changes.sort_unstable();
    let milliseconds = |time: Duration| (time.as_secs_f64() * 10_000.0).round() / 10.0;
    let at = |part: usize| changes.get(changes.len() * part / 100).copied().map(milliseconds);
    let limits = RUNS.iter().find(|run| (run.0, run.1, run.2) == (mode.name, services, endpoints));
    let line = json!({
        "bench": "kube-proxy sync", "mode": mode.name, "services": services, "endpoints": endpoints,
        "first_s": empty.as_secs_f64(), "over_earlier_s": over.as_secs_f64(), bound_of: bound,
        "change_p50_ms": at(50), "change_p95_ms": at(95), "rss_mb": memory,
        "limit_s": limits.map(|run| run.3), "limit_ms": limits.map(|run| run.4),
    });
    println!("{line}");
    Ok(())
}

async fn timed<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<Duration, E> {
    let began = Instant::now();
    work.await?;
    Ok(began.elapsed())
}

fn backend(mode: &'static kube_proxy::backend::Mode) -> Result<Box<dyn Backend>, Failed> {
    let flags = FlagSet::of("kube-proxy", &[&format!("--proxy-mode={}", mode.name)])?;
    let settings = parse(from_flags(&flags), &FeatureGates::default(), String::new(), "node")?;
    let options = Options {
        detector: LocalDetector::Networks(vec!["10.244.0.0/16".parse()?]),
        localhost_node_ports: mode.localhost_node_ports,
        node_addresses: vec!["192.0.2.1".parse()?],
        ..Options::new(Family::V4)
    };
    Ok((mode.backend)(options, &settings.configuration))
}

/// Plans a service with a node port at times; its last endpoint differs from round to round.
fn plan(desired: &mut Desired, number: u32, endpoints: u32, round: u32) -> Delta {
    let (high, low) = (number / 250, number % 250 + 1);
    let node_port = number.is_multiple_of(10).then(|| 30_000 + number / 10);
    let service = json!({"metadata": {"name": format!("service-{number}"), "namespace": "bench"}, "spec": {
        "type": if node_port.is_some() { "NodePort" } else { "ClusterIP" }, "clusterIP": format!("10.96.{high}.{low}"),
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": node_port}]}});
    let address = |index: u32| {
        let unit = number * endpoints + index;
        let host = if index + 1 == endpoints { 100 + round % 100 } else { unit % 100 };
        format!("10.{}.{}.{}", 128 + unit / 25_000, unit / 100 % 250, host + 1)
    };
    let endpoints: Vec<Value> = (0..endpoints)
        .map(|index| json!({"addresses": [address(index)], "conditions": {"ready": true}, "nodeName": "other"}))
        .collect();
    let slice = json!({"metadata": {"name": format!("service-{number}-s"), "namespace": "bench",
        "labels": {"kubernetes.io/service-name": format!("service-{number}")}}, "addressType": "IPv4",
        "endpoints": endpoints, "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
    let service: Service = serde_json::from_value(service).expect("a service");
    let slice: EndpointSlice = serde_json::from_value(slice).expect("a slice");
    let node = NodeFacts { name: "node".to_owned(), zone: None };
    let mut delta = Delta::default();
    let name = format!("service-{number}");
    desired.replace(("bench", &name), Some(&service), &[Arc::new(slice)], (&node, Family::V4), &mut delta);
    delta
}

/// Seconds that the mode's tool needs to write what stands in the kernel, in a namespace of its own, and the name of that.
fn bound(mode: &str) -> Result<(&'static str, Option<f64>), Failed> {
    let (name, save, load): (_, Command, &[&str]) = match mode {
        "nftables" => ("nft_s", tool("nft", &["list", "ruleset"]), &["unshare", "-n", "nft", "-f", "-"]),
        "iptables" => ("iptables_restore_s", tool("iptables-save", &[]), &["unshare", "-n", "iptables-restore"]),
        _ => return Ok(("tool_s", None)),
    };
    let rules = run(save, "")?;
    let began = Instant::now();
    run(tool(load[0], &load[1..]), &rules)?;
    Ok((name, Some(began.elapsed().as_secs_f64())))
}

fn tool(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn run(mut command: Command, input: &str) -> Result<String, Failed> {
    use std::io::Write as _;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or("no input")?;
    let text = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer panicked")??;
    if !output.status.success() {
        return Err(format!("{command:?} failed").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// KiB of memory of this process.
fn resident() -> Result<u64, Failed> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
