//! Usage of node, pods and containers: `/stats/summary` and the metrics endpoints.
//!
//! In: the runtime's container statistics, the pods' cgroups, `/proc`. Nothing is sampled unless somebody asks; a rate
//! is what happened since the question before.

mod cadvisor;
mod cgroup;
mod disks;
mod exposition;
pub mod machine;
mod pressure;
mod readings;
mod subjects;
mod summary;
mod text;

use self::cgroup::{CgroupReader, CgroupStats};
use self::readings::{Reading, Readings};
use self::subjects::MeasuredCgroup;
use crate::cri::{labels, v1};
use crate::resources::Usage;
use crate::volumes::VolumeUsage;
use crate::workers::manager::Manager;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Shorter than this a rate says little: the one before is told again.
const SHORTEST_RATE_NS: i64 = 1_000_000_000;

/// Usage of one container.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerUsage {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) pod_uid: String,
    pub(crate) pod_name: String,
    pub(crate) namespace: String,
    pub(crate) started_at: i64,
    pub(crate) time: i64,
    pub(crate) cpu_ns: u64,
    pub(crate) memory: u64,
    pub(crate) working_set: u64,
    pub(crate) rss: u64,
    pub(crate) page_faults: u64,
    pub(crate) major_page_faults: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) disk_inodes: u64,
    /// Mount point of the file system that its layer is on.
    pub(crate) disk: String,
    /// Bytes of swap, and the most of it, where the cgroup was read.
    pub(crate) swap: Option<u64>,
    pub(crate) swap_limit: Option<u64>,
    pub(crate) memory_limit: Option<u64>,
    /// The cgroup, where it was read.
    pub(crate) cgroup: String,
}

impl ContainerUsage {
    /// Takes what the kernel says now for what the runtime told.
    fn measure(&mut self, subject: &MeasuredCgroup, stats: &CgroupStats, at: i64) {
        self.cgroup.clone_from(&subject.id);
        self.time = at;
        self.cpu_ns = stats.cpu[0].unwrap_or(0);
        self.memory = stats.memory.unwrap_or(0);
        self.working_set = stats.working_set();
        self.rss = stats.parts.rss;
        [self.page_faults, self.major_page_faults] = stats.parts.faults_below;
        self.swap = Some(stats.parts.swap.unwrap_or(0));
        (self.swap_limit, self.memory_limit) = (stats.swap_limit, stats.memory_limit);
    }

    fn of(subject: &MeasuredCgroup, stats: &CgroupStats, at: i64) -> Self {
        let mut usage = Self {
            id: subject.name.clone(),
            name: subject.container.clone(),
            pod_uid: subject.pod_uid.clone(),
            pod_name: subject.pod.clone(),
            namespace: subject.namespace.clone(),
            started_at: subject.made,
            ..Self::default()
        };
        usage.measure(subject, stats, at);
        usage
    }
}

/// Nanoseconds since the epoch.
fn now() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    time: i64,
    cpu_ns: u64,
    rate: Option<u64>,
}

/// The stats room.
pub struct Stats {
    manager: Arc<Manager>,
    samples: Mutex<HashMap<String, Sample>>,
    /// Images of sandboxes, by id.
    sandbox_images: Mutex<HashMap<String, String>>,
    /// Names of the cgroups of containers and sandboxes, by id.
    cgroup_names: Mutex<HashMap<String, String>>,
    readings: Arc<Mutex<Readings>>,
}

impl Stats {
    /// Of the pods of this node.
    pub fn new(manager: Arc<Manager>) -> Self {
        Self {
            manager,
            samples: Mutex::default(),
            sandbox_images: Mutex::default(),
            cgroup_names: Mutex::default(),
            readings: Arc::default(),
        }
    }

    /// Nanocores since the question before; none the first time.
    fn rate(&self, key: &str, time: i64, cpu_ns: u64) -> Option<u64> {
        let mut samples = self.samples.lock();
        if samples.len() > 10_000 {
            samples.clear();
        }
        let before = samples.get(key).copied();
        let Some(before) = before else {
            samples.insert(key.to_owned(), Sample { time, cpu_ns, rate: None });
            return None;
        };
        let elapsed = time - before.time;
        if elapsed < SHORTEST_RATE_NS {
            return before.rate;
        }
        let used = u128::from(cpu_ns.saturating_sub(before.cpu_ns));
        let rate = u64::try_from(used * 1_000_000_000 / u128::try_from(elapsed).unwrap_or(1)).ok();
        samples.insert(key.to_owned(), Sample { time, cpu_ns, rate });
        rate
    }

    /// Reads the usage of every running container.
    pub(crate) async fn containers(&self) -> Vec<ContainerUsage> {
        let runtime = &self.manager.context().runtime;
        let (stats, containers) = tokio::join!(runtime.container_stats(), runtime.list_containers(None));
        let known: HashMap<String, v1::Container> =
            containers.unwrap_or_default().into_iter().map(|container| (container.id.clone(), container)).collect();
        let stats = stats.unwrap_or_else(|error| {
            tracing::warn!(%error, "Failed to get container stats");
            Vec::new()
        });
        stats.into_iter().filter_map(|stat| usage(stat, &known)).collect()
    }

    /// Reads the usage of every running container from its cgroup; as the runtime tells it where containers have none.
    pub(crate) async fn containers_measured(&self) -> Vec<ContainerUsage> {
        let read = self.read_containers().await;
        if read.is_empty() {
            return self.containers().await;
        }
        read.iter().map(|(subject, reading, at)| ContainerUsage::of(subject, &reading.stats, *at)).collect()
    }

    /// Reads the usage of every running container: of disks as the runtime tells it, all else from its cgroup.
    pub(crate) async fn containers_with_disks(&self) -> Vec<ContainerUsage> {
        let (mut all, read) = tokio::join!(self.containers(), self.read_containers());
        let read: HashMap<&str, _> = read.iter().map(|read| (read.0.name.as_str(), read)).collect();
        for usage in &mut all {
            if let Some((subject, reading, at)) = read.get(usage.id.as_str()) {
                usage.measure(subject, &reading.stats, *at);
            }
        }
        all
    }

    async fn read_containers(&self) -> Vec<(MeasuredCgroup, Arc<Reading>, i64)> {
        let subjects = self.subjects_of_pods(false).await;
        let readings = Arc::clone(&self.readings);
        let read = tokio::task::spawn_blocking(move || {
            let mut readings = readings.lock();
            let mut pass = readings.pass(CgroupReader::of_machine());
            // The pod's comes first: where it is still, so are those of its containers.
            let read = |subject: MeasuredCgroup| {
                let reading = pass.read(&subject.id)?;
                (!subject.container.is_empty()).then(|| (subject, reading, now()))
            };
            subjects.into_iter().filter_map(read).collect()
        });
        read.await.unwrap_or_default()
    }

    /// Reads the usage of pods' cgroups, the sandboxes included.
    pub(crate) async fn pod_usage(&self, parents: Vec<(String, String)>) -> HashMap<String, Usage> {
        let readings = Arc::clone(&self.readings);
        let read = tokio::task::spawn_blocking(move || {
            let mut readings = readings.lock();
            let mut pass = readings.pass(CgroupReader::of_machine());
            let found = parents.into_iter().filter_map(|(uid, parent)| Some((uid, pass.read(&parent)?.stats.usage())));
            found.collect()
        });
        read.await.unwrap_or_default()
    }

    /// Pods with the numbers of their volumes, looked at side by side: a driver that takes its time delays one pod.
    pub(crate) async fn volumes(&self, pods: Vec<Arc<Pod>>) -> Vec<(Arc<Pod>, Arc<Vec<VolumeUsage>>)> {
        let volumes = &self.manager.context().volumes;
        let usage = pods.iter().map(|pod| volumes.usage(pod));
        let usage = futures::future::join_all(usage).await;
        pods.into_iter().zip(usage).collect()
    }

    /// Uid and cgroup of every pod.
    pub(crate) fn parents(&self) -> Vec<(String, String)> {
        let cx = self.manager.context();
        let pods = self.manager.pods();
        let parent = |pod: &Arc<Pod>| (crate::pods::uid(pod).to_owned(), cx.cgroups.pod_parent(pod));
        pods.iter().map(parent).filter(|(_, parent)| !parent.is_empty()).collect()
    }
}

fn usage(stat: v1::ContainerStats, known: &HashMap<String, v1::Container>) -> Option<ContainerUsage> {
    let attributes = stat.attributes?;
    let container = known.get(&attributes.id)?;
    if container.state() != v1::ContainerState::ContainerRunning {
        return None;
    }
    let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
    let value = |number: Option<v1::UInt64Value>| number.map(|number| number.value).unwrap_or_default();
    let (cpu, memory, disk) =
        (stat.cpu.unwrap_or_default(), stat.memory.unwrap_or_default(), stat.writable_layer.unwrap_or_default());
    let working_set = value(memory.working_set_bytes);
    let used = value(memory.usage_bytes);
    Some(ContainerUsage {
        name: label(labels::CONTAINER_NAME),
        pod_uid: label(labels::POD_UID),
        pod_name: label(labels::POD_NAME),
        namespace: label(labels::POD_NAMESPACE),
        started_at: container.created_at,
        time: if cpu.timestamp > 0 { cpu.timestamp } else { memory.timestamp },
        cpu_ns: value(cpu.usage_core_nano_seconds),
        memory: if used > 0 { used } else { working_set },
        working_set,
        rss: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        disk_bytes: value(disk.used_bytes),
        disk_inodes: value(disk.inodes_used),
        disk: disk.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
        id: attributes.id,
        ..ContainerUsage::default()
    })
}
