//! A small cluster in memory whose API server, watches, provisioner and kubelets fail now and then, and schedulers in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use shared::events::Recorder;
use shared::informer::{Feed, Store};
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::Notify;

use crate::driver::binding::{self, BoundNode, Progress};
use crate::driver::core::Core;
use crate::driver::cycle::Cycle;
use crate::driver::failure::Reporter;
use crate::driver::stores::Stores;
use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::framework::extender::Extenders;
use crate::framework::{ClusterEvent, Cursor, Delta, Profile, ProfileConfig};
use crate::model::{PodInfo, Snapshot};
use crate::queue::{Profiles, SchedulingQueue, Timing};
use crate::testing::{NodeBuilder, PodBuilder, node};

/// Millicores of a node; pods ask for no more than half of it.
pub(super) const CPU: i64 = 4000;
/// Millicores that no node has.
pub(super) const TOO_MUCH: i64 = 100_000;

#[derive(Clone)]
pub(super) enum Change {
    Node(NodeBuilder),
    NodeGone(NodeBuilder),
    Pod(PodBuilder),
    PodGone(PodBuilder),
    Claim(Box<PersistentVolumeClaim>),
}

#[derive(Default)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<String, NodeBuilder>,
    pub(super) pods: BTreeMap<String, PodBuilder>,
    /// Volume claims by name.
    claims: BTreeMap<String, PersistentVolumeClaim>,
    /// Log of all changes; watches read on from where they are.
    pub(super) log: Vec<Change>,
    pub(super) down: bool,
    /// From here on only the server fails now and then.
    pub(super) calm: bool,
    /// Bindings made, by uid.
    pub(super) bindings: BTreeMap<String, usize>,
    /// Pods that a scheduler deleted.
    pub(super) evicted: usize,
    /// Provisionings that failed.
    pub(super) unprovisioned: usize,
    /// Observations that must never be made.
    pub(super) wrong: Vec<String>,
}

/// Knowledge of the API server.
pub(super) struct Cluster {
    pub(super) state: Mutex<State>,
    news: Notify,
    pub(super) rng: Mutex<StdRng>,
    /// Nodes must never hold more than they have: with two schedulers that do not know of each other this cannot be had.
    alone: bool,
    /// Watches break off now and then, and go on from what there is by then.
    gaps: bool,
}

pub(super) fn error(code: u16, message: &str) -> ApiError {
    ApiError { code, message: message.into() }
}

pub(super) fn cpu_of(pod: &PodBuilder) -> i64 {
    pod.info().requests.milli_cpu
}

pub(super) fn node_of(pod: &PodBuilder) -> Option<&str> {
    pod.0["spec"]["nodeName"].as_str()
}

impl State {
    fn put_claim(&mut self, mut claim: PersistentVolumeClaim) {
        // Every change has a version of its own.
        claim.metadata.resource_version = Some((self.log.len() + 2).to_string());
        let name = claim.metadata.name.clone().unwrap_or_default();
        self.claims.insert(name, claim.clone());
        self.log.push(Change::Claim(Box::new(claim)));
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some())
}

/// The class of all claims.
const CLASS: &str = "late";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Priority of pods that nobody may push out.
pub(super) const HIGHEST: i32 = 5;

impl Cluster {
    pub(super) fn new(seed: u64, alone: bool) -> Arc<Self> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { state: Mutex::default(), news: Notify::new(), rng, alone, gaps: false })
    }

    /// A cluster of one scheduler whose watches have gaps.
    pub(super) fn with_gaps(seed: u64) -> Arc<Self> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { state: Mutex::default(), news: Notify::new(), rng, alone: true, gaps: true })
    }

    /// Reports whether a thing happens that does once in so many times, while it is not calm.
    pub(super) fn happens(&self, once_in: u32) -> bool {
        !self.state.lock().calm && self.rng.lock().random_range(0..once_in) == 0
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.news.notify_waiters();
    }

    pub(super) fn add_node(&self, name: &str) {
        let made = node(name).has("cpu", &format!("{CPU}m"));
        self.change(|s| {
            s.nodes.insert(name.to_owned(), made.clone());
            s.log.push(Change::Node(made));
        });
    }

    /// A node goes, and its pods with it.
    pub(super) fn remove_node(&self, name: &str) {
        self.change(|s| {
            let Some(gone) = s.nodes.remove(name) else { return };
            s.log.push(Change::NodeGone(gone));
            let (its, others) = std::mem::take(&mut s.pods).into_iter().partition(|(_, p)| node_of(p) == Some(name));
            s.pods = others;
            let its: BTreeMap<String, PodBuilder> = its;
            s.log.extend(its.into_values().map(Change::PodGone));
        });
    }

    pub(super) fn add_pod(&self, made: PodBuilder) {
        self.change(|s| {
            s.pods.insert(made.info().uid.to_string(), made.clone());
            s.log.push(Change::Pod(made));
        });
    }

    pub(super) fn remove_pod(&self, uid: &str) {
        self.change(|s| {
            if let Some(gone) = s.pods.remove(uid) {
                s.log.push(Change::PodGone(gone));
            }
        });
    }

    /// A claim that waits for its first consumer.
    pub(super) fn add_claim(&self, name: &str) {
        let meta = json!({"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"});
        let spec = json!({"storageClassName": CLASS, "resources": {"requests": {"storage": "1Gi"}}});
        let claim = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("claim");
        self.change(|s| s.put_claim(claim));
    }

    /// Provisions the volume of a claim for the node that was chosen, or gives the node back.
    async fn provision(self: Arc<Self>, name: String) {
        let pause = self.rng.lock().random_range(0..8);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let fails = self.happens(3);
        self.change(|s| {
            let Some(mut claim) = s.claims.get(&name).cloned() else { return };
            let annotations = claim.metadata.annotations.get_or_insert_default();
            if fails {
                annotations.remove(SELECTED_NODE);
                s.unprovisioned += 1;
            } else {
                annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
                claim.spec.get_or_insert_default().volume_name = Some(format!("pv-{name}"));
            }
            s.put_claim(claim);
        });
    }

    /// Binds a pod as the registry does.
    pub(super) fn assign(&self, pod: &PodInfo, to: &str) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        let Some(found) = state.pods.get_mut(&*pod.uid) else { return Err(error(404, "not found")) };
        if node_of(found).is_some() {
            return Err(error(409, "already assigned"));
        }
        *found = found.clone().on(to);
        let bound = found.clone();
        let unbound = pod.claims().find(|(name, _)| state.claims.get(*name).is_none_or(|c| !is_bound(c)));
        if let Some((claim, _)) = unbound.map(|(name, own)| (name.to_owned(), own)) {
            state.wrong.push(format!("{pod} is bound, its claim {claim} is not"));
        }
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
        let pause = self.rng.lock().random_range(0..6);
        self.change(|s| {
            s.evicted += 1;
            if pod.priority >= HIGHEST {
                s.wrong.push(format!("{pod} is pushed out, which nobody may do"));
            }
            // It goes when it has ended.
            if let Some(going) = s.pods.get_mut(&*pod.uid) {
                *going = going.clone().set("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z"));
                let going = going.clone();
                s.log.push(Change::Pod(going));
            }
        });
        let (cluster, uid) = (Arc::clone(self), pod.uid.to_string());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            cluster.remove_pod(&uid);
        });
        Ok(())
    }

    async fn update_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        {
            let mut state = self.state.lock();
            if state.down {
                return Err(error(0, "connection refused"));
            }
            let current = state.claims.get(&name).ok_or_else(|| error(404, "not found"))?;
            if current.metadata.resource_version != claim.metadata.resource_version {
                return Err(error(409, "the object has been modified"));
            }
            state.put_claim(claim.clone());
        }
        self.news.notify_waiters();
        tokio::spawn(Arc::clone(self).provision(name));
        Ok(())
    }

    async fn update_volume(&self, _: &PersistentVolume) -> Result<(), ApiError> {
        Ok(())
    }

    async fn claims_bound(
        &self,
        pod: &PodInfo,
        claims: &[AwaitedClaim],
        node: &str,
        _: Duration,
    ) -> Result<(), ApiError> {
        loop {
            {
                let state = self.state.lock();
                let Some(there) = state.nodes.get(node) else { return Err(error(0, "the node is gone")) };
                if !state.pods.contains_key(&*pod.uid) {
                    return Err(error(0, "the pod is gone"));
                }
                let (there, volume) = (there.base(), PersistentVolume::default());
                let progress = |awaited: &AwaitedClaim| match state.claims.get(&awaited.name) {
                    // Written before it is awaited, so that every form is as new as that.
                    Some(claim) => {
                        binding::of_provisioned(claim, Some(&volume), BoundNode { node: &there, csi: None }, Some(0))
                    }
                    None => Progress::Failed("the claim is gone".to_owned()),
                };
                let all: Vec<Progress> = claims.iter().map(progress).collect();
                if let Some(Progress::Failed(why)) = all.iter().find(|p| matches!(p, Progress::Failed(_))) {
                    return Err(error(0, why));
                }
                if all.iter().all(|p| *p == Progress::Bound) {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn resource_claim(&self, _: &str, _: &str) -> Result<ResourceClaim, ApiError> {
        Err(error(404, "not found"))
    }

    async fn update_resource_claim(&self, claim: &ResourceClaim, _: bool) -> Result<ResourceClaim, ApiError> {
        Ok(claim.clone())
    }

    async fn create_resource_claim(&self, claim: &ResourceClaim) -> Result<ResourceClaim, ApiError> {
        Ok(claim.clone())
    }

    async fn delete_resource_claim(&self, _: &ResourceClaim) -> Result<(), ApiError> {
        Ok(())
    }

    async fn unreserve_resource_claim(&self, claim: &ResourceClaim, _: &PodInfo) -> Result<ResourceClaim, ApiError> {
        Ok(claim.clone())
    }
}

type Seen = Arc<Mutex<BTreeMap<String, Arc<PodInfo>>>>;

/// A scheduler's watches: its view of the cluster, some time after things happen.
struct Watch {
    cluster: Arc<Cluster>,
    core: Arc<Core>,
    /// Pods by name.
    seen: Seen,
    nodes: BTreeSet<String>,
    claims: Feed<PersistentVolumeClaim>,
    volumes: Feed<PersistentVolume>,
    /// Position in the log.
    at: usize,
}

impl Watch {
    /// Tells of everything there is, and that what is not there any more is gone: lives in between are never heard of.
    fn list(&mut self) {
        let (nodes, pods, claims) = {
            let state = self.cluster.state.lock();
            self.at = state.log.len();
            (state.nodes.clone(), state.pods.clone(), state.claims.clone())
        };
        for gone in self.nodes.iter().filter(|name| !nodes.contains_key(*name)) {
            self.core.node_gone(gone);
        }
        self.nodes = nodes.keys().cloned().collect();
        nodes.values().for_each(|n| self.core.node_seen(n.base()));
        claims.into_values().for_each(|claim| self.claim(claim));
        let known: Vec<Arc<PodInfo>> = self.seen.lock().values().cloned().collect();
        for gone in known.iter().filter(|pod| !pods.contains_key(&*pod.uid)) {
            self.pod_gone(gone);
        }
        pods.values().for_each(|p| self.pod(&Arc::new(p.info())));
    }

    fn pod(&self, info: &Arc<PodInfo>) {
        let before = self.seen.lock().insert(info.name.to_string(), Arc::clone(info));
        self.core.pod_seen(before.as_ref(), info);
    }

    fn pod_gone(&self, info: &Arc<PodInfo>) {
        self.seen.lock().remove(&*info.name);
        self.core.pod_gone(info);
    }

    fn claim(&self, claim: PersistentVolumeClaim) {
        if let Some(name) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) {
            let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
            self.volumes.put(PersistentVolume { metadata, ..PersistentVolume::default() });
        }
        let new = Some(Arc::new(claim.clone()));
        self.claims.put(claim);
        self.core.happened(&ClusterEvent::Object(Delta { old: None, new }.into()));
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Node(n) => {
                self.nodes.insert(n.base().name.to_string());
                self.core.node_seen(n.base());
            }
            Change::NodeGone(n) => {
                self.nodes.remove(&*n.base().name);
                self.core.node_gone(&n.base().name);
            }
            Change::Pod(p) => self.pod(&Arc::new(p.info())),
            Change::PodGone(p) => self.pod_gone(&Arc::new(p.info())),
            Change::Claim(claim) => self.claim(*claim),
        }
    }

    async fn run(mut self) {
        self.list();
        loop {
            let cluster = Arc::clone(&self.cluster);
            let pause = cluster.rng.lock().random_range(0..4);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let news = cluster.news.notified();
            if cluster.gaps && cluster.happens(8) {
                // Nothing is heard for a while.
                tokio::time::sleep(Duration::from_millis(15)).await;
                if !cluster.state.lock().down {
                    self.list();
                }
                continue;
            }
            let batch: Vec<Change> = {
                let state = cluster.state.lock();
                if state.down { Vec::new() } else { state.log[self.at..].to_vec() }
            };
            if batch.is_empty() {
                // The server comes back without news.
                let _ = tokio::time::timeout(Duration::from_millis(20), news).await;
                continue;
            }
            self.at += batch.len();
            batch.into_iter().for_each(|change| self.apply(change));
        }
    }
}

/// A scheduler of the cluster; ends with `stop`.
pub(super) fn start(cluster: &Arc<Cluster>, stop: &Shutdown) -> Arc<Core> {
    start_with(cluster, stop, Extenders::new())
}

/// A scheduler that asks extenders.
pub(super) fn start_with(cluster: &Arc<Cluster>, stop: &Shutdown, extenders: Extenders) -> Arc<Core> {
    let mut profile = Profile::build(&ProfileConfig::default()).expect("profile");
    profile.extenders = extenders;
    let profiles: Profiles = [(Arc::clone(&profile.name), Arc::new(profile))].into();
    let profiles = Arc::new(profiles);
    let timing = Timing { initial: Duration::from_millis(1), max: Duration::from_millis(5), ..Timing::default() };
    let queue = SchedulingQueue::new(Arc::clone(&profiles), timing);
    let (claims, feed) = Store::fed();
    let (volumes, volumes_feed) = Store::fed();
    let class = json!({"metadata": {"name": CLASS}, "provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"});
    let classes = Store::of([serde_json::from_value(class).expect("class")]);
    let stores = Arc::new(Stores::default().with_claims(claims, volumes, classes));
    let seen: Seen = Arc::default();
    let lookup = Arc::clone(&seen);
    let api: Arc<dyn Api> = Arc::new(Arc::clone(cluster));
    let core = Arc::new(Core::new(
        Arc::clone(&profiles),
        queue,
        stores,
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
    let watch = Watch {
        cluster: Arc::clone(cluster),
        core: Arc::clone(&core),
        seen,
        nodes: BTreeSet::new(),
        claims: feed,
        volumes: volumes_feed,
        at: 0,
    };
    let stopped = stop.clone();
    tasks.spawn("watch", async move {
        tokio::select! {
            () = watch.run() => {}
            () = stopped.wait() => {}
        }
    });
    tasks.spawn("cycle", cycle.run(stop.token().clone()));
    core
}
