//! Pods that a running job makes, and those that it stops. Answers for upstream's `manageJob`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod as NewPod};

use super::finalizer::FINALIZER;
use super::indexes::{self, IndexSet};
use super::per_index;
use super::plan::{Did, Round, count, waits_for_the_end};
use crate::engine::action::Action;
use crate::engine::pod::Pod;
use crate::engine::{object, pods};

/// No more than this many creations or deletions in one go.
const BURST: i32 = 500;
/// Names are made of a prefix of at most this length and five random letters.
const PREFIX: usize = 58;

impl Round<'_> {
    /// Create what is missing or delete what is too much; how many are active then.
    pub(super) fn manage(&mut self, active: &[&Arc<Pod>], terminating: usize, succeeded: i32, suspended: bool) -> i32 {
        let running = count(active.len());
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0);
        let want = match self.spec.completions {
            _ if suspended => 0,
            // After the first success the others are left to finish.
            None if succeeded > 0 => running,
            None => parallelism,
            Some(c) => (c - succeeded).clamp(0, parallelism),
        };
        let mut surplus = self.surplus(active, usize::try_from(running - want).unwrap_or(0));
        if !suspended {
            surplus.truncate(usize::try_from(BURST).unwrap_or(0));
        }
        if !surplus.is_empty() || suspended {
            let left = running - count(surplus.len());
            // The job itself has no more use for them: that is not a failure.
            self.out.did = Did::PodsDeleted;
            self.let_go_uncounted(&surplus);
            self.stop(surplus);
            return left;
        }
        let busy = if waits_for_the_end(self.spec) { count(terminating) } else { 0 };
        let missing = (want - running - busy).min(BURST);
        if missing <= 0 {
            return running;
        }
        self.out.did = Did::PodsCreated;
        if per_index::limit(&self.s.job).is_none() && !self.s.backoff.is_zero() {
            self.look_again(self.s.backoff);
            return running;
        }
        running + self.create(missing, active)
    }

    /// The pods to stop: doubles of an index and those beyond the last index always, then as many as are too much,
    /// the least advanced first.
    fn surplus<'p>(&self, active: &[&'p Arc<Pod>], at_least: usize) -> Vec<&'p Arc<Pod>> {
        let by_progress = |a: &&Arc<Pod>, b: &&Arc<Pod>| pods::activity_order(a, b);
        let (mut rm, mut left) = (Vec::new(), active.to_vec());
        if self.completed.is_some() {
            let completions = self.spec.completions.unwrap_or(0);
            let mut by_index: BTreeMap<i32, Vec<&Arc<Pod>>> = BTreeMap::new();
            for pod in left.drain(..) {
                match indexes::of(pod).filter(|i| *i < completions) {
                    Some(index) => by_index.entry(index).or_default().push(pod),
                    None => rm.push(pod),
                }
            }
            for (_, mut same) in by_index {
                same.sort_by(by_progress);
                left.extend(same.pop());
                rm.extend(same);
            }
        }
        if rm.len() < at_least {
            left.sort_by(by_progress);
            let more = at_least - rm.len();
            rm.extend(left.into_iter().take(more));
        }
        rm
    }

    /// Delete these pods.
    pub(super) fn stop(&mut self, pods: Vec<&Arc<Pod>>) {
        self.out.actions.extend(pods.into_iter().map(|pod| Action::DeletePod {
            namespace: object::namespace(&pod.metadata).to_owned(),
            name: object::name(&pod.metadata).to_owned(),
            uid: object::uid(&pod.metadata).to_owned(),
            parent: self.about.clone(),
        }));
    }

    fn create(&mut self, missing: i32, active: &[&Arc<Pod>]) -> i32 {
        let owner = object::controller_ref::<Job>(&self.s.job.metadata);
        let mut base = pods::from_template(&self.spec.template, object::namespace(&self.s.job.metadata), &owner);
        let finalizers = base.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
        let missing = usize::try_from(missing).unwrap_or(0);
        let pods: Vec<Arc<NewPod>> = if self.completed.is_some() {
            let name = object::name(&self.s.job.metadata);
            self.due(self.pending(missing, active))
                .into_iter()
                .map(|i| Arc::new(self.with_index(&base, name, i)))
                .collect()
        } else {
            std::iter::repeat_n(Arc::new(base), missing).collect()
        };
        let made = count(pods.len());
        let parent = &self.about;
        let creations = pods.into_iter().map(|pod| Action::CreatePod { pod, parent: parent.clone() });
        self.out.actions.extend(creations);
        made
    }

    /// The first indexes that have neither ended nor a pod.
    fn pending(&self, wanted: usize, active: &[&Arc<Pod>]) -> Vec<i32> {
        let waits = waits_for_the_end(self.spec);
        let leaving = self.s.pods.iter().filter(|p| waits && pods::terminating(p));
        let taken: IndexSet = active.iter().copied().chain(leaving).filter_map(|p| indexes::of(p)).collect();
        let over = [&self.completed, &self.failed].into_iter().flatten();
        let taken = over.fold(taken, |all, set| all.union(set));
        taken.missing(self.spec.completions.unwrap_or(0)).take(wanted).collect()
    }

    /// Returns the indexes whose back-off is over; if there are none, notes when to look again.
    fn due(&mut self, pending: Vec<i32>) -> Vec<i32> {
        if per_index::limit(&self.s.job).is_none() {
            return pending;
        }
        let wait = |i: &i32| per_index::wait(self.held.get(i).copied(), self.now);
        let due: Vec<i32> = pending.iter().copied().filter(|i| wait(i).is_zero()).collect();
        let soonest: Option<Duration> = pending.iter().map(wait).filter(|w| !w.is_zero()).min();
        if let Some(wait) = soonest {
            self.look_again(wait);
        }
        due
    }

    /// The pod of one completion index: it learns its index from a label, an annotation, its name and its environment.
    fn with_index(&self, base: &NewPod, job: &str, index: i32) -> NewPod {
        let mut pod = base.clone();
        let suffix = format!("-{index}-");
        let stem: String = job.chars().take(PREFIX.saturating_sub(suffix.len())).collect();
        pod.metadata.generate_name = Some(stem + &suffix);
        pod.metadata.annotations.get_or_insert_default().insert(indexes::INDEX.into(), index.to_string());
        pod.metadata.labels.get_or_insert_default().insert(indexes::INDEX.into(), index.to_string());
        if per_index::limit(&self.s.job).is_some() {
            per_index::count_on(&mut pod, &self.s.job, self.held.get(&index).copied());
        }
        if let Some(spec) = pod.spec.as_mut() {
            spec.hostname = Some(format!("{job}-{index}"));
            let variable = index_variable();
            for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                let env = c.env.get_or_insert_default();
                if !env.iter().any(|e| e.name == variable.name) {
                    env.push(variable.clone());
                }
            }
        }
        pod
    }
}

fn index_variable() -> EnvVar {
    EnvVar {
        name: "JOB_COMPLETION_INDEX".into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: format!("metadata.labels['{}']", indexes::INDEX),
                api_version: None,
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}
