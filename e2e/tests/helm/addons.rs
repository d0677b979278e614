//! Add-ons of `make addons`: a class of volumes for etcd's members, and figures for `kubectl top`.

use std::path::PathBuf;

use e2e::testing::Cluster;

/// Applies the add-on if its image was built, and waits for it; says so if not.
fn install(cluster: &Cluster, addon: &str, deployment: &str) -> bool {
    let home = std::env::var("HOME").unwrap_or("/root".into());
    let cache = PathBuf::from(std::env::var("CACHE").unwrap_or(format!("{home}/.cache/ironclad")));
    if !cache.join("images").join(format!("{addon}.tar")).exists() {
        eprintln!("SKIPPED: {addon}, because there is no image of it; build it with: make addons");
        return false;
    }
    cluster.load(addon);
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/addons");
    cluster.kubectl(&format!("apply -f {manifests}/{addon}.yaml"));
    cluster.kubectl(&format!("rollout status {deployment} --timeout=120s"));
    true
}

/// A default class of volumes.
pub fn local_path(cluster: &Cluster) -> bool {
    cluster.load("busybox");
    install(cluster, "local-path", "-n local-path-storage deployment/local-path-provisioner")
}

/// Usage of nodes and pods, from kubelets whose certificates are checked.
pub fn metrics_server(cluster: &Cluster) {
    if !install(cluster, "metrics-server", "-n kube-system deployment/metrics-server") {
        return;
    }
    cluster.until("kubectl top tells of both nodes", 90, || {
        let said = cluster.try_kubectl(&["top", "nodes", "--no-headers"], None);
        if said.ok && said.out.lines().count() == 2 { Ok(()) } else { Err(said.out + &said.err) }
    });
    cluster.until("kubectl top tells of pods", 60, || {
        let said = cluster.try_kubectl(&["top", "pods", "-n", "kube-system", "--no-headers"], None);
        if said.out.contains("coredns") { Ok(()) } else { Err(said.out + &said.err) }
    });
}
