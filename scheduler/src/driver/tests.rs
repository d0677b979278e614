//! The loop against a recording API: what is called, in which order, and what happens when a call fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::client::{Fence, Permission};
use shared::events::Recorder;
use shared::leader::Outcome;
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::core::Core;
use super::cycle::Cycle;
use super::failure::Reporter;
use super::stores::Stores;
use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::framework::extender::{Extender, ExtenderError, Extenders, Filtered, Victims, Weighed};
use crate::framework::{Cursor, Features, Listers, Profile, ProfileConfig};
use crate::model::{NodeInfo, PodInfo, Snapshot};
use crate::queue::{Profiles, SchedulingQueue, Timing};
use crate::testing::{PodBuilder, node, pod};

mod gates;
mod leaving;

struct Recording {
    calls: UnboundedSender<String>,
    /// So many bindings fail first.
    bad_bindings: AtomicUsize,
}

impl Recording {
    fn note(&self, call: String) -> Result<(), ApiError> {
        self.calls.send(call).map_err(|_| ApiError { code: 0, message: "the test is over".into() })
    }
}

#[async_trait]
impl Api for Recording {
    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ApiError> {
        self.note(format!("bind {} {node}", pod.name))?;
        assert!(&*pod.name != "panics", "a binding that panics");
        let bad = self.bad_bindings.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if bad.is_ok() { Err(ApiError { code: 500, message: "no".into() }) } else { Ok(()) }
    }

    async fn node_of(&self, _: &PodInfo) -> Result<Option<String>, ApiError> {
        Ok(None)
    }

    async fn patch_status(&self, pod: &PodInfo, patch: Value) -> Result<(), ApiError> {
        let status = &patch["status"];
        let what = status["conditions"][0]["reason"].as_str().unwrap_or("-");
        self.note(format!("patch {} {what} {}", pod.name, status["nominatedNodeName"].as_str().unwrap_or("-")))
    }

    async fn delete(&self, pod: &PodInfo) -> Result<(), ApiError> {
        self.note(format!("delete {}", pod.name))?;
        match pod.name.starts_with("stubborn") {
            true => Err(ApiError { code: 403, message: "not this one".into() }),
            false => Ok(()),
        }
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
        Err(ApiError { code: 404, message: "not found".into() })
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

pub(super) struct World {
    pub(super) core: Arc<Core>,
    pods: Arc<Mutex<HashMap<String, Arc<PodInfo>>>>,
    calls: UnboundedReceiver<String>,
    stop: Shutdown,
}

impl World {
    /// A running scheduler without nodes and pods.
    pub(super) fn start(bad_bindings: usize) -> Self {
        Self::with_extenders(bad_bindings, Extenders::new())
    }

    /// A running scheduler whose profile asks extenders.
    pub(super) fn with_extenders(bad_bindings: usize, extenders: Extenders) -> Self {
        let mut profile = Profile::build(&ProfileConfig::default()).expect("profile");
        profile.extenders = extenders;
        Self::with(bad_bindings, profile, Stores::default())
    }

    fn with(bad_bindings: usize, profile: Profile, stores: Stores) -> Self {
        let profiles: Profiles = [(Arc::clone(&profile.name), Arc::new(profile))].into();
        let profiles = Arc::new(profiles);
        let timing = Timing { initial: Duration::from_millis(1), max: Duration::from_millis(1), ..Timing::default() };
        let stores = Arc::new(stores);
        let listers: Arc<dyn Listers> = stores.clone();
        let queue = SchedulingQueue::new(Arc::clone(&profiles), timing).with_listers(listers);
        let (sender, calls) = unbounded_channel();
        let pods: Arc<Mutex<HashMap<String, Arc<PodInfo>>>> = Arc::default();
        let lookup = Arc::clone(&pods);
        let core = Arc::new(Core::new(
            Arc::clone(&profiles),
            queue,
            Arc::clone(&stores),
            Box::new(move |_, name| lookup.lock().get(name).cloned()),
            Arc::new(Recording { calls: sender, bad_bindings: AtomicUsize::new(bad_bindings) }),
        ));
        let tasks = TaskGroup::new();
        let recorders = profiles.keys().map(|name| (Arc::clone(name), Recorder::discard())).collect();
        let reporter = Arc::new(Reporter { core: Arc::clone(&core), tasks: tasks.clone(), recorders });
        let stop = Shutdown::new();
        let cycle = Cycle {
            core: Arc::clone(&core),
            reporter,
            tasks: tasks.clone(),
            cursor: Cursor::default(),
            snapshot: Snapshot::default(),
        };
        tasks.spawn("cycle", cycle.run(stop.token().clone()));
        Self { core, pods, calls, stop }
    }

    pub(super) fn add(&self, p: &PodBuilder) {
        let info = Arc::new(p.info());
        self.pods.lock().insert(info.name.to_string(), Arc::clone(&info));
        self.core.pod_seen(None, &info);
    }

    fn remove(&self, name: &str) {
        let gone = self.pods.lock().remove(name);
        self.core.pod_gone(&gone.expect("pod"));
    }

    async fn next(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(20), self.calls.recv())
            .await
            .ok()
            .flatten()
            .unwrap_or_else(|| "nothing".into())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}

#[tokio::test]
async fn a_pod_waits_for_a_node_that_fits() {
    let mut world = World::start(0);
    world.add(&pod("p").cpu("6"));
    assert_eq!(world.next().await, "patch p Unschedulable -");
    world.core.node_seen(node("small").base());
    world.core.node_seen(node("large").has("cpu", "8").base());
    assert_eq!(world.next().await, "bind p large");
}

#[tokio::test]
async fn the_room_of_a_bound_pod_is_taken_before_it_is_seen_bound() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("a").cpu("3"));
    world.add(&pod("b").cpu("3"));
    let first = world.next().await;
    assert!(first.starts_with("bind "), "{first}");
    let second = world.next().await;
    assert!(second.ends_with("Unschedulable -"), "{second}");
}

#[tokio::test]
async fn a_failed_binding_is_tried_again() {
    let mut world = World::start(1);
    world.core.node_seen(node("n").base());
    world.add(&pod("p").cpu("3"));
    let mut calls = Vec::new();
    while calls.iter().filter(|c: &&String| c.as_str() == "bind p n").count() < 2 && calls.len() < 5 {
        calls.push(world.next().await);
    }
    assert!(calls.contains(&"patch p SchedulerError -".to_owned()), "{calls:?}");
    assert_eq!(calls.iter().filter(|c| *c == "bind p n").count(), 2, "{calls:?}");
}

#[tokio::test]
async fn a_binding_that_panics_is_a_failure_of_its_pod() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("panics").cpu("3"));
    let mut calls = vec![world.next().await, world.next().await, world.next().await];
    // It is tried again, and its room was given back meanwhile.
    calls.sort();
    assert_eq!(calls, ["bind panics n", "bind panics n", "patch panics SchedulerError -"]);
    world.remove("panics");
    world.add(&pod("p").cpu("3"));
    while !calls.contains(&"bind p n".to_owned()) {
        calls.push(world.next().await);
        assert!(calls.len() < 20, "{calls:?}");
    }
}

#[tokio::test]
async fn victims_are_marked_then_deleted_and_their_room_is_kept() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("victim").cpu("3").priority(1).on("n"));
    world.add(&pod("p").cpu("3").priority(100));
    let mut calls = vec![world.next().await, world.next().await, world.next().await];
    let marked = calls.iter().position(|c| c == "patch victim PreemptionByScheduler -");
    let deleted = calls.iter().position(|c| c == "delete victim");
    assert!(marked.is_some() && marked < deleted, "{calls:?}");
    calls.retain(|c| c.starts_with("patch p "));
    assert_eq!(calls, ["patch p Unschedulable n"]);
    // A lesser pod does not get the room that was made.
    world.add(&pod("thief").cpu("3").priority(5));
    world.remove("victim");
    let mut after = vec![world.next().await, world.next().await];
    after.retain(|c| c.starts_with("bind"));
    assert_eq!(after, ["bind p n"]);
}

#[tokio::test]
async fn other_schedulers_pods_are_left_alone() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("other").set("/spec", "schedulerName", json!("other")));
    world.add(&pod("mine"));
    assert_eq!(world.next().await, "bind mine n");
}

#[test]
fn times_with_which_nobody_could_lead_are_refused() {
    let election = |elect: bool, renew: &str| {
        let times = json!({
            "leaderElect": elect, "leaseDuration": "15s", "renewDeadline": renew, "retryPeriod": "2s",
        });
        super::electable(&shared::config::Settings(json!({"leaderElection": times}))).map_err(|e| e.to_string())
    };
    assert_eq!(election(true, "10s"), Ok(()));
    let why = "couldn't create leader elector: renewDeadline must be greater than retryPeriod*JitterFactor";
    assert_eq!(election(true, "2.4s"), Err(why.to_owned()));
    assert_eq!(election(false, "2.4s"), Ok(()));
}

#[tokio::test]
async fn a_promise_is_taken_back_when_its_binding_fails() {
    let mut world = World::start(1);
    world.core.node_seen(node("n").base());
    world.add(&pod("p").cpu("3").set("/status", "nominatedNodeName", json!("n")));
    let mut calls = Vec::new();
    while !calls.contains(&"patch p SchedulerError -".to_owned()) {
        calls.push(world.next().await);
        assert!(calls.len() < 6, "{calls:?}");
    }
}

#[tokio::test]
async fn a_pod_that_ends_before_it_is_seen_bound_leaves_its_room() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("short").cpu("3"));
    assert_eq!(world.next().await, "bind short n");
    // The informer never showed the pod with its node.
    world.remove("short");
    world.add(&pod("next").cpu("3"));
    assert_eq!(world.next().await, "bind next n");
}

#[tokio::test]
async fn victims_that_go_already_are_not_told_of_another_reason() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    let gone = json!("2026-01-01T00:00:00Z");
    world.add(&pod("leaves").cpu("1").priority(1).on("n").set("/metadata", "deletionTimestamp", gone));
    world.add(&pod("stays").cpu("3").priority(1).on("n"));
    world.add(&pod("p").cpu("4").priority(100));
    let calls = [world.next().await, world.next().await, world.next().await];
    assert!(calls.contains(&"delete stays".to_owned()), "{calls:?}");
    assert!(!calls.iter().any(|call| call.contains("leaves")), "{calls:?}");
}

#[tokio::test]
async fn last_victim_stays_while_another_one_does() {
    let mut world = World::start(0);
    world.core.node_seen(node("n").base());
    world.add(&pod("stubborn").cpu("2").priority(2).on("n"));
    world.add(&pod("last").cpu("2").priority(1).on("n"));
    world.add(&pod("p").cpu("4").priority(100));
    let mut calls = Vec::new();
    // Room is sought again, and again it cannot be made.
    while calls.iter().filter(|call: &&String| *call == "delete stubborn").count() < 3 {
        calls.push(world.next().await);
        assert!(calls.len() < 50, "{calls:?}");
    }
    assert!(!calls.iter().any(|call| call.ends_with("last")), "{calls:?}");
}

/// An extender that looks, in the middle of a decision, for locks that are held.
#[derive(Default)]
struct Looks {
    core: std::sync::OnceLock<Arc<Core>>,
    held: Mutex<Vec<&'static str>>,
    asked: AtomicUsize,
}

#[async_trait]
impl Extender for Looks {
    fn name(&self) -> &str {
        "looks"
    }
    fn ignorable(&self) -> bool {
        false
    }
    fn interested(&self, _: &PodInfo) -> bool {
        true
    }
    fn filters(&self) -> bool {
        true
    }
    fn preempts(&self) -> bool {
        true
    }
    fn binds(&self) -> bool {
        false
    }
    fn filter(&self, _: &PodInfo, nodes: &[&NodeInfo]) -> Result<Filtered, ExtenderError> {
        self.look();
        Ok(Filtered { fine: nodes.iter().map(|n| n.name().to_string()).collect(), ..Filtered::default() })
    }
    fn prioritize(&self, _: &PodInfo, _: &[&NodeInfo]) -> Result<Option<Weighed>, ExtenderError> {
        self.look();
        Ok(None)
    }
    fn preempt(
        &self,
        _: &PodInfo,
        victims: &HashMap<String, Victims>,
    ) -> Result<HashMap<String, Victims>, ExtenderError> {
        self.look();
        Ok(victims.clone())
    }
    async fn bind(&self, _: &PodInfo, _: &str) -> Result<(), ExtenderError> {
        Ok(())
    }
}

impl Looks {
    fn look(&self) {
        let Some(core) = self.core.get() else { return };
        self.asked.fetch_add(1, Ordering::Relaxed);
        if core.cache.try_lock().is_none() {
            self.held.lock().push("cache");
        }
        if core.queue.try_lock().is_none() {
            self.held.lock().push("queue");
        }
    }
}

/// Informers and bindings go on while a decision is made. One thread runs all tasks here, so that whoever holds a lock is
/// the decision itself.
#[tokio::test]
async fn no_lock_is_held_while_a_decision_is_made() {
    let looks = Arc::new(Looks::default());
    let mut world = World::with_extenders(0, vec![Arc::clone(&looks) as Arc<dyn Extender>]);
    assert!(looks.core.set(Arc::clone(&world.core)).is_ok());
    world.core.node_seen(node("a").base());
    world.core.node_seen(node("b").base());
    world.add(&pod("lesser").cpu("4").on("b"));
    world.add(&pod("other").cpu("2").on("a"));
    world.add(&pod("p").cpu("1"));
    assert_eq!(world.next().await, "bind p a");
    world.add(&pod("large").cpu("4").priority(9));
    while world.next().await != "delete lesser" {}
    assert!(looks.asked.load(Ordering::Relaxed) >= 2);
    assert_eq!(*looks.held.lock(), Vec::<&str>::new());
}

/// An extender that binds, and answers nobody before so many have asked.
struct Together {
    asked: tokio::sync::Barrier,
}

#[async_trait]
impl Extender for Together {
    fn name(&self) -> &str {
        "together"
    }
    fn ignorable(&self) -> bool {
        false
    }
    fn interested(&self, _: &PodInfo) -> bool {
        true
    }
    fn filters(&self) -> bool {
        false
    }
    fn preempts(&self) -> bool {
        false
    }
    fn binds(&self) -> bool {
        true
    }
    fn filter(&self, _: &PodInfo, _: &[&NodeInfo]) -> Result<Filtered, ExtenderError> {
        Ok(Filtered::default())
    }
    fn prioritize(&self, _: &PodInfo, _: &[&NodeInfo]) -> Result<Option<Weighed>, ExtenderError> {
        Ok(None)
    }
    fn preempt(
        &self,
        _: &PodInfo,
        victims: &HashMap<String, Victims>,
    ) -> Result<HashMap<String, Victims>, ExtenderError> {
        Ok(victims.clone())
    }
    async fn bind(&self, _: &PodInfo, _: &str) -> Result<(), ExtenderError> {
        self.asked.wait().await;
        Ok(())
    }
}

#[tokio::test]
async fn bindings_of_a_slow_extender_hold_nobody_up() {
    const PODS: usize = super::cycle::BINDINGS + 22;
    let slow = Arc::new(Together { asked: tokio::sync::Barrier::new(PODS + 1) });
    let world = World::with_extenders(0, vec![Arc::clone(&slow) as Arc<dyn Extender>]);
    world.core.node_seen(node("n").has("pods", "500").base());
    (0..PODS).for_each(|i| world.add(&pod(&format!("p{i}"))));
    let all = tokio::time::timeout(Duration::from_secs(20), slow.asked.wait()).await;
    assert!(all.is_ok(), "some wait for bindings of others to end");
}

#[tokio::test]
async fn whoever_has_lost_the_lease_waits_for_nothing() {
    for (outcome, waits) in [(Outcome::Lost, false), (Outcome::Shutdown, true), (Outcome::Finished, true)] {
        let (tasks, shutdown, ended) = (TaskGroup::new(), Shutdown::new(), Arc::new(AtomicUsize::new(0)));
        let (stop, end) = (shutdown.clone(), Arc::clone(&ended));
        tasks.spawn("binding", async move {
            stop.wait().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            end.fetch_add(1, Ordering::SeqCst);
        });
        let done = super::end(outcome, &tasks, &shutdown).await;
        assert_eq!(done.map_err(|e| e.to_string()), if waits { Ok(()) } else { Err("leaderelection lost".to_owned()) });
        assert!(shutdown.is_triggered());
        assert_eq!(ended.load(Ordering::SeqCst), usize::from(waits));
    }
}

/// Requests that a server has seen, by the path.
async fn serve_paths() -> (std::net::SocketAddr, UnboundedReceiver<String>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = listener.local_addr().expect("address");
    let (sender, paths) = unbounded_channel();
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut part = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut part).await {
                    let text = String::from_utf8_lossy(&part[..read]).into_owned();
                    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                    let _ = sender.send(path);
                    let reply = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
                    if stream.write_all(reply.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, paths)
}

/// Clients of a scheduler that may send so many requests a second, after so many at once.
async fn limited(address: std::net::SocketAddr, limits: (f32, u32), fence: Option<&Fence>) -> super::Clients {
    let flags = shared::flags::FlagSet::of("kube-scheduler", &[&format!("--master=http://{address}")]).expect("flags");
    let connection = json!({"kubeconfig": "", "qps": limits.0, "burst": limits.1});
    let settings = shared::config::Settings(json!({"clientConnection": connection}));
    super::Clients::connect(&flags, &settings, fence).await.expect("clients")
}

/// Sends a request in a task of its own.
fn ask(client: &kube::Client, method: &str, path: &str) -> tokio::task::JoinHandle<kube::Result<String>> {
    let request = http::Request::builder().method(method).uri(path).body(Vec::new()).expect("request");
    let client = client.clone();
    tokio::spawn(async move { client.request_text(request).await })
}

#[tokio::test]
async fn renewals_of_the_lease_wait_behind_no_other_request() {
    let (address, mut paths) = serve_paths().await;
    let clients = limited(address, (0.1, 1), None).await;
    // The second one of a client has to wait for ten seconds.
    for (client, path) in [(&clients.bindings, "/bind"), (&clients.background, "/watch"), (&clients.explainer, "/page")]
    {
        ask(client, "GET", path);
        ask(client, "GET", path);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    ask(&clients.leases, "GET", "/lease");
    let seen = async { while paths.recv().await.is_some_and(|path| path != "/lease") {} };
    assert!(tokio::time::timeout(Duration::from_secs(5), seen).await.is_ok(), "the renewal waits");
}

/// The API over a client, with empty stores.
fn kube_api(client: kube::Client) -> super::KubeApi {
    super::KubeApi {
        client,
        claims: Default::default(),
        volumes: Default::default(),
        nodes: Default::default(),
        csi_nodes: Default::default(),
        pods: Default::default(),
        written: Mutex::default(),
        recorders: HashMap::new(),
    }
}

#[tokio::test]
async fn scheduler_whose_lease_has_expired_sends_nothing_that_was_under_way() {
    let (address, mut paths) = serve_paths().await;
    let leads = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&leads);
    let fence = Fence::new(move || if held.load(Ordering::SeqCst) { Permission::Granted } else { Permission::Expired });
    let clients = limited(address, (2.0, 1), Some(&fence)).await;
    let api = Arc::new(kube_api(clients.bindings.clone()));
    let (binding, queued) = (Arc::clone(&api), Arc::clone(&api));
    binding.bind(&pod("first").info(), "n").await.expect("the leader binds");
    assert_eq!(paths.recv().await.as_deref(), Some("/api/v1/namespaces/default/pods/first/binding?"));
    // Has to wait for its turn, while the lease runs out.
    let waiting = tokio::spawn(async move { queued.bind(&pod("second").info(), "n").await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    leads.store(false, Ordering::SeqCst);
    let expired = "the request was not sent: the lease has expired";
    // Whatever else is written: by clients that have a turn left.
    let writer = limited(address, (100.0, 100), Some(&fence)).await;
    let api = kube_api(writer.bindings.clone());
    let info = pod("third").info();
    let meta = ObjectMeta { name: Some("x".into()), namespace: Some("default".into()), ..ObjectMeta::default() };
    let claim = PersistentVolumeClaim { metadata: meta.clone(), ..Default::default() };
    let volume = PersistentVolume { metadata: meta.clone(), ..Default::default() };
    let devices = ResourceClaim { metadata: meta, ..Default::default() };
    for (what, refused) in [
        ("binding", api.bind(&info, "n").await),
        ("status", api.patch_status(&info, json!({})).await),
        ("victim", api.delete(&info).await),
        ("claim", api.update_claim(&claim).await),
        ("volume", api.update_volume(&volume).await),
        ("resource claim", api.update_resource_claim(&devices, true).await.map(drop)),
    ] {
        assert!(refused.as_ref().is_err_and(|e| e.message.contains(expired)), "{what}: {refused:?}");
    }
    for (client, path) in [(&writer.background, "/events"), (&writer.explainer, "/page")] {
        let refused = ask(client, "POST", path).await.expect("a task").expect_err(path).to_string();
        assert!(refused.contains(expired), "{path}: {refused}");
    }
    let refused =
        tokio::time::timeout(Duration::from_secs(15), waiting).await.expect("its turn comes").expect("a task");
    assert!(refused.as_ref().is_err_and(|e| e.message.contains(expired)), "{refused:?}");
    // Reads pass, and so does what the process says of itself.
    for (client, method, path) in [
        (&writer.background, "GET", "/watch"),
        (&writer.leases, "PUT", "/lease"),
        (&writer.process, "POST", "/stopped-leading"),
    ] {
        ask(client, method, path).await.expect("a task").expect(path);
        assert_eq!(paths.recv().await.as_deref(), Some(path));
    }
    assert!(paths.try_recv().is_err(), "nothing else was sent");
}

#[tokio::test]
async fn pods_of_a_gang_are_bound_together() {
    let features = Features { gangs: true, ..Features::default() };
    let profile = Profile::build(&ProfileConfig { features, ..ProfileConfig::default() }).expect("profile");
    let workload = json!({"metadata": {"name": "w", "namespace": "default"},
        "spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 3}}}]}});
    let workloads = shared::informer::Store::of([serde_json::from_value(workload).expect("workload")]);
    let mut world = World::with(0, profile, Stores::default().with_workloads(workloads));
    world.core.node_seen(node("n").base());
    let member = |name: &str| pod(name).cpu("2").set("/spec", "workloadRef", json!({"name": "w", "podGroup": "g"}));
    world.add(&member("a"));
    world.add(&member("b"));
    world.add(&pod("loner").cpu("100m"));
    assert_eq!(world.next().await, "bind loner n", "two of three are not tried");
    world.remove("loner");
    world.add(&member("c"));
    let mut before = Vec::new();
    while !before.iter().any(|call: &String| call.contains("Unschedulable")) {
        before.push(world.next().await);
        assert!(before.len() < 9, "{before:?}");
    }
    assert!(!before.iter().any(|call| call.starts_with("bind")), "{before:?}");
    world.core.node_seen(node("m").base());
    let mut bound = Vec::new();
    while bound.len() < 3 {
        bound.extend(Some(world.next().await).filter(|call| call.starts_with("bind")));
    }
    bound.sort();
    let pods: Vec<&str> = bound.iter().filter_map(|call| call.split(' ').nth(1)).collect();
    assert_eq!(pods, ["a", "b", "c"]);
}
