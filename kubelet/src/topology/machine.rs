//! NUMA nodes of the machine, as the kernel describes them below `/sys/devices/system/node`.
//! Answers for the NUMA nodes that upstream's cadvisor reads.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Bytes of memory, huge pages included.
    pub memory: u64,
    /// Numbers of huge pages by their size in bytes.
    pub hugepages: BTreeMap<u64, u64>,
    /// Distances to all nodes, in their order; empty where the firmware does not say.
    pub distances: Vec<u64>,
}

/// NUMA nodes of a machine by number, those without processors included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNodes(pub BTreeMap<u32, NumaNode>);

impl NumaNodes {
    /// Reads the machine's, below `/sys/devices/system`; none where the kernel knows of no nodes.
    ///
    /// # Errors
    /// A node is there and cannot be read.
    pub fn read(system: &Path) -> io::Result<Self> {
        let nodes = node_folders(system).into_iter().map(|(id, folder)| Ok((id, node(&folder)?)));
        nodes.collect::<io::Result<_>>().map(Self)
    }

    /// Numbers of the nodes, in order.
    pub fn ids(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }
}

/// Folders of NUMA nodes by number.
pub fn node_folders(system: &Path) -> BTreeMap<u32, std::path::PathBuf> {
    let numbered = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, entry.path()))
    };
    fs::read_dir(system.join("node")).into_iter().flatten().flatten().filter_map(numbered).collect()
}

fn node(folder: &Path) -> io::Result<NumaNode> {
    let meminfo = fs::read_to_string(folder.join("meminfo"))?;
    let distances = fs::read_to_string(folder.join("distance")).unwrap_or_default();
    Ok(NumaNode {
        memory: total_memory(&meminfo).ok_or_else(|| io::Error::other("no MemTotal in meminfo of a NUMA node"))?,
        hugepages: hugepages(&folder.join("hugepages")),
        distances: distances.split_whitespace().filter_map(|distance| distance.parse().ok()).collect(),
    })
}

/// Bytes of the line `Node 0 MemTotal: 24684092 kB`.
fn total_memory(meminfo: &str) -> Option<u64> {
    let mut words = meminfo.lines().find(|line| line.contains(" MemTotal:"))?.split_whitespace().rev();
    let (unit, number) = (words.next()?, words.next()?);
    (unit == "kB").then(|| number.parse::<u64>().ok())??.checked_mul(1024)
}

/// Numbers of huge pages by size in bytes, from folders named `hugepages-2048kB`.
pub fn hugepages(folder: &Path) -> BTreeMap<u64, u64> {
    let parse = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let size: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        Some((size.checked_mul(1024)?, pages))
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(parse).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a recorded `/sys/devices/system`: every line is a path and what the file says.
    pub(crate) fn recorded(recording: &str) -> tempfile::TempDir {
        let system = tempfile::tempdir().expect("a folder");
        for line in recording.lines().filter(|line| !line.starts_with('#')) {
            let (path, text) = line.split_once(": ").unwrap_or_else(|| panic!("a path and a text: {line}"));
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, format!("{text}\n")).expect("written");
        }
        system
    }

    pub(crate) const ONE_SOCKET: &str = include_str!("testdata/one-socket.txt");
    pub(crate) const TWO_SOCKETS: &str = include_str!("testdata/two-sockets.txt");
    pub(crate) const EIGHT_SOCKETS: &str = include_str!("testdata/eight-sockets.txt");

    #[test]
    fn nodes_are_read_from_the_kernel() {
        let one = NumaNodes::read(recorded(ONE_SOCKET).path()).expect("read");
        assert_eq!(one.ids(), [0]);
        assert_eq!(one.0[&0].memory, 24_684_092 * 1024);
        assert_eq!(one.0[&0].hugepages, BTreeMap::from([(1 << 30, 0), (2 << 20, 0)]));
        let two = NumaNodes::read(recorded(TWO_SOCKETS).path()).expect("read");
        assert_eq!(two.ids(), [0, 1, 2, 3, 4], "the last one has memory and no processors");
        assert_eq!(two.0[&1].distances, [12, 10, 32, 32, 28]);
        assert_eq!(two.0[&4].hugepages, BTreeMap::from([(2 << 20, 512)]));
        let eight = NumaNodes::read(recorded(EIGHT_SOCKETS).path()).expect("read");
        assert_eq!(eight.0[&7].distances, [30, 30, 30, 20, 30, 20, 20, 10]);
        assert_eq!(NumaNodes::read(Path::new("/nonexistent")).expect("no node"), NumaNodes::default());
    }

    #[test]
    fn a_node_whose_memory_is_not_told_is_no_node_without_memory() {
        for meminfo in
            ["", "Node 0 MemTotal: 5 MB", "Node 0 MemTotal: -1 kB", "Node 0 MemTotal: 36893488147419103232 kB"]
        {
            assert_eq!(total_memory(meminfo), None, "{meminfo}");
        }
        assert_eq!(total_memory("Node 3 MemTotal:       16 kB\nNode 3 MemFree: 1 kB\n"), Some(16384));
    }
}
