//! One step of a rollout: which replica set grows, which shrinks, what the status says. Answers for upstream's
//! `rolloutRolling`, `rolloutRecreate`, `syncDeployment`.
//!
//! A deployment owns one replica set per template it ever had. The set whose template equals the deployment's is the
//! new one; all others are old. A rolling update grows the new and shrinks the old within surge and unavailability;
//! Recreate first empties the old.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{ObjectReference, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

use super::status::{self, PROGRESSING, TIMED_OUT, condition, new_condition, set_condition};
use super::strategy::{
    available, is_rolling, max_unavailable, most_replicas, new_set_size, proportion, replicas, size, status_replicas,
    stored,
};
use super::{annotations, rollback};
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::{hash, object};

/// The label that tells the sets of a deployment apart.
pub const HASH_LABEL: &str = "pod-template-hash";

/// Inputs of the decision.
#[derive(Debug)]
pub struct Snapshot {
    /// The deployment.
    pub deployment: Arc<Deployment>,
    /// The replica sets it owns.
    pub sets: Vec<Arc<ReplicaSet>>,
    /// The pods of those sets (only Recreate looks at them).
    pub pods: Vec<Arc<Pod>>,
    /// Terminating pods are told in the status.
    pub terminating: bool,
}

/// The next writes for this deployment.
#[must_use]
pub fn plan(s: &Snapshot, now: Timestamp) -> Vec<Action> {
    let d = &s.deployment;
    let about = object::reference::<Deployment>(&d.metadata);
    let Some(spec) = d.spec.as_ref() else { return Vec::new() };
    if object::selector_is_empty(&spec.selector) {
        let mut actions = vec![Action::warning(
            &about,
            "SelectingAll",
            "This deployment is selecting all pods. A non-empty selector is required.".into(),
        )];
        let mut copy = Deployment::clone(d);
        let status = copy.status.get_or_insert_default();
        if status.observed_generation < d.metadata.generation {
            status.observed_generation = d.metadata.generation;
            actions.push(Action::update_status(&copy));
        }
        return actions;
    }
    let mut rollout = Rollout::new(s, about, now);
    let paused = spec.paused == Some(true);
    if object::deleting(&d.metadata) {
        rollout.find(false);
        return rollout.finish(false);
    }
    rollout.note_pause(paused);
    if let Some(revision) = rollback::wanted(d).filter(|_| !paused) {
        rollout.find(false);
        return rollout.roll_back(revision);
    }
    if paused || rollout.scaling() {
        rollout.find(false);
        rollout.scale();
        if paused && rollback::wanted(d).is_none() {
            rollout.clean_up();
        }
        return rollout.finish(false);
    }
    if is_rolling(d) {
        rollout.rolling()
    } else {
        rollout.recreate(&s.pods)
    }
    rollout.finish(true)
}

struct Rollout<'a> {
    snapshot: &'a Snapshot,
    /// The deployment as it shall be; status and the revision annotation change.
    d: Deployment,
    /// The sets as they shall be, oldest first.
    sets: Vec<ReplicaSet>,
    /// Index of the new one in `sets`.
    new: Option<usize>,
    about: ObjectReference,
    now: Timestamp,
    /// Creations, deletions and events, in order.
    actions: Vec<Action>,
    /// The new set, when this round makes it.
    created: Option<ReplicaSet>,
}

/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// The name of a deployment's set; long names are cut so that the hash fits in. Answers for `generateReplicaSetName`.
fn set_name(deployment: &str, hash: &str) -> String {
    let room = LONGEST_NAME.saturating_sub(hash.len() + 1);
    format!("{}-{hash}", &deployment[..deployment.floor_char_boundary(room)])
}

impl<'a> Rollout<'a> {
    fn new(snapshot: &'a Snapshot, about: ObjectReference, now: Timestamp) -> Self {
        let mut sets: Vec<ReplicaSet> = snapshot.sets.iter().map(|r| ReplicaSet::clone(r)).collect();
        sets.sort_by(|a, b| {
            (object::created(&a.metadata), object::name(&a.metadata))
                .cmp(&(object::created(&b.metadata), object::name(&b.metadata)))
        });
        let d = Deployment::clone(&snapshot.deployment);
        let template = d.spec.as_ref().map(|s| &s.template);
        let new = sets.iter().position(|r| {
            r.spec.as_ref().and_then(|s| s.template.as_ref()).zip(template).is_some_and(|(a, b)| same_template(a, b))
        });
        Self { snapshot, d, sets, new, about, now, actions: Vec::new(), created: None }
    }

    fn old(&self) -> impl Iterator<Item = usize> + use<> {
        let new = self.new;
        (0..self.sets.len()).filter(move |i| Some(*i) != new)
    }

    fn total(&self) -> i64 {
        self.sets.iter().map(size).sum()
    }

    /// Note pausing and resuming in the Progressing condition, so that the deadline does not run meanwhile.
    fn note_pause(&mut self, paused: bool) {
        if status::deadline(&self.d).is_none() {
            return;
        }
        let current = self.d.status.as_ref().and_then(|s| condition(s, PROGRESSING));
        let reason = current.and_then(|c| c.reason.as_deref());
        if reason == Some(TIMED_OUT) {
            return;
        }
        let was_paused = reason == Some("DeploymentPaused");
        let (reason, message) = match (paused, was_paused) {
            (true, false) => ("DeploymentPaused", "Deployment is paused"),
            (false, true) => ("DeploymentResumed", "Deployment is resumed"),
            _ => return,
        };
        let c = new_condition(PROGRESSING, "Unknown", reason, message.into(), self.now);
        set_condition(self.d.status.get_or_insert_default(), c);
    }

    /// Reports whether the desired number changed since the sets were last sized.
    fn scaling(&self) -> bool {
        self.sets
            .iter()
            .filter(|r| size(r) > 0)
            .any(|r| annotations::desired(r).is_some_and(|n| n != replicas(&self.d)))
    }

    /// Bring the new set's bookkeeping up to date, creating it when `create`.
    fn find(&mut self, create: bool) {
        let max_old = self.old().map(|i| annotations::revision(&self.sets[i])).max().unwrap_or(0);
        if let Some(i) = self.new {
            let set = &mut self.sets[i];
            annotations::sync(set, &self.d, max_old.saturating_add(1), true);
            let min_ready = self.d.spec.as_ref().and_then(|s| s.min_ready_seconds);
            if let Some(spec) = set.spec.as_mut()
                && spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0)
            {
                spec.min_ready_seconds = min_ready;
            }
            let (revision, name) = (annotations::revision(set), object::name(&set.metadata).to_owned());
            self.set_revision(revision);
            let unknown = self.d.status.as_ref().and_then(|s| condition(s, PROGRESSING)).is_none();
            if status::deadline(&self.d).is_some() && unknown {
                let message = format!("Found new replica set \"{name}\"");
                let c = new_condition(PROGRESSING, "True", "FoundNewReplicaSet", message, self.now);
                set_condition(self.d.status.get_or_insert_default(), c);
            }
        } else if create {
            let set = self.build(max_old.saturating_add(1));
            let (name, n) = (object::name(&set.metadata).to_owned(), size(&set));
            self.actions.push(Action::create(&set));
            if n > 0 {
                let message = format!("Scaled up replica set {name} from 0 to {n}");
                self.actions.push(Action::normal(&self.about, "ScalingReplicaSet", message));
            }
            self.set_revision(max_old.saturating_add(1));
            if status::deadline(&self.d).is_some() {
                let message = format!("Created new replica set \"{name}\"");
                let c = new_condition(PROGRESSING, "True", "NewReplicaSetCreated", message, self.now);
                set_condition(self.d.status.get_or_insert_default(), c);
            }
            self.created = Some(set);
        }
    }

    fn set_revision(&mut self, revision: i64) {
        self.d.metadata.annotations.get_or_insert_default().insert(annotations::REVISION.into(), revision.to_string());
    }

    fn build(&self, revision: i64) -> ReplicaSet {
        let spec = self.d.spec.clone().unwrap_or_default();
        let collisions = self.d.status.as_ref().and_then(|s| s.collision_count);
        let hash = hash::of(&spec.template, collisions);
        let mut template = spec.template;
        template
            .metadata
            .get_or_insert_default()
            .labels
            .get_or_insert_default()
            .insert(HASH_LABEL.into(), hash.clone());
        let mut selector: LabelSelector = spec.selector;
        selector.match_labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.clone());
        let mut set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(set_name(object::name(&self.d.metadata), &hash)),
                namespace: self.d.metadata.namespace.clone(),
                labels: template.metadata.as_ref().and_then(|m| m.labels.clone()),
                owner_references: Some(vec![object::controller_ref::<Deployment>(&self.d.metadata)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(stored(new_set_size(&self.d, self.total(), 0))),
                min_ready_seconds: spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        };
        annotations::sync(&mut set, &self.d, revision, false);
        set
    }

    /// Resize one set and say so.
    fn resize(&mut self, i: usize, to: i64) {
        let set = &mut self.sets[i];
        let from = size(set);
        let noted = (annotations::desired(set), annotations::max_replicas(set));
        if from != to || noted != (Some(replicas(&self.d)), Some(most_replicas(&self.d))) {
            annotations::set_sizes(set, &self.d);
        }
        if from == to {
            return;
        }
        if let Some(spec) = set.spec.as_mut() {
            spec.replicas = Some(stored(to));
        }
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {} from {from} to {to}", object::name(&set.metadata));
        self.actions.push(Action::normal(&self.about, "ScalingReplicaSet", message));
    }

    /// The wish changed or the deployment is paused: only sizes move, spread over the sets in proportion.
    fn scale(&mut self) {
        let want = replicas(&self.d);
        let active: Vec<usize> = (0..self.sets.len()).filter(|i| size(&self.sets[*i]) > 0).collect();
        let only = match active.as_slice() {
            [] => self.new.or_else(|| self.old().last()),
            [one] => Some(*one),
            _ => None,
        };
        if let Some(i) = only {
            self.resize(i, want);
            return;
        }
        if let Some(n) = self.new {
            let set = &self.sets[n];
            if size(set) == want && annotations::desired(set) == Some(want) && available(set) == want {
                for i in active.into_iter().filter(|i| *i != n) {
                    self.resize(i, 0);
                }
                return;
            }
        }
        if is_rolling(&self.d) {
            self.scale_in_proportion(active, want);
        }
    }

    fn scale_in_proportion(&mut self, mut active: Vec<usize>, want: i64) {
        let total: i64 = active.iter().map(|i| size(&self.sets[*i])).sum();
        let allowed = if want > 0 { most_replicas(&self.d) } else { 0 };
        let to_add = allowed - total;
        // Larger sets first; among equals the newer when growing, the older when shrinking.
        active.sort_by(|a, b| {
            let by_age = if to_add > 0 { b.cmp(a) } else { a.cmp(b) };
            size(&self.sets[*b]).cmp(&size(&self.sets[*a])).then(by_age)
        });
        let mut added = 0;
        let mut sizes = Vec::with_capacity(active.len());
        for &i in &active {
            let share = proportion(&self.sets[i], &self.d, to_add, added);
            added += share;
            sizes.push(size(&self.sets[i]) + share);
        }
        if let Some(first) = sizes.first_mut() {
            *first = (*first + to_add - added).max(0);
        }
        for (i, to) in active.into_iter().zip(sizes) {
            self.resize(i, to);
        }
    }

    fn rolling(&mut self) {
        self.find(true);
        let Some(n) = self.new else { return };
        let (want, have) = (replicas(&self.d), size(&self.sets[n]));
        let to = if have > want { want } else { new_set_size(&self.d, self.total(), have) };
        if to != have {
            self.resize(n, to);
            return;
        }
        if !self.shrink_old(n) && self.is_complete() {
            self.clean_up();
        }
    }

    /// Take from the old sets what may go: first pods that are not available anyway, then available ones.
    fn shrink_old(&mut self, n: usize) -> bool {
        let old: Vec<usize> = self.old().filter(|i| size(&self.sets[*i]) > 0).collect();
        if old.is_empty() {
            return false;
        }
        let floor = replicas(&self.d) - max_unavailable(&self.d);
        let unavailable_new = size(&self.sets[n]) - available(&self.sets[n]);
        let spare = self.total() - floor - unavailable_new;
        if spare <= 0 {
            return false;
        }
        let mut gone = 0;
        for &i in &old {
            let unhealthy = size(&self.sets[i]) - available(&self.sets[i]);
            if gone >= spare || unhealthy <= 0 {
                continue;
            }
            let count = unhealthy.min(spare - gone);
            gone += count;
            self.resize(i, size(&self.sets[i]) - count);
        }
        let up: i64 = self.sets.iter().map(available).sum();
        let limit = up - floor;
        let mut taken = 0;
        for &i in &old {
            let count = size(&self.sets[i]).min(limit - taken);
            if count <= 0 {
                continue;
            }
            taken += count;
            self.resize(i, size(&self.sets[i]) - count);
        }
        gone + taken > 0
    }

    fn recreate(&mut self, pods: &[Arc<Pod>]) {
        self.find(false);
        let old: Vec<usize> = self.old().filter(|i| size(&self.sets[*i]) > 0).collect();
        if !old.is_empty() {
            for i in old {
                self.resize(i, 0);
            }
            return;
        }
        if self.old_pods_left(pods) {
            return;
        }
        if self.new.is_none() {
            self.find(true);
        } else if let Some(n) = self.new {
            self.resize(n, replicas(&self.d));
        }
        if self.is_complete() {
            self.clean_up();
        }
    }

    fn old_pods_left(&self, pods: &[Arc<Pod>]) -> bool {
        if self.old().map(|i| status_replicas(&self.sets[i])).sum::<i64>() > 0 {
            return true;
        }
        let new_uid = self.new.map(|n| object::uid(&self.sets[n].metadata));
        pods.iter().any(|p| {
            let owner = crate::engine::pods::owner_uid(p);
            owner.is_some()
                && owner != new_uid
                && !crate::engine::pods::finished(p)
                && self.old().any(|i| Some(object::uid(&self.sets[i].metadata)) == owner)
        })
    }

    fn is_complete(&self) -> bool {
        self.d.status.as_ref().is_some_and(|s| status::complete(&self.d, s))
    }

    /// Delete the oldest empty sets beyond the history limit.
    fn clean_up(&mut self) {
        let limit = self.d.spec.as_ref().and_then(|s| s.revision_history_limit).filter(|n| *n != i32::MAX);
        let Some(limit) = limit.and_then(|n| usize::try_from(n).ok()) else { return };
        let mut old: Vec<usize> = self.old().filter(|i| !object::deleting(&self.sets[*i].metadata)).collect();
        if old.len() <= limit {
            return;
        }
        old.sort_by_key(|i| annotations::revision(&self.sets[*i]));
        let excess = old.len() - limit;
        for &i in &old[..excess] {
            let r = &self.sets[i];
            let seen = r.status.as_ref().and_then(|s| s.observed_generation) >= r.metadata.generation;
            if size(r) == 0 && status_replicas(r) == 0 && seen {
                self.actions.push(Action::delete::<ReplicaSet>(&r.metadata));
            }
        }
    }

    /// Writes of changed sets, then the deployment with an earlier template.
    fn roll_back(self, revision: i64) -> Vec<Action> {
        let mut actions = self.changed_sets();
        actions.extend(rollback::plan(&self.d, &self.sets, revision, &self.about));
        actions
    }

    fn changed_sets(&self) -> Vec<Action> {
        let before = |set: &ReplicaSet| self.snapshot.sets.iter().find(|r| r.metadata.uid == set.metadata.uid);
        let changed = self.sets.iter().filter(|set| before(set).is_some_and(|b| **b != **set));
        changed.map(Action::update).collect()
    }

    /// Writes of changed sets, then what was queued, then the status.
    fn finish(mut self, judge_progress: bool) -> Vec<Action> {
        let mut actions = self.changed_sets();
        let judge_progress_now = judge_progress && self.created.is_none();
        self.sets.extend(self.created.take());
        let new = self.new.map(|i| &self.sets[i]);
        let before = &self.snapshot.deployment;
        let mut d = self.d.clone();
        let mut status = if judge_progress_now {
            // Progress is judged against what is stored, conditions start from what this round noted.
            status::rollout(&self.d, &self.sets, new, self.now)
        } else {
            status::calculate(&self.d, &self.sets, new, self.now)
        };
        status.terminating_replicas = status.terminating_replicas.filter(|_| self.snapshot.terminating);
        let again = if judge_progress { status::recheck(&self.d, &status, self.now) } else { None };
        d.status = Some(status);
        actions.extend(self.actions);
        if d.status != before.status || d.metadata.annotations != before.metadata.annotations {
            actions.push(Action::update_status(&d));
        }
        actions.extend(again.map(Action::RequeueAfter));
        actions
    }
}

/// Reports whether two templates are equal but for the hash label.
#[must_use]
pub fn same_template(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    fn bare(t: &PodTemplateSpec) -> PodTemplateSpec {
        let mut t = t.clone();
        if let Some(labels) = t.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
            labels.remove(HASH_LABEL);
        }
        if let Some(m) = t.metadata.as_mut() {
            m.labels = m.labels.take().filter(|l| !l.is_empty());
            m.annotations = m.annotations.take().filter(|l| !l.is_empty());
        }
        t.metadata = t.metadata.filter(|m| *m != ObjectMeta::default());
        t
    }
    bare(a) == bare(b)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
