//! The view that pure plugins have of the cluster.

use super::lister::Listers;
use super::nominated::Nominated;
use crate::model::Snapshot;

/// The best a node can score at one plugin.
pub const MAX_NODE_SCORE: i64 = 100;

/// Inputs that pure plugins may look at.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Nodes and their pods.
    pub snapshot: &'a Snapshot,
    /// Other objects.
    pub listers: &'a dyn Listers,
    /// Pods that have been promised a node.
    pub nominated: &'a Nominated,
    /// Now, for comparing pods by age.
    pub now: jiff::Timestamp,
}
