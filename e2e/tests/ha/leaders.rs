//! Leaders that die, are stopped and freeze, and how long it takes until the other one leads.

use std::time::{Duration, Instant};

use crate::{MACHINE, kill, signal};
use e2e::testing::Cluster;

/// The longest that nobody leads after a leader's death: the lease's 15 s from when the other one saw it renewed, which looks
/// every 2 to 4.4 s, as client-go does, before and after.
const AFTER_DEATH: Duration = Duration::from_secs(24);
/// The longest that nobody leads after a leader gave its lease back.
const AFTER_RELEASE: Duration = Duration::from_secs(3);

/// Takes a component's leader away in three ways.
pub fn change(cluster: &Cluster, component: &str) {
    let leader = leader(cluster, component);
    let before = holder(cluster, component);
    kill(cluster, &leader);
    let took = succession(cluster, component, &before);
    eprintln!("{component}: a new leader {:.1} s after kill -9", took.as_secs_f32());
    assert!(took <= AFTER_DEATH, "{took:?}");
    cluster.must(&["start", MACHINE, &leader]);

    let leader = self::leader(cluster, component);
    wait_for_candidates(cluster, component);
    let before = holder(cluster, component);
    let began = Instant::now();
    signal("-TERM", &cluster.pid(MACHINE, &leader));
    let took = succession_since(cluster, component, &before, began);
    eprintln!("{component}: a new leader {:.1} s after SIGTERM", took.as_secs_f32());
    assert!(took <= AFTER_RELEASE, "{took:?}");

    let leader = self::leader(cluster, component);
    wait_for_candidates(cluster, component);
    let before = holder(cluster, component);
    let pid = cluster.pid(MACHINE, &leader);
    signal("-STOP", &pid);
    let took = succession(cluster, component, &before);
    signal("-CONT", &pid);
    eprintln!("{component}: a new leader {:.1} s after SIGSTOP", took.as_secs_f32());
    assert!(took <= AFTER_DEATH, "{took:?}");
    let now = holder(cluster, component);
    cluster.until(&format!("the frozen {component} ends, for it leads no more"), 20, || {
        let now = cluster.pid(MACHINE, &leader);
        if now == pid { Err(now) } else { Ok(()) }
    });
    assert_eq!(holder(cluster, component), now, "the one that was frozen did not take its lease back");
}

/// The process that leads.
fn leader(cluster: &Cluster, component: &str) -> String {
    let names: Vec<String> = (0..2).map(|at| e2e::ha::numbered(component, at)).collect();
    cluster.until(&format!("a leader of {component}"), 20, || {
        let leading = names.iter().find(|name| leads(cluster, name));
        leading.cloned().ok_or_else(|| "neither says that it leads".to_owned())
    })
}

/// Reports whether a process says in its metrics that it leads.
fn leads(cluster: &Cluster, process: &str) -> bool {
    let (component, at) = process.rsplit_once('-').expect("a number");
    let at: usize = at.parse().expect("a number");
    let port = if component == "kube-scheduler" { 10259 } else { 10257 };
    let url = format!("https://{}:{port}/metrics", e2e::ha::servers(&cluster.layout().network)[at - 1]);
    let said = e2e::testing::run(
        "curl",
        &[
            "-ks",
            "--noproxy",
            "*",
            "--max-time",
            "5",
            "--cert",
            &client(cluster, "crt"),
            "--key",
            &client(cluster, "key"),
            &url,
        ],
        None,
    );
    said.out.lines().any(|line| line.starts_with("leader_election_master_status{") && line.ends_with(" 1"))
}

/// The administrator's certificate or key, in a file.
fn client(cluster: &Cluster, extension: &str) -> String {
    let layout = cluster.layout();
    layout.pki().join(format!("apiserver-kubelet-client.{extension}")).display().to_string()
}

fn holder(cluster: &Cluster, component: &str) -> String {
    cluster.kubectl(&format!("get lease -n kube-system {component} -o jsonpath={{.spec.holderIdentity}}"))
}

/// Waits until both processes of a component run.
fn wait_for_candidates(cluster: &Cluster, component: &str) {
    let port = if component == "kube-scheduler" { 10259 } else { 10257 };
    cluster.until(&format!("two of {component}"), 30, || {
        let healthy = e2e::ha::servers(&cluster.layout().network)[..2].iter().all(|address| {
            let url = format!("https://{address}:{port}/healthz");
            e2e::testing::run("curl", &["-ksf", "--noproxy", "*", "--max-time", "5", &url], None).ok
        });
        if healthy { Ok(()) } else { Err("one is not healthy".to_owned()) }
    });
}

fn succession(cluster: &Cluster, component: &str, before: &str) -> Duration {
    succession_since(cluster, component, before, Instant::now())
}

/// The time until somebody else holds the lease.
fn succession_since(cluster: &Cluster, component: &str, before: &str, began: Instant) -> Duration {
    cluster.until(&format!("a new leader of {component}"), 40, || {
        let now = holder(cluster, component);
        if now.is_empty() || now == before { Err(now) } else { Ok(began.elapsed()) }
    })
}
