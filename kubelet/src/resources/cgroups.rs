//! The kubelet's cgroup tree on the file system: `<root>/kubepods`, the tiers below it, one cgroup a pod.

use super::limits::{MIN_SHARES, pod_limits, pod_requests, quota, shares};
use super::{CgroupError, CgroupVersion, Cgroups, QosClass, ResourceConfig, Usage, qos_class};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::quantity::Quantity as Amount;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rounds of killing before a cgroup that does not empty is given up until the next call.
const KILL_ROUNDS: usize = 50;
const KILL_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// The real tree.
pub struct FsCgroups {
    /// Mount points: one on v2, one a controller on v1.
    mounts: Vec<PathBuf>,
    root: String,
    version: CgroupVersion,
    config: ResourceConfig,
}

impl FsCgroups {
    /// A tree below `root` (`--cgroup-root`, `/` by default) of the host's cgroup mounts.
    ///
    /// # Errors
    /// The root does not exist, as upstream refuses it too.
    pub fn new(root: &str, version: CgroupVersion, config: ResourceConfig) -> Result<Self, CgroupError> {
        Self::at(Path::new("/sys/fs/cgroup"), root, version, config)
    }

    pub(super) fn at(
        base: &Path,
        root: &str,
        version: CgroupVersion,
        config: ResourceConfig,
    ) -> Result<Self, CgroupError> {
        let mounts = match version {
            CgroupVersion::V2 => vec![base.to_path_buf()],
            CgroupVersion::V1 => v1_mounts(base),
        };
        let root = format!("/{}", root.trim_matches('/'));
        let tree = Self { mounts, root, version, config };
        let missing = tree.mounts.iter().map(|mount| join(mount, &tree.root)).find(|path| !path.is_dir());
        match missing {
            Some(_) => Err(CgroupError(format!("invalid configuration: cgroup-root [{:?}] doesn't exist", tree.root))),
            None => Ok(tree),
        }
    }

    fn kubepods(&self) -> String {
        format!("{}/kubepods", self.root.trim_end_matches('/'))
    }

    fn tier(&self, class: QosClass) -> String {
        match class {
            QosClass::Guaranteed => self.kubepods(),
            QosClass::Burstable => format!("{}/burstable", self.kubepods()),
            QosClass::BestEffort => format!("{}/besteffort", self.kubepods()),
        }
    }

    fn tiers(&self) -> [String; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| self.tier(class))
    }

    fn ensure(&self, path: &str) -> Result<(), CgroupError> {
        for mount in &self.mounts {
            let folder = join(mount, path);
            if folder.is_dir() {
                continue;
            }
            fs::create_dir_all(&folder)
                .map_err(|error| CgroupError(format!("cannot create cgroup {}: {error}", folder.display())))?;
            inherit(mount, path);
        }
        Ok(())
    }

    /// Writes a control file wherever its controller has one. A value the kernel refuses is an error only for
    /// limits; a controller that is not there has no limit to set.
    fn set(&self, path: &str, file: &str, value: &str) -> Result<(), CgroupError> {
        for folder in self.mounts.iter().map(|mount| join(mount, path)) {
            let file = folder.join(file);
            if file.exists() {
                fs::write(&file, value)
                    .map_err(|error| CgroupError(format!("cannot write {value} to {}: {error}", file.display())))?;
            }
        }
        Ok(())
    }

    fn set_shares(&self, path: &str, shares: i64) -> Result<(), CgroupError> {
        match self.version {
            CgroupVersion::V1 => self.set(path, "cpu.shares", &shares.to_string()),
            CgroupVersion::V2 => self.set(path, "cpu.weight", &weight(shares).to_string()),
        }
    }

    fn set_memory(&self, path: &str, bytes: Option<i64>) -> Result<(), CgroupError> {
        let (file, unlimited) = match self.version {
            CgroupVersion::V1 => ("memory.limit_in_bytes", "-1"),
            CgroupVersion::V2 => ("memory.max", "max"),
        };
        self.set(path, file, &bytes.map_or_else(|| unlimited.to_owned(), |bytes| bytes.to_string()))
    }

    fn set_quota(&self, path: &str, milli_cpu: Option<i64>) -> Result<(), CgroupError> {
        let period = self.config.cpu_cfs_quota_period_us;
        let quota = milli_cpu.filter(|_| self.config.cpu_cfs_quota).map(|cpu| quota(cpu, period));
        if self.version == CgroupVersion::V2 {
            let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
            return self.set(path, "cpu.max", &format!("{quota} {period}"));
        }
        self.set(path, "cpu.cfs_period_us", &period.to_string())?;
        self.set(path, "cpu.cfs_quota_us", &quota.unwrap_or(-1).to_string())
    }

    /// A limit as the kernel has it; none where there is no limit.
    fn limit(&self, path: &str, file: &str) -> Option<i64> {
        let files = self.mounts.iter().map(|mount| join(mount, path).join(file));
        let text = files.filter_map(|file| fs::read_to_string(file).ok()).next()?;
        text.split_whitespace().next()?.parse().ok().filter(|limit| *limit >= 0)
    }

    /// A pod's cgroups in whichever tier they are; the pod object may be gone.
    fn folders(&self, pod_uid: &str) -> Vec<PathBuf> {
        let name = format!("pod{pod_uid}");
        let folder = |mount: &PathBuf, tier: &String| join(mount, tier).join(&name);
        let all = self.mounts.iter().flat_map(|mount| self.tiers().map(|tier| folder(mount, &tier)));
        all.filter(|folder| folder.is_dir()).collect()
    }
}

impl Cgroups for FsCgroups {
    fn ensure_tree(&self, allocatable: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        for path in self.tiers() {
            self.ensure(&path)?;
        }
        let amount = |name: &str| allocatable.get(name).and_then(|quantity| quantity.0.parse::<Amount>().ok());
        if let Some(cpu) = amount("cpu") {
            self.set_shares(&self.kubepods(), shares(cpu.milli_value()))?;
        }
        self.set_memory(&self.kubepods(), amount("memory").map(|memory| memory.value()))?;
        self.set_shares(&self.tier(QosClass::BestEffort), MIN_SHARES)
    }

    fn update_tiers(&self, active: &[&Pod]) -> Result<(), CgroupError> {
        let burstable = active.iter().filter(|pod| qos_class(pod) == QosClass::Burstable);
        let cpu = burstable.filter_map(|pod| pod_requests(pod.spec.as_ref()?).cpu).fold(0, i64::saturating_add);
        self.set_shares(&self.tier(QosClass::Burstable), shares(cpu))
    }

    fn ensure_pod(&self, pod: &Pod) -> Result<(), CgroupError> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let path = self.pod_parent(pod);
        self.ensure(&path)?;
        let limits = pod_limits(spec);
        let cpu = pod_requests(spec).cpu.or(limits.cpu).unwrap_or(0);
        self.set_shares(&path, shares(cpu))?;
        self.set_quota(&path, limits.cpu)?;
        self.set_memory(&path, limits.memory)?;
        if self.config.pod_pids_limit > 0 {
            self.set(&path, "pids.max", &self.config.pod_pids_limit.to_string())?;
        }
        Ok(())
    }

    fn grow_pod(&self, pod: &Pod) -> Result<(), CgroupError> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let path = self.pod_parent(pod);
        let limits = pod_limits(spec);
        let period = self.config.cpu_cfs_quota_period_us;
        let [cpu, memory] = match self.version {
            CgroupVersion::V1 => ["cpu.cfs_quota_us", "memory.limit_in_bytes"],
            CgroupVersion::V2 => ["cpu.max", "memory.max"],
        };
        if raises(self.limit(&path, cpu), limits.cpu.map(|cpu| quota(cpu, period))) {
            self.set_quota(&path, limits.cpu)?;
        }
        if raises(self.limit(&path, memory), limits.memory) {
            self.set_memory(&path, limits.memory)?;
        }
        Ok(())
    }

    fn pod_parent(&self, pod: &Pod) -> String {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        format!("{}/pod{uid}", self.tier(qos_class(pod)))
    }

    fn remove_pod(&self, pod_uid: &str) -> Result<(), CgroupError> {
        for _ in 0..KILL_ROUNDS {
            let folders = self.folders(pod_uid);
            let pids: BTreeSet<i32> = folders.iter().flat_map(|folder| pids(folder)).collect();
            for pid in &pids {
                kill(Pid::from_raw(*pid), Signal::SIGKILL).ok();
            }
            let stubborn = folders.iter().filter(|folder| remove_tree(folder).is_err()).count();
            if stubborn == 0 {
                return Ok(());
            }
            std::thread::sleep(KILL_PAUSE);
        }
        Err(CgroupError(format!("cgroup of pod {pod_uid} does not become empty")))
    }

    fn pods(&self) -> Vec<String> {
        let mut uids = BTreeSet::new();
        for folder in self.mounts.iter().flat_map(|mount| self.tiers().map(|tier| join(mount, &tier))) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                uids.extend(name.to_str().and_then(|name| name.strip_prefix("pod")).map(str::to_owned));
            }
        }
        uids.into_iter().collect()
    }

    fn usage(&self, path: &str) -> Option<Usage> {
        let read = |file: &str| {
            let found = self.mounts.iter().map(|mount| join(mount, path).join(file));
            found.filter_map(|file| fs::read_to_string(file).ok()).next()
        };
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let memory = read("memory.stat")?;
        let stat = |names: &[&str]| names.iter().find_map(|name| stat_value(&memory, name)).unwrap_or(0);
        let (cpu_ns, memory_usage) = match self.version {
            CgroupVersion::V1 => (number("cpuacct.usage"), number("memory.usage_in_bytes")),
            CgroupVersion::V2 => {
                let cpu = read("cpu.stat").and_then(|text| stat_value(&text, "usage_usec"));
                (cpu.map(|usec| usec * 1000), number("memory.current"))
            }
        };
        let memory_usage = memory_usage?;
        Some(Usage {
            cpu_ns: cpu_ns.unwrap_or(0),
            memory_usage,
            working_set: memory_usage.saturating_sub(stat(&["total_inactive_file", "inactive_file"])),
            rss: stat(&["total_rss", "anon"]),
            page_faults: stat(&["total_pgfault", "pgfault"]),
            major_page_faults: stat(&["total_pgmajfault", "pgmajfault"]),
            processes: number("pids.current").unwrap_or(0),
        })
    }
}

/// For `--cgroups-per-qos=false`: pods have no cgroup of their own.
#[derive(Debug, Default)]
pub struct NoCgroups;

impl Cgroups for NoCgroups {
    fn ensure_tree(&self, _: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        Ok(())
    }
    fn update_tiers(&self, _: &[&Pod]) -> Result<(), CgroupError> {
        Ok(())
    }
    fn ensure_pod(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    fn grow_pod(&self, _: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    fn pod_parent(&self, _: &Pod) -> String {
        String::new()
    }
    fn remove_pod(&self, _: &str) -> Result<(), CgroupError> {
        Ok(())
    }
    fn pods(&self) -> Vec<String> {
        Vec::new()
    }
    fn usage(&self, _: &str) -> Option<Usage> {
        None
    }
}

fn v1_mounts(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    // Links (`cpu -> cpu,cpuacct`) lead to hierarchies that are listed themselves.
    entries.filter(|path| path.is_dir() && !path.is_symlink() && !path.ends_with("unified")).collect()
}

fn join(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// Gives every new folder on the way what a cgroup needs before it may hold processes: on v1 a cpuset's CPUs and
/// memory nodes, on v2 the controllers of its parent.
fn inherit(mount: &Path, path: &str) {
    let mut folder = mount.to_path_buf();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let parent = folder.clone();
        folder.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = fs::read_to_string(folder.join(file)).unwrap_or_default();
            if mount.join("cgroup.controllers").exists() || !own.trim().is_empty() {
                continue;
            }
            if let Ok(value) = fs::read_to_string(parent.join(file)) {
                fs::write(folder.join(file), value.trim()).ok();
            }
        }
        let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
        for controller in controllers.split_whitespace() {
            fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}")).ok();
        }
    }
}

/// Whether `wanted` allows more than `now`; none is no limit.
fn raises(now: Option<i64>, wanted: Option<i64>) -> bool {
    now.is_some_and(|now| wanted.is_none_or(|wanted| wanted > now))
}

fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

fn stat_value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn pids(folder: &Path) -> Vec<i32> {
    let mut found: Vec<i32> = fs::read_to_string(folder.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for child in fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        found.extend(pids(&child.path()));
    }
    found
}

fn remove_tree(folder: &Path) -> std::io::Result<()> {
    for child in fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove_tree(&child.path())?;
    }
    fs::remove_dir(folder)
}
