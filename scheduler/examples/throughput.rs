//! Rate at which the pure core places pods: queue, decision, assumption, snapshot and events, no API server.
//!
//! `cargo run --release -p ironclad-scheduler --example throughput [SHAPE [NODES [PODS]]]` prints one JSON line per shape,
//! each with the limit it is held to; a second is one of CPU time of the one thread that schedules. The shapes are those of
//! the well-known scheduler_perf workloads; `all` (the default) runs every one, `growth` compares 5,000 with 50,000 nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scheduler::framework::{Profile, ProfileConfig};
use scheduler::model::PodInfo;
use scheduler::simulation::{Attempt, Simulation};
use scheduler::testing::{PodBuilder, node, pod};
use serde_json::{Value, json};

type Failed = Box<dyn std::error::Error>;

/// Shape, pods a second that it is held to at 5,000 nodes.
const SHAPES: &[(&str, Option<f64>)] = &[
    ("basic", Some(20_000.0)),
    ("affinity", Some(5_000.0)),
    ("anti-affinity", Some(5_000.0)),
    ("preferred-affinity", Some(5_000.0)),
    ("preferred-anti-affinity", Some(5_000.0)),
    ("node-affinity", Some(5_000.0)),
    ("spread", Some(5_000.0)),
    ("preferred-spread", Some(5_000.0)),
    ("preemption", Some(1_000.0)),
    ("unschedulable", Some(5_000.0)),
    ("mixed", Some(2_000.0)),
    ("daemonset", Some(5_000.0)),
    ("gated", Some(20_000.0)),
    ("dra", None),
];
/// Sizes of the scheduler_perf cluster.
const NODES: usize = 5_000;
const PODS: usize = 10_000;
/// Of the shape `dra`: nodes, and devices on each.
const DEVICE_NODES: usize = 500;
const DEVICES: usize = 10;
/// Factor by which a pod may cost more with ten times the nodes.
const GROWTH_LIMIT: f64 = 2.0;

fn required(term: Value) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
}

fn preferred(term: Value) -> Value {
    json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]})
}

/// The `i`th pod of a shape, in one of ten groups.
fn shaped(shape: &str, i: usize, nodes: usize) -> PodBuilder {
    let app = format!("{shape}-{}", i % 10);
    let p = pod(&format!("{shape}-{i}")).cpu("100m").memory("128Mi").label("app", &app);
    let mine = json!({"matchLabels": {"app": app}});
    let term = |key: &str| json!({"labelSelector": mine, "topologyKey": key});
    let spread = |key: &str, skew: i32, when: &str| json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": mine});
    let (zone, host) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
    let with = |field: &str, value: Value| p.clone().set("/spec", field, value);
    match shape {
        "affinity" => with("affinity", json!({"podAffinity": required(term(zone))})),
        "anti-affinity" => with("affinity", json!({"podAntiAffinity": required(term(host))})),
        "preferred-affinity" => with("affinity", json!({"podAffinity": preferred(term(host))})),
        "preferred-anti-affinity" => with("affinity", json!({"podAntiAffinity": preferred(term(host))})),
        "node-affinity" => {
            let zones = json!([{"key": zone, "operator": "In", "values": ["zone-0", "zone-1"]}]);
            with(
                "affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": zones}]}}}),
            )
        }
        "spread" => with(
            "topologySpreadConstraints",
            json!([spread(zone, 1, "DoNotSchedule"), spread(host, 3, "DoNotSchedule")]),
        ),
        "preferred-spread" => with(
            "topologySpreadConstraints",
            json!([spread(zone, 1, "ScheduleAnyway"), spread(host, 3, "ScheduleAnyway")]),
        ),
        "preemption" => p.cpu("3").memory("500Mi").priority(10),
        // Every other pod asks for what no node has, and is tried again whenever one goes.
        "unschedulable" if i.is_multiple_of(2) => p.cpu("900"),
        "daemonset" => {
            let name = json!([{"key": "metadata.name", "operator": "In", "values": [format!("n{}", i % nodes)]}]);
            with(
                "affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": name}]}}}),
            )
        }
        "dra" => with("resourceClaims", json!([{"name": "gpu", "resourceClaimName": format!("claim-{i}")}])),
        _ => p,
    }
}

/// Devices on every node, and a claim for every pod.
fn devices(sim: &mut Simulation, nodes: usize, pods: usize) -> Result<(), Failed> {
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}});
    sim.listers.device_classes.insert("gpu".into(), Arc::new(serde_json::from_value(class)?));
    for n in 0..nodes {
        let devices: Vec<Value> =
            (0..DEVICES).map(|d| json!({"name": format!("gpu-{d}"), "attributes": {"numa": {"int": d % 2}}})).collect();
        let slice = json!({"metadata": {"name": format!("slice-{n}")}, "spec": {"driver": "gpu.example.com", "nodeName": format!("n{n}"),
            "pool": {"name": format!("n{n}"), "generation": 1, "resourceSliceCount": 1}, "devices": devices}});
        sim.listers.slices.push(Arc::new(serde_json::from_value(slice)?));
    }
    for i in 0..pods {
        let request =
            json!({"name": "it", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}});
        let claim = json!({"metadata": {"name": format!("claim-{i}"), "namespace": "default", "uid": format!("claim-{i}"), "resourceVersion": "1"},
            "spec": {"devices": {"requests": [request]}}});
        sim.listers.add_resource_claim(serde_json::from_value(claim)?);
    }
    Ok(())
}

fn is_gated(shape: &str, i: usize) -> bool {
    shape == "gated" && i.is_multiple_of(2)
}

/// A cluster of the shape, and the pods to place in it.
fn world(shape: &str, nodes: usize, pods: usize) -> Result<(Simulation, Vec<Arc<PodInfo>>), Failed> {
    let mut sim = Simulation::new(Profile::build(&ProfileConfig::default())?, 1);
    if shape == "dra" {
        devices(&mut sim, nodes, pods)?;
    }
    for i in 0..nodes {
        let big = if shape == "preemption" { "4" } else { "32" };
        let zone = format!("zone-{}", i % 3);
        let n =
            node(&format!("n{i}")).label("topology.kubernetes.io/zone", &zone).has("cpu", big).has("memory", "32Gi");
        sim.set_node(n.base());
        if shape == "preemption" {
            for k in 0..4 {
                let lesser = pod(&format!("low-{i}-{k}")).cpu("900m").memory("500Mi").on(&format!("n{i}"));
                let lesser = PodInfo::interned(&lesser.api(), &mut sim.interner);
                sim.add_pod(Arc::new(lesser));
            }
        }
    }
    let kinds = ["basic", "affinity", "anti-affinity", "preferred-affinity", "spread", "preferred-spread", "daemonset"];
    let made = (0..pods)
        .map(|i| {
            let kind = if shape == "mixed" { kinds[i % kinds.len()] } else { shape };
            let mut p = shaped(kind, i, nodes);
            if is_gated(shape, i) {
                p = p.set("/spec", "schedulingGates", json!([{"name": "later"}]));
            }
            Arc::new(PodInfo::interned(&p.api(), &mut sim.interner))
        })
        .collect();
    Ok((sim, made))
}

struct Figures {
    rate: f64,
    cpu_micros: f64,
    line: Value,
}

/// CPU time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Duration::from_nanos(nanos)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures are printed with few digits"
)]
fn run(shape: &str, nodes: usize, pods: usize, limit: Option<f64>) -> Result<Figures, Failed> {
    let (nodes, pods) = match shape {
        // Each node has room for one pod that pushes others out.
        "preemption" => (nodes, pods.min(nodes)),
        "dra" => (nodes.min(DEVICE_NODES), pods.min(DEVICE_NODES * DEVICES / 2)),
        _ => (nodes, pods),
    };
    let (mut sim, made) = world(shape, nodes, pods)?;
    sim.snapshot();
    made.into_iter().for_each(|p| sim.add_pod(p));
    let (mut bound, mut waits) = (0_usize, 0_usize);
    let mut micros: Vec<u128> = Vec::with_capacity(pods);
    let (start, cpu_before) = (Instant::now(), cpu());
    // Pods without a place are given up after as many attempts as there are pods.
    while waits <= 2 * pods {
        let begun = Instant::now();
        match sim.step() {
            Some(Attempt::Bound(pod)) => {
                bound += 1;
                micros.push(begun.elapsed().as_micros());
                if shape == "unschedulable" && bound.is_multiple_of(10) {
                    sim.remove_pod(&pod.uid);
                }
            }
            Some(Attempt::Waits(..)) => {
                waits += 1;
                micros.push(begun.elapsed().as_micros());
            }
            None if !sim.skip_backoff() => break,
            None => {}
        }
    }
    let (seconds, used) = (start.elapsed().as_secs_f64(), cpu() - cpu_before);
    micros.sort_unstable();
    let quantile = |q: f64| micros.get((micros.len() as f64 * q) as usize).copied().unwrap_or(0) as u64;
    let done = bound.max(1) as f64;
    // All work is on one thread: what it does in a second of its own is what it can do, however busy the machine is.
    let cpu_seconds = used.as_secs_f64();
    let (rate, cpu_micros) = (done / cpu_seconds.max(1e-9), cpu_seconds * 1e6 / done);
    let line = json!({
        "name": format!("scheduling without an API server: {shape}"), "value": rate.round(), "unit": "pods/s",
        "limit": limit, "nodes": nodes, "pods": pods, "bound": bound, "failed_attempts": waits,
        "wall_pods_per_s": (done / seconds).round(),
        "cpu_us_per_pod": (cpu_micros * 10.0).round() / 10.0,
        "p50_us": quantile(0.5), "p99_us": quantile(0.99), "p999_us": quantile(0.999),
    });
    Ok(Figures { rate, cpu_micros, line })
}

fn growth() -> Result<(), Failed> {
    for shape in ["basic", "anti-affinity", "spread"] {
        let small = run(shape, NODES, 4 * PODS, None)?;
        let large = run(shape, 10 * NODES, 4 * PODS, None)?;
        let line = json!({
            "name": format!("cost of a pod, 50,000 nodes against 5,000: {shape}"),
            "value": (large.cpu_micros / small.cpu_micros * 100.0).round() / 100.0, "unit": "times", "limit": GROWTH_LIMIT,
            "rate_5000": small.rate.round(), "rate_50000": large.rate.round(),
        });
        println!("{line}");
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (shape, nodes, pods) = (args.first().map_or("all", String::as_str), number(1, NODES), number(2, PODS));
    if shape == "growth" {
        return growth();
    }
    for (name, limit) in SHAPES.iter().filter(|(name, _)| shape == "all" || shape == *name) {
        println!("{}", run(name, nodes, pods, *limit)?.line);
    }
    if shape == "all" { growth() } else { Ok(()) }
}
