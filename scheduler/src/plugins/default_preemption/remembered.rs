//! Candidates that pods with equal demands share.
//!
//! HOT (held by `examples/throughput.rs`, shape `preemption`). What would have to leave a node depends on the pod's demand
//! and the node alone as long as every filter does, nobody was promised the node and no budget has changed. Anything else
//! is worked out anew.

use std::collections::VecDeque;
use std::sync::Arc;

use super::candidate::{Candidate, Search};
use crate::framework::plugin::Context;
use crate::framework::{CycleState, Status};
use crate::model::{Demand, PodInfo};

/// Demands whose candidates are kept, the latest first.
const MAX_DEMANDS: usize = 16;

/// A candidate, or why there is none.
pub(super) type Answer = Arc<Result<Candidate, Status>>;

struct Kept {
    demand: Arc<Demand>,
    budgets: u64,
    /// By slot, with the slot's change that was seen.
    answers: Vec<Option<(u64, Answer)>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Remembered(VecDeque<Kept>);

impl Remembered {
    fn of(&mut self, cx: Context<'_>, pod: &PodInfo) -> &mut Kept {
        let budgets = cx.listers.budgets_version();
        let kept =
            match self.0.iter().position(|k| Arc::ptr_eq(&k.demand, &pod.demand)).and_then(|at| self.0.remove(at)) {
                Some(kept) if kept.budgets == budgets => kept,
                _ => Kept { demand: Arc::clone(&pod.demand), budgets, answers: Vec::new() },
            };
        self.0.push_front(kept);
        self.0.truncate(MAX_DEMANDS);
        &mut self.0[0]
    }

    /// What would have to leave each node, asked for one by one.
    pub(super) fn ask<'a>(
        &'a mut self,
        search: &'a Search<'a>,
        cx: Context<'a>,
        state: &CycleState,
        pod: &PodInfo,
    ) -> impl FnMut(usize) -> Answer + 'a {
        let mut kept = state.node_only.then(|| self.of(cx, pod));
        move |slot| {
            let node = &cx.snapshot.nodes()[slot];
            let kept = kept.as_mut().filter(|_| cx.nominated.on(node.name()).is_empty());
            let Some(kept) = kept else { return Arc::new(search.victims(node)) };
            if kept.answers.len() <= slot {
                kept.answers.resize(slot + 1, None);
            }
            let changed = cx.snapshot.changed_at(slot);
            match &kept.answers[slot] {
                Some((seen, answer)) if *seen == changed => Arc::clone(answer),
                _ => {
                    let answer = Arc::new(search.victims(node));
                    kept.answers[slot] = Some((changed, Arc::clone(&answer)));
                    answer
                }
            }
        }
    }
}
