//! The loop on a small cluster where everything fails now and then: nodes vanish, bindings fail or their answers get lost,
//! the API server goes away, watches lag behind, and a second scheduler wants the same pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use shared::events::Recorder;
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::Notify;

use super::core::Core;
use super::cycle::Cycle;
use super::failure::Reporter;
use super::stores::Stores;
use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::framework::{Cursor, Profile, ProfileConfig};
use crate::model::{PodInfo, Snapshot};
use crate::queue::{Profiles, Queue, Timing};
use crate::testing::{NodeBuilder, PodBuilder, node, pod};

/// What a node has, in millicores; pods ask for no more than the half of it.
const CPU: i64 = 4000;
/// What nobody has.
const TOO_MUCH: i64 = 100_000;

#[derive(Clone)]
enum Change {
    Node(NodeBuilder),
    NodeGone(NodeBuilder),
    Pod(PodBuilder),
    PodGone(PodBuilder),
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, NodeBuilder>,
    pods: BTreeMap<String, PodBuilder>,
    /// Everything that has happened; watches read on from where they are.
    log: Vec<Change>,
    down: bool,
    /// Bindings made, by uid.
    bindings: BTreeMap<String, usize>,
    /// What must never be.
    wrong: Vec<String>,
}

/// What the API server knows.
struct Cluster {
    state: Mutex<State>,
    news: Notify,
    rng: Mutex<StdRng>,
    /// Whether nodes must never hold more than they have: with two that do not know of each other this cannot be had.
    alone: bool,
}

fn error(code: u16, message: &str) -> ApiError {
    ApiError { code, message: message.into() }
}

fn cpu_of(pod: &PodBuilder) -> i64 {
    pod.info().requests.milli_cpu
}

fn node_of(pod: &PodBuilder) -> Option<&str> {
    pod.0["spec"]["nodeName"].as_str()
}

impl Cluster {
    fn new(seed: u64, alone: bool) -> Arc<Self> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { state: Mutex::default(), news: Notify::new(), rng, alone })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.news.notify_waiters();
    }

    fn add_node(&self, name: &str) {
        let made = node(name).has("cpu", &format!("{CPU}m"));
        self.change(|s| {
            s.nodes.insert(name.to_owned(), made.clone());
            s.log.push(Change::Node(made));
        });
    }

    /// A node goes, and its pods with it.
    fn remove_node(&self, name: &str) {
        self.change(|s| {
            let Some(gone) = s.nodes.remove(name) else { return };
            s.log.push(Change::NodeGone(gone));
            let (its, others) = std::mem::take(&mut s.pods).into_iter().partition(|(_, p)| node_of(p) == Some(name));
            s.pods = others;
            let its: BTreeMap<String, PodBuilder> = its;
            s.log.extend(its.into_values().map(Change::PodGone));
        });
    }

    fn add_pod(&self, made: PodBuilder) {
        self.change(|s| {
            s.pods.insert(made.info().uid.to_string(), made.clone());
            s.log.push(Change::Pod(made));
        });
    }

    fn remove_pod(&self, uid: &str) {
        self.change(|s| {
            if let Some(gone) = s.pods.remove(uid) {
                s.log.push(Change::PodGone(gone));
            }
        });
    }

    /// As the registry does it.
    fn assign(&self, pod: &PodInfo, to: &str) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        let Some(found) = state.pods.get_mut(&*pod.uid) else { return Err(error(404, "not found")) };
        if node_of(found).is_some() {
            return Err(error(409, "already assigned"));
        }
        *found = found.clone().on(to);
        let bound = found.clone();
        let sum: i64 = state.pods.values().filter(|p| node_of(p) == Some(to)).map(cpu_of).sum();
        if self.alone && state.nodes.contains_key(to) && sum > CPU {
            state.wrong.push(format!("{to} holds {sum}m"));
        }
        *state.bindings.entry(pod.uid.to_string()).or_default() += 1;
        state.log.push(Change::Pod(bound));
        drop(state);
        self.news.notify_waiters();
        Ok(())
    }
}

#[async_trait]
impl Api for Arc<Cluster> {
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
        let chance = self.rng.lock().random_range(0..20);
        let pause = self.rng.lock().random_range(0..5);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if self.state.lock().down {
            return Err(error(0, "connection refused"));
        }
        match chance {
            0 => Err(error(500, "no")),
            1 => Err(error(0, "connection reset")),
            2 | 3 => {
                self.assign(pod, node)?;
                Err(error(0, "the answer was lost"))
            }
            _ => self.assign(pod, node),
        }
    }

    async fn node_of(&self, pod: &PodInfo) -> Result<Option<String>, ApiError> {
        tokio::task::yield_now().await;
        let state = self.state.lock();
        if state.down {
            return Err(error(0, "connection refused"));
        }
        let found = state.pods.get(&*pod.uid).ok_or_else(|| error(404, "not found"))?;
        Ok(node_of(found).map(str::to_owned))
    }

    async fn patch_status(&self, _: &PodInfo, _: Value) -> Result<(), ApiError> {
        if self.state.lock().down { Err(error(0, "connection refused")) } else { Ok(()) }
    }

    async fn delete(&self, pod: &PodInfo) -> Result<(), ApiError> {
        if self.state.lock().down {
            return Err(error(0, "connection refused"));
        }
        self.remove_pod(&pod.uid);
        Ok(())
    }

    async fn update_claim(&self, _: &PersistentVolumeClaim) -> Result<(), ApiError> {
        Ok(())
    }

    async fn update_volume(&self, _: &PersistentVolume) -> Result<(), ApiError> {
        Ok(())
    }

    async fn claims_bound(&self, _: &PodInfo, _: &[AwaitedClaim], _: &str, _: Duration) -> Result<(), ApiError> {
        Ok(())
    }

    async fn resource_claim(&self, _: &str, _: &str) -> Result<ResourceClaim, ApiError> {
        Err(error(404, "not found"))
    }

    async fn update_resource_claim(&self, claim: &ResourceClaim, _: bool) -> Result<ResourceClaim, ApiError> {
        Ok(claim.clone())
    }

    async fn unreserve_resource_claim(&self, claim: &ResourceClaim, _: &PodInfo) -> Result<ResourceClaim, ApiError> {
        Ok(claim.clone())
    }
}

type Seen = Arc<Mutex<BTreeMap<String, Arc<PodInfo>>>>;

/// Tells a scheduler what there is, and what happens from then on, some time after it did.
async fn watch(cluster: Arc<Cluster>, core: Arc<Core>, seen: Seen) {
    let mut at = {
        let state = cluster.state.lock();
        state.nodes.values().for_each(|n| core.node_seen(n.base()));
        for p in state.pods.values() {
            let info = Arc::new(p.info());
            seen.lock().insert(info.name.to_string(), Arc::clone(&info));
            core.pod_seen(None, &info);
        }
        state.log.len()
    };
    loop {
        let pause = cluster.rng.lock().random_range(0..4);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let news = cluster.news.notified();
        let batch: Vec<Change> = {
            let state = cluster.state.lock();
            if state.down { Vec::new() } else { state.log[at..].to_vec() }
        };
        if batch.is_empty() {
            // The server comes back without news.
            let _ = tokio::time::timeout(Duration::from_millis(20), news).await;
            continue;
        }
        at += batch.len();
        for change in batch {
            match change {
                Change::Node(n) => core.node_seen(n.base()),
                Change::NodeGone(n) => core.node_gone(&n.base().name),
                Change::Pod(p) => {
                    let info = Arc::new(p.info());
                    seen.lock().insert(info.name.to_string(), Arc::clone(&info));
                    core.pod_seen(None, &info);
                }
                Change::PodGone(p) => {
                    let info = Arc::new(p.info());
                    seen.lock().remove(&*info.name);
                    core.pod_gone(&info);
                }
            }
        }
    }
}

/// A scheduler of the cluster; ends with `stop`.
fn start(cluster: &Arc<Cluster>, stop: &Shutdown) -> Arc<Core> {
    let profile = Profile::build(&ProfileConfig::default()).expect("profile");
    let profiles: Profiles = [(Arc::clone(&profile.name), Arc::new(profile))].into();
    let profiles = Arc::new(profiles);
    let timing =
        Timing { initial: Duration::from_millis(1), max: Duration::from_millis(5), stale: Duration::from_secs(300) };
    let queue = Queue::new(Arc::clone(&profiles), timing);
    let seen: Seen = Arc::default();
    let lookup = Arc::clone(&seen);
    let api: Arc<dyn Api> = Arc::new(Arc::clone(cluster));
    let core = Arc::new(Core::new(
        Arc::clone(&profiles),
        queue,
        Arc::new(Stores::default()),
        Box::new(move |_, name| lookup.lock().get(name).cloned()),
        api,
    ));
    let tasks = TaskGroup::new();
    let recorders = profiles.keys().map(|name| (Arc::clone(name), Recorder::discard())).collect();
    let reporter = Arc::new(Reporter { core: Arc::clone(&core), tasks: tasks.clone(), recorders });
    let cycle = Cycle {
        core: Arc::clone(&core),
        reporter,
        tasks: tasks.clone(),
        cursor: Cursor::default(),
        snapshot: Snapshot::default(),
    };
    let (cluster, fed, stopped) = (Arc::clone(cluster), Arc::clone(&core), stop.clone());
    tasks.spawn("watch", async move {
        tokio::select! {
            () = watch(cluster, fed, seen) => {}
            () = stopped.wait() => {}
        }
    });
    tasks.spawn("cycle", cycle.run(stop.token().clone()));
    core
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
    cluster.change(|s| s.down = false);
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

/// What the scheduler believes at the end must be what is so.
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
    for seed in 0..3 {
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
    for seed in 200..202 {
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
    const HOPELESS: usize = 200;
    let (cluster, stop) = (Cluster::new(300, true), Shutdown::new());
    let _core = start(&cluster, &stop);
    for n in 0..HOPELESS {
        cluster.add_pod(pod(&format!("hopeless-{n}")).cpu(&format!("{}m", TOO_MUCH + n as i64)).priority(1000));
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
    for seed in 100..102 {
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
