//! Devices of plugins: what the node has of them, which containers get which, and what a container needs to use its own.
//! Answers for upstream's `pkg/kubelet/cm/devicemanager`.
//!
//! In: registrations on `<root-dir>/device-plugins/kubelet.sock` or in the plugin registry, plugins' lists, pods. Out:
//! resources of the node, parts of container configurations, the checkpoint. A plugin that is away or slow keeps nobody
//! waiting but the pods that want its devices.

mod checkpoint;
mod error;
mod plugin;
mod registration;
mod state;
pub mod v1beta1;

pub use error::DeviceError;
pub use state::Count;

use crate::plugins::{Handler, HandlerError, Plugin, metrics};
use crate::pods;
use crate::resource_health::{PodUpdates, ResourceHealths};
use crate::topology::{Hint, HintProvider, Hints, Refusal};
use async_trait::async_trait;
use error::PluginError;
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use plugin::Endpoint;
use shared::types::is_extended_resource;
use state::{Device, Owner, State};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use v1beta1::{ContainerAllocateResponse, VERSION};

/// Type that device plugins register as.
pub const KIND: &str = "DevicePlugin";
/// Folder of sockets and of the checkpoint, below the root directory.
pub const FOLDER: &str = "device-plugins";
/// Upstream's `endpointStopGracePeriod`: a plugin that is away for longer has no devices.
const GRACE: Duration = Duration::from_secs(5 * 60);

/// A device as a container, and whoever asks, sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedDevice {
    /// Resource that it counts as.
    pub resource: String,
    /// The plugin's name of it.
    pub id: String,
    /// NUMA nodes that it is near.
    pub nodes: Vec<i64>,
}

/// Devices of one node.
pub struct Devices {
    folder: PathBuf,
    state: Mutex<State>,
    endpoints: Mutex<HashMap<String, Endpoint>>,
    changed: Notify,
    /// NUMA nodes of the machine.
    nodes: Vec<u32>,
    /// Resources of an earlier kubelet whose plugins have not registered with this one, and when it was started.
    awaited: Mutex<HashSet<String>>,
    started: Instant,
    /// Containers that this kubelet has admitted, by pod.
    admitted: Mutex<HashMap<String, HashSet<String>>>,
    /// Pods whose devices have another health by now.
    pub updates: PodUpdates,
}

impl Devices {
    /// The node's devices as an earlier kubelet left them, below its root directory.
    pub fn new(root: &Path, nodes: Vec<u32>) -> Arc<Self> {
        let folder = root.join(FOLDER);
        let state = checkpoint::read(&folder);
        let awaited = Mutex::new(state.devices.keys().cloned().collect());
        let (started, admitted) = (Instant::now(), Mutex::default());
        let (state, endpoints, changed) = (Mutex::new(state), Mutex::default(), Notify::new());
        let updates = PodUpdates::default();
        Arc::new(Self { folder, state, endpoints, changed, nodes, awaited, started, admitted, updates })
    }

    /// Numbers of devices by resource; none of a resource that is gone.
    pub fn counts(&self) -> BTreeMap<String, Count> {
        self.state.lock().counts()
    }

    /// Returns when [`Self::counts`] has changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Serves registrations until shutdown.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        registration::run(self, shutdown).await;
    }

    /// Writes the checkpoint; a failure is logged: what runs goes on.
    fn save(&self) {
        let state = self.state.lock();
        if let Err(error) = checkpoint::write(&self.folder, &state) {
            tracing::error!(%error, "Writing checkpoint encountered");
        }
    }

    /// Takes a plugin in the place of the one that had its resource.
    fn add(self: &Arc<Self>, resource: &str, socket: &Path, options: Option<v1beta1::DevicePluginOptions>) {
        match Endpoint::new(socket, options) {
            Ok(endpoint) => {
                tracing::info!(resource, socket = %socket.display(), "Registered device plugin");
                metrics::device_registration(resource);
                self.awaited.lock().remove(resource);
                let (gone, id) = (endpoint.gone.clone(), endpoint.id);
                if let Some(before) = self.endpoints.lock().insert(resource.to_owned(), endpoint.clone()) {
                    before.gone.cancel();
                }
                let (devices, resource) = (Arc::clone(self), resource.to_owned());
                tokio::spawn(async move {
                    tokio::select! {
                        () = gone.cancelled() => {}
                        () = endpoint.follow(|list| devices.update(&resource, id, list)) => devices.fail(&resource, id).await,
                    }
                });
            }
            Err(error) => tracing::error!(resource, %error, "Failed to dial device plugin"),
        }
    }

    fn is_current(&self, resource: &str, id: u64) -> bool {
        self.endpoints.lock().get(resource).is_some_and(|endpoint| endpoint.id == id)
    }

    /// Takes in a plugin's list.
    fn update(&self, resource: &str, id: u64, list: BTreeMap<String, Device>) {
        if !self.is_current(resource, id) {
            return;
        }
        let (told, is_changed) = {
            let mut state = self.state.lock();
            (state.pods_told_of(resource, &list), state.update(resource, list))
        };
        if is_changed {
            self.changed.notify_one();
        }
        self.save();
        self.updates.add(told);
    }

    /// Health of the devices of a container.
    pub fn health(&self, uid: &str, container: &str) -> ResourceHealths {
        self.state.lock().health(uid, container)
    }

    /// A plugin is away: its devices are ill, and gone when it does not come back.
    async fn fail(&self, resource: &str, id: u64) {
        if !self.is_current(resource, id) {
            return;
        }
        tracing::warn!(resource, "Device plugin is away, its devices are marked unhealthy");
        self.state.lock().fail(resource);
        self.changed.notify_one();
        self.save();
        tokio::time::sleep(GRACE).await;
        let is_current = self.is_current(resource, id);
        if is_current {
            self.endpoints.lock().remove(resource);
            self.state.lock().update(resource, BTreeMap::new());
            self.changed.notify_one();
            self.save();
        }
    }

    async fn allocate_one(&self, pod: &Pod, owner: &Owner, number: usize, hint: Hint) -> Result<(), DeviceError> {
        let (_, container, resource) = owner;
        let endpoint = self.endpoint(resource);
        let wanted = (container.as_str(), resource.as_str(), number);
        let choices = self.state.lock().choices(pod, wanted, hint.affinity)?;
        let preferred = match &endpoint {
            Some(endpoint) if choices.needed > 0 => endpoint.preferred(&choices).await,
            _ => Vec::new(),
        };
        let ids = {
            let mut state = self.state.lock();
            // Another pod may have taken some while the plugin was asked.
            let ids = state.choices(pod, wanted, hint.affinity)?.pick(&preferred);
            state.take(owner, &ids);
            ids
        };
        let endpoint = endpoint.ok_or_else(|| DeviceError::NoPlugin(resource.clone()))?;
        let begun = Instant::now();
        let response = endpoint.allocate(&ids).await;
        metrics::device_allocation(resource, begun);
        let response = response?;
        if let Some(allocation) = self.state.lock().allocations.get_mut(owner) {
            allocation.response = Some(response);
        }
        Ok(())
    }

    /// Frees the devices of pods that are not there any more.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.admitted.lock().retain(|uid, _| is_there(uid));
        let is_changed = self.state.lock().retain(is_there);
        if is_changed {
            self.save();
        }
    }

    fn endpoint(&self, resource: &str) -> Option<Endpoint> {
        self.endpoints.lock().get(resource).cloned()
    }

    /// Answers of plugins that a container needs to use its devices, after their preparations for its start.
    ///
    /// # Errors
    /// A plugin is away, or failed.
    pub async fn options(&self, pod: &Pod, container: &str) -> Result<Vec<ContainerAllocateResponse>, DeviceError> {
        let allocations: Vec<(String, Vec<String>, Option<ContainerAllocateResponse>)> = {
            let state = self.state.lock();
            let own = state.of_container(pods::uid(pod), container);
            own.map(|(resource, allocation)| {
                let ids = allocation.ids().into_iter().cloned().collect();
                (resource.to_owned(), ids, allocation.response.clone())
            })
            .collect()
        };
        let mut answers = Vec::new();
        for (resource, ids, response) in allocations {
            match self.endpoint(&resource) {
                Some(endpoint) => endpoint.prepare(&ids).await?,
                // What an earlier kubelet was told serves until the plugin has had time to register again.
                None if self.awaited.lock().contains(&resource) && self.started.elapsed() < GRACE => {}
                None => return Err(DeviceError::PluginAway(resource)),
            }
            answers.extend(response);
        }
        Ok(answers)
    }

    /// Devices of a container.
    pub fn of_container(&self, uid: &str, container: &str) -> Vec<GrantedDevice> {
        let state = self.state.lock();
        let granted = state.of_container(uid, container).flat_map(|(resource, allocation)| {
            let known = state.devices.get(resource);
            allocation.ids().into_iter().map(move |id| GrantedDevice {
                resource: resource.to_owned(),
                id: id.clone(),
                nodes: known.and_then(|devices| devices.get(id)).map(|device| device.nodes.clone()).unwrap_or_default(),
            })
        });
        granted.collect()
    }

    /// Devices that pods can have, whoever has them.
    pub fn healthy(&self) -> Vec<GrantedDevice> {
        let state = self.state.lock();
        let all = state.devices.iter().flat_map(|(resource, devices)| {
            let healthy = devices.iter().filter(|(_, device)| device.is_healthy);
            healthy.map(|(id, device)| GrantedDevice {
                resource: resource.clone(),
                id: id.clone(),
                nodes: device.nodes.clone(),
            })
        });
        all.collect()
    }
}

#[async_trait]
impl HintProvider for Devices {
    fn hints(&self, pod: &Pod, container: &Container) -> Hints {
        self.state.lock().hints(&self.nodes, pod, container)
    }

    fn pod_hints(&self, pod: &Pod) -> Hints {
        self.state.lock().pod_hints(&self.nodes, pod)
    }

    async fn allocate(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Refusal> {
        let is_known = self.admitted.lock().get(pods::uid(pod)).is_some_and(|known| known.contains(&container.name));
        if !is_known {
            self.state.lock().check_own(pod, container).map_err(Refusal::unexpected)?;
        }
        let wanted = self.state.lock().wanted(pod, container);
        let admitted = || {
            let mut all = self.admitted.lock();
            all.entry(pods::uid(pod).to_owned()).or_default().insert(container.name.clone());
        };
        if wanted.is_empty() {
            admitted();
            return Ok(());
        }
        let mut taken = Vec::new();
        for (resource, number) in wanted {
            let owner: Owner = (pods::uid(pod).to_owned(), container.name.clone(), resource);
            taken.push(owner.clone());
            if let Err(error) = self.allocate_one(pod, &owner, number, hint).await {
                let mut state = self.state.lock();
                taken.iter().for_each(|owner| drop(state.allocations.remove(owner)));
                return Err(Refusal::unexpected(error));
            }
        }
        admitted();
        self.save();
        Ok(())
    }

    fn release(&self, uid: &str) {
        self.retain(|other| other != uid);
    }
}

#[async_trait]
impl Handler for DeviceHandler {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        if !plugin.versions.iter().any(|version| version == VERSION) {
            return Err(PluginError::Versions(plugin.versions.clone()).into());
        }
        if !is_extended_resource(&plugin.name) {
            return Err(PluginError::Name(plugin.name.clone()).into());
        }
        Ok(())
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        self.0.add(&plugin.name, &plugin.endpoint, None);
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let gone = {
            let endpoints = self.0.endpoints.lock();
            endpoints.get(&plugin.name).filter(|endpoint| endpoint.socket == plugin.endpoint).map(|found| found.id)
        };
        if let Some(id) = gone {
            let (devices, name) = (Arc::clone(&self.0), plugin.name.clone());
            tokio::spawn(async move { devices.fail(&name, id).await });
        }
        Ok(())
    }
}

/// Takes in device plugins from the plugin registry.
pub struct DeviceHandler(pub Arc<Devices>);

#[cfg(test)]
mod tests;
