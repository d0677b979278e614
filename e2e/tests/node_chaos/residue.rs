//! Everything that pods could leave on a node.

use std::path::Path;

use e2e::layout::Network;
use e2e::testing::Cluster;

use crate::{book, disk};

/// Time in which the kubelet has to take away what is left: garbage is looked for once a minute.
const LIMIT: u64 = 150;

/// Waits until nothing is left of any pod. A runtime that is killed while it makes or removes a sandbox may forget its
/// network: of those there are at most as many as times that it was killed.
pub fn is_nothing(cluster: &Cluster, node: &str, runtime_kills: usize) {
    cluster.until("nothing is left of the pods", LIMIT, || {
        let left: Vec<String> =
            [folders(cluster, node), mounts(cluster, node), cgroups(node), runtime(cluster, node), processes()]
                .concat();
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    });
    for (what, folder) in [("address", "var-lib-cni/networks/ironclad"), ("network namespace", "run-netns")] {
        let left = entries(&cluster.layout().disk(node).join(folder));
        let left: Vec<&String> =
            left.iter().filter(|path| !path.contains("last_reserved") && !path.ends_with("lock")).collect();
        eprintln!("{} of {what} left by the runtime, killed {runtime_kills} times: {left:?}", left.len());
        assert!(left.len() <= runtime_kills, "more of {what} is left than the runtime can have forgotten");
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

/// Folders of pods and of their logs, and links to these.
fn folders(cluster: &Cluster, node: &str) -> Vec<String> {
    let disk = cluster.layout().disk(node);
    let logs = ["var-log-pods", "var-log-containers"].iter().flat_map(|name| entries(&disk.join(name)));
    entries(&disk::root(cluster, node).join("pods")).into_iter().chain(logs).collect()
}

/// Mounts below the folders of pods, and root file systems of containers.
fn mounts(cluster: &Cluster, node: &str) -> Vec<String> {
    let supervisor = cluster.pid(node, "supervisor");
    let text = std::fs::read_to_string(format!("/proc/{supervisor}/mountinfo")).unwrap_or_default();
    let places = text.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .filter(|place| place.contains("/kubelet/pods/") || place.contains("io.containerd.runtime"))
        .map(str::to_owned)
        .collect()
}

/// Cgroups of pods.
fn cgroups(node: &str) -> Vec<String> {
    let node = Network::numbered(0).host_named(node, 0);
    let below = format!("{}/kubepods", node.cgroup.trim_start_matches('/'));
    let roots = e2e::node::cgroup_mounts().into_iter().map(|mount| mount.join(&below));
    let tiers = roots.flat_map(|root| [root.clone(), root.join("besteffort"), root.join("burstable")]);
    tiers
        .flat_map(|tier| entries(&tier))
        .filter(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("pod")))
        .collect()
}

/// Holds the kubelet to ending never but by kills and when it is told to.
pub fn kubelet_never_failed(cluster: &Cluster, node: &str) {
    let log = cluster.log(node, "supervisor");
    let ends: Vec<&str> = log.lines().filter(|line| line.starts_with("kubelet ended: exit status")).collect();
    assert_eq!(ends, Vec::<&str>::new(), "the kubelet ended of itself");
}

/// Containers and tasks of the runtime.
fn runtime(cluster: &Cluster, node: &str) -> Vec<String> {
    let list = |what: &str| {
        let said = cluster.try_on_node(node, &["ctr", "--namespace", "k8s.io", what, "ls", "-q"]);
        let lines: Vec<String> = said.out.lines().map(|line| format!("{what} {line}")).collect();
        if said.ok { lines } else { vec![said.err] }
    };
    [list("containers"), list("tasks")].concat()
}

/// First programs of containers.
fn processes() -> Vec<String> {
    book::running().into_iter().map(|(name, pids)| format!("{name} still runs: {pids:?}")).collect()
}
