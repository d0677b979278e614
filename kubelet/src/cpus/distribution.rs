//! Choice of processors that spreads them evenly over NUMA nodes where one has not enough. Pure; upstream's
//! `takeByTopologyNUMADistributed`.
//!
//! Upstream keeps combinations of nodes in memory that later ones overwrite, so that on machines with more than four nodes
//! it now and then takes another combination than the one it found best. Here the best one is taken.

use super::assignment::{self, Level, Packing};
use super::error::TakeError;
use super::machine::Topology;
use crate::cpu_set::CpuSet;
use crate::topology::combinations;
use std::collections::BTreeMap;

/// A possible distribution.
struct Plan {
    nodes: Vec<u32>,
    /// Processors of each node, before the remainder.
    each: usize,
    /// Nodes that give the remainder, in turn.
    remainder: Vec<u32>,
    /// Standard deviation of what is left on all nodes, in thousandths.
    imbalance: f64,
}

/// Free processors and how many of them are handed out together.
struct Distribution<'a> {
    topology: &'a Topology,
    free: BTreeMap<u32, CpuSet>,
    /// Nodes with free processors, those with the fewest first.
    nodes: Vec<u32>,
    number: usize,
    group: usize,
}

/// Takes processors in groups, evenly from as few nodes as possible.
///
/// # Errors
/// There are not enough; upstream's text.
pub(super) fn take(topology: &Topology, available: &CpuSet, number: usize, group: usize) -> Result<CpuSet, TakeError> {
    let packed = || assignment::take(topology, available, number, Packing::Cores);
    if group == 0 || !number.is_multiple_of(group) || number == 0 {
        return packed();
    }
    if available.len() < number {
        return Err(TakeError::TooFew { number, available: available.len() });
    }
    let distribution = Distribution::new(topology, available, number, group);
    let sizes = distribution.sizes();
    let plan = sizes.into_iter().find_map(|size| distribution.best(size));
    plan.map_or_else(packed, |plan| distribution.carry_out(&plan))
}

impl<'a> Distribution<'a> {
    fn new(topology: &'a Topology, available: &CpuSet, number: usize, group: usize) -> Self {
        let at = |node| available.intersection(&topology.at(Level::Node, node));
        let free: BTreeMap<u32, CpuSet> = topology.ids(Level::Node).into_iter().map(|node| (node, at(node))).collect();
        let in_socket = |node: &u32| {
            let socket = topology.0.values().find(|place| place.node == *node).map_or(0, |place| place.socket);
            (available.intersection(&topology.at(Level::Socket, socket)).len(), socket)
        };
        let mut nodes: Vec<u32> = free.iter().filter(|(_, cpus)| !cpus.is_empty()).map(|(node, _)| *node).collect();
        let is_socket_outer = topology.count(Level::Socket) < topology.count(Level::Node);
        nodes.sort_by_key(|node| (is_socket_outer.then(|| in_socket(node)), free[node].len(), *node));
        Self { topology, free, nodes, number, group }
    }

    fn free_of(&self, node: u32) -> usize {
        self.free.get(&node).map_or(0, CpuSet::len)
    }

    /// Numbers of nodes that may be enough. Upstream's `rangeNUMANodesNeededToSatisfy`.
    fn sizes(&self) -> std::ops::RangeInclusive<usize> {
        let groups = self.topology.0.len().div_ceil(self.group);
        let per_node = groups.div_ceil(self.free.len().max(1)).max(1);
        let needed = self.number.div_ceil(self.group);
        needed.div_ceil(per_node)..=needed.min(self.nodes.len())
    }

    /// The most balanced distribution over some number of nodes; none where there is none.
    fn best(&self, size: usize) -> Option<Plan> {
        let mut best: Option<Plan> = None;
        for nodes in combinations(&self.nodes, size) {
            if best.as_ref().is_some_and(|best| best.imbalance == 0.0) {
                break;
            }
            let Some(plan) = self.plan(nodes) else { continue };
            if best.as_ref().is_none_or(|best| plan.imbalance < best.imbalance) {
                best = Some(plan);
            }
        }
        best
    }

    /// Distribution over some nodes; none where they have not enough for an even share each.
    fn plan(&self, nodes: Vec<u32>) -> Option<Plan> {
        let groups: usize = nodes.iter().map(|node| self.free_of(*node) / self.group).sum();
        let each = self.number / nodes.len() / self.group * self.group;
        if groups * self.group < self.number || nodes.iter().any(|node| self.free_of(*node) < each) {
            return None;
        }
        let is_used = |node: &u32| nodes.contains(node);
        let left: BTreeMap<u32, usize> =
            self.nodes.iter().map(|node| (*node, self.free_of(*node) - if is_used(node) { each } else { 0 })).collect();
        let rest = self.number - each * nodes.len();
        if rest == 0 {
            return Some(Plan { imbalance: deviation(&left), nodes, each, remainder: Vec::new() });
        }
        let able: Vec<u32> = nodes.iter().copied().filter(|node| left[node] >= self.group).collect();
        let subsets = (1..=able.len()).rev().flat_map(|size| combinations(&able, size));
        let mut best: Option<(Vec<u32>, f64)> = None;
        for subset in subsets {
            let Some(imbalance) = self.without_rest(&left, &subset, rest) else { continue };
            if best.as_ref().is_none_or(|(_, least)| imbalance < *least) {
                best = Some((subset, imbalance));
            }
        }
        best.map(|(remainder, imbalance)| Plan { nodes, each, remainder, imbalance })
    }

    /// Imbalance after some nodes gave the rest in turn; none where they have not enough.
    fn without_rest(&self, left: &BTreeMap<u32, usize>, subset: &[u32], mut rest: usize) -> Option<f64> {
        let mut left = left.clone();
        while rest > 0 {
            let before = rest;
            for node in subset {
                let here = left.get_mut(node).filter(|here| **here >= self.group && rest > 0);
                if let Some(here) = here {
                    *here -= self.group;
                    rest -= self.group;
                }
            }
            if rest == before {
                return None;
            }
        }
        Some(deviation(&left))
    }

    fn carry_out(&self, plan: &Plan) -> Result<CpuSet, TakeError> {
        let mut taken = CpuSet::default();
        let mut give = |node: u32, number: usize| -> Result<bool, TakeError> {
            let free = self.free.get(&node).map(|cpus| cpus.difference(&taken)).unwrap_or_default();
            if free.len() < number {
                return Ok(false);
            }
            taken = taken.union(&assignment::take(self.topology, &free, number, Packing::Cores)?);
            Ok(true)
        };
        for node in &plan.nodes {
            give(*node, plan.each)?;
        }
        let mut rest = self.number - plan.each * plan.nodes.len();
        while rest > 0 {
            let before = rest;
            for node in &plan.remainder {
                if rest > 0 && give(*node, self.group)? {
                    rest -= self.group;
                }
            }
            if rest == before {
                return Err(TakeError::Accounting(rest));
            }
        }
        Ok(taken)
    }
}

fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Standard deviation, rounded to thousandths.
#[expect(clippy::cast_precision_loss, reason = "counts of processors are far below 2^52")]
fn deviation(values: &BTreeMap<u32, usize>) -> f64 {
    let count = values.len().max(1) as f64;
    let mean = thousandths(values.values().map(|value| *value as f64).sum::<f64>() / count);
    let squares = values.values().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>();
    thousandths((squares / count).sqrt())
}
