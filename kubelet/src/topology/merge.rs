//! The best common placement of what resource managers can offer. Pure; upstream's `HintMerger`.
//!
//! Upstream looks at every combination of hints; their number is the product of the lists' lengths. Here the lists are
//! taken in one after the other and equal intermediate results are kept once, so that the work is bounded by the number of
//! sets of NUMA nodes. The result is the same, as upstream's comparison is a total order.

use super::error::TopologyError;
use super::machine::NumaNodes;
use super::mask::NodeMask;
use super::{Hint, Hints, TopologyPolicy};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Nodes of the machine and how they are compared.
#[derive(Clone, Debug, Default)]
pub(super) struct Numa {
    nodes: Vec<u32>,
    /// Distances between nodes, by their places among the nodes; empty where the narrowest placement is the best.
    distances: Vec<Vec<u64>>,
}

impl Numa {
    /// The machine's nodes; closer ones are preferred where that is asked for.
    ///
    /// # Errors
    /// The machine does not tell distances; upstream's text.
    pub(super) fn new(machine: &NumaNodes, prefer_closest: bool) -> Result<Self, TopologyError> {
        let mut numa = Self { nodes: machine.ids(), distances: Vec::new() };
        if prefer_closest {
            numa.distances = machine.0.values().map(|node| node.distances.clone()).collect();
            if numa.distances.iter().any(|row| row.len() < numa.nodes.len()) {
                return Err(TopologyError::NoDistances);
            }
        }
        Ok(numa)
    }

    /// All nodes.
    pub(super) fn all(&self) -> NodeMask {
        self.nodes.iter().copied().collect()
    }

    /// Number of nodes.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Sum of the distances from each of some nodes to each of them. Upstream compares averages, for sets of one size.
    fn spread(&self, mask: NodeMask) -> u64 {
        let places: Vec<usize> = (0..self.nodes.len()).filter(|place| mask.contains(self.nodes[*place])).collect();
        let distance = |from: usize, to: usize| self.distances.get(from).and_then(|row| row.get(to)).copied();
        let all = places.iter().flat_map(|from| places.iter().filter_map(move |to| distance(*from, *to)));
        all.fold(0, u64::saturating_add)
    }

    /// Order of two placements of equal preference; the better one is less.
    fn compare(&self, one: NodeMask, other: NodeMask) -> Ordering {
        let by_spread = || self.spread(one).cmp(&self.spread(other));
        one.count().cmp(&other.count()).then_with(by_spread).then_with(|| one.by_width(&other))
    }
}

/// Common statement of the hints that were taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Merged {
    /// All are preferred, and those that name nodes name the same.
    Agreed(Option<NodeMask>),
    /// Nodes that all allow; not preferred.
    Apart(NodeMask),
}

impl Merged {
    fn nodes(self, all: NodeMask) -> NodeMask {
        match self {
            Self::Agreed(affinity) => affinity.unwrap_or(all).and(all),
            Self::Apart(nodes) => nodes,
        }
    }

    fn with(self, hint: &Hint, all: NodeMask) -> Self {
        let apart = || Self::Apart(self.nodes(all).and(hint.affinity.unwrap_or(all)));
        match (self, hint.affinity) {
            (Self::Agreed(None), affinity) if hint.preferred => Self::Agreed(affinity),
            (Self::Agreed(Some(_)), None) if hint.preferred => self,
            (Self::Agreed(Some(before)), Some(now)) if hint.preferred && before == now => self,
            _ => apart(),
        }
    }
}

/// Hints by resource; one that stands for all where nothing is preferred or nothing is possible. Upstream's
/// `filterProvidersHints`.
fn by_resource(providers: &[Hints]) -> Vec<Vec<Hint>> {
    let anywhere = |preferred| vec![Hint { affinity: None, preferred }];
    let mut lists = Vec::new();
    for hints in providers {
        if hints.is_empty() {
            lists.push(anywhere(true));
        }
        lists.extend(hints.values().map(|list| match list {
            None => anywhere(true),
            Some(list) if list.is_empty() => anywhere(false),
            Some(list) => list.clone(),
        }));
    }
    lists
}

/// Number of nodes that the most demanding resource needs at least. Upstream's `maxOfMinAffinityCounts`.
fn most_needed(lists: &[Vec<Hint>]) -> u32 {
    let narrowest = |list: &Vec<Hint>| list.iter().filter_map(|hint| hint.affinity).map(NodeMask::count).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

/// Place of a placement that is not preferred: those with the number of nodes that is needed, then those with fewer, then
/// those with more.
fn rank(count: u32, needed: u32) -> (u8, u32) {
    match count.cmp(&needed) {
        Ordering::Equal => (0, 0),
        Ordering::Less => (1, needed - count),
        Ordering::Greater => (2, count),
    }
}

/// The best of all combinations of hints, one of each list. Upstream's `HintMerger.Merge`.
fn best(numa: &Numa, lists: &[Vec<Hint>]) -> Hint {
    let all = numa.all();
    let mut merged = BTreeSet::from([Merged::Agreed(None)]);
    for list in lists {
        merged = merged.iter().flat_map(|before| list.iter().map(|hint| before.with(hint, all))).collect();
    }
    let needed = most_needed(lists);
    let candidates = merged.into_iter().map(|merged| (matches!(merged, Merged::Apart(_)), merged.nodes(all)));
    let compare = |one: &(bool, NodeMask), other: &(bool, NodeMask)| {
        let rank = |(is_apart, nodes): &(bool, NodeMask)| if *is_apart { rank(nodes.count(), needed) } else { (0, 0) };
        one.0.cmp(&other.0).then_with(|| rank(one).cmp(&rank(other))).then_with(|| numa.compare(one.1, other.1))
    };
    let best = candidates.filter(|(_, nodes)| nodes.count() > 0).min_by(compare);
    let (is_apart, nodes) = best.unwrap_or((true, all));
    Hint { affinity: Some(nodes), preferred: !is_apart }
}

/// Merges the hints of all providers: the placement, and whether the policy admits it.
pub(super) fn merge(policy: TopologyPolicy, numa: &Numa, providers: &[Hints]) -> (Hint, bool) {
    let mut lists = by_resource(providers);
    if policy != TopologyPolicy::SingleNumaNode {
        let hint = best(numa, &lists);
        return (hint, policy == TopologyPolicy::BestEffort || hint.preferred);
    }
    for list in &mut lists {
        list.retain(|hint| hint.preferred && hint.affinity.is_none_or(|nodes| nodes.count() == 1));
    }
    // On a single node, distances say nothing: upstream compares by width alone.
    let by_width = Numa { nodes: numa.nodes.clone(), distances: Vec::new() };
    let mut hint = best(&by_width, &lists);
    hint.affinity = hint.affinity.filter(|nodes| *nodes != numa.all());
    (hint, hint.preferred)
}

#[cfg(test)]
mod tests {
    use super::super::machine::NumaNode;
    use super::*;
    use serde_json::Value;

    /// Cases with the answers of upstream's policies, one a line.
    const MERGES: &str = include_str!("testdata/merges.jsonl");

    fn mask(value: &Value) -> Option<NodeMask> {
        let bits = value.as_u64()?;
        Some((0..64).filter(|bit| bits & (1 << bit) != 0).collect())
    }

    fn hint(value: &Value) -> Hint {
        Hint { affinity: mask(&value[0]), preferred: value[1].as_bool().expect("a preference") }
    }

    fn provider(value: &Value) -> Hints {
        let list = |list: &Value| Some(list.as_array()?.iter().map(hint).collect());
        value.as_object().into_iter().flatten().map(|(resource, hints)| (resource.clone(), list(hints))).collect()
    }

    fn machine(distances: &Value) -> NumaNodes {
        let count = distances.as_u64().or(distances.as_array().map(|rows| rows.len() as u64)).expect("nodes");
        let node = |id: u64| {
            let row = distances.get(usize::try_from(id).expect("small")).and_then(Value::as_array);
            let distances = row.into_iter().flatten().filter_map(Value::as_u64).collect();
            (u32::try_from(id).expect("small"), NumaNode { distances, ..NumaNode::default() })
        };
        NumaNodes((0..count).map(node).collect())
    }

    #[test]
    fn hints_are_merged_as_upstream_merges_them() {
        let mut admitted = 0;
        for line in MERGES.lines() {
            let case: Value = serde_json::from_str(line).expect("a case");
            let numa = Numa::new(&machine(&case["distances"]), case["closest"] == true).expect("distances");
            let policy: TopologyPolicy = case["policy"].as_str().expect("a policy").parse().expect("known");
            let providers: Vec<Hints> = case["providers"].as_array().expect("a list").iter().map(provider).collect();
            let found = merge(policy, &numa, &providers);
            assert_eq!(found, (hint(&case["best"]), case["admitted"] == true), "{line}");
            admitted += u32::from(found.1);
        }
        assert!(admitted > 100, "both answers are covered: {admitted}");
    }

    #[test]
    fn many_resources_of_many_nodes_are_merged_without_looking_at_every_combination() {
        let numa = Numa { nodes: (0..8).collect(), distances: Vec::new() };
        let list: Vec<Hint> = NodeMask::combinations(&numa.nodes)
            .map(|nodes| Hint { affinity: Some(nodes), preferred: nodes.count() == 2 })
            .collect();
        let hints: Hints = (0..8).map(|number| (format!("vendor.test/{number}"), Some(list.clone()))).collect();
        let (best, is_admitted) = merge(TopologyPolicy::Restricted, &numa, &[hints]);
        assert_eq!((best.affinity, is_admitted), (Some([0, 1].into_iter().collect()), true));
    }

    #[test]
    fn closest_nodes_need_distances() {
        let refusal = Numa::new(&machine(&Value::from(2)), true).expect_err("no distances").to_string();
        assert_eq!(refusal, "cannot discover NUMA topology: error getting NUMA distances from cadvisor");
        Numa::new(&machine(&Value::from(2)), false).expect("they are not needed");
    }
}
