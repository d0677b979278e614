//! Leadership handed over again and again between two controller managers, and between two schedulers, as processes of
//! their own, while pods are rolled out: by SIGTERM, by kill, by freezing the leader beyond its lease and thawing it, by
//! pausing the server.
//!
//! Afterwards the history of etcd shows that not one pod too many was ever made, or that each was bound once and no node
//! was given more than it has, and the server's audit log that nobody wrote after another had taken the lease. Events are
//! left out: a process may tell of its end when it is over. `HANDOVERS` (5) says how often, `HANDOVER_SEED` (1) how,
//! `HANDOVER_REPLICAS` (20) how many pods are rolled out; `OTHER_MANAGER` and `OTHER_SCHEDULER` name another binary for one of the two.

#![allow(clippy::panic, clippy::expect_used, reason = "a test panics to say what is wrong")]

mod history;
mod leaders;
mod placed;
mod workload;

use std::time::{Duration, Instant};

use serde_json::json;

use leaders::{LEASE, Leaders, MANAGER, SCHEDULER};
use placed::Placed;
use testkit::dice::Dice;
use testkit::http2::Client;
use testkit::objects::post;
use testkit::world::World;
use workload::Workload;

const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
";

/// Ways in which a leader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By SIGTERM.
    Terminated,
    /// By SIGKILL.
    Killed,
    /// By SIGSTOP until its lease has run out, and SIGCONT under another leader.
    Frozen,
    /// By SIGSTOP for less than that.
    Paused,
    /// The API server answers nobody for a while.
    ServerPaused,
}

const WAYS: [Way; 5] = [Way::Terminated, Way::Frozen, Way::Killed, Way::ServerPaused, Way::Paused];

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

async fn world(binaries: &str, what: &str) -> (World, std::path::PathBuf) {
    let dir = std::env::temp_dir().join(format!("handover-{what}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let (policy, log) = (dir.join("audit.yaml"), dir.join("audit.log"));
    std::fs::write(&policy, POLICY).expect("a policy");
    let flags = [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        "--audit-log-maxsize=2000".to_owned(),
        // The whole history is looked at in the end.
        "--etcd-compaction-interval=0".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let world = World::start_with(&format!("{binaries}/kube-apiserver"), &flags).await.expect("a server");
    (world, dir)
}

/// The second process is another user, so that the audit log tells the two apart.
async fn admit_alice(client: &mut Client) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "alice"}, "subjects": [{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect("a binding");
}

async fn hand_over(way: Way, world: &World, leaders: &mut Leaders, dice: &mut Dice) {
    let leader = leaders.leader().await;
    let some = |dice: &mut Dice, from: u64, to: u64| Duration::from_millis(dice.between(from, to));
    match way {
        Way::Terminated => {
            leaders.signal(leader, "TERM");
            leaders.await_end(leader).await;
        }
        Way::Killed => {
            leaders.signal(leader, "KILL");
            leaders.await_end(leader).await;
        }
        Way::Frozen => {
            leaders.signal(leader, "STOP");
            leaders.await_other(leader).await;
            tokio::time::sleep(some(dice, 0, 1500)).await;
            leaders.signal(leader, "CONT");
            leaders.await_end(leader).await;
        }
        Way::Paused => {
            leaders.signal(leader, "STOP");
            tokio::time::sleep(some(dice, 100, u64::try_from(LEASE.as_millis()).expect("short") - 500)).await;
            leaders.signal(leader, "CONT");
        }
        Way::ServerPaused => {
            world.server().signal("STOP").expect("the server runs");
            tokio::time::sleep(some(dice, 500, 6000)).await;
            world.server().signal("CONT").expect("the server runs");
        }
    }
    leaders.start_missing();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handovers_make_no_pod_too_many() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let binaries = std::env::var("BINARIES").expect("BINARIES names the folder of the binaries; make sets it");
    let (count, seed) = (number("HANDOVERS", 5), number("HANDOVER_SEED", 1));
    let (world, dir) = world(&binaries, "managers").await;
    let mut client = world.client().await.expect("a connection");
    admit_alice(&mut client).await;
    let mut leaders = Leaders::start(&world, &MANAGER, &binaries, &dir);
    let mut dice = Dice::new(seed);
    let mut workload = Workload::begin(&world).await;
    let began = Instant::now();
    for round in 0..count {
        let way = WAYS[usize::try_from(round).expect("few") % WAYS.len()];
        workload.roll_out(round).await;
        // In the middle of what was asked for.
        tokio::time::sleep(Duration::from_millis(dice.between(0, 400))).await;
        hand_over(way, &world, &mut leaders, &mut dice).await;
        workload.await_replicas(round).await;
        eprintln!("{:>6.1} s, handover {round}: {way:?}", began.elapsed().as_secs_f32());
    }
    workload.await_rollout().await;
    let terms = leaders.terms();
    drop(leaders);
    let audit = std::fs::read_to_string(dir.join("audit.log")).expect("an audit log");
    let (holders, writes) =
        history::one_writes_at_a_time(&audit, MANAGER.name).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let pods = history::no_pod_too_many(&world, count).await.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    eprintln!("{terms} terms, {holders} changes of the holder, {writes} writes, {pods} pods made");
    assert!(holders > 0 && writes > 0 && pods > 0, "something happened");
    std::fs::remove_dir_all(dir).expect("removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handovers_bind_each_pod_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let binaries = std::env::var("BINARIES").expect("BINARIES names the folder of the binaries; make sets it");
    let (count, seed) = (number("HANDOVERS", 5), number("HANDOVER_SEED", 1));
    let (world, dir) = world(&binaries, "schedulers").await;
    let mut client = world.client().await.expect("a connection");
    admit_alice(&mut client).await;
    let mut placed = Placed::begin(&world).await;
    let mut leaders = Leaders::start(&world, &SCHEDULER, &binaries, &dir);
    let mut dice = Dice::new(seed);
    let began = Instant::now();
    for round in 0..count {
        let way = WAYS[usize::try_from(round).expect("few") % WAYS.len()];
        placed.create(round).await;
        // In the middle of what was asked for.
        tokio::time::sleep(Duration::from_millis(dice.between(0, 300))).await;
        hand_over(way, &world, &mut leaders, &mut dice).await;
        placed.await_bound(round).await;
        eprintln!("{:>6.1} s, handover {round}: {way:?}", began.elapsed().as_secs_f32());
    }
    let terms = leaders.terms();
    drop(leaders);
    let audit = std::fs::read_to_string(dir.join("audit.log")).expect("an audit log");
    let (holders, writes) =
        history::one_writes_at_a_time(&audit, SCHEDULER.name).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let pods = history::each_bound_once(&world).await.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    eprintln!("{terms} terms, {holders} changes of the holder, {writes} writes, {pods} pods bound");
    assert_eq!(pods, placed::PODS * usize::try_from(count).expect("few"), "none was lost");
    assert!(holders > 0 && writes > 0, "something happened");
    std::fs::remove_dir_all(dir).expect("removed");
}
