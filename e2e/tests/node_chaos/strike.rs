//! Kills.

use std::time::Duration;

use e2e::layout::CONTROL_PLANE;
use e2e::testing::Cluster;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::dice::Dice;

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
}

/// Victims, the more frequent ones more often.
const VICTIMS: [Victim; 10] = [
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
];
const SERVER: &str = "kube-apiserver";

impl Victim {
    /// One of them.
    pub fn of(dice: &mut Dice) -> Self {
        dice.one_of(&VICTIMS)
    }

    fn processes(self) -> &'static [&'static str] {
        match self {
            Self::Kubelet | Self::KubeletWithoutServer => &["kubelet"],
            Self::Runtime | Self::RuntimeWithoutServer => &["containerd"],
            Self::Both => &["kubelet", "containerd"],
        }
    }

    /// Kills, and returns when all are started anew.
    pub fn strike(self, cluster: &Cluster, node: &str, dice: &mut Dice) {
        let mark = cluster.layout().machine(CONTROL_PLANE).join(format!("{SERVER}.stopped"));
        let without_server = matches!(self, Self::KubeletWithoutServer | Self::RuntimeWithoutServer);
        if without_server {
            std::fs::write(&mark, "").expect("the mark that keeps the server away");
            kill_hard(&cluster.pid(CONTROL_PLANE, SERVER));
        }
        let before: Vec<(&str, String)> =
            self.processes().iter().map(|name| (*name, cluster.pid(node, name))).collect();
        for (_, pid) in &before {
            kill_hard(pid);
        }
        for (name, pid) in &before {
            cluster.until(&format!("{name} is back"), 60, || {
                let now = cluster.pid(node, name);
                if now == *pid || now.is_empty() { Err(now) } else { Ok(()) }
            });
        }
        if without_server {
            std::thread::sleep(Duration::from_secs(2) + dice.milliseconds(4000));
            std::fs::remove_file(&mark).expect("the mark is there");
            cluster.until("the server is ready", 60, || {
                let said = cluster.try_kubectl(&["get", "--raw", "/readyz"], None);
                if said.ok { Ok(()) } else { Err(said.err) }
            });
        }
    }
}

/// A process that has just ended of itself is what its supervisor starts anew, too.
fn kill_hard(pid: &str) {
    let Ok(pid) = pid.parse() else { return };
    kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
}
