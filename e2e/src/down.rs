//! `down`: takes away what `up` and the pods left: processes, mounts, namespaces, rules,
//! cgroups, loop devices, files. Works from what it finds, so that it also cleans up after a crash.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::layout::{CONTROL_PLANE, Layout, Node};
use crate::{clusters, load_balancer, loops, machine, network, node};

const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Stops everything and removes the run directory.
///
/// # Errors
/// When something resists: its name is in the error.
pub fn down(layout: &Layout) -> Result<()> {
    let number = clusters::number(&layout.root).unwrap_or_default();
    if !clusters::owns(&layout.root, number) {
        // All that has these names is another cluster's, which came after this one.
        return remove_root(layout);
    }
    let nodes = layout.all_nodes();
    stop_machine(&layout.machine(load_balancer::NAME))?;
    load_balancer::remove_routes(&layout.network);
    stop_nodes(layout, &nodes)?;
    if layout.root.exists() {
        eprintln!("==> stopping the control plane");
    }
    stop_machine(&layout.machine(CONTROL_PLANE))?;
    forget_nodes(layout, &nodes)
}

/// Stops a node of a cluster that goes on, and removes all that it had, with the run directory, which is its own.
///
/// # Errors
/// When something resists: its name is in the error.
pub fn node(layout: &Layout, node: &Node) -> Result<()> {
    let nodes = std::slice::from_ref(node);
    stop_nodes(layout, nodes)?;
    network::remove_nodes(nodes);
    remove_cgroups(nodes);
    remove_root(layout)
}

/// Stops the machines of these nodes and what they left running. The last are the first, while there is somebody to tell.
///
/// # Errors
/// When one does not stop.
pub fn stop_nodes(layout: &Layout, nodes: &[Node]) -> Result<()> {
    let namespaces = mount_namespaces(layout, nodes);
    for node in nodes.iter().rev() {
        eprintln!("==> stopping {}", node.name);
        stop_machine(&layout.machine(&node.name))?;
        kill_node(node);
    }
    for namespace in &namespaces {
        kill_namespace(namespace);
    }
    Ok(())
}

/// Removes what stopped nodes have beside processes, and the run directory.
///
/// # Errors
/// When the run directory cannot be removed.
pub fn forget_nodes(layout: &Layout, nodes: &[Node]) -> Result<()> {
    network::remove(layout, nodes);
    remove_cgroups(nodes);
    // Only once no node is left, of other clusters neither: a folder that is removed is unmounted in every namespace.
    if clusters::others(&layout.root).is_empty() {
        for path in node::mount_points() {
            // Only made by us when empty; `remove_dir` refuses any other.
            fs::remove_dir(path).ok();
        }
    }
    clusters::release(&layout.root);
    remove_root(layout)
}

fn remove_root(layout: &Layout) -> Result<()> {
    if layout.root.exists() {
        loops::detach(&layout.root)?;
        fs::remove_dir_all(&layout.root).with_context(|| format!("cannot remove {}", layout.root.display()))?;
    }
    Ok(())
}

/// The mount namespaces of running supervisors, as `mnt:[…]` links.
fn mount_namespaces(layout: &Layout, nodes: &[Node]) -> BTreeSet<PathBuf> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let of = |node: &Node| {
        let pid = machine::running(&layout.machine(&node.name))?;
        fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
    };
    nodes.iter().filter_map(of).filter(|link| Some(link) != own.as_ref()).collect()
}

fn stop_machine(folder: &Path) -> Result<()> {
    let Some(pid) = machine::running(folder) else {
        return kill_orphans(folder);
    };
    kill(pid, Signal::SIGTERM).ok();
    crate::shell::wait_for(&format!("{} does not stop", folder.display()), STOP_LIMIT, folder, || {
        machine::running(folder).is_none()
    })
}

/// Processes whose supervisor was killed: their pid files are still there.
fn kill_orphans(folder: &Path) -> Result<()> {
    let Ok(specification) = machine::Machine::read(&machine::Machine::file(folder)) else { return Ok(()) };
    for process in &specification.processes {
        let Some(pid) = machine::alive(&folder.join(format!("{}.pid", process.name))) else { continue };
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if process.command.last().is_some_and(|last| command.contains(last.as_str())) {
            kill(pid, Signal::SIGKILL).ok();
        }
    }
    Ok(())
}

/// Kills what still runs in a node's cgroups: its containers.
fn kill_node(node: &Node) {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let pids: Vec<Pid> = cgroups(node).iter().flat_map(|folder| pids_of(folder)).collect();
        if pids.is_empty() || Instant::now() > limit {
            return;
        }
        for pid in pids {
            kill(pid, Signal::SIGKILL).ok();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills what still runs in a node's mount namespace: containerd's shims.
fn kill_namespace(namespace: &Path) {
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_link(process.path().join("ns/mnt")).is_ok_and(|link| link == namespace) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}

fn pids_of(folder: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect()
}

/// A node's cgroups, children before their parents.
fn cgroups(node: &Node) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mount in node::cgroup_mounts() {
        collect(&mount.join(node.cgroup.trim_start_matches('/')), &mut found);
    }
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        collect(&entry.path(), found);
    }
    found.push(folder.to_path_buf());
}

fn remove_cgroups(nodes: &[Node]) {
    for folder in nodes.iter().flat_map(cgroups) {
        fs::remove_dir(folder).ok();
    }
    let parents: BTreeSet<&Path> = nodes.iter().filter_map(|node| Path::new(&node.cgroup).parent()).collect();
    for mount in node::cgroup_mounts() {
        for parent in &parents {
            fs::remove_dir(mount.join(parent.strip_prefix("/").unwrap_or(parent))).ok();
        }
    }
}
