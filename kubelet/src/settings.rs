//! The kubelet's settings after flags and the configuration file are merged: what the rooms need of them.

use crate::images::Pulls;
use crate::resources::ResourceConfig;
use jiff::SignedDuration;
use std::path::PathBuf;
use std::time::Duration;

/// Mode of the root folder and of pods' folders, as upstream makes them.
pub const PRIVATE_FOLDER: u32 = 0o750;

/// Settings that do not change while the kubelet runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Folder of the symlinks that log collectors read.
    pub container_logs_dir: PathBuf,
    /// Name of the node object.
    pub node_name: String,
    /// The host's name, for pods on the host network.
    pub hostname: String,
    /// `clusterDNS`.
    pub cluster_dns: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// `resolvConf`; empty for none.
    pub resolv_conf: String,
    /// `seccompDefault`.
    pub seccomp_default: bool,
    /// Limits of pulls.
    pub pulls: Pulls,
    /// `containerLogMaxSize` in bytes.
    pub log_max_size: u64,
    /// `containerLogMaxFiles`.
    pub log_max_files: usize,
    /// `containerLogMaxWorkers`.
    pub log_workers: usize,
    /// `containerLogMonitorInterval`.
    pub log_monitor_interval: Duration,
    /// Longest crash-loop delay.
    pub max_crash_backoff: SignedDuration,
    /// `syncFrequency`.
    pub sync_frequency: Duration,
    /// `allowedUnsafeSysctls`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Tolerations may compare numbers.
    pub tolerations_compare: bool,
    /// Resources of node and containers.
    pub resources: ResourceConfig,
    /// Everything runs inside a user namespace or without the rights to set kernel tunables.
    pub enable_controller_attach_detach: bool,
}

impl Settings {
    /// Returns the folder of a pod.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// Returns the folder of a pod's logs.
    pub fn pod_log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
    }
}
