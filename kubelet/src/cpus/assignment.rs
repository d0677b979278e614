//! Choice of processors: as few places as possible, the fullest first. Pure; upstream's `cpu_assignment.go`, packed.

use super::set::CpuSet;
use super::topology::{Place, Topology};
use std::collections::BTreeMap;

/// A level of places.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Core,
    Socket,
    Node,
}

impl Level {
    pub(super) fn of(self, place: &Place) -> u32 {
        match self {
            Self::Core => place.core,
            Self::Socket => place.socket,
            Self::Node => place.node,
        }
    }
}

struct Search<'a> {
    topology: &'a Topology,
    /// Processors that are left.
    free: CpuSet,
    taken: CpuSet,
    needed: usize,
}

/// Takes processors out of those that are available.
///
/// # Errors
/// There are not enough; upstream's text.
pub(super) fn take(topology: &Topology, available: &CpuSet, number: usize) -> Result<CpuSet, String> {
    if available.len() < number {
        return Err(format!(
            "not enough cpus available to satisfy request: requested={number}, available={}",
            available.len()
        ));
    }
    let mut search = Search { topology, free: available.clone(), taken: CpuSet::default(), needed: number };
    for level in search.levels() {
        search.take_whole(level);
    }
    search.take_whole(Level::Core);
    for cpu in search.in_order() {
        if search.needed == 0 {
            break;
        }
        search.take(&[cpu].into_iter().collect());
    }
    Ok(search.taken)
}

impl Search<'_> {
    /// The level of the largest places, and that of those in them: sockets of a node, or nodes of a socket.
    fn levels(&self) -> [Level; 2] {
        let is_node_outer = self.topology.count(Level::Socket) >= self.topology.count(Level::Node);
        if is_node_outer { [Level::Node, Level::Socket] } else { [Level::Socket, Level::Node] }
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.free = self.free.difference(cpus);
        self.taken = self.taken.union(cpus);
        self.needed -= cpus.len();
    }

    /// Takes places of which everything is free, as long as that much is needed.
    fn take_whole(&mut self, level: Level) {
        for id in self.order(level) {
            let whole = self.topology.at(level, id);
            if self.needed >= whole.len() && self.free.is_superset(&whole) {
                self.take(&whole);
            }
        }
    }

    /// Places within some processors, those with the fewest free ones first.
    fn within(&self, level: Level, cpus: &CpuSet) -> Vec<u32> {
        let mut free: BTreeMap<u32, usize> = BTreeMap::new();
        for cpu in self.free.intersection(cpus).ids() {
            if let Some(place) = self.topology.0.get(&cpu) {
                *free.entry(level.of(place)).or_default() += 1;
            }
        }
        let mut order: Vec<u32> = free.keys().copied().collect();
        order.sort_by_key(|id| (free[id], *id));
        order
    }

    /// Places of a level, in the order of those that they are in.
    fn order(&self, level: Level) -> Vec<u32> {
        let [outer, inner] = self.levels();
        let in_places = |level: Level, places: Vec<u32>, of: Level| -> Vec<u32> {
            places.into_iter().flat_map(|id| self.within(level, &self.topology.at(of, id))).collect()
        };
        let outers = self.within(outer, &self.topology.all());
        if level == outer {
            return outers;
        }
        let inners = in_places(inner, outers, outer);
        if level == inner { inners } else { in_places(level, inners, inner) }
    }

    /// Free processors, core by core.
    fn in_order(&self) -> Vec<u32> {
        let cores = self.order(Level::Core);
        cores.into_iter().flat_map(|core| self.free.intersection(&self.topology.at(Level::Core, core)).0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::machine;
    use super::*;
    use proptest::prelude::*;

    fn taken(topology: &Topology, available: &str, number: usize) -> Result<String, String> {
        take(topology, &available.parse().expect("a set"), number).map(|set| set.to_string())
    }

    #[test]
    fn whole_places_come_first_and_partly_used_ones_are_filled() {
        // One socket of four cores with two threads: 0 and 4, 1 and 5, 2 and 6, 3 and 7.
        let small = machine(1, 1, 4, 2);
        // Two sockets, of two nodes each, of two cores each.
        let large = machine(2, 2, 2, 2);
        for (topology, available, number, expected) in [
            (&small, "0-7", 1, Ok("0")),
            (&small, "0-7", 2, Ok("0,4")),
            (&small, "0-7", 3, Ok("0-1,4")),
            (&small, "1-7", 1, Ok("4")),
            (&small, "1-7", 2, Ok("1,5")),
            (&small, "0-7", 8, Ok("0-7")),
            (&small, "1,3,6", 2, Ok("1,6")),
            (&small, "1-3", 4, Err("not enough cpus available to satisfy request: requested=4, available=3")),
            (&large, "0-15", 4, Ok("0-1,8-9")),
            (&large, "0-15", 8, Ok("0-3,8-11")),
            (&large, "1-15", 8, Ok("4-7,12-15")),
            (&large, "1-15", 4, Ok("2-3,10-11")),
            (&large, "1-15", 2, Ok("1,9")),
            (&small, "0-7", 0, Ok("")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(taken(topology, available, number), expected, "{number} of {available}");
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_was_free_and_is_as_much_as_asked_for(
            free in proptest::collection::btree_set(0_u32..32, 0..32),
            number in 0_usize..33,
            shape in 0_usize..3,
        ) {
            let topology = [machine(2, 2, 4, 2), machine(4, 1, 4, 2), machine(1, 1, 32, 1)][shape].clone();
            let free = CpuSet(free);
            match take(&topology, &free, number) {
                Ok(taken) => prop_assert!(taken.len() == number && free.is_superset(&taken)),
                Err(_) => prop_assert!(free.len() < number),
            }
        }
    }
}
