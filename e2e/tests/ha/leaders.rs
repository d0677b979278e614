//! Leaders that die, are stopped and freeze, and how long it takes until the other one leads.

use std::time::{Duration, Instant};

use crate::{MACHINE, kill, signal};
use e2e::testing::Cluster;

/// The longest time until the next leader works after a leader's death: the lease's 15 s from when the other one saw it
/// renewed, which looks each second, and the start of the work.
const AFTER_DEATH: Duration = Duration::from_secs(17);
/// The longest time until the next leader works after a leader gave its lease back.
const AFTER_RELEASE: Duration = Duration::from_secs(3);

/// Takes a component's leader away in three ways.
pub fn change(cluster: &Cluster, component: &str) {
    let leader = leader(cluster, component);
    wait_for_candidates(cluster, component);
    let gap = Gap::begin(cluster, component, || kill(cluster, &leader));
    gap.end("kill -9", AFTER_DEATH);
    cluster.must(&["start", MACHINE, &leader]);

    let leader = self::leader(cluster, component);
    wait_for_candidates(cluster, component);
    let gap = Gap::begin(cluster, component, || signal("-TERM", &cluster.pid(MACHINE, &leader)));
    gap.end("SIGTERM", AFTER_RELEASE);

    let leader = self::leader(cluster, component);
    wait_for_candidates(cluster, component);
    let pid = cluster.pid(MACHINE, &leader);
    let gap = Gap::begin(cluster, component, || signal("-STOP", &pid));
    gap.end("SIGSTOP", AFTER_DEATH);
    signal("-CONT", &pid);
    let now = holder(cluster, component);
    cluster.until(&format!("the frozen {component} ends, for it leads no more"), 20, || {
        let now = cluster.pid(MACHINE, &leader);
        if now == pid { Err(now) } else { Ok(()) }
    });
    assert_eq!(holder(cluster, component), now, "the one that was frozen did not take its lease back");
}

/// Time in which nobody leads, and work that waits for its end.
struct Gap<'c> {
    cluster: &'c Cluster,
    component: &'c str,
    /// The holder before.
    before: String,
    began: Instant,
    /// Name of the object that the next leader has to do something about.
    work: String,
}

impl<'c> Gap<'c> {
    /// Takes the leader away, then asks for work.
    fn begin(cluster: &'c Cluster, component: &'c str, take_away: impl FnOnce()) -> Self {
        let before = holder(cluster, component);
        let began = Instant::now();
        take_away();
        let work = format!("work-{:x}", began.elapsed().as_nanos());
        match component {
            "kube-scheduler" => cluster.kubectl(&format!("run {work} --image=busybox:1.36 -- sleep 3600")),
            _ => cluster.kubectl(&format!("create namespace {work}")),
        };
        Self { cluster, component, before, began, work }
    }

    /// Waits for the next leader's lease and its first work.
    fn end(&self, after: &str, limit: Duration) {
        let Self { cluster, component, .. } = self;
        let leads = cluster.until(&format!("a new leader of {component}"), 40, || {
            let now = holder(cluster, component);
            if now.is_empty() || now == self.before { Err(now) } else { Ok(self.began.elapsed()) }
        });
        let works = cluster.until(&format!("work of the new leader of {component}"), 40, || {
            if self.is_done() { Ok(self.began.elapsed()) } else { Err("nothing is done".to_owned()) }
        });
        let (leads, works) = (leads.as_secs_f32(), works.as_secs_f32());
        eprintln!("{component}: a new leader {leads:.1} s after {after}, works after {works:.1} s");
        assert!(works <= limit.as_secs_f32(), "{component}: works {works} s after {after}");
        let kind = if *component == "kube-scheduler" { "pod" } else { "namespace" };
        cluster.kubectl(&format!("delete {kind} {} --wait=false", self.work));
    }

    /// Reports whether the pod is bound, or the namespace has its service account.
    fn is_done(&self) -> bool {
        match self.component {
            "kube-scheduler" => {
                let node = format!("get pod {} -o jsonpath={{.spec.nodeName}}", self.work);
                !self.cluster.kubectl(&node).is_empty()
            }
            _ => {
                let accounts =
                    format!("get serviceaccounts -n {} --field-selector metadata.name=default -o name", self.work);
                !self.cluster.kubectl(&accounts).is_empty()
            }
        }
    }
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
