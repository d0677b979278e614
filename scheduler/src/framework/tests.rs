//! The whole default profile on small random clusters.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::lister::Fixed;
use super::{Code, Context, Cursor, CycleState, Failure, Nominated, Profile, ProfileConfig, Status};
use crate::model::{Cache, Snapshot};
use crate::testing::{node, pod};

/// Pods come and go on nodes that come and go; whatever happens, no node holds more than it has, no pod sits on a node
/// it does not want, and a pod is refused only when no node could have taken it.
#[test]
fn nothing_is_ever_overcommitted() {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let (listers, nominated) = (Fixed::default(), Nominated::default());
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut cache, mut snapshot, mut cursor) = (Cache::default(), Snapshot::default(), Cursor::default());
        let mut live: Vec<Arc<str>> = Vec::new();
        for step in 0..120 {
            match rng.random_range(0..10) {
                0 => {
                    let n = rng.random_range(0..8);
                    let disk = if n % 2 == 0 { "ssd" } else { "hdd" };
                    cache.set_node(node(&format!("n{n}")).label("disk", disk).has("pods", "6").base());
                }
                1 if step % 5 == 0 => cache.remove_node(&format!("n{}", rng.random_range(0..8))),
                2 if !live.is_empty() => {
                    let uid = live.swap_remove(rng.random_range(0..live.len()));
                    cache.remove_pod(&uid);
                }
                _ => {
                    let mut p = pod(&format!("p{step}")).cpu(&format!("{}m", rng.random_range(1..25) * 100));
                    let choosy = rng.random_bool(0.3);
                    if choosy {
                        p = p.set("/spec", "nodeSelector", json!({"disk": "ssd"}));
                    }
                    let p = p.info();
                    cache.refresh(&mut snapshot);
                    let cx = Context {
                        snapshot: &snapshot,
                        listers: &listers,
                        nominated: &nominated,
                        now: jiff::Timestamp::UNIX_EPOCH,
                    };
                    let could = snapshot.nodes().iter().any(|n| {
                        n.requested.milli_cpu + p.requests.milli_cpu <= 4000
                            && n.pods.len() < 6
                            && (!choosy || n.base.labels["disk"] == "ssd")
                    });
                    match profile.schedule(cx, &mut CycleState::default(), &p, &mut cursor, &mut rng) {
                        Ok(placement) => {
                            assert!(
                                could && (!choosy || placement.node.base.labels["disk"] == "ssd"),
                                "seed {seed} step {step}"
                            );
                            let placed = Arc::new(p.placed(placement.node.name()));
                            live.push(Arc::clone(&placed.uid));
                            assert!(cache.assume(placed));
                        }
                        Err(Failure::Unfit(_) | Failure::NoNodes) => {
                            assert!(!could, "seed {seed} step {step}: a node was there")
                        }
                        Err(Failure::Broken(status)) => assert_eq!(status.to_string(), "", "seed {seed} step {step}"),
                    }
                }
            }
            cache.refresh(&mut snapshot);
            for n in snapshot.nodes() {
                let sum: i64 = n.pods.iter().map(|p| p.requests.milli_cpu).sum();
                assert_eq!(sum, n.requested.milli_cpu, "seed {seed} step {step}: books do not balance");
                assert!(sum <= 4000 && n.pods.len() <= 6, "seed {seed} step {step}: {} is overcommitted", n.name());
            }
        }
    }
}

struct Waits(std::time::Duration);

impl super::plugin::Permit for Waits {
    fn permit(
        &self,
        _: Context<'_>,
        _: &mut CycleState,
        _: &crate::model::PodInfo,
        _: &str,
    ) -> super::plugin::Permission {
        super::plugin::Permission {
            status: Status::new(Code::Wait, "not yet"),
            patience: self.0,
            ..super::plugin::Permission::default()
        }
    }
}

#[test]
fn shortest_wait_for_permission_counts() {
    let mut profile = Profile::build(&ProfileConfig::default()).expect("profile");
    for (name, seconds) in [("Long", 60), ("Short", 5), ("Middle", 30)] {
        profile.permit.push((name, Arc::new(Waits(std::time::Duration::from_secs(seconds)))));
    }
    let (snapshot, listers, nominated) = (Snapshot::default(), Fixed::default(), Nominated::default());
    let cx =
        Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now: jiff::Timestamp::UNIX_EPOCH };
    let said = profile.permit(cx, &mut CycleState::default(), &pod("p").info(), "n");
    assert_eq!((said.status.code(), said.status.plugin, said.patience.as_secs()), (Code::Wait, "Short", 5));
}

struct Names;

impl super::plugin::PreFilter for Names {
    fn pre_filter(
        &self,
        _: Context<'_>,
        _: &mut CycleState,
        _: &crate::model::PodInfo,
    ) -> Result<super::plugin::PreFiltered, Status> {
        Ok(super::plugin::PreFiltered::Nodes(["a".to_owned()].into()))
    }
}

#[test]
fn plugins_that_limit_the_nodes_are_named_in_order() {
    let mut profile = Profile::build(&ProfileConfig::default()).expect("profile");
    for name in ["Zebra", "Ape"] {
        profile.pre_filter.push((name, Arc::new(Names)));
    }
    let nodes = vec![node("a").has("cpu", "1").with(&[]), node("b").with(&[]), node("c").with(&[])];
    let (snapshot, listers, nominated) = (Snapshot::of(nodes), Fixed::default(), Nominated::default());
    let cx =
        Context { snapshot: &snapshot, listers: &listers, nominated: &nominated, now: jiff::Timestamp::UNIX_EPOCH };
    let (mut cursor, mut rng) = (Cursor::default(), StdRng::seed_from_u64(1));
    let p = pod("p").cpu("2").info();
    let answer = profile.schedule_plainly(cx, &mut CycleState::default(), &p, &mut cursor, &mut rng);
    let want = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [Ape Zebra].";
    assert_eq!(answer.map(|p| p.feasible).map_err(|e| e.to_string()), Err(want.to_owned()));
}
