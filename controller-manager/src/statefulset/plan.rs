//! Pods with an identity, started, updated and stopped one after the other (or all at once, if asked for). Answers for
//! upstream's `updateStatefulSet`, `processReplica`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use shared::informer::Store;

use super::doing::{Step, Task, Verb, name_of, slow_start};
use super::identity::{self, claims, ordinal, pod_name, range, replicas, revision, start};
use super::retention::{self, Upkeep};
use crate::deployment::strategy::scaled;
use crate::engine::action::{Action, PatchKind};
use crate::engine::pod::Pod;
use crate::engine::{history, object, pods};

/// Pause before the next round where the last one was full.
const NEXT_ROUND: Duration = Duration::from_secs(1);
/// Time until the next look while a claim is being deleted, which nothing else reports.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// The pods that one round is about at most. What is left comes in the rounds that the writes of this one bring about.
const TASKS_PER_ROUND: usize = 500;

/// Inputs of the decision.
pub struct Snapshot {
    /// The stateful set.
    pub set: Arc<StatefulSet>,
    /// The pods it owns.
    pub pods: Vec<Arc<Pod>>,
    /// Template history of the set, sorted.
    pub revisions: Vec<Arc<ControllerRevision>>,
    /// All claims, of which it looks its own up by name.
    pub claims: Store<PersistentVolumeClaim>,
    /// `maxUnavailable` is honoured.
    pub several_at_once: bool,
}

/// The next writes for a set, in order.
#[derive(Debug, Default)]
pub struct Plan {
    /// Writes of the template history, without which no pod is made.
    pub revisions: Vec<Action>,
    /// Tasks for its pods.
    pub tasks: Vec<Task>,
    /// Write of the status, whatever became of the pods.
    pub status: Option<Action>,
    /// Revisions that are not needed any more.
    pub bygone: Vec<Action>,
    /// Time until the next look without an event.
    pub again: Option<Duration>,
    /// Number of pods that may be down (if that is set), and number that are, where several may be replaced at once.
    pub down: Option<(Option<i32>, i32)>,
}

/// Decide.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Plan {
    let (set, Some(spec)) = (&s.set, s.set.spec.as_ref()) else { return Plan::default() };
    if object::selector_is_empty(&spec.selector) {
        return Plan::default();
    }
    let old = set.status.clone().unwrap_or_default();
    let author = history::Author {
        owner: object::controller_ref::<StatefulSet>(&set.metadata),
        namespace: set.metadata.namespace.as_deref(),
        hash_label: history::REVISION_LABEL,
        labels: spec.template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default(),
        annotations: set.metadata.annotations.as_ref(),
        // Not told is none, or the first status would give the revision another name.
        collisions: Some(old.collision_count.unwrap_or(0)),
    };
    let update = history::current(&author, &spec.template, &s.revisions);
    let current = old
        .current_revision
        .as_deref()
        .and_then(|name| s.revisions.iter().find(|r| object::name(&r.metadata) == name))
        .and_then(|r| Some((object::name(&r.metadata).to_owned(), history::template_of(r)?)))
        .unwrap_or_else(|| (update.name.clone(), spec.template.clone()));
    let mut round = Round::new(s, &current, &update.name, now);
    round.plan.revisions = update.actions;
    round.run();
    let (mut plan, status) = round.finish();
    if set.status.as_ref() != Some(&status) {
        let mut copy = StatefulSet::clone(set);
        copy.status = Some(status);
        plan.status = Some(Action::report(&copy));
    }
    let live: HashSet<&str> = s.pods.iter().map(revision).chain([current.0.as_str(), update.name.as_str()]).collect();
    plan.bygone = history::truncate(&s.revisions, &live, spec.revision_history_limit.unwrap_or(10));
    plan
}

/// The phases of a round, one after the other.
mod phase {
    pub(super) const REPLICAS: u8 = 0;
    pub(super) const CLAIMS_OF_SURPLUS: u8 = 1;
    pub(super) const SURPLUS: u8 = 2;
    pub(super) const UPDATES: u8 = 3;
}

struct Round<'a> {
    s: &'a Snapshot,
    current: &'a (String, PodTemplateSpec),
    update: &'a str,
    now: Timestamp,
    min_ready: i32,
    /// Pods of the set with their ordinals, in that order.
    with_ordinals: Vec<(i32, &'a Arc<Pod>)>,
    /// The pod of each ordinal, with those beyond the set's range.
    by_ordinal: BTreeMap<i32, &'a Arc<Pod>>,
    /// Pods come and go one at a time.
    ordered: bool,
    status: StatefulSetStatus,
    plan: Plan,
}

impl<'a> Round<'a> {
    fn new(s: &'a Snapshot, current: &'a (String, PodTemplateSpec), update: &'a str, now: Timestamp) -> Self {
        let spec = s.set.spec.as_ref();
        let old = s.set.status.clone().unwrap_or_default();
        let min_ready = spec.and_then(|x| x.min_ready_seconds).unwrap_or(0);
        let mut status = StatefulSetStatus {
            observed_generation: s.set.metadata.generation,
            current_revision: Some(current.0.clone()),
            update_revision: Some(update.to_owned()),
            collision_count: Some(old.collision_count.unwrap_or(0)),
            conditions: old.conditions,
            available_replicas: Some(0),
            ..StatefulSetStatus::default()
        };
        let bump = |n: &mut Option<i32>| *n = Some(n.unwrap_or(0) + 1);
        for pod in &s.pods {
            if pods::phase(pod).is_empty() {
                continue;
            }
            status.replicas += 1;
            if running_and_ready(pod) {
                bump(&mut status.ready_replicas);
                if pods::available(pod, min_ready, now) {
                    bump(&mut status.available_replicas);
                }
            }
            if !object::deleting(&pod.metadata) {
                if revision(pod) == current.0 {
                    bump(&mut status.current_replicas);
                }
                if revision(pod) == update {
                    bump(&mut status.updated_replicas);
                }
            }
        }
        let mut with_ordinals: Vec<(i32, &Arc<Pod>)> =
            s.pods.iter().filter_map(|p| Some((ordinal(&s.set, p)?, p))).collect();
        // Names may have leading zeros: of two pods of one ordinal the last one counts, whatever order the cache has.
        let name = |p: &'a Arc<Pod>| object::name(&p.metadata);
        with_ordinals.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| name(b.1).cmp(name(a.1))));
        Self {
            s,
            current,
            update,
            now,
            min_ready,
            by_ordinal: with_ordinals.iter().copied().collect(),
            with_ordinals,
            ordered: spec.and_then(|x| x.pod_management_policy.as_deref()) != Some("Parallel"),
            status,
            plan: Plan::default(),
        }
    }

    fn pod_at(&self, at: i32) -> Option<&'a Arc<Pod>> {
        self.by_ordinal.get(&at).copied()
    }

    fn task(&mut self, phase: u8, place: usize, at: i32, steps: Vec<Step>) {
        if !steps.is_empty() {
            let number = if self.ordered || phase == phase::UPDATES { place } else { slow_start(place) };
            self.plan.tasks.push(Task { batch: (phase, number), pod: pod_name(&self.s.set, at), steps });
        }
    }

    fn run(&mut self) {
        let set = &self.s.set;
        // Its claims stay as they are, too: whoever lets them go on its way out must not find them taken again.
        if object::deleting(&set.metadata) {
            return;
        }
        for (place, at) in range(set).enumerate() {
            let (steps, on) = self.replica(at);
            self.task(phase::REPLICAS, place, at, steps);
            if self.plan.tasks.len() >= TASKS_PER_ROUND {
                self.look_again(NEXT_ROUND);
                return;
            }
            if !on {
                return;
            }
        }
        let range = range(set);
        let surplus = self.with_ordinals.iter().rev().copied().filter(|(at, _)| !range.contains(at));
        let surplus: Vec<(i32, &Arc<Pod>)> = surplus.collect();
        for (place, (at, pod)) in surplus.iter().enumerate() {
            let upkeep = retention::upkeep(set, *at, Some(pod), &self.s.claims);
            let steps = (!upkeep.right).then_some(Step::Owners { told: false, actions: upkeep.actions });
            self.task(phase::CLAIMS_OF_SURPLUS, place, *at, steps.into_iter().collect());
        }
        let first_down = self.first_down(&surplus);
        for (place, (at, pod)) in surplus.iter().enumerate() {
            let (steps, on) = self.surplus(pod, first_down.as_deref());
            self.task(phase::SURPLUS, place, *at, steps);
            if !on {
                return;
            }
        }
        self.roll();
    }

    /// The pod with the lowest ordinal that is not available; it may be stopped all the same.
    fn first_down(&mut self, surplus: &[(i32, &Arc<Pod>)]) -> Option<String> {
        let kept: Vec<&Arc<Pod>> = self.by_ordinal.range(range(&self.s.set)).map(|(_, pod)| *pod).collect();
        let all = kept.into_iter().chain(surplus.iter().rev().map(|(_, p)| *p));
        let mut down = all.filter(|p| object::deleting(&p.metadata) || !self.available(p));
        down.next().map(|p| object::name(&p.metadata).to_owned())
    }

    fn available(&mut self, pod: &Pod) -> bool {
        if !running_and_ready(pod) {
            return false;
        }
        match pods::available_in(pod, self.min_ready, self.now) {
            Some(Duration::ZERO) => true,
            Some(wait) => {
                self.look_again(wait);
                false
            }
            None => false,
        }
    }

    /// Bring one replica about, and whether to go on in this round.
    fn replica(&mut self, at: i32) -> (Vec<Step>, bool) {
        let Some(pod) = self.pod_at(at) else { return (self.create(at), !self.ordered) };
        if pods::finished(pod) {
            // A new one comes when this one is gone.
            let steps = if object::deleting(&pod.metadata) { Vec::new() } else { delete(pod) };
            return (steps, !self.ordered);
        }
        let mut steps = Vec::new();
        let mut upkeep = retention::upkeep(&self.s.set, at, Some(pod), &self.s.claims);
        if pods::phase(pod) == "Pending" {
            steps.extend(self.claims(at, None));
            steps.extend(owners(std::mem::take(&mut upkeep.actions)));
            upkeep.right = true;
        }
        if self.ordered && (object::deleting(&pod.metadata) || !running_and_ready(pod) || !self.available(pod)) {
            return (steps, false);
        }
        steps.extend(self.put_right(at, pod, upkeep));
        (steps, true)
    }

    /// Plans repairs of a pod's identity: its labels, its volumes, the owners of its claims.
    fn put_right(&mut self, at: i32, pod: &Arc<Pod>, upkeep: Upkeep) -> Vec<Step> {
        let set = &self.s.set;
        let (named, has_volumes) = (identity::matches(set, pod), identity::has_volumes(set, pod, at));
        if named && has_volumes && upkeep.right {
            return Vec::new();
        }
        let mut patch = json!({});
        if !named {
            let labels = json!({identity::POD_NAME: pod_name(set, at), identity::POD_INDEX: at.to_string()});
            patch["metadata"] = json!({"labels": labels});
        }
        let mut steps = Vec::new();
        if !has_volumes {
            // The server will not have it, and the user is told why.
            patch["spec"] = json!({"volumes": identity::volumes(set, at)});
            steps.extend(self.claims(at, Some(Verb::Update)));
        }
        if !upkeep.right {
            steps.extend(owners(upkeep.actions));
        }
        if !(named && has_volumes) {
            steps.push(Step::Write(Action::patch::<Pod>(&pod.metadata, PatchKind::Strategic, patch)));
        }
        steps.push(Step::Tell(Verb::Update));
        steps
    }

    /// Make the claims of an ordinal that are missing; those that are on their way out cannot be used.
    fn claims(&mut self, at: i32, verb: Option<Verb>) -> Option<Step> {
        let (mut missing, mut dying) = (Vec::new(), Vec::new());
        for claim in claims(&self.s.set, at) {
            match self.s.claims.get(object::namespace(&self.s.set.metadata), object::name(&claim.metadata)) {
                Some(there) if object::deleting(&there.metadata) => dying.push(name_of(&there).to_owned()),
                Some(_) => {}
                None => missing.push(claim),
            }
        }
        if !dying.is_empty() {
            self.look_again(CLAIM_WAIT);
        }
        (!(missing.is_empty() && dying.is_empty())).then_some(Step::Claims { verb, missing, dying })
    }

    fn look_again(&mut self, after: Duration) {
        self.plan.again = Some(self.plan.again.map_or(after, |a| a.min(after)));
    }

    fn create(&mut self, at: i32) -> Vec<Step> {
        let set = &self.s.set;
        if retention::stale(set, at, &self.s.claims) {
            // It goes with the pod of this name that was scaled away: the next pod gets a new one.
            self.look_again(CLAIM_WAIT);
            return Vec::new();
        }
        let old = self.keeps_current(at);
        let template = set.spec.as_ref().map(|s| &s.template);
        let (template, revision) = match (old, template) {
            (false, Some(t)) => (t, self.update),
            _ => (&self.current.1, self.current.0.as_str()),
        };
        let pod = identity::pod(set, template, revision, at);
        let upkeep = retention::upkeep(set, at, None, &self.s.claims);
        let claims = self.claims(at, Some(Verb::Create));
        let made = [Step::Write(Action::create(&pod))];
        claims.into_iter().chain(made).chain(owners(upkeep.actions)).chain([Step::Tell(Verb::Create)]).collect()
    }

    /// Reports whether a replica below the partition still gets the old template.
    fn keeps_current(&self, at: i32) -> bool {
        let Some(strategy) = self.s.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()) else { return false };
        let first = start(&self.s.set);
        match strategy.rolling_update.as_ref() {
            Some(r) => at < first.saturating_add(r.partition.unwrap_or(0)),
            None => {
                let current = self.s.set.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0);
                strategy.type_.as_deref().unwrap_or("RollingUpdate") == "RollingUpdate"
                    && at < first.saturating_add(current)
            }
        }
    }

    /// Stop a surplus pod, and whether to go on in this round.
    fn surplus(&mut self, pod: &Arc<Pod>, first_down: Option<&str>) -> (Vec<Step>, bool) {
        if object::deleting(&pod.metadata) {
            return (Vec::new(), !self.ordered);
        }
        let first = first_down == Some(object::name(&pod.metadata));
        if self.ordered && !first && (!running_and_ready(pod) || !self.available(pod)) {
            return (Vec::new(), false);
        }
        (delete(pod), !self.ordered)
    }

    /// Replace outdated pods from the highest ordinal down to the partition.
    fn roll(&mut self) {
        let strategy = self.s.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return;
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let partition = rolling.and_then(|r| r.partition).unwrap_or(0);
        let floor = start(&self.s.set).saturating_add(partition);
        if !self.s.several_at_once {
            for at in range(&self.s.set).rev().take_while(|at| *at >= floor) {
                let Some(pod) = self.pod_at(at) else { return };
                if revision(pod) != self.update && !object::deleting(&pod.metadata) {
                    self.replace(at, pod);
                    return;
                }
                if object::deleting(&pod.metadata) || !self.available(pod) {
                    return;
                }
            }
            return;
        }
        let limit = rolling.and_then(|r| r.max_unavailable.as_ref());
        let limit = limit.map_or(1, |v| scaled(Some(v), replicas(&self.s.set), false)).max(1);
        let there: Vec<(i32, &Arc<Pod>)> =
            self.by_ordinal.range(range(&self.s.set)).map(|(at, pod)| (*at, *pod)).collect();
        let up = there.iter().filter(|(_, pod)| !object::deleting(&pod.metadata) && self.available(pod)).count();
        let down = replicas(&self.s.set).saturating_sub(i32::try_from(up).unwrap_or(i32::MAX));
        self.plan.down = Some((rolling.map(|_| limit), down));
        let mut room = limit.saturating_sub(down);
        for (at, pod) in there.into_iter().rev().take_while(|(at, _)| *at >= floor) {
            if room > 0 && revision(pod) != self.update && !object::deleting(&pod.metadata) {
                self.replace(at, pod);
                room -= 1;
            }
        }
    }

    fn replace(&mut self, at: i32, pod: &Arc<Pod>) {
        let place = self.plan.tasks.len();
        self.task(phase::UPDATES, place, at, delete(pod));
        if revision(pod) == self.current.0 {
            self.status.current_replicas = Some(self.status.current_replicas.unwrap_or(0) - 1);
        }
    }

    fn finish(mut self) -> (Plan, StatefulSetStatus) {
        let set = &self.s.set;
        let rolling = set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()).and_then(|s| s.type_.as_deref())
            != Some("OnDelete");
        let (status, want) = (&mut self.status, replicas(set));
        let done = status.updated_replicas.unwrap_or(0) == want
            && status.ready_replicas.unwrap_or(0) == want
            && status.replicas == want;
        if rolling && done {
            status.current_replicas = status.updated_replicas;
            status.current_revision.clone_from(&status.update_revision);
        }
        let none_if_zero = |n: &mut Option<i32>| *n = n.filter(|v| *v > 0);
        none_if_zero(&mut status.current_replicas);
        none_if_zero(&mut status.updated_replicas);
        none_if_zero(&mut status.ready_replicas);
        // A ready pod becomes available by the clock alone, which no watch reports.
        let soonest = self
            .s
            .pods
            .iter()
            .filter_map(|p| pods::available_in(p, self.min_ready, self.now))
            .chain(self.plan.again)
            .filter(|d| !d.is_zero())
            .min();
        self.plan.again = soonest;
        (self.plan, self.status)
    }
}

fn delete(pod: &Pod) -> Vec<Step> {
    vec![Step::Write(Action::delete::<Pod>(&pod.metadata)), Step::Tell(Verb::Delete)]
}

fn owners(actions: Vec<Action>) -> Option<Step> {
    (!actions.is_empty()).then_some(Step::Owners { told: true, actions })
}

fn running_and_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::ready(pod)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
