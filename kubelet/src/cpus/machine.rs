//! Cores, caches, sockets and NUMA nodes of the machine's processors.
//! Answers for upstream's `pkg/kubelet/cm/cpumanager/topology`.

use super::assignment::Level;
use crate::cpu_set::CpuSet;
use crate::topology::machine::node_folders;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// Place of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuPlace {
    /// The lowest number among its core's processors.
    pub(super) core: u32,
    /// The last-level cache that only some of its node's cores share; the socket where there is none.
    pub(super) cache: u32,
    pub(super) socket: u32,
    pub(super) node: u32,
}

/// Places by processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology(pub(super) BTreeMap<u32, CpuPlace>);

/// Caches of this level and above are shared by cores.
const SHARED_LEVEL: u32 = 3;

fn read(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

fn set(path: &Path) -> io::Result<CpuSet> {
    read(path)?.parse().map_err(io::Error::other)
}

/// Number of the cache that a core shares with a part of its node's cores, and with no more. Answers for cAdvisor's
/// `UncoreCaches`.
fn own_cache(processor: &Path, per_node: usize) -> Option<u32> {
    let mut folders: Vec<_> = fs::read_dir(processor.join("cache")).ok()?.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders.into_iter().find_map(|folder| {
        let level: u32 = read(&folder.join("level")).ok()?.parse().ok()?;
        let sharers = set(&folder.join("shared_cpu_list")).ok()?.len();
        if level < SHARED_LEVEL || sharers == per_node {
            return None;
        }
        read(&folder.join("id")).ok()?.parse().ok()
    })
}

impl Topology {
    /// Reads the machine's, below `/sys/devices/system`.
    pub(super) fn read(system: &Path) -> io::Result<Self> {
        let mut nodes = BTreeMap::new();
        for (node, folder) in node_folders(system) {
            nodes.extend(set(&folder.join("cpulist"))?.ids().map(|cpu| (cpu, node)));
        }
        let mut places = BTreeMap::new();
        for cpu in set(&system.join("cpu/online"))?.ids() {
            let folder = system.join(format!("cpu/cpu{cpu}/topology"));
            let siblings = set(&folder.join("thread_siblings_list"))?;
            // Where the firmware does not say, there is one socket.
            let socket = read(&folder.join("physical_package_id"))?.parse().unwrap_or(0);
            let core = siblings.ids().next().unwrap_or(cpu);
            // A kernel without NUMA has no nodes: its sockets stand for them.
            let node = nodes.get(&cpu).copied().unwrap_or(socket);
            places.insert(cpu, CpuPlace { core, cache: socket, socket, node });
        }
        let mut topology = Self(places);
        topology.read_caches(system);
        Ok(topology)
    }

    /// Reads the caches by their cores' first processors.
    fn read_caches(&mut self, system: &Path) {
        let mut per_node: BTreeMap<u32, usize> = BTreeMap::new();
        self.0.values().for_each(|place| *per_node.entry(place.node).or_default() += 1);
        let mut caches = BTreeMap::new();
        for (cpu, place) in self.0.iter().filter(|(cpu, place)| **cpu == place.core) {
            let own = own_cache(&system.join(format!("cpu/cpu{cpu}")), per_node[&place.node]);
            caches.extend(own.map(|cache| (*cpu, cache)));
        }
        for place in self.0.values_mut() {
            place.cache = caches.get(&place.core).copied().unwrap_or(place.socket);
        }
    }

    pub(super) fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// Number of places of a level.
    pub(super) fn count(&self, level: Level) -> usize {
        self.ids(level).len()
    }

    /// Processors of a place of a level, on the average: upstream takes all to be alike.
    pub(super) fn per(&self, level: Level) -> usize {
        self.0.len() / self.count(level).max(1)
    }

    /// Numbers of places of a level.
    pub(super) fn ids(&self, level: Level) -> BTreeSet<u32> {
        self.0.values().map(|place| level.of(place)).collect()
    }

    /// Processors that are at a place.
    pub(super) fn at(&self, level: Level, id: u32) -> CpuSet {
        self.0.iter().filter(|(_, place)| level.of(place) == id).map(|(cpu, _)| *cpu).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::topology::machine::tests::{EIGHT_SOCKETS, ONE_SOCKET, TWO_SOCKETS, recorded};

    /// A machine of sockets with NUMA nodes of cores of threads; second threads are numbered after all first ones.
    pub(in crate::cpus) fn machine(sockets: u32, nodes: u32, cores: u32, threads: u32) -> Topology {
        shape([sockets, sockets * nodes, sockets * nodes * cores, threads, 0])
    }

    /// A machine by its numbers of sockets, NUMA nodes, cores, threads of a core, and caches that are smaller than nodes.
    pub(in crate::cpus) fn shape([sockets, nodes, cores, threads, caches]: [u32; 5]) -> Topology {
        let mut places = BTreeMap::new();
        for core in 0..cores {
            let socket = core * sockets / cores;
            let cache = if caches == 0 { socket } else { core * caches / cores };
            for thread in 0..threads {
                places.insert(core + thread * cores, CpuPlace { core, cache, socket, node: core * nodes / cores });
            }
        }
        Topology(places)
    }

    #[test]
    fn machines_are_read_from_the_kernel() {
        let found = |recording: &str| Topology::read(recorded(recording).path()).expect("read");
        assert_eq!(found(ONE_SOCKET), shape([1, 1, 2, 1, 0]), "the cache is the whole node's");
        assert_eq!(found(TWO_SOCKETS), shape([2, 4, 16, 2, 8]));
        let eight = found(EIGHT_SOCKETS);
        assert_eq!(eight, shape([8, 8, 32, 2, 0]));
        assert_eq!((eight.count(Level::Socket), eight.count(Level::Node), eight.per(Level::Core)), (8, 8, 2));
        Topology::read(Path::new("/nonexistent")).expect_err("nothing is there");
    }

    #[test]
    fn sockets_stand_for_nodes_where_the_kernel_knows_none() {
        let lines: Vec<&str> = EIGHT_SOCKETS.lines().filter(|line| !line.starts_with("node/")).collect();
        let found = Topology::read(recorded(&lines.join("\n")).path()).expect("read");
        assert_eq!(found.count(Level::Node), 8);
    }
}
