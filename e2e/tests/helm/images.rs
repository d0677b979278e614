//! Images of what the chart runs: the programs under test and the machine's etcd, under the chart's names.

use std::fs;
use std::path::PathBuf;

use e2e::{image, shell, up};

use e2e::testing::Cluster;

const PROGRAMS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "control-plane-bootstrap"];
const VERSION: &str = "v1.35.4";
const ETCD: &str = "registry.k8s.io/etcd:3.6.6-0";

/// Imports them into every node, each program under the tag `next` as well.
pub fn load(cluster: &Cluster, next: &str) {
    let layout = cluster.layout();
    let folder = layout.root.join("images");
    let etcd = shell::find("etcd").unwrap_or_else(|| panic!("etcd is installed"));
    let archive = image::program(&folder.join("chart"), "etcd", &etcd, ETCD).expect("an image of etcd");
    up::load(&layout, &archive).expect("nodes take the image");
    for program in PROGRAMS {
        // Symbols are most of what a program under test weighs, and every node stores every image.
        let stripped = folder.join(program);
        let (from, to) = (PathBuf::from(layout.binary(program)), stripped.display().to_string());
        shell::run("strip", &["-o", &to, &from.display().to_string()]).expect("a program without symbols");
        for tag in [VERSION, next] {
            let reference = format!("registry.k8s.io/{program}:{tag}");
            let archive = image::program(&folder.join(tag), program, &stripped, &reference).expect("an image");
            up::load(&layout, &archive).expect("nodes take the image");
            fs::remove_file(&archive).expect("the archive can go");
        }
    }
}
