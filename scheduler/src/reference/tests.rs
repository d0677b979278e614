//! Both schedulers on random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Decision, Scoring, World, decide, list, random, text};
use crate::framework::lister::Fixed;
use crate::framework::{Context, Cursor, CycleState, Failure, Nominated, Profile, ProfileConfig, Threads};
use crate::model::demand::Interner;
use crate::model::{Cache, NodeBase, PodInfo, Selector, Snapshot};

/// Clusters, and pods that are placed in each.
const SEEDS: u64 = 50;
const STEPS: usize = 40;

fn api<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{e}: {object}"))
}

/// Returns the listers of the plugins.
fn listers(world: &World, version: u64) -> Fixed {
    fn by_name<T: DeserializeOwned>(world: &World, kind: &str) -> std::collections::HashMap<String, Arc<T>> {
        world.all(kind).iter().map(|o| (text(&o["metadata"]["name"]), Arc::new(api(o)))).collect()
    }
    fn all<T: DeserializeOwned>(world: &World, kind: &str) -> Vec<Arc<T>> {
        world.all(kind).iter().map(|o| Arc::new(api(o))).collect()
    }
    let place = |o: &Value| (text(&o["metadata"]["namespace"]), text(&o["metadata"]["name"]));
    let labels = |o: &Value| (text(&o["metadata"]["name"]), api(&o["metadata"]["labels"]));
    let set = |o: &Value| {
        let (namespace, name) = place(o);
        (("ReplicaSet".to_owned(), namespace, name), Selector::from_map(&api(&o["spec"]["selector"]["matchLabels"])))
    };
    let mut out = Fixed::default();
    world.all("ResourceClaim").iter().for_each(|o| out.add_resource_claim(api(o)));
    out.claims = world.all("PersistentVolumeClaim").iter().map(|o| (place(o), Arc::new(api(o)))).collect();
    out.volumes = by_name(world, "PersistentVolume");
    out.classes = by_name(world, "StorageClass");
    out.csi_nodes = by_name(world, "CSINode");
    out.csi_drivers = by_name(world, "CSIDriver");
    out.capacities = all(world, "CSIStorageCapacity");
    out.device_classes = by_name(world, "DeviceClass");
    out.slices = all(world, "ResourceSlice");
    out.namespaces = world.all("Namespace").iter().map(labels).collect();
    out.services = all(world, "Service");
    out.owners = world.all("ReplicaSet").iter().map(set).collect();
    out.version = version;
    out
}

/// Both worlds, kept alike.
struct Both {
    world: World,
    scoring: Scoring,
    profile: Profile,
    cache: Cache,
    snapshot: Snapshot,
    cursor: Cursor,
    listers: Fixed,
    nominated: Nominated,
    interner: Interner,
    /// Pods that have or had a place where claims would have to be bound are not kept: nobody binds here.
    rng: StdRng,
}

impl Both {
    fn new(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let (world, scoring) = (random::world(rng), random::scoring(rng));
        let config = ProfileConfig { plugin_config: api(&scoring.arguments()), ..ProfileConfig::default() };
        let mut cache = Cache::default();
        world.all("Node").iter().for_each(|n| drop(cache.set_node(NodeBase::from_api(&api(n)))));
        Self {
            listers: listers(&world, 1),
            // The documentation knows nothing of threads.
            profile: Profile::build(&config).expect("profile").on(match seed % 3 {
                0 => Threads::ONE,
                more => Threads::always(if more == 1 { 2 } else { 3 }),
            }),
            snapshot: Snapshot::default(),
            cursor: Cursor::default(),
            nominated: Nominated::default(),
            interner: Interner::default(),
            rng: rng.clone(),
            world,
            scoring,
            cache,
        }
    }

    fn info(&mut self, pod: &Value) -> PodInfo {
        PodInfo::interned(&api(pod), &mut self.interner)
    }

    /// Something happens.
    fn change(&mut self, step: usize) {
        match self.rng.random_range(0..16) {
            0 | 1 => {
                let n = self.rng.random_range(0..8);
                let made = random::node(&mut self.rng, n);
                drop(self.cache.set_node(NodeBase::from_api(&api(&made))));
                let nodes = self.world.all_mut("Node");
                nodes.retain(|old| old["metadata"]["name"] != made["metadata"]["name"]);
                nodes.push(made);
            }
            2 if self.world.all("Node").len() > 1 => {
                let at = self.rng.random_range(0..self.world.all("Node").len());
                let gone = self.world.all_mut("Node").remove(at);
                self.cache.remove_node(&text(&gone["metadata"]["name"]));
            }
            3..=5 => self.remove_pod(),
            6 => {
                *self.world.all_mut("Service") = random::services(&mut self.rng);
                self.listers.services = self.world.all("Service").iter().map(|o| Arc::new(api(o))).collect();
                self.listers.version += 1;
            }
            7 => {
                let mut promised = random::pod(&mut self.rng, &format!("promised-{step}"));
                let node = format!("n{}", self.rng.random_range(0..8));
                promised["status"]["nominatedNodeName"] = Value::from(node.as_str());
                let info = Arc::new(self.info(&promised));
                self.nominated.set(info, node.as_str().into());
                self.world.all_mut("Pod").push(promised);
            }
            8 => self.alter_pod(),
            _ => {}
        }
    }

    fn remove_pod(&mut self) {
        let count = self.world.all("Pod").len();
        if count > 0 {
            let at = self.rng.random_range(0..count);
            let gone = self.world.all_mut("Pod").swap_remove(at);
            self.nominated.remove(&text(&gone["metadata"]["uid"]));
            self.cache.remove_pod(&text(&gone["metadata"]["uid"]));
        }
    }

    /// A pod on a node is resized or begins to go.
    fn alter_pod(&mut self) {
        let placed = |p: &&mut Value| !p["spec"]["nodeName"].is_null();
        let Some(pod) = self.world.all_mut("Pod").iter_mut().find(placed) else { return };
        if self.rng.random_bool(0.5) {
            random::resize(&mut self.rng, pod);
        } else {
            pod["metadata"]["deletionTimestamp"] = Value::from("2026-01-01T00:00:00Z");
        }
        let pod = pod.clone();
        let info = Arc::new(self.info(&pod));
        self.cache.add_pod(info);
    }

    /// Puts it there, unless something would have to be bound first.
    fn place(&mut self, mut pod: Value, node: &str) {
        let spec = &pod["spec"];
        if list(&spec["volumes"]).any(|v| !v["persistentVolumeClaim"].is_null() && self.rng.random_bool(0.7))
            || list(&spec["resourceClaims"]).next().is_some()
        {
            return;
        }
        pod["spec"]["nodeName"] = Value::from(node);
        let info = Arc::new(self.info(&pod));
        self.cache.add_pod(info);
        self.world.all_mut("Pod").push(pod);
    }

    /// Asks both, in every way there is to ask ours.
    fn compare(&mut self, pod: &Value, what: &str) -> Option<String> {
        let want = decide(&self.world, pod, &self.scoring);
        let info = self.info(pod);
        self.cache.refresh(&mut self.snapshot);
        let cx = Context {
            snapshot: &self.snapshot,
            listers: &self.listers,
            nominated: &self.nominated,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        let told = self.profile.explain(cx, &info).unwrap_or_else(|s| panic!("{what}: {s}"));
        let mut got = Decision::new();
        for verdict in told.nodes.iter().filter(|v| v.fits) {
            let scores = got.entry(verdict.node.clone()).or_default();
            for (name, _) in crate::framework::config::DEFAULT_PLUGINS {
                let points = verdict.scores.iter().find(|p| p.plugin == *name).map_or(0, |p| p.score * p.weight);
                if want.get(&verdict.node).is_some_and(|w| w.contains_key(name)) {
                    scores.insert(name, points);
                }
            }
        }
        if want.len() != 1 || got.len() != 1 {
            let (there, nodes) = (self.world.all("Pod"), self.world.all("Node"));
            let there: Vec<String> = there.iter().chain(nodes).map(Value::to_string).collect();
            assert_eq!(got, want, "{what}: {pod}\n{}\n{:?}", there.join("\n"), self.scoring);
        }
        let total = |scores: &BTreeMap<&str, i64>| scores.values().sum::<i64>();
        let best = want.values().map(total).max();
        let top: BTreeSet<&String> = want.iter().filter(|(_, s)| Some(total(s)) == best).map(|(n, _)| n).collect();
        match self.profile.schedule(cx, &mut Default::default(), &info, &mut self.cursor, &mut self.rng) {
            Ok(placement) => {
                let name = placement.node.name().to_string();
                assert!(want.contains_key(&name), "{what}: {name} is none of {want:?}");
                if placement.evaluated != 1 {
                    assert_eq!(placement.feasible, want.len(), "{what}");
                    assert!(top.contains(&name), "{what}: {name} is none of {top:?}");
                }
                Some(name)
            }
            Err(Failure::Unfit(_)) => {
                assert!(want.is_empty(), "{what}: {want:?} would do");
                None
            }
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

fn run(seed: u64, steps: usize, fitted: &mut [usize; 2]) {
    let mut both = Both::new(seed);
    let templates: Vec<Value> = (0..20).map(|i| random::pod(&mut both.rng, &format!("template-{i}"))).collect();
    for step in 0..steps {
        both.change(step);
        let mut pod = templates[both.rng.random_range(0..templates.len())].clone();
        pod["metadata"]["name"] = Value::from(format!("p{step}"));
        pod["metadata"]["uid"] = Value::from(format!("uid-p{step}"));
        let node = both.compare(&pod, &format!("seed {seed} step {step}"));
        fitted[usize::from(node.is_some())] += 1;
        if let Some(node) = node {
            both.place(pod, &node);
        }
    }
    assert!(both.cursor.tables.rows > 0, "nothing was remembered");
}

#[test]
fn decisions_are_those_of_the_documentation() {
    let mut fitted = [0, 0];
    for seed in 0..SEEDS {
        run(seed, STEPS, &mut fitted);
    }
    let all = fitted[0] + fitted[1];
    assert!(fitted.iter().all(|n| *n * 5 > all), "too many of a kind: {fitted:?}");
}

/// Clusters of hundreds of nodes, so that a search stops before it has seen all of them.
const LARGE: usize = 250;

#[test]
fn threads_change_no_decision() {
    let mut fitted = [0, 0];
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut both = Both::new(seed);
        for n in 0..LARGE {
            drop(both.cache.set_node(NodeBase::from_api(&api(&random::node(&mut rng, n)))));
        }
        let config = ProfileConfig { plugin_config: api(&both.scoring.arguments()), ..ProfileConfig::default() };
        let build = |threads| Profile::build(&config).expect("profile").on(threads);
        let profiles = [Threads::ONE, Threads::always(2), Threads::always(5)].map(build);
        let mut cursors = [Cursor::default(), Cursor::default(), Cursor::default()];
        for step in 0..STEPS {
            let mut pod = random::pod(&mut rng, &format!("template-{}", step % 8));
            pod["metadata"]["uid"] = Value::from(format!("uid-{step}"));
            let info = both.info(&pod);
            both.cache.refresh(&mut both.snapshot);
            let cx = Context {
                snapshot: &both.snapshot,
                listers: &both.listers,
                nominated: &both.nominated,
                now: jiff::Timestamp::UNIX_EPOCH,
            };
            let chance: u64 = rng.random();
            let decisions: Vec<String> = profiles
                .iter()
                .zip(&mut cursors)
                .map(|(profile, cursor)| {
                    let (mut state, rng) = (CycleState::default(), &mut StdRng::seed_from_u64(chance));
                    let said = match profile.schedule(cx, &mut state, &info, cursor, rng) {
                        Ok(it) => format!("{} of {} of {}", it.node.name(), it.feasible, it.evaluated),
                        Err(why) => why.to_string(),
                    };
                    format!("{said}, next from {}", cursor.start)
                })
                .collect();
            assert!(decisions.iter().all(|d| *d == decisions[0]), "seed {seed} step {step}: {decisions:#?}");
            fitted[usize::from(!decisions[0].contains("available"))] += 1;
        }
    }
    assert!(fitted.iter().all(|n| *n > 20), "too many of a kind: {fitted:?}");
}
