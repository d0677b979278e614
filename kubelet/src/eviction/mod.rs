//! Eviction: when memory, disks or process ids run short the node says so, unused things go, and then pods go, those
//! first that use more than they asked for. Answers for upstream's `pkg/kubelet/eviction`.
//!
//! [`signals`] and [`rank`] are pure; the loop here observes, decides and acts once per period.

mod disks;
pub mod images;
pub mod local;
mod memcg;
pub mod rank;
pub mod signals;
mod tracker;

use crate::blocking::WALKS;
use crate::config::KubeletConfiguration;
use crate::events::EventType;
use crate::node::agent::Agent;
use crate::pleg::gc;
use crate::pods;
use crate::resources::{CgroupVersion, cgroup_version};
use crate::settings::ContainerGcPolicy;
use crate::stats::{ContainerUsage, Stats, machine};
use crate::workers::manager::Manager;
use disks::{DiskLayout, Reclaim};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use rank::Candidate;
use shared::types::is_pod_terminal;
use signals::{Observed, Signal, Threshold};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tracker::Tracker;

/// Shortest time between looks that the kernel asks for.
const SHORTEST: Duration = Duration::from_millis(500);
/// Interval at which the node is looked at.
const PERIOD: Duration = Duration::from_secs(10);
/// After an eviction the pod gets this long to end before the next one is picked: upstream's `podCleanupTimeout`.
const SETTLE: Duration = Duration::from_secs(30);

/// The eviction room.
pub struct Eviction {
    manager: Arc<Manager>,
    agent: Arc<Agent>,
    images: Arc<images::ImageCollector>,
    stats: Stats,
    thresholds: Vec<Threshold>,
    transition: Duration,
    longest_grace: i64,
    /// `localStorageCapacityIsolation`: pods are held to their own limits of storage.
    isolates_storage: bool,
    /// `KubeletSeparateDiskGC`: without it a node whose images are apart from writable layers evicts nothing.
    knows_split_disks: bool,
    /// `kernelMemcgNotification`, where the kernel has such.
    is_notified: bool,
    /// Limits of dead containers.
    dead_containers: ContainerGcPolicy,
    /// Found with the runtime's first answer, and kept as upstream does.
    layout: Mutex<Option<DiskLayout>>,
}

/// Volumes whose files are on the node's disk: upstream's `IsLocalEphemeralVolume`.
const LOCAL_VOLUMES: [&str; 2] = ["kubernetes.io~empty-dir", "kubernetes.io~configmap"];

impl Eviction {
    /// With the configured thresholds.
    ///
    /// # Errors
    /// One of them is wrong.
    pub fn new(
        manager: Arc<Manager>,
        agent: Arc<Agent>,
        images: Arc<images::ImageCollector>,
        kubelet: &KubeletConfiguration,
        dead_containers: ContainerGcPolicy,
    ) -> Result<Self, signals::ThresholdError> {
        let knows_split_disks = manager.context().settings.gates.enabled("KubeletSeparateDiskGC");
        let thresholds = signals::thresholds(kubelet)?;
        Ok(Self {
            stats: Stats::new(Arc::clone(&manager)),
            manager,
            agent,
            images,
            thresholds,
            transition: kubelet.eviction_pressure_transition_period.0,
            longest_grace: kubelet.eviction_max_pod_grace_period,
            isolates_storage: kubelet.local_storage_capacity_isolation,
            knows_split_disks,
            is_notified: kubelet.kernel_memcg_notification && cgroup_version() == CgroupVersion::V1,
            dead_containers,
            layout: Mutex::default(),
        })
    }

    /// Runs until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.watch_node() => {}
            () = self.watch_pods() => {}
        }
    }

    /// Looks at the node, whose memory does not wait for walks through pods' folders.
    async fn watch_node(&self) {
        let mut tracker = Tracker::default();
        loop {
            match self.step(&mut tracker).await {
                Some(victim) => {
                    let victims = [victim];
                    if tokio::time::timeout(SETTLE, self.manager.until_given_back(&victims)).await.is_err() {
                        tracing::info!(pod = %pods::describe(&victims[0]), "Eviction manager: timed out waiting for pods to be cleaned up");
                    }
                }
                None => self.wait().await,
            }
        }
    }

    /// Waits until the next look, or until the kernel tells that memory runs short.
    async fn wait(&self) {
        if !self.is_notified {
            return tokio::time::sleep(PERIOD).await;
        }
        let (observed, cgroups) = (self.observe().await, Arc::clone(&self.manager.context().cgroups));
        let pods = tokio::task::spawn_blocking(move || {
            let path = cgroups.tree().into_iter().next()?;
            Some((cgroups.usage(&path)?, path))
        });
        let pods = pods.await.ok().flatten();
        let pods = pods.as_ref().map(|(usage, path)| (usage, path.as_str()));
        let notifiers = memcg::Notifiers::arm(&self.thresholds, &observed, pods);
        // Use that goes up and down about a threshold must not make this a busy loop.
        tokio::time::sleep(SHORTEST).await;
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = notifiers.crossed() => {}
        }
    }

    /// Looks at what each pod has on the disk.
    async fn watch_pods(&self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            if self.isolates_storage {
                self.local().await;
            }
        }
    }

    async fn observe(&self) -> Observed {
        let cx = self.manager.context();
        let (root, cgroups) = (cx.settings.root_dir.clone(), Arc::clone(&cx.cgroups));
        Observed {
            pods_memory: tokio::task::spawn_blocking(move || cgroups.pods_memory()).await.ok().flatten(),
            memory: machine::memory(),
            node_disk: machine::disk(&root),
            // The runtime may hang: memory is looked at all the same.
            image_disk: tokio::time::timeout(PERIOD, self.image_disk(&root)).await.ok().flatten(),
            processes: machine::processes(),
        }
    }

    /// The file system of the images; the runtime's answer tells the layout of the disks, too.
    async fn image_disk(&self, root: &Path) -> Option<machine::Disk> {
        let answer = self.manager.context().runtime.image_fs().await.ok()?;
        let path: PathBuf = answer.image_filesystems.first()?.fs_id.as_ref()?.mountpoint.clone().into();
        let device = |path: &Path| std::fs::metadata(path).map(|about| about.dev()).ok();
        if let (Some(root), Some(images)) = (device(root), device(&path)) {
            self.layout.lock().get_or_insert_with(|| DiskLayout::of(&answer, root, images));
        }
        machine::disk(&path)
    }

    fn layout(&self) -> DiskLayout {
        self.layout.lock().unwrap_or_default()
    }

    /// Ends pods that use more of the disk than they may.
    async fn local(&self) {
        let cx = self.manager.context();
        let limited = |pod: &Arc<Pod>| !is_pod_terminal(pod) && !pods::is_critical(pod) && local::has_limits(pod);
        let all: Vec<Arc<Pod>> = self.manager.pods().into_iter().filter(limited).collect();
        if all.is_empty() {
            return;
        }
        let containers = self.stats.containers().await;
        for pod in all {
            let uid = pods::uid(&pod).to_owned();
            let measured = self.measure(&pod, &containers, local::Unit::Bytes).await;
            let Some((signal, message)) = measured.and_then(|used| local::exceeded(&pod, &used, self.layout())) else {
                continue;
            };
            crate::metrics::evicted(signal);
            tracing::warn!(pod = %pods::describe(&pod), message, "Eviction manager: evicting pod");
            cx.events.pod(&pod, "", EventType::Warning, "Evicted", &message);
            self.manager.fail(&uid, "Evicted", &message, Some(0));
        }
    }

    /// Looks once, and returns the pod that was evicted, if one was. Answers for upstream's `synchronize`.
    async fn step(&self, tracker: &mut Tracker) -> Option<Arc<Pod>> {
        let begun = Instant::now();
        let observed = self.observe().await;
        if self.layout() == DiskLayout::Split && !self.knows_split_disks {
            let err = "KubeletSeparateDiskGC is turned off but we still have a split filesystem";
            tracing::error!(err, "Eviction manager: failed to synchronize");
            return None;
        }
        let now = Instant::now();
        let mut due = tracker.look(&self.thresholds, &observed, now);
        self.agent.set_pressure(tracker.pressure(now, self.transition.max(PERIOD)));
        // Memory first: it is what brings the machine down.
        due.sort_by_key(|threshold| threshold.signal);
        let threshold = due.first()?;
        let resource = threshold.signal.resource();
        tracing::warn!(resource, signal = threshold.signal.name(), "Eviction manager: attempting to reclaim");
        let text = format!("Attempting to reclaim {resource}");
        self.manager.context().events.node(EventType::Warning, "EvictionThresholdMet", &text);
        if self.reclaim(threshold.signal).await {
            tracing::info!(resource, "Eviction manager: able to reduce resource pressure without evicting pods");
            return None;
        }
        for met in &due {
            crate::metrics::eviction_stats_age(met.signal.name(), begun.elapsed());
        }
        self.evict(threshold, &observed).await
    }

    /// Removes what nothing uses for the sake of a signal; true where no threshold is met any more. Answers for upstream's
    /// `reclaimNodeLevelResources`.
    async fn reclaim(&self, signal: Signal) -> bool {
        let reclaims = self.layout().reclaims(signal);
        for what in reclaims {
            match what {
                Reclaim::Containers => gc::delete_all_unused_containers(&self.manager, &self.dead_containers).await,
                Reclaim::Images => self.images.remove_unused().await,
            }
        }
        if reclaims.is_empty() {
            return false;
        }
        let left = self.observe().await;
        !self.thresholds.iter().any(|threshold| left.is_unresolved(threshold))
    }

    /// Measures the use of the disk by a pod.
    async fn measure(&self, pod: &Pod, containers: &[ContainerUsage], unit: local::Unit) -> Option<local::Use> {
        let (settings, uid) = (&self.manager.context().settings, pods::uid(pod));
        let own = containers.iter().filter(|container| container.pod_uid == uid);
        let layers = own.map(|container| {
            let layer = match unit {
                local::Unit::Bytes => container.disk_bytes,
                local::Unit::Inodes => container.disk_inodes,
            };
            (container.name.clone(), layer)
        });
        let layers = layers.collect();
        let volumes = settings.pod_dir(uid).join("volumes");
        let logs = settings.pod_log_dir(pods::namespace(pod), pods::name(pod), uid);
        WALKS.run(move || Ok(measure(layers, &volumes, &logs, unit))).await.ok()
    }

    /// Use of the disk by a pod: the sum of what counts for a signal, and the share of each container.
    async fn disk_use(
        &self,
        pod: &Pod,
        containers: &[ContainerUsage],
        signal: Signal,
    ) -> (Option<u64>, Vec<(String, u64)>) {
        let is_inodes = matches!(signal, Signal::NodeInodes | Signal::ImageInodes);
        let unit = if is_inodes { local::Unit::Inodes } else { local::Unit::Bytes };
        let Some(used) = self.measure(pod, containers, unit).await else { return (None, Vec::new()) };
        (Some(used.on_disk(pod, self.layout().counted(signal))), used.containers().collect())
    }

    async fn evict(&self, threshold: &Threshold, observed: &Observed) -> Option<Arc<Pod>> {
        let containers = self.stats.containers().await;
        let usage = self.stats.pod_usage(self.stats.parents()).await;
        let mut candidates = Vec::new();
        // A pod that was evicted a moment ago is not active, whatever the API server has heard.
        for pod in self.manager.active() {
            if is_pod_terminal(&pod) || pods::is_critical(&pod) || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let (total, used) = match threshold.signal {
                Signal::NodeDisk | Signal::ImageDisk | Signal::NodeInodes | Signal::ImageInodes => {
                    self.disk_use(&pod, &containers, threshold.signal).await
                }
                Signal::Memory | Signal::PodsMemory | Signal::Processes => {
                    let own = containers.iter().filter(|container| container.pod_uid == pods::uid(&pod));
                    let used = own.map(|container| (container.name.clone(), container.working_set)).collect();
                    let usage = usage.get(pods::uid(&pod));
                    let is_memory = threshold.signal != Signal::Processes;
                    (usage.map(|usage| if is_memory { usage.working_set } else { usage.processes }), used)
                }
            };
            candidates.push(Candidate::new(pod, threshold.signal, used, total));
        }
        rank::sort(&mut candidates);
        let victim = candidates.into_iter().next()?;
        let message = victim.message(threshold, observed);
        tracing::warn!(pod = %pods::describe(&victim.pod), message, "Eviction manager: evicting pod");
        self.manager.context().events.pod(&victim.pod, "", EventType::Warning, "Evicted", &message);
        crate::metrics::evicted(threshold.signal.name());
        let grace = if threshold.grace.is_some() { self.longest_grace.min(pods::grace(&victim.pod)) } else { 0 };
        self.manager.fail(pods::uid(&victim.pod), "Evicted", &message, Some(grace));
        Some(victim.pod)
    }
}

/// Measures volumes and logs of a pod, whose writable layers are known.
fn measure(layers: BTreeMap<String, u64>, volumes: &Path, logs: &Path, unit: local::Unit) -> local::Use {
    let folders = LOCAL_VOLUMES.iter().flat_map(|kind| std::fs::read_dir(volumes.join(kind)).into_iter().flatten());
    let sizes =
        folders.flatten().filter_map(|entry| Some((entry.file_name().into_string().ok()?, unit.of(&entry.path()))));
    let logs = layers.keys().map(|name| (name.clone(), unit.of(&logs.join(name)))).collect();
    local::Use { volumes: sizes.collect(), layers, logs }
}
