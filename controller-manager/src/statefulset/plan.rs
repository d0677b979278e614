//! Pods with an identity, started, updated and stopped one after the other (or all at once, if asked for).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::identity::{self, claims, ordinal, pod_name, replicas, revision, start};
use super::retention;
use crate::deployment::strategy::scaled;
use crate::engine::action::{Action, PatchKind};
use crate::engine::pod::Pod;
use crate::engine::{history, object, pods};

/// How long to wait for a claim that is going away, which nothing else reports.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// What the decision rests on.
#[derive(Debug)]
pub struct Snapshot {
    /// The stateful set.
    pub set: Arc<StatefulSet>,
    /// The pods it owns.
    pub pods: Vec<Arc<Pod>>,
    /// Its template history, sorted.
    pub revisions: Vec<Arc<ControllerRevision>>,
    /// The claims of its namespace.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Whether `maxUnavailable` is heeded.
    pub several_at_once: bool,
}

/// The next writes for this set.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Vec<Action> {
    let (set, Some(spec)) = (&s.set, s.set.spec.as_ref()) else { return Vec::new() };
    if object::selector_is_empty(&spec.selector) {
        return Vec::new();
    }
    let old = set.status.clone().unwrap_or_default();
    let author = history::Author {
        owner: object::controller_ref::<StatefulSet>(&set.metadata),
        namespace: set.metadata.namespace.as_deref(),
        hash_label: history::REVISION_LABEL,
        labels: spec.template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default(),
        annotations: set.metadata.annotations.as_ref(),
        collisions: old.collision_count,
    };
    let update = history::current(&author, &spec.template, &s.revisions);
    let current = old
        .current_revision
        .as_deref()
        .and_then(|name| s.revisions.iter().find(|r| object::name(&r.metadata) == name))
        .and_then(|r| Some((object::name(&r.metadata).to_owned(), history::template_of(r)?)))
        .unwrap_or_else(|| (update.name.clone(), spec.template.clone()));
    let mut round = Round::new(s, &current, &update.name, now);
    round.actions = update.actions;
    round.run();
    let (mut actions, status) = round.finish();
    let live: HashSet<&str> = s.pods.iter().map(revision).chain([current.0.as_str(), update.name.as_str()]).collect();
    actions.extend(history::truncate(&s.revisions, &live, spec.revision_history_limit.unwrap_or(10)));
    if set.status.as_ref() != Some(&status) {
        let mut copy = StatefulSet::clone(set);
        copy.status = Some(status);
        actions.push(Action::report(&copy));
    }
    actions
}

struct Round<'a> {
    s: &'a Snapshot,
    about: ObjectReference,
    current: &'a (String, PodTemplateSpec),
    update: &'a str,
    now: Timestamp,
    min_ready: i32,
    /// Whether pods come and go one at a time.
    ordered: bool,
    status: StatefulSetStatus,
    actions: Vec<Action>,
    again: Option<Duration>,
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
        Self {
            s,
            about: object::reference::<StatefulSet>(&s.set.metadata),
            current,
            update,
            now,
            min_ready,
            ordered: spec.and_then(|x| x.pod_management_policy.as_deref()) != Some("Parallel"),
            status,
            actions: Vec::new(),
            again: None,
        }
    }

    fn pod_at(&self, at: i32) -> Option<&'a Arc<Pod>> {
        self.s.pods.iter().find(|p| ordinal(&self.s.set, p) == Some(at))
    }

    fn range(&self) -> std::ops::Range<i32> {
        let first = start(&self.s.set);
        first..first.saturating_add(replicas(&self.s.set).max(0))
    }

    fn run(&mut self) {
        let set = &self.s.set;
        // Its claims stay as they are, too: whoever lets them go on its way out must not find them taken again.
        if object::deleting(&set.metadata) {
            return;
        }
        for pod in &self.s.pods {
            let upkeep = retention::upkeep(set, pod, &self.s.claims);
            self.actions.extend(upkeep.actions);
            if upkeep.updates && ordinal(set, pod).is_some_and(|at| self.range().contains(&at)) {
                self.updated(pod);
            }
        }
        for at in self.range() {
            if !self.replica(at) {
                return;
            }
        }
        let range = self.range();
        let mut condemned: Vec<&Arc<Pod>> =
            self.s.pods.iter().filter(|p| ordinal(set, p).is_some_and(|o| !range.contains(&o))).collect();
        condemned.sort_by_key(|p| std::cmp::Reverse(ordinal(set, p)));
        let first_unhealthy = self.first_unhealthy(&condemned);
        for pod in condemned {
            if !self.condemned(pod, first_unhealthy.as_deref()) {
                return;
            }
        }
        self.roll();
    }

    /// The unhealthy pod with the lowest ordinal; it may be stopped although it is not ready.
    fn first_unhealthy(&self, condemned: &[&Arc<Pod>]) -> Option<String> {
        let kept = self.range().filter_map(|at| self.pod_at(at));
        let all = kept.chain(condemned.iter().rev().copied());
        all.into_iter().find(|p| !self.healthy(p)).map(|p| object::name(&p.metadata).to_owned())
    }

    fn healthy(&self, pod: &Pod) -> bool {
        running_and_ready(pod) && !object::deleting(&pod.metadata)
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

    /// Bring one replica about; false to go no further in this round.
    fn replica(&mut self, at: i32) -> bool {
        let Some(pod) = self.pod_at(at) else {
            self.create(at);
            return !self.ordered;
        };
        let name = object::name(&pod.metadata);
        let set = &self.s.set;
        if pods::finished(pod) {
            if !object::deleting(&pod.metadata) {
                let (failed, key) = (pods::phase(pod) == "Failed", object::Key::of(&set.metadata));
                self.actions.push(if failed {
                    let text = format!("StatefulSet {key} is recreating failed Pod {name}");
                    Action::warning(&self.about, "RecreatingFailedPod", text)
                } else {
                    let text = format!("StatefulSet {key} is recreating terminated Pod {name}");
                    Action::normal(&self.about, "RecreatingTerminatedPod", text)
                });
                self.delete(pod);
            }
            return !self.ordered;
        }
        if pods::phase(pod) == "Pending" {
            self.create_claims(at);
        }
        if self.ordered && (object::deleting(&pod.metadata) || !running_and_ready(pod) || !self.available(pod)) {
            return false;
        }
        if !object::deleting(&pod.metadata) && !identity::matches(set, pod) {
            let labels = json!({identity::POD_NAME: name, identity::POD_INDEX: at.to_string()});
            let patch = json!({"metadata": {"labels": labels}});
            self.actions.push(Action::patch::<Pod>(&pod.metadata, PatchKind::Strategic, patch));
            self.updated(pod);
        }
        true
    }

    fn updated(&mut self, pod: &Pod) {
        let (name, set) = (object::name(&pod.metadata), object::name(&self.s.set.metadata));
        let text = format!("update Pod {name} in StatefulSet {set} successful");
        self.actions.push(Action::normal(&self.about, "SuccessfulUpdate", text));
    }

    /// Create the claims of an ordinal that are missing; those that are on their way out cannot be used.
    fn create_claims(&mut self, at: i32) -> Vec<String> {
        let set = &self.s.set;
        let pod = pod_name(set, at);
        let mut dying = Vec::new();
        for mut claim in claims(set, at) {
            let name = object::name(&claim.metadata).to_owned();
            match self.s.claims.iter().find(|c| object::name(&c.metadata) == name) {
                Some(there) if object::deleting(&there.metadata) => dying.push(name),
                Some(_) => {}
                None => {
                    retention::own_new(set, &mut claim);
                    self.actions.push(Action::create(&claim));
                    let text =
                        format!("create Claim {name} Pod {pod} in StatefulSet {} success", object::name(&set.metadata));
                    self.actions.push(Action::normal(&self.about, "SuccessfulCreate", text));
                }
            }
        }
        if !dying.is_empty() {
            self.look_again(CLAIM_WAIT);
        }
        dying
    }

    fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |a| a.min(after)));
    }

    fn create(&mut self, at: i32) {
        let set = &self.s.set;
        if retention::stale(set, at, &self.s.claims) {
            // It goes with the pod of this name that was scaled away: the next pod gets a new one.
            self.look_again(CLAIM_WAIT);
            return;
        }
        let dying = self.create_claims(at);
        if let Some(claim) = dying.first() {
            let (pod, name) = (pod_name(set, at), object::name(&set.metadata));
            let text = format!("create Pod {pod} in StatefulSet {name} failed error: pvc {claim} is being deleted");
            self.actions.push(Action::warning(&self.about, "FailedCreate", text));
            return;
        }
        let old = self.keeps_current(at);
        let template = set.spec.as_ref().map(|s| &s.template);
        let (template, revision) = match (old, template) {
            (false, Some(t)) => (t, self.update),
            _ => (&self.current.1, self.current.0.as_str()),
        };
        let pod = identity::pod(set, template, revision, at);
        self.actions.push(Action::create(&pod));
        self.actions.extend(retention::conflicts(set, at, &self.s.claims));
        let text =
            format!("create Pod {} in StatefulSet {} successful", pod_name(set, at), object::name(&set.metadata));
        self.actions.push(Action::normal(&self.about, "SuccessfulCreate", text));
    }

    /// Whether a replica below the partition still gets the old template.
    fn keeps_current(&self, at: i32) -> bool {
        let Some(strategy) = self.s.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref()) else { return false };
        let first = start(&self.s.set);
        match strategy.rolling_update.as_ref() {
            Some(r) => at < first + r.partition.unwrap_or(0),
            None => {
                let current = self.s.set.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0);
                strategy.type_.as_deref().unwrap_or("RollingUpdate") == "RollingUpdate" && at < first + current
            }
        }
    }

    fn delete(&mut self, pod: &Pod) {
        self.actions.push(Action::delete::<Pod>(&pod.metadata));
        let text = format!(
            "delete Pod {} in StatefulSet {} successful",
            object::name(&pod.metadata),
            object::name(&self.s.set.metadata)
        );
        self.actions.push(Action::normal(&self.about, "SuccessfulDelete", text));
    }

    /// Stop a surplus pod; false to go no further in this round.
    fn condemned(&mut self, pod: &Arc<Pod>, first_unhealthy: Option<&str>) -> bool {
        if object::deleting(&pod.metadata) {
            return !self.ordered;
        }
        let first = first_unhealthy == Some(object::name(&pod.metadata));
        if self.ordered && !first && (!running_and_ready(pod) || !self.available(pod)) {
            return false;
        }
        self.delete(pod);
        !self.ordered
    }

    /// Replace outdated pods from the highest ordinal down to the partition.
    fn roll(&mut self) {
        let strategy = self.s.set.spec.as_ref().and_then(|s| s.update_strategy.as_ref());
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return;
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let partition = rolling.and_then(|r| r.partition).unwrap_or(0);
        let floor = start(&self.s.set) + partition;
        if !self.s.several_at_once {
            for at in self.range().rev().take_while(|at| *at >= floor) {
                let Some(pod) = self.pod_at(at) else { return };
                if revision(pod) != self.update && !object::deleting(&pod.metadata) {
                    self.replace(pod);
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
        let mut down = 0;
        for at in self.range() {
            let up = self.pod_at(at).is_some_and(|p| !object::deleting(&p.metadata) && self.available(p));
            down += i32::from(!up);
        }
        let mut room = limit - down;
        for at in self.range().rev().take_while(|at| *at >= floor) {
            let Some(pod) = self.pod_at(at) else { continue };
            if room > 0 && revision(pod) != self.update && !object::deleting(&pod.metadata) {
                self.replace(pod);
                room -= 1;
            }
        }
    }

    fn replace(&mut self, pod: &Arc<Pod>) {
        self.delete(pod);
        if revision(pod) == self.current.0 {
            self.status.current_replicas = Some(self.status.current_replicas.unwrap_or(0) - 1);
        }
    }

    fn finish(mut self) -> (Vec<Action>, StatefulSetStatus) {
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
            .chain(self.again)
            .filter(|d| !d.is_zero())
            .min();
        self.actions.extend(soonest.map(Action::RequeueAfter));
        (self.actions, self.status)
    }
}

fn running_and_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::ready(pod)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
