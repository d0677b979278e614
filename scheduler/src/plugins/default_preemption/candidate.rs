//! Victims that would have to leave a node, and the choice of a node. Answers for upstream's `SelectVictimsOnNode`,
//! `pickOneNodeForPreemption`.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::framework::plugin::{Context, Filter};
use crate::framework::{CycleState, Profile, Status};
use crate::model::{NodeInfo, PodInfo, Selector};

/// A node and the pods that would have to go, most important first.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) node: Arc<str>,
    pub(super) victims: Vec<Arc<PodInfo>>,
    /// Number of victims that a disruption budget protects.
    pub(super) violations: usize,
}

/// Criteria that candidates are compared by. Kept beside a candidate, so that comparing hundreds looks at no pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rank {
    violations: usize,
    highest: i32,
    /// Of priorities, each moved above zero.
    sum: i64,
    count: usize,
    /// Start time of the first of the most important victims; one that has not started yet counts as of now.
    oldest: Option<Timestamp>,
    unstarted: bool,
}

impl Rank {
    /// Disrupts nothing that a budget protects.
    pub(super) fn is_unprotected(&self) -> bool {
        self.violations == 0
    }

    /// The least is best: fewest budgets violated, least important victims, fewest of them, youngest.
    fn key(&self, now: Timestamp) -> impl Ord + use<> {
        let oldest = self.oldest.map_or(now, |t| if self.unstarted { t.min(now) } else { t });
        (self.violations, self.highest, self.sum, self.count, Reverse(oldest))
    }
}

impl Candidate {
    /// See [`Rank`].
    pub(super) fn rank(&self) -> Rank {
        let highest = self.victims.first().map_or(i32::MIN, |p| p.priority);
        let important = || self.victims.iter().filter(|p| p.priority == highest);
        Rank {
            violations: self.violations,
            highest,
            sum: self.victims.iter().map(|p| i64::from(p.priority) + i64::from(i32::MAX) + 1).sum(),
            count: self.victims.len(),
            oldest: important().filter_map(|p| p.started).min(),
            unstarted: important().any(|p| p.started.is_none()),
        }
    }
}

/// Inputs that are equal for all nodes.
pub(super) struct Search<'a> {
    cx: Context<'a>,
    profile: &'a Profile,
    state: &'a CycleState,
    filters: Vec<&'a (&'static str, Arc<dyn Filter>)>,
    pod: &'a PodInfo,
}

impl<'a> Search<'a> {
    pub(super) fn new(cx: Context<'a>, profile: &'a Profile, state: &'a CycleState, pod: &'a PodInfo) -> Self {
        Self { cx, profile, state, filters: profile.active_filters(state), pod }
    }

    /// Takes every lesser pod away, then gives back all that can stay.
    pub(super) fn victims(&self, node: &NodeInfo) -> Result<Candidate, Status> {
        let mut lesser: Vec<Arc<PodInfo>> =
            node.pods.iter().filter(|p| p.priority < self.pod.priority).cloned().collect();
        if lesser.is_empty() {
            return Err(Status::unresolvable("No preemption victims found for incoming pod"));
        }
        let mut what_if = WhatIf { search: self, state: self.state.clone(), node: node.clone() };
        for p in &lesser {
            what_if.remove(p);
        }
        let status = what_if.status();
        if !status.is_success() {
            return Err(status);
        }
        lesser.sort_by(|a, b| by_importance(a, b, self.cx.now));
        let (protected, free) = self.split_by_budget(&lesser);
        let mut victims = Vec::new();
        let mut violations = 0;
        for (p, is_protected) in protected.iter().map(|p| (p, true)).chain(free.iter().map(|p| (p, false))) {
            what_if.add(p);
            if !what_if.status().is_success() {
                what_if.remove(p);
                victims.push(Arc::clone(p));
                violations += usize::from(is_protected);
            }
        }
        // Something else than pods keeps the pod away, an extender's word for one.
        if victims.is_empty() {
            return Err(Status::unresolvable(format!("expected at least one victim pod on node {:?}", &**node.name())));
        }
        victims.sort_by(|a, b| by_importance(a, b, self.cx.now));
        Ok(Candidate { node: Arc::clone(node.name()), victims, violations })
    }

    /// Pods whose eviction a disruption budget forbids, and the others.
    fn split_by_budget(&self, pods: &[Arc<PodInfo>]) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
        let mut budgets: Vec<(Arc<PodDisruptionBudget>, Selector, i32)> = Vec::new();
        let mut namespaces: Vec<&str> = Vec::new();
        for p in pods {
            if !namespaces.contains(&&*p.namespace) {
                namespaces.push(&p.namespace);
                for b in self.cx.listers.budgets(&p.namespace) {
                    let selector = Selector::from_api(b.spec.as_ref().and_then(|s| s.selector.as_ref()));
                    let allowed = b.status.as_ref().map_or(0, |s| s.disruptions_allowed);
                    budgets.push((b, selector, allowed));
                }
            }
        }
        pods.iter().cloned().partition(|p| {
            let mut violates = false;
            for (budget, selector, allowed) in &mut budgets {
                let empty = selector.0.as_ref().is_none_or(Vec::is_empty);
                if budget.metadata.namespace.as_deref() != Some(&p.namespace) || empty || !selector.matches(&p.labels) {
                    continue;
                }
                let disrupted = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
                if disrupted.is_some_and(|d| d.contains_key(&*p.name)) {
                    continue;
                }
                *allowed -= 1;
                violates |= *allowed < 0;
            }
            violates
        })
    }
}

/// A node as it would be.
struct WhatIf<'s, 'a> {
    search: &'s Search<'a>,
    state: CycleState,
    node: NodeInfo,
}

impl WhatIf<'_, '_> {
    fn remove(&mut self, p: &Arc<PodInfo>) {
        let Search { cx, profile, pod, .. } = *self.search;
        self.node.remove(&p.uid);
        profile.remove_pod(cx, &mut self.state, pod, p, &self.node);
    }

    fn add(&mut self, p: &Arc<PodInfo>) {
        let Search { cx, profile, pod, .. } = *self.search;
        self.node.add(Arc::clone(p));
        profile.add_pod(cx, &mut self.state, pod, p, &self.node);
    }

    fn status(&self) -> Status {
        let Search { cx, profile, pod, ref filters, .. } = *self.search;
        profile.filter_node(cx, &self.state, filters, pod, &self.node)
    }
}

/// Higher priority first, then older.
fn by_importance(a: &PodInfo, b: &PodInfo, now: Timestamp) -> Ordering {
    b.priority.cmp(&a.priority).then(a.start_or(now).cmp(&b.start_or(now)))
}

/// The best of some, the first of equals.
pub(super) fn pick<T>(candidates: impl Iterator<Item = (Rank, T)>, now: Timestamp) -> Option<T> {
    candidates
        .map(|(rank, it)| (rank.key(now), it))
        .reduce(|best, next| if next.0 < best.0 { next } else { best })
        .map(|(_, it)| it)
}
