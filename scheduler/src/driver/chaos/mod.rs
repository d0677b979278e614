//! The loop on a small cluster where everything fails now and then: nodes vanish, bindings fail or their answers get lost,
//! the API server goes away, watches lag behind or miss whole lives, extenders and provisioning fail, pods push one another
//! out, and a second scheduler wants the same pods.
//!
//! A moment each; `CHAOS_SECONDS` gives each test so many seconds, `CHAOS_SEED` other seeds. A failure names its seed.

mod cluster;
mod flaky;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use shared::run::Shutdown;

use self::cluster::{CPU, Change, Cluster, HIGHEST, TOO_MUCH, cpu_of, node_of, start, start_with};
use self::flaky::Flaky;
use super::core::Core;
use crate::testing::{PodBuilder, node, pod};

/// Seeds of a test: so many, or as many as there is time for.
fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("CHAOS_SEED").unwrap_or(0);
    let until = number("CHAOS_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (first..)
        .enumerate()
        .take_while(move |(n, _)| match until {
            Some(until) => Instant::now() < until,
            None => (*n as u64) < few,
        })
        .map(|(_, seed)| seed)
}

async fn churn(cluster: &Arc<Cluster>, seed: u64, steps: usize) {
    let rng = &mut StdRng::seed_from_u64(seed ^ 0xc4a05);
    (0..4).for_each(|n| cluster.add_node(&format!("n{n}")));
    for step in 0..steps {
        match rng.random_range(0..20) {
            0 => cluster.remove_node(&format!("n{}", rng.random_range(0..6))),
            1 | 2 => cluster.add_node(&format!("n{}", rng.random_range(0..6))),
            3 => {
                let uids: Vec<String> = cluster.state.lock().pods.keys().cloned().collect();
                if !uids.is_empty() {
                    cluster.remove_pod(&uids[rng.random_range(0..uids.len())]);
                }
            }
            4 => cluster.change(|s| s.down = !s.down),
            5 => {
                let hopeless = pod(&format!("hopeless-{step}")).cpu(&format!("{TOO_MUCH}m")).priority(50);
                cluster.add_pod(hopeless);
            }
            _ => {
                let amount = rng.random_range(1..=CPU / 200) * 100;
                let made = pod(&format!("p-{step}")).cpu(&format!("{amount}m"));
                cluster.add_pod(made.priority(rng.random_range(0..3)).set("/spec", "preemptionPolicy", json!("Never")));
            }
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..3))).await;
    }
    cluster.change(|s| (s.down, s.calm) = (false, true));
    // Room for all of them, so that whoever is left over was forgotten.
    let waiting = cluster.state.lock().pods.len();
    (0..waiting).for_each(|n| cluster.add_node(&format!("late-{n}")));
}

/// Waits until everybody who can be placed is, and looks at what must never be.
async fn settle(cluster: &Arc<Cluster>, what: &str) {
    let left = || -> Vec<String> {
        let state = cluster.state.lock();
        let can = |p: &&PodBuilder| node_of(p).is_none() && cpu_of(p) < TOO_MUCH;
        state.pods.values().filter(can).map(|p| p.info().name.to_string()).collect()
    };
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while !left().is_empty() {
        assert!(std::time::Instant::now() < until, "{what}: forgotten: {:?}", left());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let state = cluster.state.lock();
    assert_eq!(state.wrong, Vec::<String>::new(), "{what}");
    assert!(state.bindings.values().all(|n| *n == 1), "{what}: bound twice");
}

/// Asserts that the scheduler's state at the end is the cluster's.
async fn agrees(core: &Arc<Core>, cluster: &Arc<Cluster>, what: &str) {
    let believed = || -> BTreeMap<String, String> {
        let nodes = core.cache.lock().nodes();
        let on = |n: &Arc<crate::model::NodeInfo>| {
            let name = n.name().to_string();
            n.pods.iter().map(|p| (p.uid.to_string(), name.clone())).collect::<Vec<_>>()
        };
        nodes.iter().flat_map(on).collect()
    };
    let so = || -> BTreeMap<String, String> {
        let state = cluster.state.lock();
        let on = |(uid, p): (&String, &PodBuilder)| {
            let node = node_of(p)?;
            state.nodes.contains_key(node).then(|| (uid.clone(), node.to_owned()))
        };
        state.pods.iter().filter_map(on).collect()
    };
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while believed() != so() && std::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(believed(), so(), "{what}");
}

#[tokio::test]
async fn one_scheduler_among_faults() {
    for seed in seeds(3) {
        let (cluster, stop) = (Cluster::new(seed, true), Shutdown::new());
        let core = start(&cluster, &stop);
        churn(&cluster, seed, 150).await;
        settle(&cluster, &format!("seed {seed}")).await;
        agrees(&core, &cluster, &format!("seed {seed}")).await;
        stop.trigger();
    }
}

/// A scheduler ends in the middle of it all, bindings on their way included, and another begins with what the server knows.
#[tokio::test]
async fn a_scheduler_is_started_again() {
    for seed in seeds(2) {
        let what = format!("seed {seed}");
        let (cluster, first, second) = (Cluster::new(seed, false), Shutdown::new(), Shutdown::new());
        drop(start(&cluster, &first));
        let restart = async {
            while cluster.state.lock().bindings.len() < 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            first.trigger();
            start(&cluster, &second)
        };
        let ((), core) = tokio::join!(churn(&cluster, seed, 150), restart);
        settle(&cluster, &what).await;
        agrees(&core, &cluster, &what).await;
        second.trigger();
    }
}

/// Many that fit nowhere come first by priority and are tried again with everything that happens; the one that fits must
/// not wait for the end of that.
#[tokio::test]
async fn nobody_starves_behind_those_that_fit_nowhere() {
    const HOPELESS: i64 = 200;
    let (cluster, stop) = (Cluster::new(300, true), Shutdown::new());
    let _core = start(&cluster, &stop);
    for n in 0..HOPELESS {
        cluster.add_pod(pod(&format!("hopeless-{n}")).cpu(&format!("{}m", TOO_MUCH + n)).priority(1000));
    }
    let stirred = async {
        // A node that grows and shrinks wakes all of them again and again.
        loop {
            for cpu in [CPU, CPU / 2] {
                let made = node("restless").has("cpu", &format!("{cpu}m"));
                cluster.change(|s| {
                    s.nodes.insert("restless".to_owned(), made.clone());
                    s.log.push(Change::Node(made));
                });
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let served = async {
        for n in 0..10 {
            let modest = pod(&format!("modest-{n}")).cpu("100m").set("/spec", "preemptionPolicy", json!("Never"));
            let uid = modest.info().uid.to_string();
            cluster.add_pod(modest);
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while !cluster.state.lock().bindings.contains_key(&uid) {
                assert!(std::time::Instant::now() < until, "modest-{n} starves");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    };
    tokio::select! {
        () = stirred => {}
        () = served => {}
    }
    let state = cluster.state.lock();
    assert_eq!(state.wrong, Vec::<String>::new());
    assert_eq!(state.bindings.len(), 10, "the others fit nowhere");
    drop(state);
    stop.trigger();
}

#[tokio::test]
async fn two_schedulers_of_one_name() {
    for seed in seeds(2) {
        let (cluster, stop) = (Cluster::new(seed, false), Shutdown::new());
        let cores = [start(&cluster, &stop), start(&cluster, &stop)];
        churn(&cluster, seed, 120).await;
        settle(&cluster, &format!("seed {seed}")).await;
        for core in &cores {
            agrees(core, &cluster, &format!("seed {seed}")).await;
        }
        stop.trigger();
    }
}

/// Whole lives of pods and nodes fall into gaps of the watches.
#[tokio::test]
async fn watches_miss_what_comes_and_goes() {
    for seed in seeds(3) {
        let what = format!("seed {seed}");
        let (cluster, stop) = (Cluster::with_gaps(seed), Shutdown::new());
        let core = start(&cluster, &stop);
        let rng = &mut StdRng::seed_from_u64(seed ^ 0x9a95);
        let short = async {
            for n in 0..60 {
                let brief = pod(&format!("brief-{n}")).cpu("500m");
                cluster.add_pod(brief);
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..12))).await;
                cluster.remove_pod(&format!("uid-brief-{n}"));
            }
        };
        tokio::join!(churn(&cluster, seed, 150), short);
        settle(&cluster, &what).await;
        agrees(&core, &cluster, &what).await;
        stop.trigger();
    }
}

/// Extenders fail, refuse everything or bind badly; ignorable or not.
#[tokio::test]
async fn extenders_fail() {
    for seed in seeds(4) {
        let what = format!("seed {seed}");
        let (cluster, stop) = (Cluster::new(seed, true), Shutdown::new());
        let flaky = Flaky { cluster: Arc::clone(&cluster), ignorable: seed % 2 == 0, binds: seed % 4 > 1 };
        let core = start_with(&cluster, &stop, vec![Arc::new(flaky)]);
        churn(&cluster, seed, 120).await;
        settle(&cluster, &what).await;
        agrees(&core, &cluster, &what).await;
        stop.trigger();
    }
}

/// Volumes cannot be made where pods were to go, time and again.
#[tokio::test]
async fn provisioning_fails() {
    let mut unprovisioned = 0;
    for seed in seeds(3) {
        let what = format!("seed {seed}");
        let (cluster, stop) = (Cluster::new(seed, true), Shutdown::new());
        let core = start(&cluster, &stop);
        let with_claims = async {
            for n in 0..40 {
                let claim = format!("claim-{n}");
                cluster.add_claim(&claim);
                let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
                let stateful = pod(&format!("stateful-{n}")).cpu("200m").set("/spec", "volumes", volumes);
                cluster.add_pod(stateful.set("/spec", "preemptionPolicy", json!("Never")));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        };
        tokio::join!(churn(&cluster, seed, 120), with_claims);
        settle(&cluster, &what).await;
        agrees(&core, &cluster, &what).await;
        unprovisioned += cluster.state.lock().unprovisioned;
        stop.trigger();
    }
    assert!(unprovisioned > 0, "nothing failed");
}

/// Pods of all priorities come without end to a cluster that is full, and push one another out.
#[tokio::test]
async fn pods_push_one_another_out_under_load() {
    let mut evicted = 0;
    for seed in seeds(3) {
        let what = format!("seed {seed}");
        let (cluster, stop) = (Cluster::new(seed, true), Shutdown::new());
        let core = start(&cluster, &stop);
        let rng = &mut StdRng::seed_from_u64(seed ^ 0x10ad);
        (0..3).for_each(|n| cluster.add_node(&format!("n{n}")));
        for n in 0..150 {
            let amount = rng.random_range(4..=CPU / 200) * 100;
            let made = pod(&format!("load-{n}")).cpu(&format!("{amount}m")).priority(rng.random_range(0..=HIGHEST));
            cluster.add_pod(made);
            if n % 10 == 9 {
                let uids: Vec<String> = cluster.state.lock().pods.keys().cloned().collect();
                cluster.remove_pod(&uids[rng.random_range(0..uids.len())]);
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..4))).await;
        }
        cluster.change(|s| s.calm = true);
        let waiting = cluster.state.lock().pods.len();
        (0..waiting).for_each(|n| cluster.add_node(&format!("late-{n}")));
        settle(&cluster, &what).await;
        agrees(&core, &cluster, &what).await;
        evicted += cluster.state.lock().evicted;
        stop.trigger();
    }
    assert!(evicted > 0, "nobody was pushed out");
}
