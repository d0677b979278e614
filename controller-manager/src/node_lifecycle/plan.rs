//! Node health: who stopped reporting, what taints follow from conditions, and how fast nodes may be emptied. Answers
//! for upstream's `tryUpdateNodeHealth`, `processTaintBaseEviction`.
//!
//! The monitor is a pure state machine: the driver calls [`Monitor::observe`] with what it sees and the time, writes, and
//! calls [`Monitor::follow`] with what came of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::taints::{NOT_READY, UNREACHABLE, desired_taints, evicts, missing_labels, taint_patch};
use crate::engine::action::{Action, PatchKind, body};
use crate::engine::pod::Pod;
use crate::engine::settings::NodeLifecycle;
use crate::engine::{nodes, object, pods};

/// Nodes with this label are not counted where the health of their zone is.
const UNCOUNTED: &str = "node.kubernetes.io/exclude-disruption";
/// Nodes that wait for being emptied are looked at no more often.
const SOONEST: Duration = Duration::from_millis(100);
/// Conditions that turn Unknown together.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Inputs of the monitor.
pub struct World<'a, 'f> {
    /// Every node.
    pub nodes: &'a [Arc<Node>],
    /// Returns when a node's Lease was last renewed.
    pub renewed: &'f dyn Fn(&str) -> Option<Timestamp>,
    /// The pods bound to a node.
    pub pods_on: &'f dyn Fn(&str) -> Vec<Arc<Pod>>,
    /// Pods that came to a node since the last look, and those that could not be marked then.
    pub placed: &'a [Arc<Pod>],
}

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Time for timestamps. It may be set, and passes while the machine sleeps.
    pub wall: Timestamp,
    /// Since some beginning, by a clock that nobody sets: what nodes are given time by, as upstream's does.
    pub steady: SignedDuration,
}

/// Nodes as one look found them.
#[derive(Debug, Default)]
pub struct Findings<'a> {
    /// The status of `Ready` as it shall be, in the order of the nodes.
    readiness: Vec<Option<&'a str>>,
    /// Nodes whose status is written.
    written: HashSet<&'a str>,
}

/// Outcome of a write of a node's status that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailedWrite {
    /// The node has reported meanwhile, with this readiness.
    Reported(Option<String>),
    /// The server did not take it.
    Failed,
}

/// Outcomes by the names of nodes; a node without one was written.
pub type Outcomes = HashMap<String, FailedWrite>;

/// The readiness of a node as the server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness<'a> {
    Known(Option<&'a str>),
    /// A readiness that had to be written and could not be: the node counts for nothing, and nothing is done about it.
    Unwritten,
}

impl<'a> Findings<'a> {
    fn after(&self, nodes: &[Arc<Node>], outcomes: &'a Outcomes) -> Vec<Readiness<'a>> {
        let of = |(node, status): (&Arc<Node>, &Option<&'a str>)| match outcomes.get(object::name(&node.metadata)) {
            Some(FailedWrite::Failed) => Readiness::Unwritten,
            Some(FailedWrite::Reported(live)) => Readiness::Known(live.as_deref()),
            None => Readiness::Known(*status),
        };
        nodes.iter().zip(&self.readiness).map(of).collect()
    }
}

#[derive(Debug)]
struct NodeHealth {
    /// The node has a Ready condition, and since when.
    heartbeat: (bool, Option<Timestamp>),
    renewed: Option<Timestamp>,
    probed: SignedDuration,
}

/// States of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Most nodes are ready.
    Normal,
    /// Many are not.
    PartialDisruption,
    /// None is.
    FullDisruption,
}

#[derive(Debug)]
struct Zone {
    tokens: f64,
    filled: SignedDuration,
    /// Nodes that may be emptied each second.
    rate: f64,
    waiting: BTreeSet<String>,
}

/// Remembers when each node was last heard of.
#[derive(Debug)]
pub struct Monitor {
    config: NodeLifecycle,
    health: HashMap<String, (String, NodeHealth)>,
    zones: HashMap<String, Zone>,
    /// Zones that had nodes the last time.
    counted: BTreeSet<String>,
    /// No zone had a ready node the last time.
    all_down: bool,
}

impl Monitor {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(config: NodeLifecycle) -> Self {
        let (health, zones) = (HashMap::new(), HashMap::new());
        Self { config, health, zones, counted: BTreeSet::new(), all_down: false }
    }

    /// Zones with the state of their nodes: how many there are, and how many of them are ready. A zone that has lost its
    /// nodes is there once more, with none.
    pub fn census(&mut self, nodes: &[Arc<Node>]) -> BTreeMap<String, (usize, usize)> {
        let mut zones: BTreeMap<String, _> =
            std::mem::take(&mut self.counted).into_iter().map(|z| (z, (0, 0))).collect();
        for node in nodes.iter().filter(|n| counts(n)) {
            let (all, ready): &mut (usize, usize) = zones.entry(zone_of(node)).or_default();
            *all += 1;
            *ready += usize::from(nodes::ready(node));
        }
        self.counted = zones.iter().filter(|(_, (all, _))| *all > 0).map(|(zone, _)| zone.clone()).collect();
        zones
    }

    /// The zone of each node that a tick's actions begin to empty.
    #[must_use]
    pub fn evicted(nodes: &[Arc<Node>], actions: &[Action]) -> Vec<String> {
        let starts = |a: &Action| match a {
            Action::Patch { path, body, .. } => {
                let taints = body.pointer("/spec/taints").and_then(|t| t.as_array())?;
                let evicts = taints
                    .iter()
                    .any(|t| t["effect"] == "NoExecute" && (t["key"] == NOT_READY || t["key"] == UNREACHABLE));
                evicts.then(|| path.rsplit('/').next().unwrap_or_default().to_owned())
            }
            _ => None,
        };
        let names: HashSet<String> = actions.iter().filter_map(starts).collect();
        let new = nodes.iter().filter(|n| names.contains(object::name(&n.metadata)) && !evicts(n));
        new.map(|n| zone_of(n)).collect()
    }

    /// Looks at every node: who is silent, and what is to be written of it.
    pub fn observe<'a>(&mut self, world: &World<'a, '_>, moment: Moment) -> (Findings<'a>, Vec<Action>) {
        let (mut actions, now) = (self.arrivals_and_departures(world, moment), moment.wall);
        let mut findings = Findings::default();
        for node in world.nodes {
            let name = object::name(&node.metadata);
            let silent = self.silent_for(node, (world.renewed)(name), moment.steady);
            let mut status = ready_status(node);
            if marks_arrivals(node) {
                actions.extend(mark(world.placed.iter().filter(|p| pods::node(p) == name), now));
            }
            if let Some(patch) = silent.then(|| unknown_conditions(node, now)).flatten() {
                actions.push(patch);
                findings.written.insert(name);
                if status == Some("True") {
                    actions.extend(lost(node, world, now));
                }
                status = Some("Unknown");
            }
            findings.readiness.push(status);
        }
        (findings, actions)
    }

    /// The write that a live node still calls for after one failed that was decided about an older version; nothing where
    /// the node has reported meanwhile. Answers for the retries of upstream's `monitorNodeHealth`.
    #[must_use]
    pub fn decide_again(&self, live: &Node, now: Timestamp) -> Option<Action> {
        let (_, health) = self.health.get(object::name(&live.metadata))?;
        let silent = heartbeat(live) == health.heartbeat;
        silent.then(|| unknown_conditions(live, now)).flatten()
    }

    /// Decides what follows for zones, taints and labels, when it is known which statuses were written.
    pub fn follow(
        &mut self,
        world: &World<'_, '_>,
        findings: &Findings<'_>,
        outcomes: &Outcomes,
        moment: Moment,
    ) -> Vec<Action> {
        let (mut actions, now) = (Vec::new(), moment.wall);
        let zones: Vec<String> = world.nodes.iter().map(|n| zone_of(n)).collect();
        let readiness = findings.after(world.nodes, outcomes);
        let states = self.zone_states(world.nodes, &zones, &readiness);
        let in_the_dark = states.is_empty() && readiness.contains(&Readiness::Unwritten);
        let all_down =
            in_the_dark || !states.is_empty() && states.values().all(|(s, _)| *s == ZoneState::FullDisruption);
        if std::mem::replace(&mut self.all_down, all_down) && !all_down {
            // Nobody was heard of: everybody gets time to be heard of again.
            self.health.values_mut().for_each(|(_, health)| health.probed = moment.steady);
        }
        for ((node, status), zone) in world.nodes.iter().zip(&readiness).zip(&zones) {
            let Readiness::Known(status) = *status else { continue };
            let evict = self.may_evict(node, zone, status, all_down);
            if let Some(taints) = desired_taints(node, status, evict, now) {
                // A status that was written moved the resourceVersion; its watch event brings the node back here.
                if !findings.written.contains(object::name(&node.metadata)) {
                    actions.push(taint_patch(node, &taints));
                }
            }
            if let Some(labels) = missing_labels(node) {
                actions.push(labels);
            }
        }
        self.drain_zones(world, &states, all_down, &readiness, findings, moment, &mut actions);
        actions
    }

    /// Returns the time until a node that waits for it may be emptied.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let waiting = self.zones.values().filter(|z| z.rate > 0.0 && !z.waiting.is_empty());
        let soonest = waiting.map(|z| ((1.0 - z.tokens) / z.rate).max(0.0)).min_by(f64::total_cmp)?;
        Some(Duration::try_from_secs_f64(soonest).unwrap_or(Duration::MAX).max(SOONEST))
    }

    fn arrivals_and_departures(&mut self, world: &World<'_, '_>, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        let present: HashSet<&str> = world.nodes.iter().map(|n| object::name(&n.metadata)).collect();
        let gone: Vec<String> = self.health.keys().filter(|n| !present.contains(n.as_str())).cloned().collect();
        for name in gone {
            if let Some((uid, _)) = self.health.remove(&name) {
                let text = format!("Node {name} event: Removing Node {name} from Controller");
                actions.push(Action::normal(&node_reference(&name, &uid), "RemovingNode", text));
            }
            for zone in self.zones.values_mut() {
                zone.waiting.remove(&name);
            }
        }
        for node in world.nodes {
            let (name, uid) = (object::name(&node.metadata), object::uid(&node.metadata));
            if self.health.contains_key(name) {
                continue;
            }
            let text = format!("Node {name} event: Registered Node {name} in Controller");
            actions.push(Action::normal(&node_reference(name, uid), "RegisteredNode", text));
            let renewed = (world.renewed)(name);
            // A node that has never reported is known for as long as it is there.
            let silent = ready_status(node).is_none() && renewed.is_none();
            let known = now.wall.duration_since(object::created(&node.metadata)).max(SignedDuration::ZERO);
            let probed = if silent { now.steady - known } else { now.steady };
            let health = NodeHealth { heartbeat: heartbeat(node), renewed, probed };
            self.health.insert(name.to_owned(), (uid.to_owned(), health));
        }
        actions
    }

    /// Reports whether nothing was heard of the node for the grace period.
    fn silent_for(&mut self, node: &Node, renewed: Option<Timestamp>, now: SignedDuration) -> bool {
        let Some((_, h)) = self.health.get_mut(object::name(&node.metadata)) else { return false };
        let beat = heartbeat(node);
        // Only the fact that something changed counts, not the node's clock.
        if beat != h.heartbeat || renewed > h.renewed {
            h.heartbeat = beat;
            h.renewed = renewed.or(h.renewed);
            h.probed = now;
        }
        let grace =
            if nodes::condition(node, "Ready").is_none() { self.config.startup_grace } else { self.config.grace };
        Duration::try_from(now - h.probed).is_ok_and(|silence| silence > grace)
    }

    /// Returns the state of each zone, and its number of nodes.
    fn zone_states<'z>(
        &self,
        nodes: &[Arc<Node>],
        zones: &'z [String],
        readiness: &[Readiness<'_>],
    ) -> HashMap<&'z str, (ZoneState, usize)> {
        let mut zoned: HashMap<&str, (usize, usize)> = HashMap::new();
        for ((_, zone), status) in nodes.iter().zip(zones).zip(readiness).filter(|((node, _), _)| counts(node)) {
            let Readiness::Known(status) = *status else { continue };
            let (ready, not_ready) = zoned.entry(zone).or_default();
            if status == Some("True") { *ready += 1 } else { *not_ready += 1 }
        }
        let state = |(zone, (ready, not_ready))| (zone, (self.zone_state(ready, not_ready), ready + not_ready));
        zoned.into_iter().map(state).collect()
    }

    fn zone_state(&self, ready: usize, not_ready: usize) -> ZoneState {
        #[allow(clippy::cast_precision_loss, reason = "node counts are small")]
        let share = not_ready as f64 / (ready + not_ready).max(1) as f64;
        if ready == 0 && not_ready > 0 {
            ZoneState::FullDisruption
        } else if not_ready > 2 && share >= self.config.unhealthy_share {
            ZoneState::PartialDisruption
        } else {
            ZoneState::Normal
        }
    }

    /// Keep the NoExecute taint a node has, or queue it for one. Nothing is evicted when every zone is down: then it
    /// is more likely us who lost the network.
    fn may_evict(&mut self, node: &Node, zone: &str, status: Option<&str>, all_down: bool) -> bool {
        let name = object::name(&node.metadata);
        let unready = matches!(status, Some("False" | "Unknown"));
        let tainted = evicts(node);
        if !self.zones.contains_key(zone) {
            let new = Zone { tokens: 1.0, filled: SignedDuration::ZERO, rate: 0.0, waiting: BTreeSet::new() };
            self.zones.insert(zone.to_owned(), new);
        }
        let Some(zone) = self.zones.get_mut(zone) else { return false };
        if unready && !tainted && !all_down {
            zone.waiting.insert(name.to_owned());
        } else {
            zone.waiting.remove(name);
        }
        unready && tainted && !all_down
    }

    #[allow(clippy::too_many_arguments, reason = "one step of the tick")]
    fn drain_zones(
        &mut self,
        world: &World<'_, '_>,
        states: &HashMap<&str, (ZoneState, usize)>,
        all_down: bool,
        readiness: &[Readiness<'_>],
        findings: &Findings<'_>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        for (name, zone) in &mut self.zones {
            let rate = match states.get(name.as_str()) {
                _ if all_down => 0.0,
                Some((ZoneState::PartialDisruption, size)) if *size > self.config.large_zone => {
                    self.config.secondary_rate
                }
                Some((ZoneState::PartialDisruption, _)) => 0.0,
                _ => self.config.eviction_rate,
            };
            let elapsed = (now.steady - zone.filled).as_secs_f64();
            zone.tokens = (zone.tokens + elapsed * rate).min(1.0);
            (zone.filled, zone.rate) = (now.steady, rate);
            while rate > 0.0 && zone.tokens >= 1.0 {
                let Some(next) = zone.waiting.iter().find(|n| !findings.written.contains(n.as_str())).cloned() else {
                    break;
                };
                zone.waiting.remove(&next);
                let at = world.nodes.iter().position(|n| object::name(&n.metadata) == next);
                let Some((node, Readiness::Known(status))) =
                    at.and_then(|at| Some((world.nodes.get(at)?, *readiness.get(at)?)))
                else {
                    continue;
                };
                zone.tokens -= 1.0;
                if let Some(taints) = desired_taints(node, status, true, now.wall) {
                    // Replaces the NoSchedule-only patch of the same node in this tick.
                    let patch = taint_patch(node, &taints);
                    actions.retain(|a| !same_target(a, &patch));
                    actions.push(patch);
                }
            }
        }
    }
}

fn same_target(a: &Action, b: &Action) -> bool {
    matches!((a, b), (Action::Patch { path: x, body: v, .. }, Action::Patch { path: y, .. })
        if x == y && v.pointer("/spec/taints").is_some())
}

fn node_reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// The status of a node's condition `Ready`.
#[must_use]
pub fn ready_status(node: &Node) -> Option<&str> {
    nodes::condition(node, "Ready").map(|c| c.status.as_str())
}

fn heartbeat(node: &Node) -> (bool, Option<Timestamp>) {
    let ready = nodes::condition(node, "Ready");
    (ready.is_some(), ready.and_then(|c| c.last_heartbeat_time.as_ref()).map(|t| t.0))
}

/// The zone as metrics name it; the labels of old come first.
fn zone_of(node: &Node) -> String {
    let either = |names: [&str; 2]| names.iter().find_map(|k| object::label(&node.metadata, k)).unwrap_or_default();
    let zone = either(["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"]);
    let region = either(["failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"]);
    // A region may have a colon in its name.
    if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

fn counts(node: &Node) -> bool {
    object::label(&node.metadata, UNCOUNTED).is_none()
}

fn unknown_conditions(node: &Node, now: Timestamp) -> Option<Action> {
    let mut changed: Vec<NodeCondition> = Vec::new();
    for kind in REPORTED {
        match nodes::condition(node, kind) {
            None => changed.push(NodeCondition {
                type_: kind.into(),
                status: "Unknown".into(),
                reason: Some("NodeStatusNeverUpdated".into()),
                message: Some("Kubelet never posted node status.".into()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(object::seconds(now)),
            }),
            Some(c) if c.status != "Unknown" => changed.push(NodeCondition {
                status: "Unknown".into(),
                reason: Some("NodeStatusUnknown".into()),
                message: Some("Kubelet stopped posting node status.".into()),
                last_transition_time: Some(object::seconds(now)),
                ..c.clone()
            }),
            Some(_) => {}
        }
    }
    (!changed.is_empty()).then(|| {
        Action::patch_status::<Node>(
            &node.metadata,
            PatchKind::Strategic,
            // Whoever has written meanwhile is not silent.
            json!({"metadata": {"resourceVersion": node.metadata.resource_version},
                "status": {"conditions": body(&changed)}}),
        )
    })
}

/// Say that a ready node fell silent, and mark its pods. A kubelet that reports itself that it is not ready looks after
/// its pods.
fn lost(node: &Node, world: &World<'_, '_>, now: Timestamp) -> Vec<Action> {
    let (name, uid) = (object::name(&node.metadata), object::uid(&node.metadata));
    let text = format!("Node {name} status is now: NodeNotReady");
    let mut actions = vec![Action::normal(&node_reference(name, uid), "NodeNotReady", text)];
    actions.extend(mark_pods(node, world, now));
    actions
}

fn mark_pods(node: &Node, world: &World<'_, '_>, now: Timestamp) -> Vec<Action> {
    mark((world.pods_on)(object::name(&node.metadata)).iter(), now)
}

/// Pods that say nothing of their readiness, and those that are not ready, stay as they are.
fn mark<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>, now: Timestamp) -> Vec<Action> {
    let said = |p: &&Arc<Pod>| pods::condition(p, "Ready").is_some_and(|c| &*c.status != "False");
    pods.filter(said).flat_map(|pod| mark_not_ready(pod, now)).collect()
}

/// Reports whether a pod that comes to the node has to be marked: it is known and says that it is not ready.
#[must_use]
pub fn marks_arrivals(node: &Node) -> bool {
    ready_status(node).is_some_and(|status| status != "True")
}

fn mark_not_ready(pod: &Pod, now: Timestamp) -> [Action; 2] {
    let about = object::reference::<Pod>(&pod.metadata);
    let conditions = json!([{"type": "Ready", "status": "False", "lastTransitionTime": object::seconds(now),
        "observedGeneration": pod.metadata.generation}]);
    [
        Action::patch_status::<Pod>(
            &pod.metadata,
            PatchKind::Strategic,
            json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": conditions}}),
        ),
        Action::warning(&about, "NodeNotReady", "Node is not ready".into()),
    ]
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
