//! Candidates that pods with equal demands share.
//!
//! HOT (held by `examples/throughput.rs`, shape `preemption`). What would have to leave a node depends on the pod's demand
//! and the node (those it is promised to included) alone as long as every filter does and no budget has changed. Anything
//! else is worked out anew.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::candidate::{Candidate, Rank, Search};
use crate::framework::plugin::Context;
use crate::framework::{CycleState, Status};
use crate::model::{Demand, PodInfo};

/// Demands whose candidates are kept, the latest first.
const MAX_DEMANDS: usize = 16;

/// A candidate, or why there is none.
pub(super) type Answer = Arc<Result<Candidate, Status>>;

#[derive(Clone)]
struct KnownSlot {
    /// The slot's change that was seen.
    changed: u64,
    rank: Option<Rank>,
    answer: Answer,
}

struct RememberedCandidates {
    demand: Arc<Demand>,
    budgets: u64,
    /// Version of the promises that the candidates are of.
    promises: u64,
    /// By slot.
    answers: Vec<Option<KnownSlot>>,
}

impl RememberedCandidates {
    /// Forgets nodes whose promises have changed; `false` when that can no longer be told.
    fn follow(&mut self, cx: Context<'_>) -> bool {
        let Some(changed) = cx.nominated.changes_since(self.promises) else { return false };
        for slot in changed.filter_map(|name| cx.snapshot.position(name)) {
            if let Some(answer) = self.answers.get_mut(slot) {
                *answer = None;
            }
        }
        self.promises = cx.nominated.version();
        true
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Remembered(VecDeque<RememberedCandidates>);

impl Remembered {
    fn of(&mut self, cx: Context<'_>, pod: &PodInfo) -> &mut RememberedCandidates {
        let budgets = cx.listers.budgets_version();
        let at = self.0.iter().position(|k| Arc::ptr_eq(&k.demand, &pod.demand));
        let mut kept = at.and_then(|at| self.0.remove(at)).filter(|kept| kept.budgets == budgets);
        if kept.as_mut().is_some_and(|kept| !kept.follow(cx)) {
            kept = None;
        }
        let kept = kept.unwrap_or_else(|| RememberedCandidates {
            demand: Arc::clone(&pod.demand),
            budgets,
            promises: cx.nominated.version(),
            answers: Vec::new(),
        });
        self.0.push_front(kept);
        self.0.truncate(MAX_DEMANDS);
        &mut self.0[0]
    }

    /// Begins to ask what would have to leave nodes.
    pub(super) fn ask<'a>(
        &'a mut self,
        search: Search<'a>,
        cx: Context<'a>,
        state: &CycleState,
        pod: &PodInfo,
    ) -> Asking<'a> {
        // A pod's own promise does not stand in its way, but in that of others like it.
        let own = cx.nominated.node_of(&pod.uid).and_then(|name| cx.snapshot.position(name));
        Asking { search, cx, kept: state.node_only.then(|| self.of(cx, pod)), own, anew: HashMap::new() }
    }
}

/// Search for victims of one pod.
pub(super) struct Asking<'a> {
    search: Search<'a>,
    cx: Context<'a>,
    kept: Option<&'a mut RememberedCandidates>,
    /// The node that the pod itself was promised.
    own: Option<usize>,
    /// Answers that cannot be kept.
    anew: HashMap<usize, Answer>,
}

impl Asking<'_> {
    /// Returns the rank of a node as a candidate; `None` when it is none.
    pub(super) fn rank(&mut self, slot: usize) -> Option<Rank> {
        let node = &self.cx.snapshot.nodes()[slot];
        let Some(kept) = self.kept.as_mut().filter(|_| self.own != Some(slot)) else {
            let answer = Arc::new(self.search.victims(node));
            let rank = (*answer).as_ref().ok().map(Candidate::rank);
            self.anew.insert(slot, answer);
            return rank;
        };
        if kept.answers.len() <= slot {
            kept.answers.resize(slot + 1, None);
        }
        let changed = self.cx.snapshot.changed_at(slot);
        match &kept.answers[slot] {
            Some(known) if known.changed == changed => known.rank,
            _ => {
                let answer = Arc::new(self.search.victims(node));
                let rank = (*answer).as_ref().ok().map(Candidate::rank);
                kept.answers[slot] = Some(KnownSlot { changed, rank, answer });
                rank
            }
        }
    }

    /// Returns the answer about a node that was searched.
    pub(super) fn answer(&self, slot: usize) -> Option<&Answer> {
        let kept = || Some(&self.kept.as_ref()?.answers.get(slot)?.as_ref()?.answer);
        self.anew.get(&slot).or_else(kept)
    }
}
