//! Sets of NUMA nodes.
//! Answers for upstream's `pkg/kubelet/cm/topologymanager/bitmask`.

use std::cmp::Ordering;

/// The largest number of nodes that a mask holds.
const WIDTH: u32 = u64::BITS;

/// NUMA nodes by number; numbers of 64 and more are not held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

impl NodeMask {
    /// Number of nodes.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Reports whether a node is among them.
    pub fn contains(self, node: u32) -> bool {
        node < WIDTH && self.0 & (1 << node) != 0
    }

    /// The nodes, in order.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..WIDTH).filter(move |node| self.contains(*node))
    }

    /// Nodes that are in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Reports whether all nodes of another one are in it.
    pub fn is_superset(self, other: Self) -> bool {
        self.and(other) == other
    }

    /// Order in which hints are preferred: fewer nodes first, then lower ones.
    pub fn by_width(&self, other: &Self) -> Ordering {
        (self.count(), self.0).cmp(&(other.count(), other.0))
    }

    /// Every set of some nodes that is not empty, the smallest sets first.
    pub fn combinations(nodes: &[u32]) -> impl Iterator<Item = Self> {
        (1..=nodes.len()).flat_map(move |size| combinations(nodes, size)).map(|nodes| nodes.into_iter().collect())
    }
}

impl FromIterator<u32> for NodeMask {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        Self(nodes.into_iter().filter(|node| *node < WIDTH).fold(0, |mask, node| mask | 1 << node))
    }
}

/// Every choice of some items out of a list, in the list's order. Upstream's `IterateBitMasks` and `iterateCombinations`.
pub fn combinations<T: Copy>(items: &[T], size: usize) -> impl Iterator<Item = Vec<T>> {
    let mut chosen: Option<Vec<usize>> = (size <= items.len()).then(|| (0..size).collect());
    std::iter::from_fn(move || {
        let current = chosen.take()?;
        let choice = current.iter().map(|index| items[*index]).collect();
        chosen = following(current, items.len());
        Some(choice)
    })
}

/// The choice after one; none after the last.
fn following(mut chosen: Vec<usize>, total: usize) -> Option<Vec<usize>> {
    let size = chosen.len();
    let moved = (0..size).rev().find(|place| chosen[*place] < total - (size - place))?;
    chosen[moved] += 1;
    for place in moved + 1..size {
        chosen[place] = chosen[place - 1] + 1;
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_come_smallest_first_and_in_order() {
        let all: Vec<Vec<u32>> = NodeMask::combinations(&[0, 1, 5]).map(|mask| mask.nodes().collect()).collect();
        let expected: [&[u32]; 7] = [&[0], &[1], &[5], &[0, 1], &[0, 5], &[1, 5], &[0, 1, 5]];
        assert_eq!(all, expected);
        assert_eq!(NodeMask::combinations(&[]).count(), 0);
        assert_eq!(combinations(&[1, 2, 3, 4, 5, 6, 7, 8], 4).count(), 70);
    }

    #[test]
    fn fewer_and_lower_nodes_are_narrower() {
        let mask = |nodes: &[u32]| nodes.iter().copied().collect::<NodeMask>();
        for (narrow, wide) in [(&[3][..], &[0, 1][..]), (&[0], &[1]), (&[0, 3], &[1, 3]), (&[1, 2], &[0, 3])] {
            assert_eq!(mask(narrow).by_width(&mask(wide)), Ordering::Less, "{narrow:?} {wide:?}");
        }
        assert_eq!(mask(&[63, 64, 200]).nodes().collect::<Vec<u32>>(), [63]);
        assert!(mask(&[0, 1]).is_superset(mask(&[1])) && !mask(&[0]).is_superset(mask(&[0, 1])));
    }
}
