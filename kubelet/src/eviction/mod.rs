//! Eviction: when memory, disks or process ids run short the node says so, unused things go, and then pods go, those
//! first that use more than they asked for. Answers for upstream's `pkg/kubelet/eviction`.
//!
//! [`signals`] and [`rank`] are pure; the loop here observes, decides and acts once per period.

pub mod images;
pub mod local;
pub mod rank;
pub mod signals;
mod tracker;

use crate::blocking::WALKS;
use crate::config::KubeletConfiguration;
use crate::events::EventType;
use crate::node::agent::Agent;
use crate::pods;
use crate::stats::{ContainerUsage, Stats, machine};
use crate::workers::manager::Manager;
use k8s_openapi::api::core::v1::Pod;
use rank::Candidate;
use shared::types::is_pod_terminal;
use signals::{Observed, Signal, Threshold};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tracker::Tracker;

/// Interval at which the node is looked at.
const PERIOD: Duration = Duration::from_secs(10);
/// After an eviction the pod gets this long to end before the next one is picked.
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
}

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
    ) -> Result<Self, String> {
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
        let mut wait = PERIOD;
        loop {
            tokio::time::sleep(wait).await;
            wait = if self.step(&mut tracker).await { SETTLE } else { PERIOD };
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
            image_disk: tokio::time::timeout(PERIOD, self.stats.image_disk()).await.ok().flatten(),
            processes: machine::processes(),
        }
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
            let Some((signal, message)) = measured.and_then(|used| local::exceeded(&pod, &used)) else { continue };
            crate::metrics::evicted(signal);
            tracing::warn!(pod = %pods::describe(&pod), message, "Eviction manager: evicting pod");
            cx.events.pod(&pod, "", EventType::Warning, "Evicted", &message);
            self.manager.fail(&uid, "Evicted", &message, Some(0));
        }
    }

    /// One look; true when a pod was evicted.
    async fn step(&self, tracker: &mut Tracker) -> bool {
        let observed = self.observe().await;
        let now = Instant::now();
        let mut due = tracker.look(&self.thresholds, &observed, now);
        self.agent.set_pressure(tracker.pressure(now, self.transition.max(PERIOD)));
        // Memory first: it is what brings the machine down.
        due.sort_by_key(|threshold| threshold.signal);
        let Some(threshold) = due.into_iter().next() else { return false };
        let resource = threshold.signal.resource();
        tracing::warn!(resource, signal = threshold.signal.name(), "Eviction manager: attempting to reclaim");
        let text = format!("Attempting to reclaim {resource}");
        self.manager.context().events.node(EventType::Warning, "EvictionThresholdMet", &text);
        if threshold.signal.is_disk() {
            self.images.remove_unused().await;
            if !self.observe().await.is_unresolved(&threshold) {
                return false;
            }
        }
        self.evict(&threshold, &observed).await
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
        let volumes = settings.pod_dir(uid).join("volumes/kubernetes.io~empty-dir");
        let logs = settings.pod_log_dir(pods::namespace(pod), pods::name(pod), uid);
        WALKS.run(move || Ok(measure(layers, &volumes, &logs, unit))).await.ok()
    }

    /// Use of the disk by a pod: its sum, and the share of each container.
    async fn disk_use(
        &self,
        pod: &Pod,
        containers: &[ContainerUsage],
        unit: local::Unit,
    ) -> (Option<u64>, Vec<(String, u64)>) {
        let used = self.measure(pod, containers, unit).await.unwrap_or_default();
        (Some(used.on_disk(pod)), used.containers.into_iter().collect())
    }

    async fn evict(&self, threshold: &Threshold, observed: &Observed) -> bool {
        let containers = self.stats.containers().await;
        let usage = self.stats.pod_usage(self.stats.parents()).await;
        let mut candidates = Vec::new();
        for pod in self.manager.pods() {
            if is_pod_terminal(&pod) || pods::is_critical(&pod) || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let (total, used) = match threshold.signal {
                Signal::NodeDisk | Signal::ImageDisk => self.disk_use(&pod, &containers, local::Unit::Bytes).await,
                Signal::NodeInodes | Signal::ImageInodes => self.disk_use(&pod, &containers, local::Unit::Inodes).await,
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
        let Some(victim) = candidates.into_iter().next() else { return false };
        let message = victim.message(threshold, observed);
        tracing::warn!(pod = %pods::describe(&victim.pod), message, "Eviction manager: evicting pod");
        self.manager.context().events.pod(&victim.pod, "", EventType::Warning, "Evicted", &message);
        crate::metrics::evicted(threshold.signal.name());
        let grace = if threshold.grace.is_some() { self.longest_grace.min(pods::grace(&victim.pod)) } else { 0 };
        self.manager.fail(pods::uid(&victim.pod), "Evicted", &message, Some(grace));
        true
    }
}

/// Measures volumes and logs of a pod and adds them to the writable layers of its containers.
fn measure(layers: BTreeMap<String, u64>, volumes: &Path, logs: &Path, unit: local::Unit) -> local::Use {
    let folders = std::fs::read_dir(volumes).into_iter().flatten().flatten();
    let sizes = folders.filter_map(|entry| Some((entry.file_name().into_string().ok()?, unit.of(&entry.path()))));
    let with_logs = |(name, layer): (String, u64)| {
        let all = layer.saturating_add(unit.of(&logs.join(&name)));
        (name, all)
    };
    local::Use { volumes: sizes.collect(), containers: layers.into_iter().map(with_logs).collect() }
}
