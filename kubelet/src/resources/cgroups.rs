//! The kubelet's cgroup tree on the file system: `<root>/kubepods`, the tiers below it, one cgroup a pod.
//! Answers for upstream's `cgroup_manager_linux.go`, `pod_container_manager_linux.go` and
//! `qos_container_manager_linux.go`.

use super::control::{Limit, Limits, Quota};
use super::limits::{MIN_SHARES, pod_huge_pages, pod_limits, pod_requests, quota, raises, shares};
use super::machine::page_size;
use super::memory_qos::{self, TierSettings};
use super::name::Name;
use super::systemd::Units;
use super::{CgroupError, CgroupVersion, Cgroups, QosClass, ResourceConfig, Usage, qos_class};
use crate::metrics;
use crate::trees;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use proto::quantity::Quantity as Amount;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More memory than this is no limit; the kernel rounds it.
const UNLIMITED: u64 = 1 << 62;
/// Limit of huge pages of a tier: its pods have their own.
const UNBOUNDED_HUGE_PAGES: u64 = 1 << 62;

/// Folder of the hierarchy without controllers, on machines that have it beside those of v1.
const UNIFIED: &str = "unified";

/// Rounds of killing before a cgroup that does not empty is given up until the next call.
const KILL_ROUNDS: usize = 50;
const KILL_PAUSE: Duration = Duration::from_millis(10);

/// Program that makes cgroups.
#[derive(Clone)]
pub enum Driver {
    /// The kubelet itself, by folders.
    Cgroupfs,
    /// systemd, by slices.
    Systemd(Arc<dyn Units>),
}

/// The real tree.
pub struct FsCgroups {
    /// Mount points: one on v2, one a controller on v1.
    mounts: Vec<PathBuf>,
    /// The hierarchy without controllers beside those of v1, in which a runtime makes pods' cgroups as well: nobody limits
    /// anything there, and nobody but the kubelet removes them.
    unified: Option<PathBuf>,
    /// The cgroup of all pods.
    kubepods: Name,
    driver: Driver,
    version: CgroupVersion,
    config: ResourceConfig,
    /// Sizes of huge pages that the machine has, in bytes.
    page_sizes: Vec<u64>,
    /// Last settings of the tiers, with their time.
    given: Mutex<Option<(TierSettings, Instant)>>,
    /// Memory of the node that pods may have, where tiers are limited by it.
    allocatable: i64,
}

/// Upstream's `periodicQOSCgroupUpdateInterval`: shares that have not changed are written again so often.
const TIER_PERIOD: Duration = Duration::from_secs(60);

impl FsCgroups {
    /// A tree below `root` (`--cgroup-root`, `/` by default) of the host's cgroup mounts.
    ///
    /// # Errors
    /// The root does not exist, as upstream refuses it too.
    pub fn new(
        root: &str,
        version: CgroupVersion,
        config: ResourceConfig,
        driver: Driver,
        page_sizes: Vec<u64>,
    ) -> Result<Self, CgroupError> {
        let tree = Self::at(Path::new("/sys/fs/cgroup"), root, version, config)?;
        Ok(Self { driver, page_sizes, ..tree })
    }

    /// Tells the tree how many bytes of memory its node has for pods.
    #[must_use]
    pub fn with_allocatable(self, allocatable: i64) -> Self {
        Self { allocatable, ..self }
    }

    fn tier_settings(&self, active: &[&Pod]) -> TierSettings {
        let burstable = active.iter().filter(|pod| qos_class(pod) == QosClass::Burstable);
        let cpu = burstable.filter_map(|pod| pod_requests(pod.spec.as_ref()?).cpu).fold(0, i64::saturating_add);
        let of_v2 = self.config.memory_qos.is_some() && self.version == CgroupVersion::V2;
        let percent = self.config.qos_reserved.filter(|_| self.allocatable > 0);
        TierSettings {
            shares: shares(cpu),
            kept: of_v2.then(|| memory_qos::kept(active)),
            most: percent.map(|percent| memory_qos::most(active, self.allocatable, percent)),
        }
    }

    fn set_tiers(&self, settings: &TierSettings) -> Result<(), CgroupError> {
        let limit = |bytes: i64| Some(Limit::Is(bytes.max(0)));
        let burstable = Limits {
            shares: Some(settings.shares),
            memory_min: settings.kept.map(|(burstable, _)| burstable),
            memory: settings.most.and_then(|(burstable, _)| limit(burstable)),
            ..Limits::default()
        };
        self.limit_tier(QosClass::Burstable, burstable)?;
        if let Some((_, all)) = settings.kept {
            self.limit(&self.kubepods, &Limits { memory_min: Some(all), ..Limits::default() })?;
        }
        if let Some((_, best_effort)) = settings.most {
            self.limit_tier(QosClass::BestEffort, Limits { memory: limit(best_effort), ..Limits::default() })?;
        }
        Ok(())
    }

    /// Gives a tier its limits. One that uses more memory than it may have is held to what it uses, so that it does not grow
    /// (`retrySetMemoryReserve`).
    fn limit_tier(&self, class: QosClass, limits: Limits) -> Result<(), CgroupError> {
        let name = self.tier(class);
        let refused = match self.limit(&name, &limits) {
            Err(refused) if limits.memory.is_some() => refused,
            done => return done,
        };
        let used = self.usage(&self.path(&name)).and_then(|usage| i64::try_from(usage.memory_usage).ok());
        let Some(used) = used.filter(|used| matches!(limits.memory, Some(Limit::Is(most)) if *used > most)) else {
            return Err(refused);
        };
        self.limit(&name, &Limits { memory: Some(Limit::Is(used)), ..limits })
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
        let unified = Some(base.join(UNIFIED)).filter(|path| version == CgroupVersion::V1 && path.is_dir());
        let root = Name::of_path(root);
        let path = root.cgroupfs();
        if mounts.iter().any(|mount| !join(mount, &path).is_dir()) {
            return Err(CgroupError(format!("invalid configuration: cgroup-root [{path:?}] doesn't exist")));
        }
        let (kubepods, driver) = (root.child("kubepods"), Driver::Cgroupfs);
        let (page_sizes, given, allocatable) = (Vec::new(), Mutex::default(), 0);
        Ok(Self { mounts, unified, kubepods, driver, version, config, page_sizes, given, allocatable })
    }

    #[cfg(test)]
    pub(super) fn driven_by(self, driver: Driver, page_sizes: &[u64]) -> Self {
        Self { driver, page_sizes: page_sizes.to_vec(), ..self }
    }

    fn tier(&self, class: QosClass) -> Name {
        match class {
            QosClass::Guaranteed => self.kubepods.clone(),
            QosClass::Burstable => self.kubepods.child("burstable"),
            QosClass::BestEffort => self.kubepods.child("besteffort"),
        }
    }

    fn tiers(&self) -> [Name; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort].map(|class| self.tier(class))
    }

    fn pod(&self, pod: &Pod) -> Name {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.tier(qos_class(pod)).child(&format!("pod{uid}"))
    }

    /// A cgroup's path below the mounts.
    fn path(&self, name: &Name) -> String {
        match &self.driver {
            Driver::Cgroupfs => name.cgroupfs(),
            Driver::Systemd(_) => name.systemd(),
        }
    }

    fn ensure(&self, name: &Name) -> Result<(), CgroupError> {
        let path = self.path(name);
        let folders: Vec<PathBuf> = self.mounts.iter().map(|mount| join(mount, &path)).collect();
        if folders.iter().all(|folder| folder.is_dir()) {
            return Ok(());
        }
        let begun = Instant::now();
        if let (Driver::Systemd(units), Some((unit, parent))) = (&self.driver, name.unit()) {
            units.start_slice(&unit, &parent, self.version)?;
        }
        for (mount, folder) in self.mounts.iter().zip(&folders) {
            fs::create_dir_all(folder)
                .map_err(|error| CgroupError(format!("cannot create cgroup {}: {error}", folder.display())))?;
            inherit(mount, &path);
        }
        metrics::cgroup_operation("create", begun);
        Ok(())
    }

    /// Gives a cgroup its limits. A value the kernel refuses is an error; a controller that is not there has no limit
    /// to set. systemd is told first: what it does not know it would take back at its next reload.
    fn limit(&self, name: &Name, limits: &Limits) -> Result<(), CgroupError> {
        let begun = Instant::now();
        if let (Driver::Systemd(units), Some((unit, _))) = (&self.driver, name.unit()) {
            units.set_properties(&unit, limits.properties(self.version))?;
        }
        let path = self.path(name);
        for (file, value) in limits.files(self.version) {
            for folder in self.mounts.iter().map(|mount| join(mount, &path)) {
                let file = folder.join(&file);
                if file.exists() {
                    fs::write(&file, &value)
                        .map_err(|error| CgroupError(format!("cannot write {value} to {}: {error}", file.display())))?;
                }
            }
        }
        metrics::cgroup_operation("update", begun);
        Ok(())
    }

    fn quota(&self, milli_cpu: Option<i64>) -> Quota {
        let period = self.config.cpu_cfs_quota_period_us;
        let micros = milli_cpu.filter(|_| self.config.cpu_cfs_quota).map(|cpu| quota(cpu, period));
        Quota { micros: micros.map_or(Limit::None, Limit::Is), period }
    }

    /// Limits of huge pages: sizes that are not named get none.
    fn huge_pages(&self, of: impl Fn(u64) -> Option<u64>) -> BTreeMap<u64, u64> {
        self.page_sizes.iter().map(|size| (*size, of(*size).unwrap_or(0))).collect()
    }

    /// A limit as the kernel has it; none where there is no limit.
    fn current(&self, name: &Name, file: &str) -> Option<i64> {
        let path = self.path(name);
        let files = self.mounts.iter().map(|mount| join(mount, &path).join(file));
        let text = files.filter_map(|file| fs::read_to_string(file).ok()).next()?;
        text.split_whitespace().next()?.parse().ok().filter(|limit| *limit >= 0)
    }

    /// Mount points at which pods may have cgroups.
    fn hierarchies(&self) -> impl Iterator<Item = &PathBuf> {
        self.mounts.iter().chain(&self.unified)
    }

    /// A pod's cgroups in whichever tier they are, with their folders; the pod object may be gone.
    fn found(&self, pod_uid: &str) -> Vec<(Name, PathBuf)> {
        let names = self.tiers().map(|tier| tier.child(&format!("pod{pod_uid}")));
        let folders = |name: Name| {
            let path = self.path(&name);
            self.hierarchies().map(move |mount| (name.clone(), join(mount, &path)))
        };
        names.into_iter().flat_map(folders).filter(|(_, folder)| folder.is_dir()).collect()
    }

    /// Empties and removes one of a pod's cgroups.
    fn remove(&self, name: &Name, folder: &Path) -> Result<(), CgroupError> {
        for pid in pids(folder) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        if let (Driver::Systemd(units), Some((unit, _))) = (&self.driver, name.unit()) {
            units.stop(&unit)?;
        }
        // systemd may have removed it with its slice.
        trees::remove_folders(folder).map_err(|error| CgroupError(error.to_string()))
    }

    /// Uid of the pod whose cgroup a tier's folder is.
    fn uid(&self, tier: &Name, folder: &str) -> Option<String> {
        let name = match &self.driver {
            Driver::Cgroupfs => folder.to_owned(),
            Driver::Systemd(_) => Name::of_slice(folder).last_below(tier)?,
        };
        name.strip_prefix("pod").map(str::to_owned)
    }
}

impl Cgroups for FsCgroups {
    fn ensure_tree(&self, enforced: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        for name in self.tiers() {
            self.ensure(&name)?;
        }
        let amount = |name: &str| enforced.get(name).and_then(|quantity| quantity.0.parse::<Amount>().ok());
        let bytes = |size: u64| {
            let amount = amount(&format!("hugepages-{}", page_size(size)))?;
            u64::try_from(amount.value()).ok()
        };
        let whole = Limits {
            shares: amount("cpu").map(|cpu| shares(cpu.milli_value())),
            memory: Some(amount("memory").map_or(Limit::None, |memory| Limit::Is(memory.value()))),
            pids: amount("pid").map(|pids| pids.value()),
            huge_pages: if enforced.is_empty() { BTreeMap::new() } else { self.huge_pages(bytes) },
            // Without this systemd takes the controller of processors from pods when it reloads.
            cpus: matches!(self.driver, Driver::Systemd(_)).then(super::machine::online_cpus).flatten(),
            ..Limits::default()
        };
        self.limit(&self.kubepods, &whole)?;
        let unbounded = self.huge_pages(|_| Some(UNBOUNDED_HUGE_PAGES));
        let burstable = Limits { huge_pages: unbounded.clone(), ..Limits::default() };
        self.limit(&self.tier(QosClass::Burstable), &burstable)?;
        let best_effort = Limits { shares: Some(MIN_SHARES), huge_pages: unbounded, ..Limits::default() };
        self.limit(&self.tier(QosClass::BestEffort), &best_effort)
    }

    fn enforce(&self, path: &str, reserved: &BTreeMap<String, Quantity>) -> Result<(), CgroupError> {
        let name = match &self.driver {
            Driver::Cgroupfs => Name::of_path(path),
            Driver::Systemd(_) => Name::of_slice(path),
        };
        let shown = self.path(&name);
        if self.mounts.iter().any(|mount| !join(mount, &shown).is_dir()) {
            return Err(CgroupError(format!("{shown:?} cgroup does not exist")));
        }
        let amount = |name: &str| reserved.get(name).and_then(|quantity| quantity.0.parse::<Amount>().ok());
        let limits = Limits {
            shares: amount("cpu").map(|cpu| shares(cpu.milli_value())),
            memory: amount("memory").map(|memory| Limit::Is(memory.value())),
            pids: amount("pid").map(|pids| pids.value()),
            ..Limits::default()
        };
        self.limit(&name, &limits)
    }

    fn pods_memory(&self) -> Option<(u64, u64)> {
        let file = if self.version == CgroupVersion::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        let limit = u64::try_from(self.current(&self.kubepods, file)?).ok()?;
        Some((limit, self.usage(&self.path(&self.kubepods))?.working_set))
    }

    fn update_tiers(&self, active: &[&Pod]) -> Result<(), CgroupError> {
        let (settings, mut given) = (self.tier_settings(active), self.given.lock());
        if given.is_some_and(|(known, at)| known == settings && at.elapsed() < TIER_PERIOD) {
            return Ok(());
        }
        *given = None;
        self.set_tiers(&settings)?;
        *given = Some((settings, Instant::now()));
        Ok(())
    }

    fn ensure_pod(&self, pod: &Pod) -> Result<(), CgroupError> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let name = self.pod(pod);
        self.ensure(&name)?;
        let most = pod_limits(spec);
        let cpu = pod_requests(spec).cpu.or(most.cpu).unwrap_or(0);
        let limits = Limits {
            shares: Some(shares(cpu)),
            quota: Some(self.quota(most.cpu)),
            memory: Some(most.memory.map_or(Limit::None, Limit::Is)),
            memory_min: pod_requests(spec).memory.filter(|bytes| self.config.memory_qos.is_some() && *bytes > 0),
            pids: Some(self.config.pod_pids_limit).filter(|pids| *pids > 0),
            huge_pages: self.huge_pages(|size| pod_huge_pages(spec, size)),
            cpus: None,
        };
        self.limit(&name, &limits)
    }

    fn grow_pod(&self, pod: &Pod) -> Result<(), CgroupError> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let name = self.pod(pod);
        let most = pod_limits(spec);
        let period = self.config.cpu_cfs_quota_period_us;
        let [cpu, memory] = match self.version {
            CgroupVersion::V1 => ["cpu.cfs_quota_us", "memory.limit_in_bytes"],
            CgroupVersion::V2 => ["cpu.max", "memory.max"],
        };
        let mut limits = Limits::default();
        if raises(self.current(&name, cpu), most.cpu.map(|cpu| quota(cpu, period))) {
            limits.quota = Some(self.quota(most.cpu));
        }
        if raises(self.current(&name, memory), most.memory) {
            limits.memory = Some(most.memory.map_or(Limit::None, Limit::Is));
        }
        self.limit(&name, &limits)
    }

    fn pod_parent(&self, pod: &Pod) -> String {
        self.path(&self.pod(pod))
    }

    fn remove_pod(&self, pod_uid: &str) -> Result<(), CgroupError> {
        let (begun, mut problem) = (Instant::now(), String::new());
        if self.found(pod_uid).is_empty() {
            return Ok(());
        }
        for _ in 0..KILL_ROUNDS {
            let found = self.found(pod_uid);
            // All are removed, whichever fails.
            let failed = found.iter().filter_map(|(name, folder)| self.remove(name, folder).err());
            match failed.collect::<Vec<_>>().pop() {
                None => {
                    metrics::cgroup_operation("destroy", begun);
                    return Ok(());
                }
                Some(error) => problem = error.to_string(),
            }
            std::thread::sleep(KILL_PAUSE);
        }
        Err(CgroupError(format!("cgroup of pod {pod_uid} does not become empty: {problem}")))
    }

    fn tree(&self) -> Vec<String> {
        self.tiers().iter().map(|name| self.path(name)).collect()
    }

    fn pods(&self) -> Vec<String> {
        let mut uids = BTreeSet::new();
        for tier in self.tiers() {
            let path = self.path(&tier);
            for entry in
                self.hierarchies().filter_map(|mount| fs::read_dir(join(mount, &path)).ok()).flatten().flatten()
            {
                let folder = entry.file_name();
                uids.extend(folder.to_str().and_then(|folder| self.uid(&tier, folder)));
            }
        }
        uids.into_iter().collect()
    }

    fn usage(&self, path: &str) -> Option<Usage> {
        let read = |file: &str| {
            let mount = mount_of(&self.mounts, self.version, file.split('.').next()?)?;
            fs::read_to_string(join(mount, path).join(file)).ok()
        };
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let limit = |file: &str| number(file).filter(|bytes| *bytes < UNLIMITED);
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
            swap: number("memory.swap.current").or_else(|| stat_value(&memory, "total_swap")),
            swap_limit: limit("memory.swap.max").or_else(|| limit("memory.memsw.limit_in_bytes")),
            memory_limit: limit("memory.max").or_else(|| limit("memory.limit_in_bytes")),
        })
    }
}

pub(super) fn v1_mounts(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    // Links (`cpu -> cpu,cpuacct`) lead to hierarchies that are listed themselves.
    entries.filter(|path| path.is_dir() && !path.is_symlink() && !path.ends_with(UNIFIED)).collect()
}

/// The mount that has a controller's files.
fn mount_of<'a>(mounts: &'a [PathBuf], version: CgroupVersion, controller: &str) -> Option<&'a PathBuf> {
    let has = |mount: &&PathBuf| {
        let name = mount.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        version == CgroupVersion::V2 || name.split(',').any(|known| known == controller)
    };
    mounts.iter().find(has)
}

pub(super) fn join(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

/// Gives every new folder on the way what a cgroup needs before it may hold processes: on v1 a cpuset's CPUs and
/// memory nodes, on v2 the controllers of its parent.
pub(super) fn inherit(mount: &Path, path: &str) {
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

fn stat_value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Processes of a cgroup and of those below it, of which a container may make any number.
fn pids(folder: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    let walked = trees::walk_folders(folder, |cgroup| {
        let text = trees::read(cgroup, c"cgroup.procs").unwrap_or_default();
        // 0 stands for a process of another PID namespace, and for a kill it is the caller's own group.
        found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    });
    if let Err(error) = walked {
        tracing::debug!(folder = %folder.display(), %error, "Not all processes of a cgroup are known");
    }
    found
}
