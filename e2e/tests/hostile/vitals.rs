//! The components' lives: that none restarts, and how much memory each comes to.

use std::fs;

use e2e::testing::Cluster;

const COMPONENTS: [(&str, &str); 5] = [
    ("control-plane", "kube-apiserver"),
    ("control-plane", "kube-controller-manager"),
    ("control-plane", "kube-scheduler"),
    ("node-1", "kubelet"),
    ("node-1", "kube-proxy"),
];

/// A component: its process, and its memory in KiB when nobody attacks.
struct Component {
    name: &'static str,
    pid: String,
    idle: u64,
}

/// The components of the cluster under attack.
pub struct Vitals<'a> {
    cluster: &'a Cluster,
    components: Vec<Component>,
    endings: usize,
}

impl<'a> Vitals<'a> {
    /// Takes the processes and their memory as they are now.
    pub fn of(cluster: &'a Cluster) -> Self {
        let component = |&(machine, name): &(&str, &'static str)| {
            let pid = cluster.pid(machine, name);
            Component { name, idle: kibibytes(&pid, "VmRSS"), pid }
        };
        Self { cluster, components: COMPONENTS.iter().map(component).collect(), endings: 0 }
    }

    /// Forgets the peaks and endings of the attack before.
    pub fn begin(&mut self) {
        self.endings = endings(self.cluster).len();
        for component in &self.components {
            // Sets the peak back to what is resident now (proc(5), clear_refs).
            fs::write(format!("/proc/{}/clear_refs", component.pid), "5").ok();
        }
    }

    /// Panics when a process ended or came to more than three times its idle memory. Returns the peaks in MiB, each beside
    /// what the component has idle.
    pub fn check(&self, after: &str) -> String {
        let endings = endings(self.cluster);
        assert!(endings.len() == self.endings, "after {after}: a component ended: {endings:?}");
        let peaks = self.components.iter().map(|component| (component, kibibytes(&component.pid, "VmHWM")));
        let (peaks, summary): (Vec<_>, Vec<String>) = peaks
            .map(|(component, peak)| {
                ((component, peak), format!("{} {}/{}", component.name, peak >> 10, component.idle >> 10))
            })
            .unzip();
        let summary = summary.join(", ");
        let large = peaks.iter().find(|(component, peak)| *peak > 3 * component.idle);
        assert!(large.is_none(), "after {after}: too much memory, peak and idle in MiB: {summary}");
        summary
    }
}

/// A line of a process' status in KiB; 0 when the process is gone.
fn kibibytes(pid: &str, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let found = status.lines().find_map(|candidate| candidate.strip_prefix(line)?.strip_prefix(':'));
    found.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Lines of the supervisors' logs about processes that ended.
fn endings(cluster: &Cluster) -> Vec<String> {
    let log =
        |machine| fs::read_to_string(cluster.layout().machine(machine).join("supervisor.log")).unwrap_or_default();
    let said = ["control-plane", "node-1"].map(log).concat();
    said.lines().filter(|line| line.contains(" ended: ")).map(str::to_owned).collect()
}
