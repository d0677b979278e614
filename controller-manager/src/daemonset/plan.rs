//! One pod on every node that wants it: placement, repair, rolling update and status. Answers for upstream's
//! `podsShouldBeOnNode`, `rollingUpdate`, `NodeShouldRunDaemonPod`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod as NewPod, PodSpec, Taint, Toleration,
};
use k8s_openapi::jiff::Timestamp;
use shared::placement;

use super::past;
use crate::deployment::strategy::scaled;
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::{history, nodes, object, pods};

/// No more than this many creations or deletions in one go.
const BURST: usize = 250;
const GENERATION: &str = "deprecated.daemonset.template.generation";

const POD_GENERATION: &str = "pod-template-generation";

/// The number of the template.
fn generation(ds: &DaemonSet) -> Option<&str> {
    object::annotation(&ds.metadata, GENERATION).filter(|g| g.parse::<i64>().is_ok())
}

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The daemon set.
    pub set: Arc<DaemonSet>,
    /// Every node.
    pub nodes: Vec<Arc<Node>>,
    /// The pods it owns.
    pub pods: Vec<Arc<Pod>>,
    /// Template history of the set, sorted.
    pub revisions: Vec<Arc<ControllerRevision>>,
    /// Earlier writes have been seen; otherwise only the status is updated.
    pub settled: bool,
    /// Nodes whose failed pod was replaced so often that the next replacement has to wait.
    pub held: HashSet<String>,
    /// Tolerations may compare numbers.
    pub compares: bool,
}

/// The next writes for this daemon set: history first, then pods, then status.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Vec<Action> {
    let (ds, Some(spec)) = (&s.set, s.set.spec.as_ref()) else { return Vec::new() };
    let about = object::reference::<DaemonSet>(&ds.metadata);
    if object::selector_is_empty(&spec.selector) {
        let message = "This daemon set is selecting all pods. A non-empty selector is required.".into();
        return vec![Action::warning(&about, "SelectingAll", message)];
    }
    if object::deleting(&ds.metadata) {
        return Vec::new();
    }
    let unlabelled = past::label(&s.revisions);
    if !unlabelled.is_empty() {
        return unlabelled;
    }
    let author = history::Author {
        owner: object::controller_ref::<DaemonSet>(&ds.metadata),
        namespace: ds.metadata.namespace.as_deref(),
        hash_label: history::HASH_LABEL,
        labels: spec.template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default(),
        annotations: ds.metadata.annotations.as_ref(),
        collisions: ds.status.as_ref().and_then(|s| s.collision_count),
    };
    let current = history::current(&author, &spec.template, &s.revisions);
    let (same, old) = past::split(&s.revisions, &spec.template);
    let mut actions = current.actions;
    actions.extend(past::merge(&same, &current.hash, &s.pods));
    let hashes = same.iter().map(|r| history::hash_of(r)).chain([current.hash.as_str()]).collect();
    let place = Placement::new(s, hashes, now);
    if s.settled {
        let mut todo = place.repair();
        if todo.is_empty() && spec.update_strategy.as_ref().and_then(|u| u.type_.as_deref()) != Some("OnDelete") {
            todo = place.update();
        }
        actions.extend(place.carry_out(todo, &current.hash));
        actions.extend(past::truncate(&old, &s.pods, spec.revision_history_limit.unwrap_or(10)));
    }
    let status = place.status();
    if ds.status.as_ref() != Some(&status) {
        let mut copy = DaemonSet::clone(ds);
        copy.status = Some(status);
        actions.push(Action::report(&copy));
    }
    let min_ready = place.min_ready;
    let soonest = s.pods.iter().filter_map(|p| pods::available_in(p, min_ready, now)).filter(|d| !d.is_zero()).min();
    actions.extend(soonest.map(Action::RequeueAfter));
    actions
}

/// Reports whether a pod of this template should be started on the node, and whether a running one may stay; `compares`
/// lets tolerations compare numbers.
#[must_use]
pub fn should_run(template: &PodSpec, node: &Node, compares: bool) -> (bool, bool) {
    let wrong_node = template.node_name.as_deref().is_some_and(|n| !n.is_empty() && n != object::name(&node.metadata));
    if wrong_node || !placement::affinity_allows(template, node) {
        return (false, false);
    }
    let tolerations = tolerations(template);
    let taints = nodes::taints(node);
    let tolerated = |concerns: fn(&Taint) -> bool| placement::all_tolerated(taints, &tolerations, compares, concerns);
    let start = tolerated(|t| t.effect == "NoSchedule" || t.effect == "NoExecute");
    let stay = tolerated(|t| t.effect == "NoExecute");
    (start, start || stay)
}

/// The template's tolerations and those every daemon pod gets: it stays where ordinary pods would have to go.
fn tolerations(template: &PodSpec) -> Vec<Toleration> {
    let always = [
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ];
    let network = template.host_network == Some(true);
    let mut out = template.tolerations.clone().unwrap_or_default();
    for (key, effect) in
        always.into_iter().chain(network.then_some(("node.kubernetes.io/network-unavailable", "NoSchedule")))
    {
        let t = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        if !out.contains(&t) {
            out.push(t);
        }
    }
    out
}

/// The node a daemon pod is for, bound or not.
#[must_use]
pub fn target_node(pod: &Pod) -> Option<&str> {
    let bound = pods::node(pod);
    if !bound.is_empty() {
        return Some(bound);
    }
    let required = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &required.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    terms
        .iter()
        .flat_map(|t| t.match_fields.iter().flatten())
        .find(|r| r.key == "metadata.name" && r.operator == "In")
        .and_then(|r| r.values.as_ref()?.first())
        .map(String::as_str)
}

#[derive(Default)]
struct Todo {
    create_on: Vec<String>,
    delete: Vec<Arc<Pod>>,
    events: Vec<Action>,
}

impl Todo {
    fn is_empty(&self) -> bool {
        self.create_on.is_empty() && self.delete.is_empty()
    }
}

/// The pods of one node, by template.
struct Versions<'a> {
    node: &'a str,
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

struct Placement<'a> {
    s: &'a Snapshot,
    /// Of the current template: one, unless there are equal revisions.
    hashes: Vec<&'a str>,
    now: Timestamp,
    min_ready: i32,
    /// Pods by node, oldest first, but for those that are over and done with.
    by_node: BTreeMap<&'a str, Vec<&'a Arc<Pod>>>,
    /// (start, stay) by node.
    wants: HashMap<&'a str, (bool, bool)>,
}

impl<'a> Placement<'a> {
    fn new(s: &'a Snapshot, hashes: Vec<&'a str>, now: Timestamp) -> Self {
        let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in &s.pods {
            // What ended and is on its way out only waits for its finalizers: a new pod need not.
            let gone = pods::finished(pod) && object::deleting(&pod.metadata);
            if let Some(node) = target_node(pod).filter(|_| !gone) {
                by_node.entry(node).or_default().push(pod);
            }
        }
        for list in by_node.values_mut() {
            list.sort_by_key(|p| (pods::node(p).is_empty(), object::created(&p.metadata)));
        }
        let spec = s.set.spec.as_ref();
        let template = spec.and_then(|x| x.template.spec.as_ref());
        let wants = s
            .nodes
            .iter()
            .map(|n| (object::name(&n.metadata), template.map_or((false, false), |t| should_run(t, n, s.compares))))
            .collect();
        let min_ready = spec.and_then(|x| x.min_ready_seconds).unwrap_or(0);
        Self { s, hashes, now, min_ready, by_node, wants }
    }

    /// Reports whether the pod is of the current template, by its hash or by the number that the server gave the
    /// template.
    fn current(&self, pod: &Pod) -> bool {
        let same_hash = object::label(&pod.metadata, history::HASH_LABEL).is_some_and(|h| self.hashes.contains(&h));
        same_hash || generation(&self.s.set).is_some_and(|g| object::label(&pod.metadata, POD_GENERATION) == Some(g))
    }

    fn available(&self, pod: &Pod) -> bool {
        pods::available(pod, self.min_ready, self.now)
    }

    fn limits(&self) -> (i32, i32) {
        let rolling =
            self.s.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()).and_then(|u| u.rolling_update.as_ref());
        let desired = i32::try_from(self.wants.values().filter(|w| w.0).count()).unwrap_or(i32::MAX);
        let surge = scaled(rolling.and_then(|r| r.max_surge.as_ref()), desired, true);
        let unavailable =
            rolling.and_then(|r| r.max_unavailable.as_ref()).map_or(1, |v| scaled(Some(v), desired, true));
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }

    /// Missing pods, doubles, failed pods, pods on nodes that do not want them.
    fn repair(&self) -> Todo {
        let mut todo = Todo::default();
        let surging = self.limits().0 > 0;
        for node in &self.s.nodes {
            let name = object::name(&node.metadata);
            let (start, stay) = self.wants.get(name).copied().unwrap_or_default();
            let there = self.by_node.get(name).map(Vec::as_slice).unwrap_or_default();
            if start && there.is_empty() {
                todo.create_on.push(name.to_owned());
                continue;
            }
            if !stay {
                todo.delete.extend(there.iter().filter(|p| !object::deleting(&p.metadata)).map(|p| Arc::clone(p)));
                continue;
            }
            self.tend(name, (start, surging), there, &mut todo);
        }
        // Pods bound to nodes that no longer exist are left to pod garbage collection; unbound ones never start.
        for (name, there) in &self.by_node {
            if !self.wants.contains_key(name) {
                let unbound = there.iter().filter(|p| pods::node(p).is_empty() && !object::deleting(&p.metadata));
                todo.delete.extend(unbound.map(|p| Arc::clone(p)));
            }
        }
        todo
    }

    /// Plans the actions on the pods of a node that may stay there.
    fn tend(&self, name: &str, (start, surging): (bool, bool), there: &[&Arc<Pod>], todo: &mut Todo) {
        let about = || object::reference::<DaemonSet>(&self.s.set.metadata);
        let place = |p: &Pod| format!("{} on node {name}", object::Key::of(&p.metadata));
        let mut running = Vec::new();
        for pod in there.iter().filter(|p| !object::deleting(&p.metadata)) {
            match pods::phase(pod) {
                "Failed" if self.s.held.contains(name) => {}
                "Failed" => {
                    let text = format!("Found failed daemon pod {}, will try to kill it", place(pod));
                    todo.events.push(Action::warning(&about(), "FailedDaemonPod", text));
                    todo.delete.push(Arc::clone(pod));
                }
                "Succeeded" => {
                    let text = format!("Found succeeded daemon pod {}, will try to delete it", place(pod));
                    todo.events.push(Action::normal(&about(), "SucceededDaemonPod", text));
                    todo.delete.push(Arc::clone(pod));
                }
                _ => running.push(*pod),
            }
        }
        if surging && start && running.is_empty() {
            // The next one need not wait until the last is gone.
            todo.create_on.push(name.to_owned());
        } else if surging {
            let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = running.iter().copied().partition(|p| self.current(p));
            todo.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)).map(|p| Arc::clone(p)));
            if let (Some(new), Some(old)) = (new.first(), old.first())
                && (!pods::ready(old) || self.available(new))
            {
                todo.delete.push(Arc::clone(old));
            }
        } else {
            todo.delete.extend(running.iter().skip(1).map(|p| Arc::clone(p)));
        }
    }

    /// Replace outdated pods within the limits.
    fn update(&self) -> Todo {
        let (max_surge, max_unavailable) = self.limits();
        if max_surge > 0 { self.surge(max_surge) } else { self.replace(max_unavailable) }
    }

    /// The nodes with pods that are not on their way out, the updated of those pods and the outdated.
    fn versions(&self) -> impl Iterator<Item = Versions<'a>> {
        self.s.nodes.iter().filter_map(|node| {
            let name = object::name(&node.metadata);
            let live = self.by_node.get(name)?.iter().filter(|p| !object::deleting(&p.metadata));
            let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = live.copied().partition(|p| self.current(p));
            Some(Versions { node: name, new: new.first().copied(), old: old.first().copied() })
        })
    }

    /// Delete outdated pods; those that are missing then are made in the next round.
    fn replace(&self, max_unavailable: i32) -> Todo {
        let (mut down, mut at_once, mut candidates) = (0, Vec::new(), Vec::new());
        for on in self.versions() {
            match (on.new, on.old) {
                (Some(new), None) => down += i32::from(!self.available(new)),
                (None, Some(old)) if self.available(old) => candidates.push(Arc::clone(old)),
                (None, Some(old)) => {
                    down += 1;
                    at_once.push(Arc::clone(old));
                }
                (None, None) | (Some(_), Some(_)) => down += 1,
            }
        }
        let room = usize::try_from(max_unavailable - down).unwrap_or(0);
        at_once.extend(candidates.into_iter().take(room));
        Todo { delete: at_once, ..Todo::default() }
    }

    /// Make new pods beside the outdated ones, which go when the new ones are available.
    fn surge(&self, max_surge: i32) -> Todo {
        let mut todo = Todo::default();
        let (mut extra, mut up, mut candidates, mut leaving) = (0, 0, Vec::new(), Vec::new());
        for on in self.versions() {
            up += usize::from(on.old.or(on.new).is_some_and(|p| self.available(p)));
            let Some(old) = on.old else { continue };
            let wanted = self.wants.get(on.node).is_some_and(|w| w.0);
            match on.new {
                Some(new) if self.available(new) => todo.delete.push(Arc::clone(old)),
                Some(_) => extra += 1,
                None if self.available(old) && wanted => candidates.push(on.node.to_owned()),
                None if self.available(old) => leaving.push(Arc::clone(old)),
                None if wanted => todo.create_on.push(on.node.to_owned()),
                None => todo.delete.push(Arc::clone(old)),
            }
        }
        // Where no pod belongs any more one stays until another node has taken over.
        let spare = up.saturating_sub(self.wants.values().filter(|w| w.0).count());
        todo.delete.extend(leaving.into_iter().take(spare));
        let room = usize::try_from(max_surge - extra).unwrap_or(0);
        todo.create_on.extend(candidates.into_iter().take(room));
        todo
    }

    fn carry_out(&self, todo: Todo, hash: &str) -> Vec<Action> {
        let parent = object::reference::<DaemonSet>(&self.s.set.metadata);
        let mut actions = todo.events;
        for node in todo.create_on.iter().take(BURST) {
            actions.push(Action::CreatePod { pod: Arc::new(self.pod_for(node, hash)), parent: parent.clone() });
        }
        for pod in todo.delete.iter().take(BURST) {
            actions.push(Action::DeletePod {
                namespace: object::namespace(&pod.metadata).to_owned(),
                name: object::name(&pod.metadata).to_owned(),
                uid: object::uid(&pod.metadata).to_owned(),
                parent: parent.clone(),
            });
        }
        actions
    }

    /// The template made to land on one node: the scheduler binds it, by affinity to the node's name.
    fn pod_for(&self, node: &str, hash: &str) -> NewPod {
        let ds = &self.s.set;
        let owner = object::controller_ref::<DaemonSet>(&ds.metadata);
        let template = ds.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
        let mut pod = pods::from_template(&template, object::namespace(&ds.metadata), &owner);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(history::HASH_LABEL.into(), hash.to_owned());
        if let Some(generation) = generation(ds) {
            labels.insert(POD_GENERATION.into(), generation.to_owned());
        }
        if let Some(spec) = pod.spec.as_mut() {
            spec.tolerations = Some(tolerations(spec));
            let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
            affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_fields: Some(vec![NodeSelectorRequirement {
                        key: "metadata.name".into(),
                        operator: "In".into(),
                        values: Some(vec![node.to_owned()]),
                    }]),
                    ..NodeSelectorTerm::default()
                }],
            });
        }
        pod
    }

    fn status(&self) -> DaemonSetStatus {
        let (mut desired, mut scheduled, mut mis, mut ready, mut available, mut updated) = (0, 0, 0, 0, 0, 0);
        for node in &self.s.nodes {
            let name = object::name(&node.metadata);
            let there = self.by_node.get(name).map(Vec::as_slice).unwrap_or_default();
            if !self.wants.get(name).is_some_and(|w| w.0) {
                mis += i32::from(!there.is_empty());
                continue;
            }
            desired += 1;
            if there.is_empty() {
                continue;
            }
            scheduled += 1;
            // The oldest speaks for the node: while it is there the update is not done.
            let oldest = there[0];
            ready += i32::from(pods::ready(oldest));
            available += i32::from(self.available(oldest));
            updated += i32::from(self.current(oldest));
        }
        let old = self.s.set.status.as_ref();
        let some = |n: i32| (n != 0).then_some(n);
        // A generation is only observed by a round that could act on it.
        let observed =
            if self.s.settled { self.s.set.metadata.generation } else { old.and_then(|s| s.observed_generation) };
        DaemonSetStatus {
            observed_generation: observed,
            desired_number_scheduled: desired,
            current_number_scheduled: scheduled,
            number_misscheduled: mis,
            number_ready: ready,
            updated_number_scheduled: some(updated),
            number_available: some(available),
            number_unavailable: some(desired - available),
            collision_count: old.and_then(|s| s.collision_count),
            conditions: old.and_then(|s| s.conditions.clone()),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
