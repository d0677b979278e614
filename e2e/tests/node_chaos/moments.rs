//! Steps of a pod's life, as they show on the node's disk and in its cgroups.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use e2e::layout::Network;
use e2e::testing::Cluster;

use crate::{book, disk};

/// A step to kill at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The API server has the pod.
    Made,
    /// The kubelet has made its folder.
    Folder,
    /// A volume is set up, or nearly so.
    Volume,
    /// The pod has a cgroup.
    Cgroup,
    /// The sandbox is being made: the pod has a folder of logs.
    Sandbox,
    /// The container is being made: its termination log is there.
    Container,
    /// The container's program runs.
    Began,
    /// `kubectl exec` was begun.
    Exec,
    /// The pod was marked for deletion.
    Deleted,
    /// The container has been told to end.
    Told,
    /// The program is done.
    Ended,
    /// The volumes are taken down.
    TakenDown,
    /// The folder is removed.
    Removed,
}

/// Steps on the way up.
pub const OF_START: [Moment; 7] =
    [Moment::Made, Moment::Folder, Moment::Volume, Moment::Cgroup, Moment::Sandbox, Moment::Container, Moment::Began];
/// Steps on the way down.
pub const OF_DELETION: [Moment; 5] = [Moment::Deleted, Moment::Told, Moment::Ended, Moment::TakenDown, Moment::Removed];

/// Time after which the kill comes anyway.
const LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(3);

/// Waits for a step of a pod; false when it was not seen.
pub fn wait(cluster: &Cluster, node: &str, moment: Moment, uid: &str, name: &str) -> bool {
    let disk = cluster.layout().disk(node);
    let pod = disk::root(cluster, node).join("pods").join(uid);
    let (written, logs) = (book::page(&disk, name), disk.join(format!("var-log-pods/default_{name}_{uid}")));
    let cgroup = cgroup(node, uid);
    let seen = || match moment {
        Moment::Made | Moment::Exec | Moment::Deleted => true,
        Moment::Folder => pod.exists(),
        Moment::Volume => has_entries(&pod.join("volumes")),
        Moment::Cgroup => cgroup.iter().any(|path| path.exists()),
        Moment::Sandbox => logs.exists(),
        Moment::Container => has_entries(&pod.join("containers")),
        Moment::Began => book::says(&written, "began"),
        Moment::Told => book::says(&written, "told"),
        Moment::Ended => book::says(&written, "ended"),
        Moment::TakenDown => !has_entries(&pod.join("volumes")),
        Moment::Removed => !pod.exists(),
    };
    // A pod that was deleted before its program had begun writes nothing: its folder goes without.
    let passed = || OF_DELETION.contains(&moment) && !pod.exists();
    let began = Instant::now();
    loop {
        if seen() {
            return true;
        }
        if passed() || began.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Places where a pod of the class `BestEffort`, which all are, may have its cgroup: one is enough, for they are made together.
fn cgroup(node: &str, uid: &str) -> Vec<PathBuf> {
    let root = Network::numbered(0).host_named(node, 0).cgroup;
    let below = format!("{}/kubepods/besteffort/pod{uid}", root.trim_start_matches('/'));
    e2e::node::cgroup_mounts().into_iter().map(|mount| mount.join(&below)).collect()
}

fn has_entries(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
