//! Wishes to be near or far: the pod's own, and those of pods that are there. Answers for upstream's
//! `processExistingPod`, `NormalizeScore`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::{Amounts, InterPodAffinity, count, resolved};
use crate::framework::domains::{Domains, Touched, Trackers};
use crate::framework::plugin::{Context, MAX_NODE_SCORE, PreScore, Score};
use crate::framework::rule::NodeRule;
use crate::framework::{CycleState, Status};
use crate::model::demand::Weighted;
use crate::model::selector::Labels;
use crate::model::{AffinityTerm, Demand, NodeInfo, PodInfo, Snapshot};

/// Preferred terms of the pod.
#[derive(Debug)]
pub(super) struct Plan {
    pod: Arc<Demand>,
    /// The pod's own wishes; a negative weight keeps away.
    wishes: Vec<Weighted<AffinityTerm>>,
    namespace_labels: Option<Labels>,
    /// Weight of required affinity of pods already there.
    hard_weight: i64,
}

impl InterPodAffinity {
    pub(super) fn soft_plan(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Plan> {
        let own = !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
        if !own && self.ignore_preferred_terms_of_existing_pods {
            return None;
        }
        let near = pod.preferred_affinity.iter().map(|w| (w.weight, &w.term));
        let far = pod.preferred_anti_affinity.iter().map(|w| (-w.weight, &w.term));
        Some(Plan {
            wishes: near.chain(far).map(|(weight, t)| Weighted { weight, term: resolved(cx, t) }).collect(),
            namespace_labels: cx.listers.namespace_labels(&pod.namespace),
            hard_weight: self.hard_pod_affinity_weight,
            pod: Arc::clone(&pod.demand),
        })
    }
}

impl Plan {
    /// Returns the weight of the pods of a node, by topology key.
    fn adds<'a>(&'a self, node: &'a NodeInfo) -> Amounts<'a> {
        let mut out = Amounts::default();
        let theirs = |t: &AffinityTerm| t.matches(&self.pod, self.namespace_labels.as_ref());
        for other in &node.with_affinity {
            if self.hard_weight > 0 {
                for t in other.affinity.iter().filter(|t| theirs(t)) {
                    out.add(&node.base, &t.topology_key, self.hard_weight);
                }
            }
            for w in other.preferred_affinity.iter().filter(|w| theirs(&w.term)) {
                out.add(&node.base, &w.term.topology_key, w.weight);
            }
            for w in other.preferred_anti_affinity.iter().filter(|w| theirs(&w.term)) {
                out.add(&node.base, &w.term.topology_key, -w.weight);
            }
        }
        if !self.wishes.is_empty() {
            for kind in node.pods.chunk_by(|a, b| Arc::ptr_eq(&a.demand, &b.demand)) {
                for w in self.wishes.iter().filter(|w| w.term.matches(&kind[0].demand, None)) {
                    out.add(&node.base, &w.term.topology_key, w.weight * i64::try_from(kind.len()).unwrap_or(i64::MAX));
                }
            }
        }
        out
    }
}

#[derive(Clone, Debug)]
struct AffinityScores(Vec<Domains>);

impl PreScore for InterPodAffinity {
    fn pre_score(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, _: &[&NodeInfo]) -> Status {
        let Some(plan) = self.soft_plan(cx, pod) else { return Status::SKIP };
        let mut sums = Vec::new();
        let mut look = |node: &NodeInfo| count(&mut sums, &node.base, &plan.adds(node));
        if plan.wishes.is_empty() {
            cx.snapshot.with_affinity().for_each(|n| look(n));
        } else {
            cx.snapshot.nodes().iter().for_each(|n| look(n));
        }
        if sums.is_empty() {
            return Status::SKIP;
        }
        state.put(AffinityScores(sums));
        Status::SUCCESS
    }
}

impl Score for InterPodAffinity {
    fn score(&self, _: Context<'_>, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> i64 {
        state.get::<AffinityScores>().map_or(0, |notes| notes.0.iter().filter_map(|d| d.at(&node.base)).sum())
    }

    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
    fn normalize(&self, scores: &mut [i64]) {
        let (min, max) = (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
        for s in scores {
            // In fractions, as upstream: 29 of 100 are 28.
            let part = (*s - min) as f64 / (max - min).max(1) as f64;
            *s = (MAX_NODE_SCORE as f64 * part) as i64;
        }
    }
}

/// Plan whose amounts are kept current.
pub(super) struct ScoreRule {
    plan: Plan,
    sums: Trackers,
}

impl ScoreRule {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, sums: Trackers::new(|sum| sum) }
    }
}

impl NodeRule for ScoreRule {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.plan.wishes, &self.plan.namespace_labels).hash(&mut hasher);
        hasher.finish()
    }

    fn update(&mut self, snapshot: &Snapshot, slot: usize, touched: &mut Touched) {
        let nodes = snapshot.nodes();
        let adds = nodes.get(slot).map(|node| self.plan.adds(node)).unwrap_or_default();
        self.sums.set(nodes, slot, &adds.0, touched);
    }

    fn facet(&self, slot: usize, out: &mut Vec<i64>) {
        out.extend(self.sums.list().iter().map(|t| t.token(slot)));
    }

    fn width(&self) -> usize {
        self.sums.list().len()
    }

    fn score(&self, facet: &[i64]) -> i64 {
        self.sums.list().iter().zip(facet).filter_map(|(t, token)| t.sum(*token)).sum()
    }
}
