//! A node without a runtime: a runtime that remembers what it was asked for, and volumes that take as long as the test wants.

use crate::cpus::{CpuConfig, Cpus};
use crate::cri::v1::{self, ContainerState, PodSandboxState};
use crate::cri::{CriError, Exec, ExecOutput, Runtime, labels};
use crate::devices::Devices;
use crate::events::LogSink;
use crate::facts::PodFacts;
use crate::hooks;
use crate::images::{Images, provider::Providers};
use crate::memory::{MemoryConfig, MemoryManager};
use crate::objects::Standalone;
use crate::probes;
use crate::resource_claims::ResourceClaims;
use crate::resources::{self, NoCgroups};
use crate::settings::Settings;
use crate::topology::{NumaNodes, TopologyConfig, TopologyManager};
use crate::volumes::csi::AttachError;
use crate::volumes::error::TearDownError;
use crate::volumes::{MountedVolume, VolumeError, Volumes};
use crate::workers::container::tests::settings;
use crate::workers::context::{NoServices, NodeState, StatusSink, WorkerContext};
use crate::workers::records::ResourceRecords;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceHealth, VolumeMount};
use parking_lot::Mutex;
use shared::flags::FeatureGates;
use shared::traces::Tracer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// Id of a container that the runtime does not tell of.
pub(crate) const LOST: &str = "lost";

/// Lines of a test, in order.
#[derive(Default)]
pub(crate) struct Log {
    lines: Mutex<Vec<String>>,
    changed: Notify,
}

impl Log {
    fn add(&self, line: String) {
        self.lines.lock().push(line);
        self.changed.notify_waiters();
    }

    /// Number of times that something has happened.
    pub(crate) fn count(&self, line: &str) -> usize {
        self.lines.lock().iter().filter(|known| *known == line).count()
    }

    /// Reports whether something has happened.
    pub(super) fn has(&self, line: &str) -> bool {
        self.lines.lock().iter().any(|known| known == line)
    }

    /// Waits until something has happened.
    pub(crate) async fn until(&self, line: &str) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.has(line) {
                return;
            }
            changed.await;
        }
    }
}

/// A sandbox `s` of the pod `u` with a container `c` in it that ends when it is stopped by force.
pub(crate) struct FakeRuntime {
    log: Arc<Log>,
    is_ready: Mutex<bool>,
    is_running: Mutex<bool>,
    /// Time that it takes to stop the sandbox.
    sandbox_stop: Mutex<Duration>,
}

fn unknown<T>() -> Result<T, CriError> {
    Err(CriError::Rpc { code: "Unimplemented", message: "not in tests".to_owned() })
}

fn of_pod() -> BTreeMap<String, String> {
    let labels =
        [(labels::POD_UID, "u"), (labels::POD_NAME, "p"), (labels::POD_NAMESPACE, "n"), (labels::CONTAINER_NAME, "c")];
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[async_trait]
impl Exec for FakeRuntime {
    async fn exec_sync(&self, id: &str, _: &[String], _: Duration) -> Result<ExecOutput, CriError> {
        self.log.add(format!("run a command in {id}"));
        Ok(ExecOutput::default())
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<v1::VersionResponse, CriError> {
        unknown()
    }
    async fn status(&self) -> Result<v1::StatusResponse, CriError> {
        unknown()
    }
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse, CriError> {
        unknown()
    }
    async fn update_runtime_config(&self, _: &str) -> Result<(), CriError> {
        unknown()
    }
    async fn run_sandbox(&self, config: v1::PodSandboxConfig, _: &str) -> Result<String, CriError> {
        let context = config.linux.and_then(|linux| linux.security_context);
        let users = context.and_then(|context| context.namespace_options?.userns_options).unwrap_or_default();
        let ids: u32 = users.uids.iter().map(|range| range.length).sum();
        self.log.add(format!("run with {ids} ids of its own"));
        unknown()
    }
    async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        self.log.add(format!("stop {id}"));
        let takes = *self.sandbox_stop.lock();
        tokio::time::sleep(takes).await;
        *self.is_ready.lock() = false;
        Ok(())
    }
    async fn remove_sandbox(&self, _: &str) -> Result<(), CriError> {
        unknown()
    }
    async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, CriError> {
        Ok(v1::PodSandboxStatus { id: id.to_owned(), state: self.sandbox_state().into(), ..Default::default() })
    }
    async fn list_sandboxes(&self, _: Option<&str>) -> Result<Vec<v1::PodSandbox>, CriError> {
        let state = self.sandbox_state().into();
        Ok(vec![v1::PodSandbox { id: "s".to_owned(), state, labels: of_pod(), ..Default::default() }])
    }
    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String, CriError> {
        unknown()
    }
    async fn start_container(&self, _: &str) -> Result<(), CriError> {
        unknown()
    }
    async fn stop_container(&self, id: &str, grace: i64) -> Result<(), CriError> {
        self.log.add(format!("stop {id} in {grace}"));
        tokio::time::sleep(Duration::from_secs(grace.unsigned_abs())).await;
        *self.is_running.lock() = false;
        Ok(())
    }
    async fn update_container(&self, _: &str, _: v1::LinuxContainerResources) -> Result<(), CriError> {
        unknown()
    }
    async fn remove_container(&self, _: &str) -> Result<(), CriError> {
        unknown()
    }
    async fn list_containers(&self, _: Option<&str>) -> Result<Vec<v1::Container>, CriError> {
        let (id, pod_sandbox_id, state) = ("c".to_owned(), "s".to_owned(), self.container_state().into());
        Ok(vec![v1::Container { id, pod_sandbox_id, state, labels: of_pod(), ..Default::default() }])
    }
    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, CriError> {
        if id == LOST {
            return unknown();
        }
        let state = self.container_state().into();
        Ok(v1::ContainerStatus { id: id.to_owned(), state, labels: of_pod(), started_at: 1, ..Default::default() })
    }
    async fn reopen_log(&self, _: &str) -> Result<(), CriError> {
        unknown()
    }
    async fn checkpoint_container(&self, id: &str, location: &str, timeout: Duration) -> Result<(), CriError> {
        self.log.add(format!("checkpoint {id} to {location} in {}", timeout.as_secs()));
        Ok(())
    }
    async fn exec(&self, _: v1::ExecRequest) -> Result<String, CriError> {
        unknown()
    }
    async fn attach(&self, _: v1::AttachRequest) -> Result<String, CriError> {
        unknown()
    }
    async fn port_forward(&self, _: v1::PortForwardRequest) -> Result<String, CriError> {
        unknown()
    }
    async fn container_stats(&self) -> Result<Vec<v1::ContainerStats>, CriError> {
        unknown()
    }
    async fn list_images(&self) -> Result<Vec<v1::Image>, CriError> {
        unknown()
    }
    async fn image_status(&self, _: v1::ImageSpec) -> Result<Option<v1::Image>, CriError> {
        unknown()
    }
    async fn pull_image(
        &self,
        _: v1::ImageSpec,
        _: Option<v1::AuthConfig>,
        _: v1::PodSandboxConfig,
    ) -> Result<String, CriError> {
        unknown()
    }
    async fn remove_image(&self, _: v1::ImageSpec) -> Result<(), CriError> {
        unknown()
    }
    async fn image_fs(&self) -> Result<v1::ImageFsInfoResponse, CriError> {
        unknown()
    }
    async fn events(&self) -> Result<tokio::sync::mpsc::Receiver<v1::ContainerEventResponse>, CriError> {
        unknown()
    }
}

impl FakeRuntime {
    fn sandbox_state(&self) -> PodSandboxState {
        if *self.is_ready.lock() { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
    }

    fn container_state(&self) -> ContainerState {
        if *self.is_running.lock() { ContainerState::ContainerRunning } else { ContainerState::ContainerExited }
    }

    /// The network of the sandbox takes its time to go.
    pub(crate) fn stop_sandbox_slowly(&self, takes: Duration) {
        *self.sandbox_stop.lock() = takes;
    }

    /// The sandbox has lost its network, or died.
    pub(crate) fn break_sandbox(&self) {
        *self.is_ready.lock() = false;
    }
}

/// Volumes that are unmounted when the test says so.
struct FakeVolumes {
    log: Arc<Log>,
    unmounts: Arc<Semaphore>,
    /// The node can have no more volumes.
    is_full: bool,
}

#[async_trait]
impl Volumes for FakeVolumes {
    async fn mount(&self, _: &Pod, _: &PodFacts) -> Result<BTreeMap<String, MountedVolume>, VolumeError> {
        if self.is_full {
            return Err(VolumeError::Exhausted {
                volume: "v".to_owned(),
                cause: AttachError::Driver("no room".to_owned()),
            });
        }
        Ok(BTreeMap::new())
    }
    async fn refresh(&self, _: &Pod, _: &PodFacts) -> Result<(), VolumeError> {
        Ok(())
    }
    async fn mount_path(
        &self,
        _: &Pod,
        _: &str,
        _: usize,
        _: &MountedVolume,
        _: &VolumeMount,
        _: &str,
    ) -> Result<PathBuf, VolumeError> {
        Ok(PathBuf::new())
    }
    async fn read(&self, _: &MountedVolume, _: &str) -> Result<Option<String>, VolumeError> {
        Ok(None)
    }
    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError> {
        self.log.add(format!("unmount {pod_uid}"));
        let permit = self.unmounts.acquire().await;
        permit.map(|permit| permit.forget()).map_err(|_| TearDownError::Gone.into())
    }
    fn pods_on_disk(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Statuses: that there is one, the reason of a failure, and the health of what containers have to themselves.
struct Statuses(Arc<Log>);

impl StatusSink for Statuses {
    fn set(&self, _: &Arc<Pod>, status: &PodStatus) {
        if status.phase.as_deref() == Some("Failed") {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            self.0.add(format!("failed: {}: {}", text(&status.reason), text(&status.message)));
        }
        for container in status.container_statuses.iter().flatten() {
            for resource in container.allocated_resources_status.iter().flatten() {
                let health =
                    |of: &ResourceHealth| format!("{} {}", of.resource_id, of.health.clone().unwrap_or_default());
                let devices: Vec<String> = resource.resources.iter().flatten().map(health).collect();
                self.0.add(format!("{} has {}: {}", container.name, resource.name, devices.join(", ")));
            }
        }
        self.0.add("a status".to_owned());
    }
    fn reclaimed(&self, _: &Arc<Pod>, _: &PodStatus) {}
    fn mirror(&self, _: &Pod) -> Option<Arc<Pod>> {
        None
    }
    fn forget(&self, _: &str) {}
}

/// The node: parts that a worker needs, and parts that the test holds.
pub(crate) struct FakeNode {
    pub(crate) cx: Arc<WorkerContext>,
    pub(crate) log: Arc<Log>,
    pub(crate) runtime: Arc<FakeRuntime>,
    /// Unmounts that may succeed.
    pub(crate) unmounts: Arc<Semaphore>,
}

impl FakeNode {
    pub(crate) fn at(root: &Path) -> Self {
        Self::with(root, |_| {})
    }

    /// A node that can have no more volumes.
    pub(super) fn without_room(root: &Path) -> Self {
        let log = Arc::<Log>::default();
        let volumes = FakeVolumes { log: Arc::clone(&log), unmounts: Arc::new(Semaphore::new(1)), is_full: true };
        let mut node = Self::with(root, |cx| {
            cx.volumes = Arc::new(volumes);
            cx.statuses = Arc::new(Statuses(Arc::clone(&log)));
        });
        node.log = log;
        node
    }

    /// A node that differs in something.
    pub(crate) fn with(root: &Path, change: impl FnOnce(&mut WorkerContext)) -> Self {
        let log = Arc::<Log>::default();
        let (is_ready, is_running) = (Mutex::new(true), Mutex::new(true));
        let sandbox_stop = Mutex::default();
        let runtime = Arc::new(FakeRuntime { log: Arc::clone(&log), is_ready, is_running, sandbox_stop });
        let unmounts = Arc::new(Semaphore::new(0));
        let folder = |name: &str| root.join(name);
        let settings = Settings {
            root_dir: root.to_path_buf(),
            pod_logs_dir: folder("logs"),
            container_logs_dir: folder("containers"),
            ..settings()
        };
        let (system, none) = (Path::new("/sys/devices/system"), BTreeMap::new());
        let nodes = NumaNodes::read(system).expect("the machine's nodes");
        let placement =
            TopologyConfig { policy: "none".to_owned(), scope: "container".to_owned(), options: none.clone() };
        let topology = TopologyManager::new(&placement, &nodes).expect("a policy");
        let processors = CpuConfig {
            policy: "none".to_owned(),
            options: none,
            reserved: String::new(),
            amounts: Default::default(),
            period: Duration::from_secs(10),
            gates: FeatureGates::default(),
        };
        let cpus = Cpus::new(root, system, &processors, topology.policy()).expect("a policy");
        let memory = MemoryConfig { policy: "None".to_owned(), reservations: Vec::new(), kept: BTreeMap::new() };
        let memory = MemoryManager::new(root, &nodes, &memory).expect("a policy");
        let exec: Arc<dyn Exec> = Arc::<FakeRuntime>::clone(&runtime);
        let (prober, _) = probes::Manager::new(Arc::clone(&exec), Arc::new(LogSink));
        let volumes = FakeVolumes { log: Arc::clone(&log), unmounts: Arc::clone(&unmounts), is_full: false };
        let mut cx = WorkerContext {
            runtime: Arc::<FakeRuntime>::clone(&runtime),
            machine: resources::machine_info(root),
            images: Images::new(settings.pulls, root, None, Providers::default()),
            volumes: Arc::new(volumes),
            cpus,
            memory,
            topology,
            claims: ResourceClaims::new((root, "node"), Arc::new(Standalone), None),
            devices: Devices::new(root, nodes.ids()),
            userns: None,
            probes: Arc::new(prober),
            hooks: Arc::new(hooks::Runner::new(exec, Arc::new(LogSink))),
            records: ResourceRecords::load(root, &FeatureGates::default()).expect("records"),
            cgroups: Arc::new(NoCgroups),
            objects: Arc::new(Standalone),
            services: Arc::new(NoServices),
            events: Arc::new(LogSink),
            statuses: Arc::new(Statuses(Arc::clone(&log))),
            node: ArcSwap::from_pointee(NodeState::default()),
            tracer: Tracer::default(),
            settings,
        };
        change(&mut cx);
        Self { cx: Arc::new(cx), log, runtime, unmounts }
    }
}
