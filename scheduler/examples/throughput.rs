//! How many pods a second the pure core places: decision, assumption and snapshot, no API server.
//!
//! `cargo run --release -p ironclad-scheduler --example throughput [NODES [PODS [SHAPE]]]` prints one JSON line. Shapes:
//! `plain`, `spread` (hostnames and three zones), `anti-affinity` (one pod of a group per node).

use std::sync::Arc;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;
use scheduler::framework::lister::Fixed;
use scheduler::framework::{Context, Cursor, CycleState, Failure, Nominated, Profile, ProfileConfig};
use scheduler::model::demand::Interner;
use scheduler::model::{Cache, PodInfo, Snapshot};
use scheduler::testing::{PodBuilder, node, pod};
use serde_json::{Value, json};

fn shaped(shape: &str, i: usize) -> PodBuilder {
    let p = pod(&format!("p{i}")).cpu("100m").memory("128Mi").label("app", &format!("a{}", i % 10));
    let mine = json!({"matchLabels": {"app": format!("a{}", i % 10)}});
    let spread = |key: &str, skew: i32| json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": mine});
    match shape {
        "spread" => p.set(
            "/spec",
            "topologySpreadConstraints",
            json!([spread("topology.kubernetes.io/zone", 1), spread("kubernetes.io/hostname", 3)]),
        ),
        "anti-affinity" => p.set(
            "/spec",
            "affinity",
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                [{"labelSelector": mine, "topologyKey": "kubernetes.io/hostname"}]}}),
        ),
        _ => p,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (nodes, pods) = (number(0, 1000), number(1, 10_000));
    let shape = args.get(2).map_or("plain", String::as_str);

    let mut cache = Cache::new(None);
    for i in 0..nodes {
        let zone = ["a", "b", "c"][i % 3];
        cache.set_node(
            node(&format!("n{i}"))
                .label("topology.kubernetes.io/zone", zone)
                .has("cpu", "32")
                .has("memory", "256Gi")
                .base(),
        );
    }
    let mut interner = Interner::default();
    let queue: Vec<PodInfo> = (0..pods).map(|i| PodInfo::interned(&shaped(shape, i).api(), &mut interner)).collect();
    let profile = Profile::build(&ProfileConfig::default())?;
    let (listers, nominated) = (Fixed::default(), Nominated::default());
    let (mut snapshot, mut cursor, mut rng) = (Snapshot::default(), Cursor::default(), StdRng::seed_from_u64(1));
    let (mut placed, mut unfit) = (0_u64, 0_u64);
    let mut micros: Vec<u128> = Vec::with_capacity(pods);

    let start = Instant::now();
    for p in &queue {
        let begun = Instant::now();
        cache.refresh(&mut snapshot);
        let cx =
            Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now: jiff::Timestamp::UNIX_EPOCH };
        match profile.schedule(cx, &mut CycleState::default(), p, &mut cursor, &mut rng) {
            Ok(placement) => {
                cache.assume(Arc::new(p.placed(placement.node.name())));
                placed += 1;
            }
            Err(Failure::Unfit(_)) => unfit += 1,
            Err(failure) => return Err(failure.to_string().into()),
        }
        micros.push(begun.elapsed().as_micros());
    }
    let seconds = start.elapsed().as_secs_f64();
    micros.sort_unstable();
    let quantile = |q: usize| micros.get(micros.len() * q / 100).copied().unwrap_or(0);
    #[allow(clippy::cast_precision_loss)]
    let line: Value = json!({
        "name": format!("scheduling without an API server: {shape}"), "value": (pods as f64 / seconds).round(),
        "unit": "pods/s", "limit": null, "nodes": nodes, "pods": pods, "placed": placed, "unfit": unfit,
        "p50_us": quantile(50) as u64, "p99_us": quantile(99) as u64,
    });
    println!("{line}");
    Ok(())
}
