//! Images of what the chart runs: the programs under test, and etcd as a release has it, under the chart's names.

use std::fs;
use std::path::PathBuf;

use e2e::release::{self, REGISTRY, ReleaseIdentity, Sources};
use e2e::testing::Cluster;
use e2e::{image, shell, up};

const PROGRAMS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "control-plane-bootstrap"];
const VERSION: &str = "v1.35.4";

/// Imports them into every node, each program under the tag `next` as well.
pub fn load(cluster: &Cluster, next: &str) {
    let layout = cluster.layout();
    let folder = layout.root.join("images");
    let etcd = release::images(&sources(cluster), &folder.join("chart"), &["etcd"]).expect("an image of etcd");
    etcd.iter().for_each(|archive| up::load(&layout, archive).expect("nodes take the image"));
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

/// Parts of a release, of which etcd is built from its Go module.
fn sources(cluster: &Cluster) -> Sources {
    Sources {
        binaries: cluster.layout().binaries,
        cache: cluster.cache(),
        repository: REGISTRY.to_owned(),
        identity: ReleaseIdentity {
            version: VERSION.to_owned(),
            commit: "0".repeat(40),
            date: "1970-01-01T00:00:00Z".to_owned(),
        },
    }
}
