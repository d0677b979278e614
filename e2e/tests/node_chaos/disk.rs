//! The disk of the node's kubelet: a small file system of its own, which can be filled.

use std::io::Write;
use std::path::{Path, PathBuf};

use e2e::testing::Cluster;

/// The kubelet's folder on the node.
const ROOT: &str = "/var/lib/kubelet";
/// The folder that fills the disk, in the kubelet's.
const FILLER: &str = "filler";
static BLOCK: [u8; 64 << 10] = [0; 64 << 10];

/// Mounts a small disk at the kubelet's folder, before any pod has come.
pub fn give(cluster: &Cluster, node: &str) {
    let mark = cluster.layout().machine(node).join("kubelet.stopped");
    let pid = cluster.pid(node, "kubelet");
    std::fs::write(&mark, "").expect("the mark that keeps the kubelet away");
    cluster.until("the kubelet has ended", 30, || {
        if Path::new("/proc").join(&pid).exists() { Err(pid.clone()) } else { Ok(()) }
    });
    cluster.on_node(node, &["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=4000", "kubelet", ROOT]);
    std::fs::remove_file(&mark).expect("the mark is there");
    cluster.until("the kubelet is back", 30, || {
        let now = cluster.pid(node, "kubelet");
        if now == pid { Err(now) } else { Ok(()) }
    });
}

/// The kubelet's folder, seen from here.
pub fn root(cluster: &Cluster, node: &str) -> PathBuf {
    let supervisor = cluster.pid(node, "supervisor");
    Path::new("/proc").join(supervisor).join("root").join(ROOT.trim_start_matches('/'))
}

/// Leaves neither a block nor an inode.
pub fn fill(cluster: &Cluster, node: &str) {
    let folder = root(cluster, node).join(FILLER);
    std::fs::create_dir(&folder).expect("a folder on the disk");
    let mut file = std::fs::File::create(folder.join("blocks")).expect("a file on the disk");
    while file.write_all(&BLOCK).is_ok() {}
    let mut number = 0_u32;
    while std::fs::File::create(folder.join(number.to_string())).is_ok() {
        number += 1;
    }
}

/// Makes room again.
pub fn empty(cluster: &Cluster, node: &str) {
    std::fs::remove_dir_all(root(cluster, node).join(FILLER)).expect("what fills the disk");
}
