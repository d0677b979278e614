//! Images of what the chart runs, made as a release makes them: the programs under test in two versions, etcd, and
//! konnectivity.

use std::fs;
use std::path::PathBuf;

use e2e::image::Architecture;
use e2e::release::{self, REGISTRY, ReleaseIdentity, Sources};
use e2e::testing::Cluster;
use e2e::up;

const PROGRAMS: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "control-plane-bootstrap"];

/// Imports them into every node, the programs in each of these versions; the archive of konnectivity's agent, where
/// konnectivity was built.
pub fn load(cluster: &Cluster, versions: [&str; 2]) -> Option<PathBuf> {
    let folder = cluster.layout().root.join("images");
    for version in versions {
        let mut sources = sources(cluster, version);
        let binaries = folder.join("bin");
        release::stamp(&sources, &binaries).expect("binaries of a version");
        release::strip(&binaries, sources.architecture).expect("binaries without what debuggers need");
        sources.binaries.clone_from(&binaries);
        import(cluster, &release::images(&sources, &folder.join(version), &PROGRAMS).expect("images"));
        fs::remove_dir_all(&binaries).expect("the binaries can go");
    }
    let sources = sources(cluster, versions[0]);
    let other = folder.join("chart");
    import(cluster, &release::images(&sources, &other, &["etcd"]).expect("an image of etcd"));
    cluster.go_program("proxy-server")?;
    import(cluster, &release::images(&sources, &other, &["proxy-server"]).expect("an image of konnectivity"));
    release::images(&sources, &other, &["proxy-agent"]).expect("an image of konnectivity").pop()
}

/// Imports archives into every node; every node stores every image, so nothing is kept here.
fn import(cluster: &Cluster, archives: &[PathBuf]) {
    for archive in archives {
        up::load(&cluster.layout(), archive).expect("nodes take the image");
        fs::remove_file(archive).expect("the archive can go");
    }
}

/// Parts of a release, of which etcd is built from its Go module.
fn sources(cluster: &Cluster, version: &str) -> Sources {
    Sources {
        binaries: cluster.layout().binaries,
        cache: cluster.cache(),
        repository: REGISTRY.to_owned(),
        identity: ReleaseIdentity {
            version: version.to_owned(),
            commit: "0".repeat(40),
            date: "1970-01-01T00:00:00Z".to_owned(),
        },
        architecture: Architecture::default(),
    }
}
