//! One two-node cluster, and what people do with it: the two-tier example, kubectl's verbs, and things that break.
//! The phases share the cluster, because starting it and the images is what takes the time.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod claims;
mod devices;
mod dns;
mod dual_stack;
mod failures;
mod injection;
mod joining;
mod kubectl;
mod load_balancer;
mod measured;
mod monitored;
mod node;
mod processors;
mod side_by_side;
mod static_pods;
mod storage;
mod streams;
mod two_tier;

use e2e::testing::Cluster;

#[test]
fn a_real_cluster_stands() {
    let dual_stack = e2e::preflight::has_ipv6();
    let families: &[&str] = if dual_stack { &["--dual-stack"] } else { &[] };
    let cluster = Cluster::start_with_dns(&[&["--nodes", "2"], families].concat());
    cluster.load("busybox");
    if cluster.has_dns() {
        dns::answers(&cluster);
    } else {
        eprintln!("SKIPPED: cluster DNS, because there is no image of CoreDNS; build it with: make dns-image");
    }
    if dual_stack {
        dual_stack::has_both_families(&cluster);
    } else {
        eprintln!("SKIPPED: addresses of two families, because IPv6 is off on this machine");
    }
    load_balancer::gives_addresses(&cluster, if dual_stack { 2 } else { 1 });
    joining::by_token(&cluster);
    kubectl::create_and_look(&cluster);
    kubectl::change(&cluster);
    kubectl::run_and_talk(&cluster);
    streams::stay_open(&cluster);
    node::keeps_and_resizes(&cluster);
    measured::by_the_kubelet(&cluster);
    monitored::by_alerts_and_dashboards(&cluster);
    storage::of_drivers(&cluster);
    storage::of_mounts(&cluster);
    devices::of_plugins(&cluster);
    claims::of_drivers(&cluster);
    processors::are_exclusive(&cluster);
    injection::by_webhook(&cluster);
    kubectl::roll_out(&cluster);
    kubectl::delete(&cluster);
    cluster.load("mysql");
    cluster.load("myweb");
    two_tier::comes_up(&cluster);
    two_tier::survives_a_deleted_pod(&cluster);
    failures::a_killed_process_is_restarted(&cluster);
    failures::every_component_comes_back(&cluster);
    failures::a_dead_kubelet_loses_its_pods(&cluster);
    cluster.stop();
}

#[test]
fn claims_are_given_devices_of_upstreams_library() {
    let cluster = Cluster::start(&[]);
    cluster.load("busybox");
    claims::of_upstreams_library(&cluster);
    cluster.stop();
}

#[test]
fn the_control_plane_runs_as_static_pods() {
    let cluster = Cluster::start(&["--control-plane", "static-pods", "--service-cidr", static_pods::SERVICES]);
    cluster.load("busybox");
    static_pods::come_up(&cluster);
    static_pods::cannot_be_got_rid_of(&cluster);
    cluster.stop();
}

#[test]
fn two_clusters_stand_side_by_side() {
    side_by_side::stand();
}
