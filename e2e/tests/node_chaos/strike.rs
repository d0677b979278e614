//! Kills.

use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::layout::CONTROL_PLANE;
use e2e::testing::Cluster;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::disk;
use testkit::dice::Dice;

/// Processes to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The kubelet.
    Kubelet,
    /// containerd; its shims live on.
    Runtime,
    /// Both at once.
    Both,
    /// The kubelet, which finds no API server when it comes back.
    KubeletWithoutServer,
    /// The runtime, while there is no API server.
    RuntimeWithoutServer,
    /// The kubelet, which finds its disk full when it comes back.
    KubeletOnFullDisk,
}

/// Victims, the more frequent ones more often.
const VICTIMS: [Victim; 11] = [
    Victim::Kubelet,
    Victim::Kubelet,
    Victim::Kubelet,
    Victim::Kubelet,
    Victim::Runtime,
    Victim::Runtime,
    Victim::Runtime,
    Victim::Both,
    Victim::KubeletWithoutServer,
    Victim::RuntimeWithoutServer,
    Victim::KubeletOnFullDisk,
];
const SERVER: &str = "kube-apiserver";

impl Victim {
    /// One of them.
    pub fn of(dice: &mut Dice) -> Self {
        dice.one_of(&VICTIMS)
    }

    /// Reports whether the runtime is killed.
    pub fn is_runtime(self) -> bool {
        self.processes().contains(&"containerd")
    }

    fn processes(self) -> &'static [&'static str] {
        match self {
            Self::Kubelet | Self::KubeletWithoutServer | Self::KubeletOnFullDisk => &["kubelet"],
            Self::Runtime | Self::RuntimeWithoutServer => &["containerd"],
            Self::Both => &["kubelet", "containerd"],
        }
    }

    fn needs_server_away(self) -> bool {
        matches!(self, Self::KubeletWithoutServer | Self::RuntimeWithoutServer)
    }

    /// Kills, and returns when all are started anew.
    pub fn strike(self, cluster: &Cluster, node: &str, dice: &mut Dice) {
        let server = self.needs_server_away().then(|| stop_server(cluster));
        if self == Self::KubeletOnFullDisk {
            disk::fill(cluster, node);
        }
        kill_and_wait(cluster, node, self);
        if self == Self::KubeletOnFullDisk {
            std::thread::sleep(Duration::from_secs(2) + dice.milliseconds(4000));
            disk::empty(cluster, node);
        }
        if let Some(mark) = server {
            std::thread::sleep(Duration::from_secs(2) + dice.milliseconds(4000));
            start_server(cluster, &mark);
        }
    }
}

/// Kills a victim's processes, and waits until they are started anew.
pub fn kill_and_wait(cluster: &Cluster, node: &str, victim: Victim) {
    let before: Vec<(&str, String)> = victim.processes().iter().map(|name| (*name, cluster.pid(node, name))).collect();
    for (_, pid) in &before {
        kill_hard(pid);
    }
    for (name, pid) in &before {
        cluster.until(&format!("{name} is back"), 60, || {
            let now = cluster.pid(node, name);
            if now == *pid || now.is_empty() { Err(now) } else { Ok(()) }
        });
    }
}

/// Kills the API server and keeps it away as long as the mark is there that this returns.
pub fn stop_server(cluster: &Cluster) -> PathBuf {
    let mark = cluster.layout().machine(CONTROL_PLANE).join(format!("{SERVER}.stopped"));
    std::fs::write(&mark, "").expect("the mark that keeps the server away");
    kill_hard(&cluster.pid(CONTROL_PLANE, SERVER));
    mark
}

/// Lets the API server come back, and waits for it.
pub fn start_server(cluster: &Cluster, mark: &Path) {
    std::fs::remove_file(mark).expect("the mark is there");
    cluster.until("the server is ready", 60, || {
        let said = cluster.try_kubectl(&["get", "--raw", "/readyz"], None);
        if said.ok { Ok(()) } else { Err(said.err) }
    });
}

/// A process that has just ended of itself is what its supervisor starts anew, too.
pub fn kill_hard(pid: &str) {
    let Ok(pid) = pid.parse() else { return };
    kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
}
