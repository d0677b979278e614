//! Cores, sockets and NUMA nodes of the machine's processors.

use super::assignment::Level;
use super::set::CpuSet;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// Place of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The lowest number among its core's processors.
    pub(super) core: u32,
    pub(super) socket: u32,
    pub(super) node: u32,
}

/// Places by processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology(pub(super) BTreeMap<u32, Place>);

fn read(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

fn set(path: &Path) -> io::Result<CpuSet> {
    read(path)?.parse().map_err(io::Error::other)
}

impl Topology {
    /// Reads the machine's, below `/sys/devices/system`.
    pub(super) fn read(system: &Path) -> io::Result<Self> {
        let mut nodes = BTreeMap::new();
        for entry in fs::read_dir(system.join("node")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(node) = name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok()) else { continue };
            nodes.extend(set(&entry.path().join("cpulist"))?.ids().map(|cpu| (cpu, node)));
        }
        let mut places = BTreeMap::new();
        for cpu in set(&system.join("cpu/online"))?.ids() {
            let folder = system.join(format!("cpu/cpu{cpu}/topology"));
            let siblings = set(&folder.join("thread_siblings_list"))?;
            // Where the firmware does not say, there is one socket.
            let socket = read(&folder.join("physical_package_id"))?.parse().unwrap_or(0);
            let core = siblings.ids().next().unwrap_or(cpu);
            places.insert(cpu, Place { core, socket, node: nodes.get(&cpu).copied().unwrap_or(0) });
        }
        Ok(Self(places))
    }

    pub(super) fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// Number of places of a level.
    pub(super) fn count(&self, level: Level) -> usize {
        self.0.values().map(|place| level.of(place)).collect::<BTreeSet<u32>>().len()
    }

    /// Processors of a core.
    pub(super) fn per_core(&self) -> usize {
        self.0.len() / self.count(Level::Core).max(1)
    }

    /// Processors that are at a place.
    pub(super) fn at(&self, level: Level, id: u32) -> CpuSet {
        self.0.iter().filter(|(_, place)| level.of(place) == id).map(|(cpu, _)| *cpu).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine of sockets with NUMA nodes of cores of threads; second threads are numbered after all first ones.
    pub(in crate::cpus) fn machine(sockets: u32, nodes: u32, cores: u32, threads: u32) -> Topology {
        let total = sockets * nodes * cores;
        let mut places = BTreeMap::new();
        for core in 0..total {
            for thread in 0..threads {
                let (node, socket) = (core / cores, core / cores / nodes);
                places.insert(core + thread * total, Place { core, socket, node });
            }
        }
        Topology(places)
    }

    #[test]
    fn machines_are_read_from_the_kernel() {
        let system = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let expected = machine(2, 1, 2, 2);
        write("cpu/online", "0-7\n");
        write("node/node0/cpulist", "0-1,4-5\n");
        write("node/node1/cpulist", "2-3,6-7\n");
        write("node/possible", "0-1\n");
        for (cpu, place) in &expected.0 {
            let siblings = expected.at(Level::Core, place.core);
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), &format!("{siblings}\n"));
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{}\n", place.socket));
        }
        let found = Topology::read(system.path()).expect("read");
        assert_eq!(found, expected);
        assert_eq!((found.count(Level::Socket), found.count(Level::Node), found.per_core()), (2, 2, 2));
        Topology::read(Path::new("/nonexistent")).expect_err("nothing is there");
    }
}
