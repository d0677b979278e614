//! The kubelet's settings after flags and the configuration file are merged: what the rooms need of them.

use crate::backoff::Backoff;
use crate::files::PRIVATE_FOLDER;
use crate::images::Pulls;
use crate::resources::ResourceConfig;
use crate::sources::manifest::Owner;
use anyhow::Context as _;
use shared::flags::FeatureGates;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder of checkpoints of containers below the root directory.
pub const CHECKPOINTS: &str = "checkpoints";

/// Limits of dead containers (upstream's `ContainerGCPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerGcPolicy {
    /// `--minimum-container-ttl-duration`: younger ones stay.
    pub min_age: Duration,
    /// `--maximum-dead-containers-per-container`; none for no limit.
    pub per_container: Option<usize>,
    /// `--maximum-dead-containers`; none for no limit.
    pub total: Option<usize>,
}

impl Default for ContainerGcPolicy {
    fn default() -> Self {
        Self { min_age: Duration::ZERO, per_container: Some(1), total: None }
    }
}

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
    /// Delays of containers that crash, before any did.
    pub crash_backoff: Backoff,
    /// `syncFrequency`.
    pub sync_frequency: Duration,
    /// `allowedUnsafeSysctls`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Resources of node and containers.
    pub resources: ResourceConfig,
    /// `PreventStaticPodAPIReferences`.
    pub prevents_references: bool,
    /// Resources that Guaranteed pods have to themselves.
    pub exclusive: ExclusiveResources,
    /// Features that the node declares, in order; none without the gate NodeDeclaredFeatures.
    pub declared_features: Option<Vec<String>>,
    /// Everything runs inside a user namespace or without the rights to set kernel tunables.
    pub enable_controller_attach_detach: bool,
    /// `featureGates`.
    pub gates: FeatureGates,
    /// `volumePluginDir`: folder of FlexVolume drivers.
    pub volume_plugin_dir: PathBuf,
    /// `volumeStatsAggPeriod`.
    pub volume_stats_period: Duration,
}

/// Resources of Guaranteed pods that cannot be resized in place, since a static policy has placed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExclusiveResources {
    /// `cpuManagerPolicy: static` without `InPlacePodVerticalScalingExclusiveCPUs`.
    pub cpu: bool,
    /// `memoryManagerPolicy: Static` without `InPlacePodVerticalScalingExclusiveMemory`.
    pub memory: bool,
}

impl ExclusiveResources {
    /// By the managers' policies and the feature gates.
    pub fn of(cpu_policy: &str, memory_policy: &str, gates: &FeatureGates) -> Self {
        Self {
            cpu: cpu_policy == "static" && !gates.enabled("InPlacePodVerticalScalingExclusiveCPUs"),
            memory: memory_policy == "Static" && !gates.enabled("InPlacePodVerticalScalingExclusiveMemory"),
        }
    }
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

    /// Makes the folders that a kubelet needs, that of plugins by its name, and one for checkpoints where there are any.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn make_folders(&self, plugins: &str) -> anyhow::Result<()> {
        let (pods, registry) = (self.root_dir.join("pods"), self.root_dir.join(plugins));
        let folders: [&Path; 5] = [&self.root_dir, &pods, &registry, &self.pod_logs_dir, &self.container_logs_dir];
        for folder in folders {
            fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        }
        if self.gates.enabled("ContainerCheckpoint") {
            let folder = self.root_dir.join(CHECKPOINTS);
            fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
            // They hold the memory of processes.
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))
                .with_context(|| format!("failed to restrict {}", folder.display()))?;
        }
        // What pods have is not for every user of the node. Log folders are read by collectors.
        for folder in [&self.root_dir, &pods, &registry] {
            fs::set_permissions(folder, fs::Permissions::from_mode(PRIVATE_FOLDER))
                .with_context(|| format!("failed to restrict {}", folder.display()))?;
        }
        Ok(())
    }
}

impl From<&Settings> for Owner {
    fn from(settings: &Settings) -> Self {
        Self { node_name: settings.node_name.clone(), prevents_references: settings.prevents_references }
    }
}
