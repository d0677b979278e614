//! Costs of events, and the memory held, in a cluster of 50,000 nodes, 150,000 pods and 2,000 namespaces beside one of a
//! tenth of that. No API server.
//!
//! `cargo run --release -p ironclad-scheduler --example scale` prints one JSON line per kind of event: microseconds in both
//! clusters and the ratio, held to twice. Pods know namespaces by their labels; a hundred pods (ten in the small cluster)
//! push out five others each. The first pods of a kind are not held to it: the part of the nodes that is looked at for them,
//! upstream's `numFeasibleNodesToFind`, grows with their number. Time is the processor's, so that others on the machine
//! change little.

use std::sync::Arc;

use scheduler::framework::{Profile, ProfileConfig};
use scheduler::model::PodInfo;
use scheduler::simulation::{Attempt, Simulation};
use scheduler::testing::{PodBuilder, node, pod};
use serde_json::{Value, json};
use shared::run::process_time;

type Failed = Box<dyn std::error::Error>;

const NODES: usize = 50_000;
const PODS: usize = 150_000;
const NAMESPACES: usize = 2_000;
const PREEMPTORS: usize = 100;
const VICTIMS: usize = 5;
/// Ratio of the large cluster's size to the other's.
const TENTH: usize = 10;
/// Namespaces are labelled by as many teams, each of which has pods of one kind that are placed again and again.
const TEAMS: usize = 8;
/// Events of each kind.
const EVENTS: usize = 2_000;
/// Pods of which each is the first of its kind.
const FIRST: usize = 100;
const FIRST_OF_KIND: &str = "the first pod of a kind with a namespace selector is placed";
/// Ratio of costs of an event that is allowed.
const LIMIT: f64 = 2.0;

/// Figures of one cluster: microseconds by the kind of event, and bytes for each node and pod.
struct Figures {
    micros: Vec<(&'static str, f64)>,
    bytes: f64,
}

/// Bytes of memory that the process holds.
fn resident() -> f64 {
    shared::run::release_memory();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) * 1024.0
}

#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
fn micros(count: usize, mut event: impl FnMut(usize)) -> f64 {
    let before = process_time();
    (0..count).for_each(&mut event);
    (process_time() - before).as_secs_f64() * 1e6 / count as f64
}

fn namespace(i: usize) -> String {
    format!("ns-{i}")
}

/// A pod of a namespace that stays away from pods of its team's namespaces that are called as it is.
fn social(name: &str, namespace_at: usize) -> PodBuilder {
    let team = format!("team-{}", namespace_at % TEAMS);
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "social"}},
        "namespaceSelector": {"matchLabels": {"team": team}}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let made = pod(name).namespace(&namespace(namespace_at)).label("app", "social").cpu("10m");
    made.set("/spec", "affinity", affinity).set("/metadata", "uid", json!(name))
}

fn made(sim: &mut Simulation, pod: &PodBuilder) -> Arc<PodInfo> {
    Arc::new(PodInfo::interned(&pod.api(), &mut sim.interner))
}

/// Nodes, pods on them, namespaces, and apart from those the nodes on which room is made.
fn cluster(nodes: usize, pods: usize, namespaces: usize, preemptors: usize) -> Result<Simulation, Failed> {
    let mut sim = Simulation::new(Profile::build(&ProfileConfig::default())?, 1);
    for i in 0..namespaces {
        let labels = [("team".to_owned(), format!("team-{}", i % TEAMS))].into();
        sim.listers.namespaces.insert(namespace(i), labels);
    }
    for i in 0..nodes {
        let zone = format!("zone-{}", i % 3);
        let base = node(&format!("n{i}")).label("topology.kubernetes.io/zone", &zone).has("cpu", "32");
        sim.set_node(base.base());
    }
    for i in 0..2 * preemptors {
        let name = format!("full-{i}");
        sim.set_node(node(&name).label("pool", "full").has("cpu", "10").base());
        for k in 0..VICTIMS {
            let lesser = made(&mut sim, &pod(&format!("low-{i}-{k}")).cpu("2").on(&name));
            sim.add_pod(lesser);
        }
    }
    for i in 0..pods {
        let app = format!("app-{}", i % 500);
        let there = pod(&format!("p{i}")).namespace(&namespace(i % namespaces)).label("app", &app).cpu("100m");
        let there = made(&mut sim, &there.on(&format!("n{}", i % nodes)));
        sim.add_pod(there);
    }
    sim.snapshot();
    Ok(sim)
}

/// Microseconds for each of these pods until it has a node.
fn placing(sim: &mut Simulation, pods: Vec<Arc<PodInfo>>) -> f64 {
    let (count, mut pods) = (pods.len(), pods.into_iter());
    micros(count, |_| {
        pods.by_ref().take(1).for_each(|p| sim.add_pod(p));
        while matches!(sim.step(), Some(Attempt::Waits(..))) {}
    })
}

/// Lets pods be placed until all have a node, making room where there is none; how many were pushed out.
fn place_all(sim: &mut Simulation) -> usize {
    let mut victims = 0;
    loop {
        match sim.step() {
            Some(Attempt::Bound(_)) => {}
            Some(Attempt::Waits(_, _, rescue)) => victims += rescue.victims.len(),
            None if !sim.skip_backoff() => return victims,
            None => {}
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures are printed with few digits")]
fn run(part: usize) -> Result<Figures, Failed> {
    let (nodes, pods, namespaces, preemptors) = (NODES / part, PODS / part, NAMESPACES / part, PREEMPTORS / part);
    let before = resident();
    let mut sim = cluster(nodes, pods, namespaces, preemptors)?;
    let mut out = Vec::new();
    let changed = |i: usize| {
        let zone = format!("zone-{}", i % 3);
        node(&format!("n{}", i * 7 % nodes)).label("topology.kubernetes.io/zone", &zone).has("cpu", "31").base()
    };
    let changes: Vec<_> = (0..EVENTS).map(changed).collect();
    let mut changes = changes.into_iter();
    out.push(("a node changes", micros(EVENTS, |_| changes.by_ref().take(1).for_each(|base| sim.set_node(base)))));
    let come = |sim: &mut Simulation, i: usize| {
        let new = pod(&format!("new-{i}")).namespace(&namespace(i % namespaces)).cpu("100m");
        made(sim, &new.on(&format!("n{}", i * 11 % nodes)))
    };
    let new: Vec<_> = (0..EVENTS).map(|i| come(&mut sim, i)).collect();
    out.push((
        "a pod on a node comes and goes",
        micros(EVENTS, |i| {
            sim.add_pod(Arc::clone(&new[i]));
            sim.snapshot();
            sim.remove_pod(&new[i].uid);
            sim.snapshot();
        }),
    ));
    let first: Vec<_> = (0..FIRST).map(|i| made(&mut sim, &social(&format!("first-{i}"), TEAMS + i))).collect();
    out.push((FIRST_OF_KIND, placing(&mut sim, first)));
    // Of those that follow, the first two have the answers made that the others share.
    let kinds: Vec<_> = (0..2 * TEAMS).map(|i| made(&mut sim, &social(&format!("kind-{i}"), i % TEAMS))).collect();
    placing(&mut sim, kinds);
    let waiting: Vec<_> = (0..EVENTS).map(|i| made(&mut sim, &social(&format!("social-{i}"), i % TEAMS))).collect();
    out.push(("a pod with a namespace selector is placed", placing(&mut sim, waiting)));
    for i in 0..preemptors {
        let high =
            pod(&format!("high-{i}")).cpu("10").priority(10).set("/spec", "nodeSelector", json!({"pool": "full"}));
        let high = made(&mut sim, &high);
        sim.add_pod(high);
    }
    let before_victims = process_time();
    let victims = place_all(&mut sim);
    if victims != preemptors * VICTIMS {
        return Err(format!("{victims} pods were pushed out for {preemptors}").into());
    }
    let took = (process_time() - before_victims).as_secs_f64() * 1e6;
    out.push(("five pods are pushed out for one", took / preemptors as f64));
    Ok(Figures { micros: out, bytes: (resident() - before) / (nodes + pods) as f64 })
}

fn line(name: &str, unit: &str, small: f64, large: f64) -> Value {
    let limit = (name != FIRST_OF_KIND).then_some(LIMIT);
    let round = |n: f64| (n * 100.0).round() / 100.0;
    json!({"name": format!("{name}: 50,000 nodes against 5,000"), "value": round(large / small), "unit": "times",
        "limit": limit, "small": round(small), "large": round(large), "in": unit})
}

fn main() -> Result<(), Failed> {
    // One process each, so that neither has the other's memory.
    if let Some(part) = std::env::args().nth(1) {
        let figures = run(part.parse()?)?;
        let micros: Vec<Value> = figures.micros.iter().map(|(name, n)| json!([name, n])).collect();
        println!("{}", json!({"micros": micros, "bytes": figures.bytes}));
        return Ok(());
    }
    let of = |part: usize| -> Result<Value, Failed> {
        let out = std::process::Command::new(std::env::current_exe()?).arg(part.to_string()).output()?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&out.stdout)?)
    };
    let (small, large) = (of(TENTH)?, of(1)?);
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    for (a, b) in small["micros"].as_array().into_iter().flatten().zip(large["micros"].as_array().into_iter().flatten())
    {
        println!("{}", line(a[0].as_str().unwrap_or_default(), "us of CPU", number(&a[1]), number(&b[1])));
    }
    println!("{}", line("memory for each node and pod", "bytes", number(&small["bytes"]), number(&large["bytes"])));
    Ok(())
}
