//! All that machines could leave behind on this one: processes, mounts, namespaces, links, control groups and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use e2e::layout::{Layout, Node};
use e2e::{machine, node};

/// Marks of machines that run, to look for once they are gone.
pub struct Traces {
    root: PathBuf,
    /// Files that are there while machines are: handles of network namespaces, links and control groups.
    files: Vec<PathBuf>,
    /// Control groups of nodes, as processes name them.
    cgroups: Vec<String>,
    /// Mount and network namespaces, as `mnt:[…]` links.
    namespaces: BTreeSet<PathBuf>,
}

impl Traces {
    /// Marks of these machines.
    pub fn of(layout: &Layout, nodes: &[Node]) -> Self {
        let links = nodes.iter().map(|node| node.link.clone()).chain([layout.network.bridge.clone()]);
        let links = links.map(|link| Path::new("/sys/class/net").join(link));
        let namespaces = nodes.iter().map(|node| Path::new("/run/netns").join(&node.namespace));
        let mounts = node::cgroup_mounts();
        let groups = nodes.iter().flat_map(|node| {
            mounts.iter().map(|mount| mount.join(node.cgroup.trim_start_matches('/'))).collect::<Vec<_>>()
        });
        let files = links.chain(namespaces).chain(groups).chain([layout.root.clone()]).collect();
        let of_machine = |node: &Node| {
            let pid = machine::running(&layout.machine(&node.name))?;
            Some(["mnt", "net"].map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace")))
        };
        Self {
            root: layout.root.clone(),
            files,
            cgroups: nodes.iter().map(|node| node.cgroup.clone()).collect(),
            namespaces: nodes.iter().filter_map(of_machine).flatten().collect(),
        }
    }

    /// Lists the traces that are still there.
    pub fn left(&self) -> Vec<String> {
        let files = self.files.iter().filter(|path| path.exists()).map(|path| path.display().to_string());
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        let root = self.root.display().to_string();
        let mounts = mounts.lines().filter(|line| line.contains(&root)).map(|line| format!("mount {line}"));
        files.chain(mounts).chain(self.processes()).collect()
    }

    fn processes(&self) -> Vec<String> {
        let entries = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
        // One that ends meanwhile has no files any more.
        let mine = entries.filter(|process| {
            let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            let in_group = self.cgroups.iter().any(|group| groups.lines().any(|line| line.contains(group.as_str())));
            let inside = ["mnt", "net"].iter().any(|kind| {
                fs::read_link(process.join("ns").join(kind)).is_ok_and(|link| self.namespaces.contains(&link))
            });
            in_group || inside
        });
        let told = |process: PathBuf| {
            let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default().replace('\0', " ");
            format!("process {}: {command}", process.display())
        };
        mine.map(told).collect()
    }
}
