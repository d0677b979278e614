//! One decision: which node for this pod. Answers for upstream's `schedulePod`, `findNodesThatFitPod`,
//! `prioritizeNodes`, `newSortedNodeScores`.
//!
//! HOT (held by `examples/throughput.rs`): once per pod. Goes by remembered answers where there are any (see
//! [`super::table`]). The plain way filters nodes in turn, starting where the last cycle stopped, until enough fit; scores
//! those; picks one of the best at random.

use std::sync::Arc;

use rand::Rng;

use super::diagnosis::{Diagnosis, Failure};
use super::extender;
use super::plugin::Context;
use super::profile::Profile;
use super::state::CycleState;
use super::status::{Code, Status};
use super::table::Tables;
use crate::metrics::{Point, timed};
use crate::model::{NodeInfo, PodInfo};

/// Never look for fewer fitting nodes than this.
pub(super) const MIN_FEASIBLE_NODES: usize = 100;
/// Never look at a smaller share of the cluster than this, in percent.
const MIN_PERCENTAGE: usize = 5;

/// A decision.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The node.
    pub node: Arc<NodeInfo>,
    /// Number of nodes that were looked at.
    pub evaluated: usize,
    /// Number of nodes that fit.
    pub feasible: usize,
}

/// State that carries over from one decision to the next.
#[derive(Debug, Default)]
pub struct Cursor {
    /// Index of the node at which the next search starts.
    pub start: usize,
    /// Percentage of nodes to score where the profile names none; 0 adapts. Remembered answers cost nothing, so with them
    /// all nodes are scored.
    pub percentage: i32,
    /// Answers that pods with equal demands share.
    pub tables: Tables,
}

impl Profile {
    /// Decides. The failure carries everything needed to explain it and to retry well.
    pub fn schedule(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        cursor: &mut Cursor,
        rng: &mut impl Rng,
    ) -> Result<Placement, Failure> {
        if cx.snapshot.nodes().is_empty() {
            return Err(Failure::NoNodes);
        }
        // What extenders say cannot be remembered.
        let asked = self.extenders.iter().any(|e| e.interested(pod));
        if !asked && let Some(answer) = self.recall(cx, state, pod, &mut cursor.tables, rng) {
            return answer;
        }
        self.schedule_plainly(cx, state, pod, cursor, rng)
    }

    /// The plain way: asks every plugin about every node it looks at.
    ///
    /// # Errors
    /// As [`Profile::schedule`].
    pub fn schedule_plainly(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        cursor: &mut Cursor,
        rng: &mut impl Rng,
    ) -> Result<Placement, Failure> {
        let mut diagnosis = Diagnosis { nodes: cx.snapshot.nodes().len(), ..Diagnosis::default() };
        let promised = self.promised_slot(cx, pod);
        let found = self.feasible(cx, state, pod, (promised, cursor), &mut diagnosis)?;
        let by_promise = promised.is_some_and(|at| found == [at]);
        let mut evaluated = found.len() + diagnosis.rejected.len();
        let feasible = extender::filter(&self.extenders, pod, cx.snapshot, found, &mut diagnosis);
        let mut feasible = feasible.map_err(Failure::Broken)?;
        // Extenders do not want it there: others may do.
        if feasible.is_empty() && by_promise {
            diagnosis = Diagnosis { nodes: cx.snapshot.nodes().len(), ..Diagnosis::default() };
            let found = self.feasible(cx, state, pod, (None, cursor), &mut diagnosis)?;
            evaluated = found.len() + diagnosis.rejected.len();
            let asked = extender::filter(&self.extenders, pod, cx.snapshot, found, &mut diagnosis);
            feasible = asked.map_err(Failure::Broken)?;
        }
        let all = cx.snapshot.nodes();
        let at = match feasible.as_slice() {
            [] => return Err(Failure::Unfit(Box::new(diagnosis))),
            [only] => *only,
            many => {
                let nodes: Vec<&NodeInfo> = many.iter().map(|&at| &*all[at]).collect();
                let mut scores = self.score(cx, state, pod, &nodes).map_err(Failure::Broken)?;
                extender::prioritize(&self.extenders, pod, &nodes, &mut scores);
                many[pick(&scores, rng)]
            }
        };
        Ok(Placement { node: Arc::clone(&all[at]), evaluated, feasible: feasible.len() })
    }

    fn feasible(
        &self,
        cx: Context<'_>,
        state: &mut CycleState,
        pod: &PodInfo,
        (promised, cursor): (Option<usize>, &mut Cursor),
        diagnosis: &mut Diagnosis,
    ) -> Result<Vec<usize>, Failure> {
        let limit = match timed(Point::PreFilter, &self.name, || self.pre_filter(cx, state, pod)) {
            Ok(limit) => limit,
            Err(status) if status.is_rejected() => {
                diagnosis.pre_filter = status.to_string();
                diagnosis.blame(&status);
                diagnosis.others = Some(status);
                return Ok(Vec::new());
            }
            Err(status) => return Err(Failure::Broken(status)),
        };
        timed(Point::Filter, &self.name, || {
            let all = cx.snapshot.nodes();
            let filters = self.active_filters(state);
            if let Some(at) = promised
                && self.filter_node(cx, state, &filters, pod, &all[at]).is_success()
            {
                return Ok(vec![at]);
            }
            let state: &CycleState = state;
            let fits = |at: usize, status: Status, diagnosis: &mut Diagnosis| {
                match status.code() {
                    Code::Success => return Ok(true),
                    Code::Error => return Err(Failure::Broken(status)),
                    _ => diagnosis.reject(at, status),
                }
                Ok(false)
            };
            let mut found = Vec::new();
            if let Some(mut limit) = limit {
                limit.plugins.sort_unstable();
                let said = format!("node(s) didn't satisfy plugin(s) [{}]", limit.plugins.join(" "));
                diagnosis.others = Some(Status::unresolvable(said));
                diagnosis.plugins.extend(limit.plugins);
                for at in limit.names.iter().flatten().filter_map(|n| cx.snapshot.position(n)) {
                    let status = self.filter_node(cx, state, &filters, pod, &all[at]);
                    found.extend(fits(at, status, diagnosis)?.then_some(at));
                }
                return Ok(found);
            }
            let wanted = nodes_to_find(self.percentage.unwrap_or(cursor.percentage), all.len());
            found.reserve(wanted.min(all.len()));
            let start = cursor.start % all.len();
            let order = cx.snapshot.order();
            let mut looked = 0;
            while looked < all.len() && found.len() < wanted {
                // So many are looked at in any case; where few fit, several threads may well look at more.
                let ahead = if self.threads.is_one() { 0 } else { looked };
                let block = (wanted - found.len()).max(ahead).min(all.len() - looked);
                let slots: Vec<usize> = (looked..looked + block).map(|i| order[(start + i) % all.len()]).collect();
                let said = self.threads.map(&slots, |&at| self.filter_node(cx, state, &filters, pod, &all[at]));
                for (at, status) in slots.into_iter().zip(said) {
                    looked += 1;
                    found.extend(fits(at, status, diagnosis)?.then_some(at));
                    if found.len() == wanted {
                        break;
                    }
                }
            }
            cursor.start = (start + looked) % all.len();
            Ok(found)
        })
    }
}

/// Number of fitting nodes that are enough (upstream's numFeasibleNodesToFind).
pub fn nodes_to_find(percentage: i32, nodes: usize) -> usize {
    if nodes < MIN_FEASIBLE_NODES {
        return nodes;
    }
    let percentage = match usize::try_from(percentage) {
        Ok(0) | Err(_) => 50_usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE),
        Ok(set) => set,
    };
    (nodes * percentage / 100).max(MIN_FEASIBLE_NODES)
}

/// The position of a highest score, each with the same chance.
fn pick(scores: &[i64], rng: &mut impl Rng) -> usize {
    let mut best = 0;
    let mut ties = 1_u32;
    for (i, score) in scores.iter().enumerate().skip(1) {
        if *score > scores[best] {
            (best, ties) = (i, 1);
        } else if *score == scores[best] {
            ties += 1;
            if rng.random_range(0..ties) == 0 {
                best = i;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn how_many_nodes_are_enough() {
        for (percentage, nodes, want) in [
            (0, 50, 50),
            (0, 100, 100),
            (0, 1000, 420),
            (0, 5000, 500),
            (0, 6000, 300),
            (30, 1000, 300),
            (1, 1000, 100),
            (100, 1000, 1000),
        ] {
            assert_eq!(nodes_to_find(percentage, nodes), want, "{percentage}% of {nodes}");
        }
    }

    #[test]
    fn ties_are_broken_evenly() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut hits = [0; 4];
        for _ in 0..3000 {
            hits[pick(&[7, 1, 7, 7], &mut rng)] += 1;
        }
        assert_eq!(hits[1], 0);
        assert!(hits.iter().enumerate().all(|(i, n)| i == 1 || (800..1200).contains(n)), "{hits:?}");
    }
}
