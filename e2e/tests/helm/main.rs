//! The chart of a control plane in a cluster of its own: two tenants side by side, a node that joins one and then is
//! reached through a tunnel alone, an upgrade under load, and nothing left in the end.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod addons;
mod images;
mod joining;
mod tenant;
mod tunnel;
mod webhook;

use std::path::PathBuf;

use e2e::testing::{Cluster, Said, run};
use tenant::Tenant;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/charts/control-plane");
/// The release of the chart's images, and the one that an upgrade goes to.
const VERSION: &str = "v1.35.4";
const NEXT: &str = "v1.35.5";
/// Values of the tenant that a node joins, beside the defaults and the endpoint. Its ranges are of no host cluster.
const WITH_NODES: [&str; 6] = [
    "--set=etcd.persistence.enabled=false",
    "--set=service.type=NodePort",
    "--set=service.nodePort=30443",
    "--set=network.serviceCIDR=10.208.0.0/16",
    "--set=network.podCIDR=10.252.0.0/16",
    "--set=apiServer.shutdownDelaySeconds=5",
];
/// Values that make every kind of object there is.
const VARIANTS: [&[&str]; 4] = [
    &["--set=etcd.replicas=3", "--set=certificates.retain=true", "--set=bootstrapToken.hours=0"],
    &[
        "--set=service.type=LoadBalancer",
        "--set=service.loadBalancerClass=example.com/lb",
        "--set=apiServer.replicas=1",
    ],
    &["--set=service.type=NodePort", "--set=service.nodePort=30443", "--set=endpoint.host=10.89.0.11"],
    &["--set=konnectivity.enabled=true", "--set=konnectivity.mode=http-connect", "--set=konnectivity.endpoint.host=t1"],
];

#[test]
fn tenants_live_in_a_cluster() {
    let Some(helm) = Helm::find() else {
        eprintln!("SKIPPED: the chart, because there is no helm; build it with: make helm");
        return;
    };
    let cluster = Cluster::start_with_dns(&["--nodes", "2"]);
    if !cluster.has_dns() {
        eprintln!(
            "SKIPPED: the chart, because etcd's members find one another by cluster DNS; build it with: make dns-image"
        );
        cluster.stop();
        return;
    }
    helm.must(&cluster, &["lint", CHART, "--strict"]);
    is_accepted(&cluster, &helm);
    let agent = images::load(&cluster, [VERSION, NEXT]);
    cluster.kubectl("create namespace tenants");
    let endpoint = format!("--set=endpoint.host={}", tenant::endpoint(&cluster));
    let mut first = Tenant::install(&cluster, &helm, "t1", &[&WITH_NODES[..], &[&endpoint]].concat());
    first.works(&helm);
    first.knows_time_zones();
    // With volumes the second has three members of etcd.
    let storage = addons::local_path(&cluster);
    let values = if storage { "--set=etcd.replicas=3" } else { "--set=etcd.persistence.enabled=false" };
    let second = Tenant::install(&cluster, &helm, "t2", &["--set=service.type=LoadBalancer", values]);
    second.is_behind_its_load_balancer();
    second.survives_a_lost_member(&helm, storage);
    addons::metrics_server(&cluster);
    second.is_apart_from(&first);
    let node = joining::by_node_port(&cluster, &first);
    let tunnel = match agent {
        Some(image) => tunnel::is_needed(&cluster, &helm, &mut first, &node, &image),
        None => {
            eprintln!("SKIPPED: konnectivity, because it was not built; build it with: make chart-images");
            false
        }
    };
    let before = if tunnel { "2" } else { "1" };
    first.is_upgraded_under_load(&helm, NEXT, if tunnel { &[tunnel::OTHER_MODE] } else { &[] });
    node.still_works(&first);
    first.is_rolled_back(&helm, before);
    node.still_works(&first);
    node.stop();
    second.uninstall(&helm);
    first.uninstall(&helm);
    leaves_nothing(&cluster);
    cluster.stop();
}

/// Every object of the chart is one that an API server takes.
fn is_accepted(cluster: &Cluster, helm: &Helm) {
    for values in VARIANTS {
        let rendered = helm.must(cluster, &[&["template", "t1", CHART, "--kube-version=1.35"], values].concat());
        cluster.feed("apply --dry-run=server --validate=strict -f -", &rendered);
    }
    let with_nodes = "--set=service.type=NodePort,service.nodePort=30443,endpoint.host=10.89.0.11";
    for (values, told) in [
        (["--set=service.type=NodePort", "--set=service.nodePort=30443"], "service.type NodePort needs endpoint.host"),
        (["--set=etcd.replicas=3", "--set=etcd.persistence.enabled=false"], "etcd.replicas 3 needs etcd.persistence"),
        (["--set=konnectivity.enabled=true", with_nodes], "service.type NodePort needs konnectivity.nodePort"),
        (["--set=konnectivity.mode=tcp", "--set=service.type=ClusterIP"], "/konnectivity/mode"),
        (["--set=etcd.replicas=2", "--set=service.type=ClusterIP"], "/etcd/replicas"),
        (["--set=apiServer.replica=2", "--set=service.type=ClusterIP"], "additional properties 'replica'"),
    ] {
        let said = helm.run(cluster, &[&["template", "t1", CHART, "--kube-version=1.35"], &values[..]].concat());
        assert!(!said.ok && said.err.contains(told), "{values:?}: {}", said.err);
    }
}

/// Neither objects nor Secrets outlive the releases.
fn leaves_nothing(cluster: &Cluster) {
    let kinds = "all,secrets,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,persistentvolumeclaims";
    cluster.until("nothing is left of the tenants", 120, || {
        let left = cluster.kubectl(&format!("get {kinds} -n tenants -o name"));
        let ours: Vec<&str> =
            left.lines().filter(|name| name.contains("control-plane") || name.contains("helm")).collect();
        if ours.is_empty() { Ok(()) } else { Err(ours.join(" ")) }
    });
}

/// The helm program.
pub struct Helm(PathBuf);

impl Helm {
    fn find() -> Option<Self> {
        let home = std::env::var("HOME").unwrap_or("/root".into());
        let cache = std::env::var("CACHE").unwrap_or(format!("{home}/.cache/ironclad"));
        let program = std::env::var("HELM").map_or(PathBuf::from(cache).join("go/helm"), PathBuf::from);
        program.exists().then_some(Self(program))
    }

    /// Runs it as the administrator of the cluster that hosts the tenants.
    pub fn run(&self, cluster: &Cluster, arguments: &[&str]) -> Said {
        let config = cluster.layout().admin_conf().display().to_string();
        let kubeconfig = ["--kubeconfig", config.as_str()];
        run(&self.0.display().to_string(), &[&kubeconfig, arguments].concat(), None)
    }

    /// Runs Helm as [`Helm::run`] does, must succeed, and returns the output.
    pub fn must(&self, cluster: &Cluster, arguments: &[&str]) -> String {
        let said = self.run(cluster, arguments);
        if !said.ok {
            eprintln!("{}", cluster.kubectl("get pods,jobs,events -A"));
        }
        assert!(said.ok, "helm {arguments:?}: {}{}", said.out, said.err);
        said.out
    }
}
