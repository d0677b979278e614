//! Constraints that are mere wishes. Answers for upstream's `initPreScoreState`, `scoreForCount`.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::{HOSTNAME, PodTopologySpread, count, counts_node, has_all_keys};
use crate::framework::domains::{Domains, MISSING, Touched, Tracker};
use crate::framework::plugin::{Context, MAX_NODE_SCORE, PreScore, Score};
use crate::framework::rule::NodeRule;
use crate::framework::{CycleState, Status};
use crate::model::{Demand, NodeBase, NodeInfo, PodInfo, Snapshot, SpreadConstraint};

/// The score of nodes that lack a label and therefore count for nothing.
const IGNORED: i64 = i64::MIN;

/// Preferred constraints of the pod.
#[derive(Debug)]
pub(super) struct Plan {
    pod: Arc<Demand>,
    constraints: Vec<SpreadConstraint>,
    /// Nodes that lack a label count for nothing.
    require_all: bool,
}

impl PodTopologySpread {
    pub(super) fn soft_plan(&self, cx: Context<'_>, pod: &PodInfo) -> Option<Plan> {
        let constraints = self.constraints(cx, pod, false);
        let require_all = !pod.spread.is_empty() || !self.system;
        (!constraints.is_empty()).then(|| Plan { pod: Arc::clone(&pod.demand), constraints, require_all })
    }
}

impl Plan {
    fn ignores(&self, node: &NodeBase) -> bool {
        self.require_all && !has_all_keys(&self.constraints, node)
    }

    /// Returns how many pods a node that is not ignored adds to a constraint's domain; `None` when it does not count.
    fn adds(&self, c: &SpreadConstraint, node: &NodeInfo) -> Option<i64> {
        counts_node(c, &self.pod, &node.base).then(|| count(c, &self.pod, node))
    }

    /// The score for each constraint's count at a node (`None`: the label is missing).
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
    fn score(&self, weights: &[f64], here: impl Iterator<Item = Option<i64>>) -> i64 {
        let mut score = 0.0;
        for ((c, weight), pods) in self.constraints.iter().zip(weights).zip(here) {
            match pods {
                Some(pods) => score += pods as f64 * weight + f64::from(c.max_skew - 1),
                None if self.require_all => return IGNORED,
                None => {}
            }
        }
        score.round() as i64
    }
}

/// Domains that differ more count for more.
#[expect(clippy::cast_precision_loss, reason = "upstream's formula in floats")]
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

#[derive(Clone, Debug)]
struct SpreadScores {
    plan: Arc<Plan>,
    weights: Vec<f64>,
    /// Unused for hostnames, which are counted node by node.
    domains: Vec<Domains>,
}

impl PreScore for PodTopologySpread {
    fn pre_score(&self, cx: Context<'_>, state: &mut CycleState, pod: &PodInfo, nodes: &[&NodeInfo]) -> Status {
        let Some(plan) = self.soft_plan(cx, pod) else { return Status::SKIP };
        let fitting: Vec<&NodeInfo> = nodes.iter().copied().filter(|n| !plan.ignores(&n.base)).collect();
        let size = |c: &SpreadConstraint| {
            if c.topology_key == HOSTNAME {
                return fitting.len();
            }
            // Nodes without the label that count all the same are a domain of their own.
            fitting.iter().map(|n| n.base.labels.get(&c.topology_key)).collect::<HashSet<_>>().len()
        };
        let weights = plan.constraints.iter().map(|c| weight(size(c))).collect();
        let mut domains: Vec<Domains> = plan.constraints.iter().map(|c| Domains::new(&c.topology_key)).collect();
        let counted: Vec<_> = cx.snapshot.nodes().iter().filter(|node| !plan.ignores(&node.base)).collect();
        for (c, domains) in plan.constraints.iter().zip(&mut domains).filter(|(c, _)| c.topology_key != HOSTNAME) {
            for node in &counted {
                if let Some(pods) = plan.adds(c, node) {
                    domains.count(&node.base, pods);
                }
            }
        }
        state.put(SpreadScores { plan: Arc::new(plan), weights, domains });
        Status::SUCCESS
    }
}

impl Score for PodTopologySpread {
    fn score(&self, _: Context<'_>, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let Some(SpreadScores { plan, weights, domains }) = state.get::<SpreadScores>() else { return 0 };
        let here = plan.constraints.iter().zip(domains).map(|(c, domains)| {
            if c.topology_key == HOSTNAME {
                return node.base.labels.get(HOSTNAME).map(|_| count(c, pod, node));
            }
            domains.at(&node.base)
        });
        plan.score(weights, here)
    }

    fn normalize(&self, scores: &mut [i64]) {
        let counted = || scores.iter().copied().filter(|s| *s != IGNORED);
        let (min, max) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
        for score in scores {
            *score = match *score {
                IGNORED => 0,
                _ if max == 0 => MAX_NODE_SCORE,
                s => MAX_NODE_SCORE * (max + min - s) / max,
            };
        }
    }
}

/// One constraint's counts, kept current.
enum DomainCounts {
    /// Pods on each node.
    Hosts(Vec<i64>),
    Domains(Tracker),
}

/// Plan whose counts are kept current.
pub(super) struct ScoreRule {
    plan: Plan,
    counts: Vec<DomainCounts>,
    weights: Vec<f64>,
}

impl ScoreRule {
    pub(super) fn new(plan: Plan) -> Self {
        let counts = plan.constraints.iter().map(|c| match c.topology_key.as_str() {
            HOSTNAME => DomainCounts::Hosts(Vec::new()),
            key => DomainCounts::Domains(Tracker::whole(key)),
        });
        Self { counts: counts.collect(), weights: vec![0.0; plan.constraints.len()], plan }
    }
}

impl NodeRule for ScoreRule {
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.plan.constraints, self.plan.require_all).hash(&mut hasher);
        hasher.finish()
    }

    fn update(&mut self, snapshot: &Snapshot, slot: usize, touched: &mut Touched) {
        let node = snapshot.nodes().get(slot);
        let counted = node.filter(|node| !self.plan.ignores(&node.base));
        for (c, counts) in self.plan.constraints.iter().zip(&mut self.counts) {
            match counts {
                DomainCounts::Hosts(shown) => {
                    if shown.len() <= slot {
                        shown.resize(slot + 1, MISSING);
                    }
                    let host = node.filter(|n| n.base.labels.contains_key(HOSTNAME));
                    shown[slot] = host.map_or(MISSING, |n| count(c, &self.plan.pod, n));
                }
                DomainCounts::Domains(tracker) => {
                    let adds = counted.and_then(|n| self.plan.adds(c, n));
                    tracker.set(slot, node.map(|n| &*n.base), adds, touched);
                }
            }
        }
    }

    fn facet(&self, slot: usize, out: &mut Vec<i64>) {
        out.extend(self.counts.iter().map(|counts| match counts {
            DomainCounts::Hosts(shown) => shown.get(slot).copied().unwrap_or(MISSING),
            DomainCounts::Domains(tracker) => tracker.token(slot),
        }));
    }

    fn width(&self) -> usize {
        self.counts.len()
    }

    fn prepare(&mut self, _: Context<'_>, fitting: &[(&[i64], usize)]) {
        let counted = || fitting.iter().filter(|(facet, _)| !(self.plan.require_all && facet.contains(&MISSING)));
        let size = |(i, counts): (usize, &DomainCounts)| match counts {
            DomainCounts::Hosts(_) => counted().map(|(_, n)| n).sum(),
            DomainCounts::Domains(_) => {
                let mut domains: Vec<i64> = counted().map(|(facet, _)| facet[i]).collect();
                domains.sort_unstable();
                domains.dedup();
                domains.len()
            }
        };
        self.weights = self.counts.iter().enumerate().map(|c| weight(size(c))).collect();
    }

    fn score(&self, facet: &[i64]) -> i64 {
        let here = self.counts.iter().zip(facet).map(|(counts, token)| match counts {
            DomainCounts::Hosts(_) => (*token != MISSING).then_some(*token),
            DomainCounts::Domains(tracker) => tracker.sum(*token),
        });
        self.plan.score(&self.weights, here)
    }
}
