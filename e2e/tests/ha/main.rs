//! A control plane of three under faults: etcd members and API servers that die or freeze, leaders that die, are stopped or
//! freeze, and a backup that is restored. Clients work against haproxy meanwhile, and every answer counts.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod histories;
mod leaders;
mod machines;
mod restored;
mod traffic;

use std::time::Duration;

use e2e::testing::Cluster;
use traffic::{Tally, Traffic};

const MACHINE: &str = "control-plane";
const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
const SERVERS: [&str; 3] = ["kube-apiserver-1", "kube-apiserver-2", "kube-apiserver-3"];
/// Length of a fault: longer than haproxy and the servers take to see it.
const FAULT: Duration = Duration::from_secs(6);
/// The longest that 99 of 100 requests take that were begun two seconds after an etcd member was lost.
const SLOWEST: Duration = Duration::from_secs(1);
/// Time of clients before a fault, and after it for the rest to be itself again.
const PAUSE: Duration = Duration::from_secs(3);

#[test]
fn a_control_plane_of_three_stands_without_any_one_of_its_parts() {
    let cluster = Cluster::start(&["--nodes", "1", "--control-plane", "ha"]);
    cluster.load("busybox");
    every_server_is_an_endpoint(&cluster);
    Traffic::prepare(&cluster);
    let hold = |what: &str, all: &mut Tally, fault: &dyn Fn()| {
        let tally = during(&cluster, fault);
        eprintln!("{what}: {tally}");
        judge(what, &tally);
        all.add(&tally);
    };
    hold("no fault", &mut Tally::default(), &|| std::thread::sleep(FAULT));
    for (kind, processes) in [("etcd member", MEMBERS), ("API server", SERVERS)] {
        let mut all = Tally::default();
        for process in processes {
            hold(&format!("{process} is frozen"), &mut all, &|| with_frozen(&cluster, process));
            hold(&format!("{process} is dead"), &mut all, &|| with_dead(&cluster, process));
        }
        eprintln!("each {kind}: {all}");
        assert!(all.failed_writes * 1000 <= all.writes, "an {kind} is lost: {all}");
        if kind == "etcd member" {
            assert!(all.p99() <= SLOWEST, "an {kind} is lost: {all}");
        }
    }
    for server in SERVERS {
        let mut stopped = Tally::default();
        hold(&format!("{server} is stopped and started"), &mut stopped, &|| with_stopped(&cluster, server));
        assert_eq!(stopped.failed_writes, 0, "{server} is stopped and started: {stopped}");
    }
    every_server_is_an_endpoint(&cluster);
    for component in ["kube-controller-manager", "kube-scheduler"] {
        leaders::change(&cluster, component);
    }
    restored::informers_notice(&cluster);
    cluster.stop();
}

/// The `kubernetes` Service leads to all three servers.
fn every_server_is_an_endpoint(cluster: &Cluster) {
    cluster.until("three API servers are endpoints", 30, || {
        let slices = cluster.kubectl(
            "get endpointslices -n default -l kubernetes.io/service-name=kubernetes \
             -o jsonpath={.items[*].endpoints[*].addresses[*]}",
        );
        let mut addresses: Vec<&str> = slices.split_whitespace().collect();
        addresses.sort_unstable();
        if addresses == e2e::ha::servers(&cluster.layout().network) { Ok(()) } else { Err(slices.clone()) }
    });
}

/// Counts of clients during a fault and a while before and after it. They connect anew for each: haproxy gives every server
/// one of them at least.
fn during(cluster: &Cluster, fault: &dyn Fn()) -> Tally {
    let traffic = Traffic::start(cluster);
    std::thread::sleep(PAUSE);
    traffic.note_fault();
    fault();
    std::thread::sleep(PAUSE);
    traffic.stop()
}

fn judge(what: &str, tally: &Tally) {
    assert!(tally.reads > 50 && tally.writes > 20, "{what}: clients hardly did anything: {tally}");
    assert_eq!(tally.failed_reads, 0, "{what}: {tally}");
    // Only those that were on their way when the fault began; over all faults they are few.
    assert!(tally.failed_writes <= traffic::WRITERS, "{what}: {tally}");
}

/// Kills a process hard and keeps it down for a while.
fn with_dead(cluster: &Cluster, process: &str) {
    kill(cluster, process);
    std::thread::sleep(FAULT);
    cluster.must(&["start", MACHINE, process]);
}

/// Freezes a process for a while, connections and all.
fn with_frozen(cluster: &Cluster, process: &str) {
    let pid = cluster.pid(MACHINE, process);
    signal("-STOP", &pid);
    std::thread::sleep(FAULT);
    signal("-CONT", &pid);
}

/// Has a process end by itself, as for an upgrade.
fn with_stopped(cluster: &Cluster, process: &str) {
    cluster.must(&["stop", MACHINE, process]);
    cluster.must(&["start", MACHINE, process]);
}

/// Kills a process hard; its supervisor, which would start it again after a second, is told not to.
pub fn kill(cluster: &Cluster, process: &str) {
    signal("-KILL", &cluster.pid(MACHINE, process));
    cluster.must(&["stop", MACHINE, process]);
}

pub fn signal(signal: &str, pid: &str) {
    assert!(e2e::testing::run("kill", &[signal, pid], None).ok, "kill {signal} {pid}");
}
