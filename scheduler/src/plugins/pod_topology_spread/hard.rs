//! Constraints that keep a pod away. Answers for upstream's `calPreFilterState`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::{PodTopologySpread, count, counts_node, counts_pod, has_all_keys};
use crate::framework::domains::{Domains, Touched, Tracker};
use crate::framework::plugin::{Context, Filter, PreFilter, PreFiltered};
use crate::framework::rule::NodeRule;
use crate::framework::{CycleState, Status};
use crate::model::{Demand, NodeInfo, PodInfo, Snapshot, SpreadConstraint};

/// Constraints of the pod.
#[derive(Debug)]
pub(super) struct Plan {
    pod: Arc<Demand>,
    constraints: Vec<SpreadConstraint>,
}

impl PodTopologySpread {
    pub(super) fn hard_plan(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Plan> {
        let constraints = self.constraints(cx, pod, true);
        (!constraints.is_empty()).then(|| Plan { pod: Arc::clone(&pod.demand), constraints })
    }
}

impl Plan {
    /// Returns how many pods a node that has all keys adds to a constraint's domain; `None` when it does not count.
    fn adds(&self, c: &SpreadConstraint, node: &NodeInfo) -> Option<i64> {
        counts_node(c, &self.pod, &node.base).then(|| count(c, &self.pod, node))
    }

    /// The verdict for each constraint's count at a node (`None`: the label is missing) and the domains.
    fn judge<'a>(&'a self, here: impl Iterator<Item = (Option<i64>, &'a Domains)>) -> Status {
        for (c, (pods, domains)) in self.constraints.iter().zip(here) {
            let Some(pods) = pods else {
                return Status::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let few = domains.len() < usize::try_from(c.min_domains).unwrap_or(0);
            let least = if few { 0 } else { domains.min() };
            let own = i64::from(c.selector.matches(&self.pod.labels));
            if pods + own - least > c.max_skew.into() {
                return Status::unschedulable("node(s) didn't match pod topology spread constraints");
            }
        }
        Status::SUCCESS
    }
}

#[derive(Clone, Debug)]
struct SpreadState {
    plan: Arc<Plan>,
    domains: Vec<Domains>,
}

impl SpreadState {
    fn shift(&mut self, other: &PodInfo, node: &NodeInfo, by: i64) {
        if !has_all_keys(&self.plan.constraints, &node.base) {
            return;
        }
        for (c, domains) in self.plan.constraints.iter().zip(&mut self.domains) {
            if counts_node(c, &self.plan.pod, &node.base) && counts_pod(&c.selector, &self.plan.pod.namespace, other) {
                domains.shift(&node.base, by);
            }
        }
    }
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        let Some(plan) = self.hard_plan(cx, pod) else { return Err(Status::SKIP) };
        let mut domains: Vec<Domains> = plan.constraints.iter().map(|c| Domains::new(&c.topology_key)).collect();
        for node in cx.snapshot.nodes().iter().filter(|node| has_all_keys(&plan.constraints, &node.base)) {
            for (c, domains) in plan.constraints.iter().zip(&mut domains) {
                if let Some(pods) = plan.adds(c, node) {
                    domains.count(&node.base, pods);
                }
            }
        }
        state.put(SpreadState { plan: Arc::new(plan), domains });
        Ok(PreFiltered::All)
    }

    fn add_pod(&self, _: Context<'_>, state: &mut CycleState, _: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<SpreadState>() {
            notes.shift(added, node, 1);
        }
    }

    fn remove_pod(&self, _: Context<'_>, state: &mut CycleState, _: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<SpreadState>() {
            notes.shift(removed, node, -1);
        }
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(notes) = state.get::<SpreadState>() else { return Status::SUCCESS };
        notes.plan.judge(notes.domains.iter().map(|d| (d.at(&node.base), d)))
    }
}

/// Plan whose counts are kept current.
pub(super) struct FilterRule {
    plan: Arc<Plan>,
    trackers: Vec<Tracker>,
}

impl FilterRule {
    pub(super) fn new(plan: Plan) -> Self {
        let trackers = plan.constraints.iter().map(|c| Tracker::new(&c.topology_key)).collect();
        Self { plan: Arc::new(plan), trackers }
    }
}

impl NodeRule for FilterRule {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.plan.constraints.hash(&mut hasher);
        hasher.finish()
    }

    fn update(&mut self, snapshot: &Snapshot, slot: usize, touched: &mut Touched) {
        let node = snapshot.nodes().get(slot);
        let whole = node.filter(|node| has_all_keys(&self.plan.constraints, &node.base));
        for (c, tracker) in self.plan.constraints.iter().zip(&mut self.trackers) {
            tracker.set(slot, node.map(|n| &*n.base), whole.and_then(|n| self.plan.adds(c, n)), touched);
        }
    }

    fn width(&self) -> usize {
        self.trackers.len()
    }

    fn facet(&self, slot: usize, out: &mut Vec<i64>) {
        out.extend(self.trackers.iter().map(|t| t.token(slot)));
    }

    fn filter(&self, facet: &[i64]) -> Status {
        self.plan.judge(self.trackers.iter().zip(facet).map(|(t, token)| (t.sum(*token), t.domains())))
    }

    fn note(&self, state: &mut CycleState) {
        let domains = self.trackers.iter().map(|t| t.domains().clone()).collect();
        state.put(SpreadState { plan: Arc::clone(&self.plan), domains });
    }
}
