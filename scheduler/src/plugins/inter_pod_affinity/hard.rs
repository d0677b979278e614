//! Terms that keep a pod away: its own, and the anti-affinity of pods that are there. Answers for upstream's
//! `satisfyExistingPodsAntiAffinity`, `satisfyPodAffinity`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::{Amounts, InterPodAffinity, count, resolved, shift};
use crate::framework::domains::{Domains, Touched, Trackers};
use crate::framework::plugin::{Context, Filter, PreFilter, PreFiltered};
use crate::framework::rule::NodeRule;
use crate::framework::{CycleState, Status};
use crate::model::selector::Labels;
use crate::model::{AffinityTerm, Demand, NodeBase, NodeInfo, PodInfo, Snapshot};

/// Terms of the pod.
#[derive(Debug)]
pub(super) struct Plan {
    pod: Arc<Demand>,
    affinity: Vec<AffinityTerm>,
    anti_affinity: Vec<AffinityTerm>,
    namespace_labels: Option<Labels>,
    /// The pod itself is what it wants to be near.
    suits_itself: bool,
}

/// Amounts that a pod (or all pods of a node) adds, by topology key.
#[derive(Default)]
struct Adds<'a> {
    near: Amounts<'a>,
    far: Amounts<'a>,
    refused: Amounts<'a>,
}

impl Plan {
    pub(super) fn of(cx: Context<'_>, pod: &PodInfo) -> Self {
        let namespace_labels = cx.listers.namespace_labels(&pod.namespace);
        let affinity: Vec<AffinityTerm> = pod.affinity.iter().map(|t| resolved(cx, t)).collect();
        Self {
            suits_itself: affinity.iter().all(|t| t.matches(pod, namespace_labels.as_ref())),
            affinity,
            anti_affinity: pod.anti_affinity.iter().map(|t| resolved(cx, t)).collect(),
            namespace_labels,
            pod: Arc::clone(&pod.demand),
        }
    }

    fn wants_nothing(&self) -> bool {
        self.affinity.is_empty() && self.anti_affinity.is_empty()
    }

    /// Adds `n` times what a pod of this demand adds on the node.
    fn add<'a>(&'a self, node: &NodeBase, other: &'a Demand, n: i64, out: &mut Adds<'a>) {
        for term in other.anti_affinity.iter().filter(|t| t.matches(&self.pod, self.namespace_labels.as_ref())) {
            out.refused.add(node, &term.topology_key, n);
        }
        if !self.affinity.is_empty() && self.affinity.iter().all(|t| t.matches(other, None)) {
            self.affinity.iter().for_each(|term| out.near.add(node, &term.topology_key, n));
        }
        for term in self.anti_affinity.iter().filter(|t| t.matches(other, None)) {
            out.far.add(node, &term.topology_key, n);
        }
    }

    /// Returns the amounts that the pods of a node add. Neighbours are often of one kind, and are looked at once.
    fn adds<'a>(&'a self, node: &'a NodeInfo) -> Adds<'a> {
        let mut out = Adds::default();
        let pods = if self.wants_nothing() { &node.with_anti_affinity } else { &node.pods };
        for kind in pods.chunk_by(|a, b| Arc::ptr_eq(&a.demand, &b.demand)) {
            self.add(&node.base, &kind[0].demand, i64::try_from(kind.len()).unwrap_or(i64::MAX), &mut out);
        }
        out
    }

    /// The verdict on the sums at a node (`None`: the label is missing), by key; `alone` when there is nobody anywhere
    /// whom the pod wants to be near.
    fn judge(
        &self,
        near: impl Fn(&str) -> Option<i64>,
        far: bool,
        refused: bool,
        alone: impl FnOnce() -> bool,
    ) -> Status {
        let labelled = self.affinity.iter().all(|t| near(&t.topology_key).is_some());
        let company = || self.affinity.iter().all(|t| near(&t.topology_key).is_some_and(|n| n > 0));
        // The first of a group that wants to be with itself may go anywhere.
        if !labelled || !(company() || self.suits_itself && alone()) {
            return Status::unresolvable("node(s) didn't match pod affinity rules");
        }
        if far {
            return Status::unschedulable("node(s) didn't match pod anti-affinity rules");
        }
        if refused {
            return Status::unschedulable("node(s) didn't satisfy existing pods anti-affinity rules");
        }
        Status::SUCCESS
    }
}

#[derive(Clone, Debug)]
struct AffinityState {
    plan: Arc<Plan>,
    /// Domains with pods this one must be near.
    near: Vec<Domains>,
    /// Domains with pods this one must not be near.
    far: Vec<Domains>,
    /// Domains that pods already there keep this one out of.
    refused: Vec<Domains>,
}

impl AffinityState {
    fn shift(&mut self, other: &PodInfo, node: &NodeInfo, by: i64) {
        let plan = Arc::clone(&self.plan);
        let mut adds = Adds::default();
        plan.add(&node.base, other, by, &mut adds);
        shift(&mut self.near, &node.base, &adds.near);
        shift(&mut self.far, &node.base, &adds.far);
        shift(&mut self.refused, &node.base, &adds.refused);
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo) -> Result<PreFiltered, Status> {
        if pod.affinity.is_empty() && pod.anti_affinity.is_empty() && !cx.snapshot.any_anti_affinity() {
            return Err(Status::SKIP);
        }
        let plan = Plan::of(cx, pod);
        let (mut near, mut far, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut look = |node: &NodeInfo| {
            let adds = plan.adds(node);
            count(&mut near, &node.base, &adds.near);
            count(&mut far, &node.base, &adds.far);
            count(&mut refused, &node.base, &adds.refused);
        };
        if plan.wants_nothing() {
            cx.snapshot.with_anti_affinity().for_each(|n| look(n));
            // Who refuses it from a node that is in no domain refuses it nowhere.
            if refused.iter().all(|d| d.total() <= 0) {
                return Err(Status::SKIP);
            }
        } else {
            cx.snapshot.nodes().iter().for_each(|n| look(n));
        }
        state.put(AffinityState { plan: Arc::new(plan), near, far, refused });
        Ok(PreFiltered::All)
    }

    fn add_pod(&self, _: Context<'_>, state: &mut CycleState, _: &PodInfo, added: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<AffinityState>() {
            notes.shift(added, node, 1);
        }
    }

    fn remove_pod(&self, _: Context<'_>, state: &mut CycleState, _: &PodInfo, removed: &PodInfo, node: &NodeInfo) {
        if let Some(notes) = state.get_mut::<AffinityState>() {
            notes.shift(removed, node, -1);
        }
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(AffinityState { plan, near, far, refused }) = state.get::<AffinityState>() else {
            return Status::SUCCESS;
        };
        let base = &node.base;
        let some = |list: &[Domains]| list.iter().any(|d| d.at(base).is_some_and(|n| n > 0));
        let near_at = |key: &str| match near.iter().find(|d| d.key() == key) {
            Some(domains) => domains.at(base),
            None => base.labels.contains_key(key).then_some(0),
        };
        plan.judge(near_at, some(far), some(refused), || near.iter().all(|d| d.total() <= 0))
    }
}

/// Plan whose amounts are kept current.
pub(super) struct FilterRule {
    plan: Arc<Plan>,
    near: Trackers,
    far: Trackers,
    refused: Trackers,
}

impl FilterRule {
    pub(super) fn new(plan: Plan) -> Self {
        // Whether there is anybody is all that matters.
        let trackers = || Trackers::new(i64::signum);
        Self { plan: Arc::new(plan), near: trackers(), far: trackers(), refused: trackers() }
    }
}

impl NodeRule for FilterRule {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.plan.affinity, &self.plan.anti_affinity, &self.plan.namespace_labels).hash(&mut hasher);
        hasher.finish()
    }

    fn update(&mut self, snapshot: &Snapshot, slot: usize, touched: &mut Touched) {
        let nodes = snapshot.nodes();
        let mut adds = Adds::default();
        if let Some(node) = nodes.get(slot) {
            adds = self.plan.adds(node);
            // Where nobody is, the label itself matters.
            self.plan.affinity.iter().for_each(|t| adds.near.add(&node.base, &t.topology_key, 0));
        }
        self.near.set(nodes, slot, &adds.near.0, touched);
        self.far.set(nodes, slot, &adds.far.0, touched);
        self.refused.set(nodes, slot, &adds.refused.0, touched);
    }

    fn facet(&self, slot: usize, out: &mut Vec<i64>) {
        let all = self.near.list().iter().chain(self.far.list()).chain(self.refused.list());
        out.extend(all.map(|t| t.token(slot)));
    }

    fn width(&self) -> usize {
        [&self.near, &self.far, &self.refused].map(|trackers| trackers.list().len()).iter().sum()
    }

    fn filter(&self, facet: &[i64]) -> Status {
        let (near, rest) = facet.split_at(self.near.list().len().min(facet.len()));
        let (far, refused) = rest.split_at(self.far.list().len().min(rest.len()));
        let some = |trackers: &Trackers, tokens: &[i64]| {
            trackers.list().iter().zip(tokens).any(|(t, token)| t.sum(*token).is_some_and(|n| n > 0))
        };
        let near_at = |key: &str| {
            let found = self.near.list().iter().zip(near).find(|(t, _)| t.domains().key() == key);
            found.and_then(|(t, token)| t.sum(*token))
        };
        let alone = || self.near.list().iter().all(|t| t.domains().total() <= 0);
        self.plan.judge(near_at, some(&self.far, far), some(&self.refused, refused), alone)
    }

    fn is_idle(&self) -> bool {
        self.plan.wants_nothing() && self.refused.list().iter().all(|t| t.domains().total() <= 0)
    }

    fn note(&self, state: &mut CycleState) {
        let domains = |trackers: &Trackers| trackers.list().iter().map(|t| t.domains().clone()).collect();
        let (near, far, refused) = (domains(&self.near), domains(&self.far), domains(&self.refused));
        state.put(AffinityState { plan: Arc::clone(&self.plan), near, far, refused });
    }
}
