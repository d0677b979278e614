//! The loop against a recording API: what is called, in which order, and what happens when a call fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::events::Recorder;
use shared::run::{Shutdown, TaskGroup};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::core::Core;
use super::cycle::Cycle;
use super::failure::Reporter;
use super::stores::Stores;
use crate::framework::api::{Api, ApiError, AwaitedClaim};
use crate::framework::{Cursor, Profile, ProfileConfig};
use crate::model::{PodInfo, Snapshot};
use crate::queue::{Profiles, Queue, Timing};
use crate::testing::{PodBuilder, node, pod};

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
        self.note(format!("delete {}", pod.name))
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
        let profile = Profile::build(&ProfileConfig::default()).expect("profile");
        let profiles: Profiles = [(Arc::clone(&profile.name), Arc::new(profile))].into();
        let profiles = Arc::new(profiles);
        let timing = Timing { initial: Duration::from_millis(1), max: Duration::from_millis(1), ..Timing::default() };
        let queue = Queue::new(Arc::clone(&profiles), timing);
        let (sender, calls) = unbounded_channel();
        let pods: Arc<Mutex<HashMap<String, Arc<PodInfo>>>> = Arc::default();
        let lookup = Arc::clone(&pods);
        let core = Arc::new(Core::new(
            Arc::clone(&profiles),
            queue,
            Arc::new(Stores::default()),
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
