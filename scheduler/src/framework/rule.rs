//! Dependencies of a plugin's answers: the one thing it has to say so that they are remembered between pods.
//!
//! Pods with equal demands share a table of answers (see [`super::table`]). A plugin that looks at nothing but the pod's
//! demand and the node says [`Depends::Node`], and is asked again about changed nodes only. A plugin that also looks at
//! the cluster offers [`Rules`]: what a node *adds* to its counts and what it *shows* of them (its facet) are followed node
//! by node, and the verdict is passed on facets, of which there are few. A plugin that says nothing is asked always.

use super::domains::Touched;
use super::plugin::Context;
use super::state::CycleState;
use super::status::Status;
use crate::model::{PodInfo, Snapshot};

/// Inputs of Filter, PreScore and Score beside the pod's demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depends {
    /// Anything at all.
    #[default]
    Anything,
    /// The node and its pods. PreFilter and PreScore look at the pod's demand alone and leave no notes.
    Node,
    /// Only what [`Rules`] say.
    Rules,
}

/// Answers for all nodes that show the same.
pub trait NodeRule: Send + Sync {
    /// Equal for rules that count the same and judge the same.
    fn fingerprint(&self) -> u64;

    /// The node in a slot came, changed or went (then the slot is past the end).
    fn update(&mut self, snapshot: &Snapshot, slot: usize, touched: &mut Touched);

    /// Writes down what a slot shows; always the same number of values until `touched.all` was set.
    fn facet(&self, slot: usize, out: &mut Vec<i64>);

    /// Number of values that it keeps of each slot, for the budget of memory.
    fn width(&self) -> usize;

    /// Can the pod run where this is shown?
    fn filter(&self, _facet: &[i64]) -> Status {
        Status::SUCCESS
    }

    /// Before scores are asked for: what the fitting nodes show, and how many show it.
    fn prepare(&mut self, _cx: Context<'_>, _fitting: &[(&[i64], usize)]) {}

    /// Scores a facet, as [`super::plugin::Score::score`] scores a node.
    fn score(&self, _facet: &[i64]) -> i64 {
        0
    }

    /// Reports whether the plugin's PreFilter would ask to be skipped.
    fn is_idle(&self) -> bool {
        false
    }

    /// Leaves the notes that the plugin's PreFilter would have left.
    fn note(&self, _state: &mut CycleState) {}
}

/// Makes rules for pods.
pub trait Rules: Send + Sync {
    /// In place of PreFilter and Filter.
    fn hard(&self, _cx: Context<'_>, _pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        None
    }

    /// In place of PreScore and Score.
    fn soft(&self, _cx: Context<'_>, _pod: &PodInfo) -> Option<Box<dyn NodeRule>> {
        None
    }
}
