//! Registers the node and keeps its status true.
//! Answers for upstream's `kubelet_node_status.go` (`registerWithAPIServer`, `tryUpdateNodeStatus`) and
//! `updateRuntimeUp`.

use super::addresses::NodeAddresses;
use super::conditions::{self, Inputs, RuntimeState};
use super::object::{self, NodeIdentity, Runtime};
use crate::calls::{ApiError, timely};
use crate::cri::v1::{RuntimeHandler, RuntimeHandlerFeatures};
use crate::events::EventType;
use crate::metrics::node_start::{self, NodeEvent};
use crate::pleg::Health;
use crate::pressure::Pressure;
use crate::stats::machine;
use crate::status::patch::{List, diff};
use crate::workers::context::{NodeState, WorkerContext};
use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Interval at which the runtime is asked as long as the node is not ready.
const IMPATIENT: Duration = Duration::from_millis(250);
/// Interval at which the runtime is asked otherwise.
const RUNTIME_PERIOD: Duration = Duration::from_secs(5);
/// Longest pause between two attempts to register.
const LONGEST_RETRY: Duration = Duration::from_secs(7);
/// Longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(10);
/// Images change seldom, and listing them costs.
const IMAGES_PERIOD: Duration = Duration::from_secs(60);
/// Merge keys of the lists of the node's status; the others are atomic.
const LISTS: [(&str, List); 2] = [("conditions", List::ByKey("type")), ("addresses", List::Replace)];
/// Fields of the status that the kubelet owns.
const OWNED: [&str; 11] = [
    "addresses",
    "capacity",
    "allocatable",
    "conditions",
    "daemonEndpoints",
    "images",
    "nodeInfo",
    "runtimeHandlers",
    "features",
    "declaredFeatures",
    "volumesInUse",
];

/// Failures of registering the node and of telling its status.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    /// The API server is away, or refuses.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The API server refuses the change of a node that is there; upstream's text.
    #[error("unable to reconcile node: {0}")]
    Reconcile(kube::Error),
}

/// The node room.
pub struct Agent {
    cx: Arc<WorkerContext>,
    client: Option<kube::Client>,
    identity: NodeIdentity,
    addresses: NodeAddresses,
    health: Arc<Health>,
    /// `nodeStatusUpdateFrequency`, `nodeStatusReportFrequency`.
    periods: (Duration, Duration),
    register: bool,
    /// The node as the API server had it last.
    node: ArcSwapOption<Node>,
    pressure: Mutex<Pressure>,
    runtime: Mutex<(RuntimeState, Runtime)>,
    wake: Notify,
    pod_cidr: Mutex<String>,
    /// The pod network of a node without an API server.
    own_cidr: String,
    /// Told when the runtime's state changes: what waits for it can go on.
    pub runtime_changed: Notify,
    /// The node was closed to new pods when it was looked at last.
    unschedulable: AtomicBool,
}

impl Agent {
    /// An agent; without a client it only watches the runtime.
    pub fn new(
        cx: Arc<WorkerContext>,
        client: Option<kube::Client>,
        (identity, addresses): (NodeIdentity, NodeAddresses),
        health: Arc<Health>,
        periods: (Duration, Duration),
        register: bool,
        own_cidr: &str,
    ) -> Arc<Self> {
        Arc::new(Self {
            cx,
            client,
            identity,
            addresses,
            health,
            periods,
            register,
            node: ArcSwapOption::empty(),
            pressure: Mutex::default(),
            runtime: Mutex::new((RuntimeState::unknown(), Runtime::default())),
            wake: Notify::new(),
            pod_cidr: Mutex::default(),
            own_cidr: own_cidr.to_owned(),
            runtime_changed: Notify::new(),
            unschedulable: AtomicBool::new(false),
        })
    }

    /// The node's uid, once it is registered.
    pub fn uid(&self) -> Option<String> {
        self.node.load().as_ref().and_then(|node| node.metadata.uid.clone())
    }

    /// The node as the API server had it last.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.node.load_full()
    }

    /// The node as the API server has it now.
    pub fn observed(&self, node: &Arc<Node>) {
        let known = self.node.load();
        let revision =
            |node: &Node| node.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
        if known.as_ref().is_some_and(|known| revision(known) >= revision(node)) {
            return;
        }
        self.node.store(Some(Arc::clone(node)));
        self.tell_workers(|state| state.object = Some(Arc::clone(node)));
        self.cx.volumes.observe_node(node);
        let cidr = pod_cidr(node);
        if *self.pod_cidr.lock() != cidr {
            self.wake.notify_one();
        }
    }

    /// The node's addresses as they are from now on.
    pub fn addresses(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.addresses.watch()
    }

    /// Looks the node's addresses up again, which pods are told, too.
    async fn renew_addresses(&self) {
        if self.addresses.renew().await {
            let ips: Vec<String> = self.addresses.known().iter().map(IpAddr::to_string).collect();
            self.tell_workers(|state| state.facts.host_ips.clone_from(&ips));
        }
    }

    /// Sets the resources that run short.
    pub fn set_pressure(&self, pressure: Pressure) {
        let mut known = self.pressure.lock();
        if *known != pressure {
            *known = pressure;
            self.tell_workers(|state| state.pressure = pressure);
            self.wake.notify_one();
        }
    }

    /// Says whether the machine is about to go down: the node takes no pods then and is not ready.
    pub fn set_going_down(&self, now: bool) {
        self.tell_workers(|state| state.going_down = now);
        self.wake.notify_one();
    }

    fn tell_workers(&self, change: impl Fn(&mut NodeState)) {
        self.cx.node.rcu(|known| {
            let mut state = NodeState::clone(known);
            change(&mut state);
            state
        });
    }

    /// Returns the resources that run short.
    pub fn pressure(&self) -> Pressure {
        *self.pressure.lock()
    }

    /// Asks the runtime for the first time, so that the pods' workers start with what is known.
    pub async fn prepare(&self) {
        self.ask_runtime(true).await;
    }

    /// Runs until shutdown.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.live() => {}
        }
    }

    async fn live(&self) {
        if let Some(client) = &self.client
            && self.register
        {
            self.register(client).await;
        }
        let mut reported = Instant::now();
        let mut images_at = Instant::now();
        let mut status_at: Option<Instant> = None;
        loop {
            let with_images = images_at.elapsed() >= IMAGES_PERIOD || self.runtime.lock().1.images.is_empty();
            let changed = self.ask_runtime(with_images).await;
            if with_images {
                images_at = Instant::now();
            }
            self.hand_over_cidr().await;
            let ready = self.runtime.lock().0 == RuntimeState::default() && self.health.error().is_none();
            let due = changed || status_at.is_none_or(|at| at.elapsed() >= self.periods.0) || !ready;
            if due && status_at.is_none_or(|at| at.elapsed() >= self.periods.0) {
                self.renew_addresses().await;
            }
            if let Some(client) = &self.client
                && due
            {
                let force = reported.elapsed() >= self.periods.1;
                match self.update(client, force).await {
                    Ok(true) => reported = Instant::now(),
                    Ok(false) => {}
                    Err(error) => tracing::error!(%error, "Error updating node status, will retry"),
                }
                status_at = Some(Instant::now());
            }
            let wait = if ready { RUNTIME_PERIOD.min(self.periods.0) } else { IMPATIENT };
            tokio::select! {
                () = self.wake.notified() => status_at = None,
                () = self.cx.volumes.in_use_changed() => status_at = None,
                () = self.cx.devices.changed() => status_at = None,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Asks the runtime about itself; true when its state changed.
    async fn ask_runtime(&self, with_images: bool) -> bool {
        let runtime = self.cx.runtime.as_ref();
        // A runtime that did not answer has not lost what it can do.
        let (state, abilities) = match runtime.status().await {
            Ok(answer) => {
                let state = answer.status.as_ref().map_or_else(RuntimeState::unknown, RuntimeState::from_status);
                let policy = answer.features.as_ref().map(|features| features.supplemental_groups_policy);
                (state, Some((answer.runtime_handlers, policy)))
            }
            Err(error) => {
                tracing::warn!(%error, "Container runtime sanity check failed");
                let known = self.runtime.lock().0.clone();
                let state = RuntimeState { runtime_error: Some("container runtime is down".to_owned()), ..known };
                (state, None)
            }
        };
        let known_version = self.runtime.lock().1.version.clone();
        let version = if known_version.is_empty() {
            runtime.version().await.map(|v| format!("{}://{}", v.runtime_name, v.runtime_version)).unwrap_or_default()
        } else {
            known_version
        };
        let images = if with_images { runtime.list_images().await.ok() } else { None };
        self.tell_of_runtime(&version, abilities.as_ref().map(|(handlers, _)| handlers.as_slice()));
        if self.cx.node.load().network_error != state.network_error {
            self.tell_workers(|known| known.network_error.clone_from(&state.network_error));
        }
        let mut known = self.runtime.lock();
        let changed = known.0 != state;
        if changed {
            self.runtime_changed.notify_one();
        }
        known.0 = state;
        known.1.version = version;
        if let Some((handlers, policy)) = abilities {
            known.1.handlers = handlers;
            known.1.supplemental_groups_policy = policy;
        }
        if let Some(images) = images {
            known.1.images = images;
        }
        changed
    }

    /// Tells the workers what they need to know of the runtime.
    fn tell_of_runtime(&self, version: &str, handlers: Option<&[RuntimeHandler]>) {
        let known = self.cx.node.load();
        let name = version.split_once("://").map_or(known.runtime_name.as_str(), |(name, _)| name);
        let can = |handler: &RuntimeHandler, feature: fn(&RuntimeHandlerFeatures) -> bool| {
            handler.features.as_ref().is_some_and(feature)
        };
        let mount = |handler: &&RuntimeHandler| can(handler, |features| features.recursive_read_only_mounts);
        let users =
            |handler: &RuntimeHandler| (handler.name.clone(), can(handler, |features| features.user_namespaces));
        let (mounts, users) = match handlers {
            Some(handlers) => (
                handlers.iter().filter(mount).map(|handler| handler.name.clone()).collect(),
                Some(handlers.iter().map(users).collect()),
            ),
            None => (known.recursive_read_only.clone(), known.user_namespaces.clone()),
        };
        if known.runtime_name != name || known.recursive_read_only != mounts || known.user_namespaces != users {
            self.tell_workers(|state| {
                name.clone_into(&mut state.runtime_name);
                state.recursive_read_only.clone_from(&mounts);
                state.user_namespaces.clone_from(&users);
            });
        }
    }

    /// Tells the runtime the node's pod network, once it is known.
    async fn hand_over_cidr(&self) {
        let cidr = match &self.client {
            None => Some(self.own_cidr.clone()),
            Some(_) => self.node.load().as_ref().map(|node| pod_cidr(node)),
        };
        let Some(cidr) = cidr else { return };
        if cidr.is_empty() || *self.pod_cidr.lock() == cidr {
            return;
        }
        match self.cx.runtime.update_runtime_config(&cidr).await {
            Ok(()) => {
                tracing::info!(new_pod_cidr = cidr, "Updating Pod CIDR");
                *self.pod_cidr.lock() = cidr;
                self.ask_runtime(false).await;
            }
            Err(error) => tracing::error!(%error, "Failed to update the runtime's pod CIDR"),
        }
    }

    fn status(&self, found: Option<&Node>) -> (NodeStatus, Vec<&'static str>) {
        let previous =
            found.and_then(|node| node.status.as_ref()).and_then(|s| s.conditions.clone()).unwrap_or_default();
        let (state, runtime) = self.runtime.lock().clone();
        let inputs = Inputs {
            pressure: self.pressure(),
            runtime: state,
            pleg_error: self.health.error(),
            going_down: self.cx.node.load().going_down,
            now: Timestamp::now(),
        };
        let (conditions, events) = conditions::conditions(&previous, &inputs);
        let mut status = object::status(&self.identity, &self.addresses.known(), &runtime, conditions);
        status.volumes_in_use = Some(self.cx.volumes.in_use()).filter(|volumes| !volumes.is_empty());
        (status, events)
    }

    fn tell(&self, events: &[&str]) {
        for reason in events {
            let text = format!("Node {} status is now: {reason}", self.identity.name);
            self.cx.events.node(EventType::Normal, reason, &text);
        }
    }

    /// Tells that the node is closed to new pods, or open again. Upstream's `recordNodeSchedulableEvent`.
    fn tell_of_schedule(&self, found: &Node) {
        let now = found.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        if self.unschedulable.swap(now, Ordering::Relaxed) != now {
            self.tell(&[if now { "NodeNotSchedulable" } else { "NodeSchedulable" }]);
        }
    }

    /// Tells that the machine was started again since the node's status was written.
    fn tell_of_reboot(&self, found: &Node) {
        let before = found.status.as_ref().and_then(|status| status.node_info.as_ref());
        let before = before.map(|info| info.boot_id.as_str()).unwrap_or_default();
        let (name, now) = (&self.identity.name, &self.identity.machine.boot_id);
        if !before.is_empty() && before != now {
            let text = format!("Node {name} has been rebooted, boot id: {now}");
            self.cx.events.node(EventType::Warning, "Rebooted", &text);
        }
    }

    async fn register(&self, client: &kube::Client) {
        let api: Api<Node> = Api::all(client.clone());
        let mut pause = Duration::from_millis(100);
        loop {
            let (status, events) = self.status(None);
            let node = object::node(&self.identity, status);
            tracing::info!(node = self.identity.name, "Attempting to register node");
            node_start::note(NodeEvent::Registering, machine::boot_time());
            match self.try_register(&api, &node).await {
                Ok((registered, new)) => {
                    tracing::info!(node = self.identity.name, "Successfully registered node");
                    if new {
                        node_start::note(NodeEvent::RegisteredNew, machine::boot_time());
                        self.tell(&events);
                    }
                    self.observed(&Arc::new(registered));
                    return;
                }
                Err(error) => {
                    tracing::error!(node = self.identity.name, %error, "Unable to register node with API server")
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    async fn try_register(&self, api: &Api<Node>, node: &Node) -> Result<(Node, bool), NodeError> {
        match timely(DEADLINE, api.create(&PostParams::default(), node)).await {
            Ok(made) => return Ok((made, true)),
            // Who may not make nodes may have one all the same.
            Err(ApiError::Refused(kube::Error::Api(answer))) if matches!(answer.code, 403 | 409) => {}
            Err(error) => return Err(error.into()),
        }
        let found = timely(DEADLINE, api.get(&self.identity.name)).await?;
        let Some(patch) = object::reconcile(&self.identity, &found) else { return Ok((found, false)) };
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        let call = api.patch(&self.identity.name, &params, &patch);
        match timely(DEADLINE, call).await {
            Ok(patched) => Ok((patched, false)),
            Err(ApiError::Refused(error)) => Err(NodeError::Reconcile(error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Brings the status to the API server when it changed, or when it has to be reported; true when it was sent.
    async fn update(&self, client: &kube::Client, force: bool) -> Result<bool, NodeError> {
        let api: Api<Node> = Api::all(client.clone());
        let found = match self.node.load_full() {
            Some(node) => node,
            None => Arc::new(timely(DEADLINE, api.get(&self.identity.name)).await?),
        };
        self.tell_of_schedule(&found);
        let (mut status, events) = self.status(Some(&found));
        if let Some(found) = &found.status {
            object::keep_foreign_resources(&mut status, found);
            object::keep_addresses(&self.identity, &mut status, found);
        }
        object::set_devices(&mut status, &self.cx.devices.counts());
        let document = |status: &NodeStatus| serde_json::to_value(status).unwrap_or_else(|_| json!({}));
        let old = found.status.as_ref().map_or_else(|| json!({}), document);
        let new = document(&status);
        let owned = |field: &str| OWNED.contains(&field);
        if !force && diff(&without_heartbeat(&old), &without_heartbeat(&new), &LISTS, owned).is_none() {
            return Ok(false);
        }
        let Some(patch) = diff(&old, &new, &LISTS, owned) else { return Ok(false) };
        let body = json!({"status": patch});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&body));
        let call = api.patch_status(&self.identity.name, &params, &patch);
        match timely(DEADLINE, call).await {
            Ok(node) => {
                if conditions::is_ready(&node) {
                    node_start::note(NodeEvent::Ready, machine::boot_time());
                }
                self.tell_of_reboot(&found);
                self.observed(&Arc::new(node));
                self.tell(&events);
                Ok(true)
            }
            Err(ApiError::Late) => Err(ApiError::Late.into()),
            Err(error) => {
                // What is known may be stale: ask anew next time.
                if let Ok(node) = timely(DEADLINE, api.get(&self.identity.name)).await {
                    self.node.store(Some(Arc::new(node)));
                }
                Err(error.into())
            }
        }
    }
}

fn pod_cidr(node: &Node) -> String {
    let Some(spec) = &node.spec else { return String::new() };
    match &spec.pod_cidrs {
        Some(all) if !all.is_empty() => all.join(","),
        _ => spec.pod_cidr.clone().unwrap_or_default(),
    }
}

/// The status as far as a change of it is worth a message.
fn without_heartbeat(status: &Value) -> Value {
    let mut status = status.clone();
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            condition.remove("lastHeartbeatTime");
        }
    }
    status
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
