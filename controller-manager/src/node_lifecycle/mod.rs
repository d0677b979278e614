//! Watches over nodes: taints those that stop reporting and marks their pods. Answers for upstream's
//! `pkg/controller/nodelifecycle` (`monitorNodeHealth`).

pub mod plan;
mod taints;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::jiff::SignedDuration;
use parking_lot::Mutex;
use shared::client::path;
use shared::informer::{Event, Informer, Store};
use shared::metrics::Passage;
use shared::types::from_tree;
use tokio::sync::Notify;
use tokio::task::yield_now;

use self::plan::{FailedWrite, Moment, Monitor, Outcomes, World};
use crate::engine::action::Action;
use crate::engine::clock;
use crate::engine::context::Context;
use crate::engine::executor::Executor;
use crate::engine::indices::BY_NODE;
use crate::engine::metrics;
use crate::engine::nodes;
use crate::engine::object::Key;
use crate::engine::pod::Pod;
use crate::engine::pods;
use crate::engine::registry::Started;
use crate::engine::rest::RestError;

/// Namespace of kubelets' leases.
const LEASES: &str = "kube-node-lease";

/// Pods that came to nodes which are not ready, and those that could not be marked. None before the first look, when
/// nothing is known of the nodes yet.
type Placed = Arc<Mutex<Option<BTreeSet<Key>>>>;

struct Watcher {
    executor: Executor,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Store<Pod>,
    placed: Placed,
    began: Instant,
}

/// Wire the node lifecycle controller.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let (nodes, pods) = (cx.informer::<Node>(), cx.pods());
        let leases = cx.informer::<Lease>();
        let watcher = Watcher {
            executor: cx.executor("node-controller", "node-controller"),
            nodes: nodes.clone(),
            leases,
            pods: pods.store(),
            placed: Placed::default(),
            began: clock::instant(),
        };
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let node_changes = Passage::new("node_lifecycle_controller");
        nodes.add_handler(move |event: &Event<Node>| {
            let _under_way = node_changes.begin();
            let matters = match event {
                Event::Updated { old, new } => health_view(old) != health_view(new),
                _ => true,
            };
            if matters {
                wake.notify_one();
            }
        });
        let (wake, placed, all) = (Arc::clone(&changed), Arc::clone(&watcher.placed), nodes.store());
        let pod_changes = Passage::new("node_lifecycle_controller_pods");
        pods.add_handler(move |event: &Event<Pod>| {
            let pod = match event {
                Event::Added(pod) if !pods::node(pod).is_empty() => pod,
                Event::Updated { old, new } if pods::node(old) != pods::node(new) => new,
                _ => return,
            };
            let _under_way = pod_changes.begin();
            if all.get("", pods::node(pod)).is_some_and(|node| plan::marks_arrivals(&node))
                && let Some(placed) = placed.lock().as_mut()
            {
                placed.insert(Key::of(&pod.metadata));
                wake.notify_one();
            }
        });
        let mut monitor = Monitor::new(cx.settings().node_lifecycle);
        let period = cx.settings().node_monitor_period.max(Duration::from_millis(100));
        let cx2 = cx.clone();
        cx.spawn("node-lifecycle", async move {
            if !cx2.factory().wait_synced().await {
                return;
            }
            loop {
                watcher.look(&mut monitor).await;
                let pause = monitor.due().map_or(period, |due| due.min(period));
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = changed.notified() => {}
                    () = cx2.shutdown().wait() => return,
                }
            }
        });
        Ok(Started::Yes)
    })
}

/// With what was written of it.
const ONE: &str = "node_collector_update_node_health_duration_seconds";

/// Path of all nodes.
const NODES: &str = "/api/v1/nodes/";
/// Nodes that are written at a time; upstream's `UpdateWorkerSize`.
const WORKERS: usize = 8;
/// Tries for a status, and the pause between two; upstream's `NodeHealthUpdateRetry` and `retrySleepTime`.
const TRIES: u32 = 5;
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// The cluster at the time of a look.
struct Seen {
    nodes: Vec<Arc<Node>>,
    placed: Vec<Arc<Pod>>,
}

type HealthView<'a> = (Vec<(&'a str, &'a str)>, bool, Vec<(&'a str, &'a str)>);

/// Returns the fields of a node that call for an immediate look; heartbeats change none.
fn health_view(node: &Node) -> HealthView<'_> {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    (
        conditions.map(|c| (c.type_.as_str(), c.status.as_str())).collect(),
        node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true),
        nodes::taints(node).iter().map(|t| (t.key.as_str(), t.effect.as_str())).collect(),
    )
}

impl Watcher {
    /// Looks at the world of now; `look` says what it takes from it.
    fn in_world<'a, T>(&self, seen: &'a Seen, look: impl FnOnce(&World<'a, '_>, Moment) -> T) -> T {
        let world = World {
            nodes: &seen.nodes,
            renewed: &|name| {
                self.leases.store().get(LEASES, name).and_then(|l| l.spec.as_ref()?.renew_time.as_ref().map(|t| t.0))
            },
            pods_on: &|name| self.pods.by_index(BY_NODE, name),
            placed: &seen.placed,
        };
        look(&world, Moment { wall: clock::now(), steady: self.steady() })
    }

    /// Time since the start in which nodes could be heard: no node is silent because the API server was away.
    fn steady(&self) -> SignedDuration {
        let deaf = self.nodes.disconnected_for().max(self.leases.disconnected_for());
        let steady = clock::instant().saturating_duration_since(self.began).saturating_sub(deaf);
        SignedDuration::try_from(steady).unwrap_or(SignedDuration::MAX)
    }

    fn see(&self) -> Seen {
        let mut nodes = self.nodes.store().list();
        nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let placed = self.placed.lock().replace(BTreeSet::new()).unwrap_or_default();
        Seen { nodes, placed: placed.iter().filter_map(|k| self.pods.get(&k.namespace, &k.name)).collect() }
    }

    /// Looks at all nodes once. What follows from a status is decided when it is known whether that was written.
    async fn look(&self, monitor: &mut Monitor) {
        let (seen, began) = (self.see(), clock::instant());
        // Each step goes through all nodes: others get their turn in between.
        yield_now().await;
        let (findings, actions) = self.in_world(&seen, |world, moment| monitor.observe(world, moment));
        let share = took(began, seen.nodes.len(), actions.len());
        yield_now().await;
        let outcomes = self.write(monitor, actions, share).await;
        let actions = self.in_world(&seen, |world, moment| monitor.follow(world, &findings, &outcomes, moment));
        yield_now().await;
        report(monitor, &seen.nodes, &actions);
        yield_now().await;
        self.write(monitor, actions, 0.0).await;
    }

    /// Carries actions out, some nodes at a time; what became of statuses that were not written.
    async fn write(&self, monitor: &Monitor, actions: Vec<Action>, share: f64) -> Outcomes {
        let work = self.by_node(actions).into_iter();
        let work = work.map(|(node, actions)| async move {
            let outcome = self.carry_out(monitor, &node, actions, share).await?;
            Some((node, outcome))
        });
        futures::stream::iter(work).buffer_unordered(WORKERS).filter_map(std::future::ready).collect().await
    }

    /// The pod whose status is written.
    fn pod_of(&self, action: &Action) -> Option<Arc<Pod>> {
        let Action::Patch { path, .. } = action else { return None };
        let (namespace, rest) = path.strip_prefix("/api/v1/namespaces/")?.split_once("/pods/")?;
        self.pods.get(namespace, rest.strip_suffix("/status")?)
    }

    /// The actions of each node, in their order: what is done about one waits for no other.
    fn by_node(&self, actions: Vec<Action>) -> BTreeMap<String, Vec<Action>> {
        let mut groups: BTreeMap<String, Vec<Action>> = BTreeMap::new();
        for action in actions {
            groups.entry(self.node_of(&action)).or_default().push(action);
        }
        groups
    }

    /// Name of the node that an action is about; empty for one that is about none.
    fn node_of(&self, action: &Action) -> String {
        let pod = match action {
            Action::Event { about, .. } if is_node(about) => {
                return about.name.clone().unwrap_or_default();
            }
            Action::Event { about, .. } => {
                self.pods.get(about.namespace.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default())
            }
            Action::Patch { path, .. } => match path.strip_prefix(NODES) {
                Some(node) => return node.split('/').next().unwrap_or_default().to_owned(),
                None => self.pod_of(action),
            },
            _ => None,
        };
        pod.map(|pod| pods::node(&pod).to_owned()).unwrap_or_default()
    }

    /// Carries out what is to be done about one node, until a write to the node itself fails: the rest follows from it.
    async fn carry_out(&self, monitor: &Monitor, node: &str, actions: Vec<Action>, share: f64) -> Option<FailedWrite> {
        // Of a pod that was not marked nothing is told.
        let mut unmarked: Option<String> = None;
        let mut outcome = None;
        for action in actions {
            if matches!(&action, Action::Event { about, .. } if about.uid.is_some() && about.uid == unmarked) {
                continue;
            }
            // That it fell silent was told when it was written.
            if outcome.is_some() && matches!(&action, Action::Event { about, .. } if is_node(about)) {
                continue;
            }
            let (began, pod) = (clock::instant(), self.pod_of(&action));
            let of_node = matches!(&action, Action::Patch { path, .. } if path.starts_with(NODES));
            if of_node {
                match self.write_node(monitor, node, action).await {
                    // The cache is behind what was written before: pods may wait for their marks.
                    Some(known) if known == unknown() => outcome = Some(known),
                    None => {}
                    failed => return failed,
                }
            } else if let Err(error) = self.executor.one(action).await {
                tracing::debug!(%error, "Failed to mark pod not ready");
                if let Some(pod) = pod {
                    if !error.not_found() && !error.conflict() {
                        self.placed.lock().get_or_insert_default().insert(Key::of(&pod.metadata));
                    }
                    unmarked = pod.metadata.uid.as_deref().map(str::to_owned);
                }
            }
            let took = clock::instant().saturating_duration_since(began);
            metrics::observe(ONE, &[], share + took.as_secs_f64());
        }
        outcome
    }

    /// Writes to a node. A status that the server does not take is decided on again, about the node as the server has it.
    async fn write_node(&self, monitor: &Monitor, node: &str, mut action: Action) -> Option<FailedWrite> {
        for _ in 0..TRIES {
            let of_status = matches!(&action, Action::Patch { path, .. } if path.ends_with("/status"));
            let Err(error) = self.executor.one(action).await else { return None };
            tracing::debug!(node, %error, "Failed to update node");
            if !of_status {
                break;
            }
            tokio::time::sleep(TRY_AGAIN).await;
            let live = self.executor.rest.get(&path::join(NODES.trim_end_matches('/'), node)).await;
            let Some(live) = live.ok().and_then(|live| from_tree::<Node>(&live).ok()) else { break };
            match monitor.decide_again(&live, clock::now()) {
                Some(newer) => action = newer,
                None => return Some(FailedWrite::Reported(plan::ready_status(&live).map(str::to_owned))),
            }
        }
        tracing::warn!(node, "Failed to update health of node, its pods are not evicted");
        Some(FailedWrite::Failed)
    }
}

fn is_node(about: &ObjectReference) -> bool {
    about.kind.as_deref() == Some("Node")
}

/// The outcome for a node that is marked as silent already.
fn unknown() -> FailedWrite {
    FailedWrite::Reported(Some("Unknown".to_owned()))
}

/// Counts how long it took to decide; what that is for each node, in seconds.
fn took(began: Instant, nodes: usize, written: usize) -> f64 {
    let took = clock::instant().saturating_duration_since(began).as_secs_f64();
    metrics::observe("node_collector_update_all_nodes_health_duration_seconds", &[], took);
    let share = took / metrics::float(nodes.max(1));
    for _ in written..nodes {
        metrics::observe(ONE, &[], share);
    }
    share
}

/// Records the states of the zones.
#[allow(clippy::cast_precision_loss, reason = "node counts are small")]
fn report(monitor: &mut Monitor, nodes: &[Arc<Node>], actions: &[Action]) {
    for (zone, (all, ready)) in monitor.census(nodes) {
        // Nothing is wrong with a zone that is empty.
        let healthy = if all == 0 { 100.0 } else { 100.0 * ready as f64 / all as f64 };
        metrics::show_zero("node_collector_evictions_total", &[&zone]);
        metrics::set("node_collector_zone_size", &[&zone], all as f64);
        metrics::set("node_collector_zone_health", &[&zone], healthy);
        metrics::set("node_collector_unhealthy_nodes_in_zone", &[&zone], (all - ready) as f64);
    }
    for zone in Monitor::evicted(nodes, actions) {
        metrics::count("node_collector_evictions_total", &[&zone]);
    }
}
