//! Choice of processors: as few places as possible, the fullest first. Pure; upstream's `cpu_assignment.go`, packed.

use super::error::TakeError;
use super::machine::{CpuPlace, Topology};
use crate::cpu_set::CpuSet;
use std::collections::BTreeMap;

/// A level of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Core,
    Cache,
    Socket,
    Node,
}

impl Level {
    pub(super) fn of(self, place: &CpuPlace) -> u32 {
        match self {
            Self::Core => place.core,
            Self::Cache => place.cache,
            Self::Socket => place.socket,
            Self::Node => place.node,
        }
    }
}

/// Manner of choice within nodes and sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Packing {
    /// Whole cores first.
    #[default]
    Cores,
    /// Whole caches first, then whole cores.
    Caches,
    /// Processors one by one, those of one core as late as possible.
    Spread,
}

struct CpuSearch<'a> {
    topology: &'a Topology,
    /// Processors that are left.
    free: CpuSet,
    taken: CpuSet,
    needed: usize,
}

/// Takes processors out of those that are available. Upstream's `takeByTopologyNUMAPacked`.
///
/// # Errors
/// There are not enough; upstream's text.
pub(super) fn take(
    topology: &Topology,
    available: &CpuSet,
    number: usize,
    packing: Packing,
) -> Result<CpuSet, TakeError> {
    if available.len() < number {
        return Err(TakeError::TooFew { number, available: available.len() });
    }
    let mut search = CpuSearch { topology, free: available.clone(), taken: CpuSet::default(), needed: number };
    for level in search.levels() {
        search.take_whole(level);
    }
    if packing == Packing::Caches {
        search.take_caches();
    }
    if packing != Packing::Spread {
        search.take_whole(Level::Core);
    }
    for cpu in if packing == Packing::Spread { search.by_socket() } else { search.by_core() } {
        if search.needed == 0 {
            break;
        }
        search.take(&[cpu].into_iter().collect());
    }
    Ok(search.taken)
}

impl CpuSearch<'_> {
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

    /// Takes whole caches as long as that much is needed, and the rest of one cache if one has it. Upstream's
    /// `takeUncoreCache`.
    fn take_caches(&mut self) {
        let per_cache = self.topology.per(Level::Cache);
        for cache in self.order(Level::Cache) {
            if self.needed >= per_cache {
                self.take_whole(Level::Cache);
            }
            if self.needed == 0 {
                return;
            }
            self.take_of_cache(cache);
        }
    }

    /// Takes all that is needed of a cache, if it has it. Upstream's `takePartialUncore`.
    fn take_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.per(Level::Core).max(1);
        let free = self.free.intersection(&self.topology.at(Level::Cache, cache));
        let cores = free.ids().filter_map(|cpu| self.topology.0.get(&cpu)).map(|place| place.core);
        let cores: std::collections::BTreeSet<u32> = cores.collect();
        let first = cores.into_iter().take(self.needed.div_ceil(per_core));
        let mut cpus: Vec<u32> = first.flat_map(|core| self.free_of_core(core)).collect();
        cpus.sort_unstable();
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn free_of_core(&self, core: u32) -> Vec<u32> {
        self.free.intersection(&self.topology.at(Level::Core, core)).ids().collect()
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
        if level == Level::Cache {
            return in_places(level, self.order(Level::Node), Level::Node);
        }
        let inners = in_places(inner, outers, outer);
        if level == inner { inners } else { in_places(level, inners, inner) }
    }

    /// Free processors, core by core.
    fn by_core(&self) -> Vec<u32> {
        self.order(Level::Core).into_iter().flat_map(|core| self.free_of_core(core)).collect()
    }

    /// Free processors by number, socket by socket.
    fn by_socket(&self) -> Vec<u32> {
        let sockets = self.order(Level::Socket);
        let free = |socket| self.free.intersection(&self.topology.at(Level::Socket, socket)).0;
        sockets.into_iter().flat_map(free).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::distribution;
    use super::super::machine::tests::{machine, shape};
    use super::*;
    use proptest::prelude::*;

    fn taken(topology: &Topology, available: &str, number: usize) -> Result<String, String> {
        let taken = take(topology, &available.parse().expect("a set"), number, Packing::Cores);
        taken.map(|set| set.to_string()).map_err(|error| error.to_string())
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

    /// Choices of upstream's functions, one a line: sockets/nodes/cores/threads/caches, manner, free processors, number,
    /// chosen ones.
    const ASSIGNMENTS: &str = include_str!("testdata/assignments.txt");

    #[test]
    fn processors_are_chosen_as_upstream_chooses_them() {
        for line in ASSIGNMENTS.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            let [machine, manner, free, number, expected] = fields[..] else { panic!("five fields: {line}") };
            let numbers: Vec<u32> = machine.split('/').map(|number| number.parse().expect("a number")).collect();
            let topology = shape(numbers.try_into().expect("five numbers"));
            let (free, number) = (free.parse().expect("a set"), number.parse().expect("a number"));
            let per_core = topology.per(Level::Core);
            let found = match manner {
                "packed" => take(&topology, &free, number, Packing::Cores),
                "spread" => take(&topology, &free, number, Packing::Spread),
                "uncore" => take(&topology, &free, number, Packing::Caches),
                "across-1" => distribution::take(&topology, &free, number, 1),
                "across-threads" => distribution::take(&topology, &free, number, per_core),
                other => panic!("unknown manner {other}"),
            };
            let found = found.map_or_else(|error| format!("error: {error}"), |cpus| cpus.to_string());
            assert_eq!(found, expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_was_free_and_is_as_much_as_asked_for(
            free in proptest::collection::btree_set(0_u32..32, 0..32),
            number in 0_usize..33,
            numbers in prop_oneof![
                Just([2, 4, 16, 2, 8]), Just([4, 4, 16, 2, 0]), Just([1, 1, 32, 1, 4]), Just([4, 2, 32, 1, 0])
            ],
            manner in 0_usize..5,
        ) {
            let topology = shape(numbers);
            let free = CpuSet(free);
            let found = match manner {
                0 => take(&topology, &free, number, Packing::Cores),
                1 => take(&topology, &free, number, Packing::Caches),
                2 => take(&topology, &free, number, Packing::Spread),
                3 => distribution::take(&topology, &free, number, 1),
                _ => distribution::take(&topology, &free, number, 2),
            };
            match found {
                Ok(taken) => prop_assert!(taken.len() == number && free.is_superset(&taken)),
                Err(_) => prop_assert!(free.len() < number),
            }
        }
    }
}
