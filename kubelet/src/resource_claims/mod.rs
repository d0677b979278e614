//! Dynamic resources of pods: claims are prepared by their drivers before a pod starts, and given back after it has ended.
//! Answers for upstream's `pkg/kubelet/cm/dra`.
//!
//! In: pods, their claims from the API server, registrations of drivers. Out: calls of drivers, names of devices for the
//! runtime (CDI), the checkpoint. A claim is written down before its drivers are asked, so that it is given back after any
//! death. Calls for one claim never overlap.

mod error;
mod health;
mod plugin;
mod state;
pub mod v1;
pub mod v1alpha1;

pub use error::{ClaimError, ClaimFailure, ResourceClaimError};
pub use state::Device;

use crate::keyed_lock::KeyedLocks;
use crate::objects::ObjectSource;
use crate::plugins::{Handler, HandlerError, Plugin, metrics};
use crate::pods;
use crate::resource_health::{PodUpdates, ResourceHealths};
use async_trait::async_trait;
use error::UnsuitableDriver;
use health::HealthState;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, DeleteParams, ListParams};
use parking_lot::Mutex;
use plugin::{Driver, Drivers};
use state::{Claim, State};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Type that drivers register as.
pub const KIND: &str = "DRAPlugin";
/// The checkpoint, below the root directory.
const FILE: &str = "dra_manager_state";
/// The checkpoint of devices' health, below the root directory.
const HEALTH_FILE: &str = "dra_health_state";
/// Pause before a driver is asked again about its devices' health.
const HEALTH_RETRY: Duration = Duration::from_secs(5);
/// Upstream's `defaultWipingDelay`: a driver that is away for longer has no devices on the node.
const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Pause before slices are deleted again.
const RETRY: Duration = Duration::from_secs(10);

/// A device of a container, with the claim and the driver that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The claim's name.
    pub claim: String,
    /// The driver.
    pub driver: String,
    /// The device.
    pub device: Device,
}

/// Claims of the pods of one node.
pub struct ResourceClaims {
    file: PathBuf,
    node: String,
    objects: Arc<dyn ObjectSource>,
    /// None without an API server.
    client: Option<kube::Client>,
    drivers: Drivers,
    state: Mutex<State>,
    /// Drivers whose claims were counted last.
    counted: Mutex<BTreeSet<String>>,
    locks: KeyedLocks<String>,
    /// Drivers are asked about the health of their devices.
    watches_health: AtomicBool,
    health: Mutex<HealthState>,
    /// Pods whose devices have another health by now.
    pub updates: PodUpdates,
}

impl ResourceClaims {
    /// The node's claims as an earlier kubelet left them, below its root directory.
    pub fn new((root, node): (&Path, &str), objects: Arc<dyn ObjectSource>, client: Option<kube::Client>) -> Arc<Self> {
        let file = root.join(FILE);
        let state = State::read(&file).unwrap_or_else(|error| {
            tracing::error!(file = %file.display(), %error, "Could not read the checkpoint of resource claims, starting without");
            State::default()
        });
        let (drivers, locks) = (Drivers::default(), KeyedLocks::default());
        let (node, state, counted) = (node.to_owned(), Mutex::new(state), Mutex::default());
        let (watches_health, health) = (AtomicBool::new(false), Mutex::new(HealthState::read(&root.join(HEALTH_FILE))));
        let updates = PodUpdates::default();
        let claims =
            Self { file, node, objects, client, drivers, state, counted, locks, watches_health, health, updates };
        claims.count();
        Arc::new(claims)
    }

    /// Counts the claims that are in use.
    fn count(&self) {
        metrics::claims_in_use(self.state.lock().drivers(), &mut self.counted.lock());
    }

    fn save(&self) -> io::Result<()> {
        self.count();
        self.state.lock().write(&self.file)
    }

    /// Prepares a pod's claims; those that are prepared already are left. What has begun is brought to its end, also when nobody
    /// waits for it any more: giving back waits for it.
    ///
    /// # Errors
    /// A claim is not there, not allocated or not the pod's, or a driver is away or failed. To be tried again.
    pub async fn prepare(self: &Arc<Self>, pod: &Pod) -> Result<(), ResourceClaimError> {
        let has_claims = pod.spec.as_ref().is_some_and(|spec| spec.resource_claims.is_some());
        if !has_claims && state::extended(pod).is_none() {
            return Ok(());
        }
        let (claims, pod) = (Arc::clone(self), pod.clone());
        let prepared = tokio::spawn(async move {
            for reference in state::references(&pod)? {
                claims.prepare_one(&pod, &reference).await?;
            }
            Ok::<(), ClaimFailure>(())
        });
        let begun = Instant::now();
        let outcome = prepared.await.unwrap_or_else(|error| Err(error.into()));
        metrics::claims("PrepareResources", begun, &outcome);
        outcome.map_err(ResourceClaimError::Prepare)
    }

    async fn prepare_one(&self, pod: &Pod, reference: &state::Reference) -> Result<(), ClaimFailure> {
        let name = &reference.claim;
        let found = self.objects.resource_claim(pods::namespace(pod), name).await;
        let found = found.map_err(|cause| ClaimFailure::Fetch { name: name.clone(), cause })?;
        state::check(pod, &found, reference.is_generated)?;
        let claim = Claim::new(&found)?;
        // A pod whose driver is away has nothing that would have to be given back.
        for driver in claim.drivers.keys() {
            self.drivers.get(driver)?;
        }
        let _guard = self.locks.lock(&claim.uid).await;
        let claim = self.state.lock().add(claim, pods::uid(pod))?;
        self.save()?;
        if claim.is_prepared {
            return Ok(());
        }
        for name in claim.drivers.keys() {
            let devices = self.drivers.get(name)?.prepare(claim.message()).await?;
            self.state.lock().prepared(&claim, name, devices.into_iter().map(Device::from).collect());
        }
        Ok(self.save()?)
    }

    /// Gives back a pod's claims: those that no other pod has are unprepared.
    ///
    /// # Errors
    /// A driver is away or failed; what is left is tried again by the next call.
    pub async fn unprepare(&self, uid: &str) -> Result<(), ResourceClaimError> {
        let (begun, claims) = (Instant::now(), self.state.lock().of_pod(uid));
        if claims.is_empty() {
            return Ok(());
        }
        let mut outcome = Ok(());
        for claim in claims {
            if let Err(error) = self.unprepare_one(&claim, uid).await {
                outcome = outcome.and(Err(ResourceClaimError::Unprepare(error)));
            }
        }
        metrics::claims("UnprepareResources", begun, &outcome);
        outcome
    }

    async fn unprepare_one(&self, claim: &Claim, uid: &str) -> Result<(), ClaimFailure> {
        let _guard = self.locks.lock(&claim.uid).await;
        if self.state.lock().is_last(claim, uid) {
            for name in claim.drivers.keys() {
                self.drivers.get(name)?.unprepare(claim.message()).await?;
            }
            self.state.lock().remove(claim);
        }
        Ok(self.save()?)
    }

    /// Uids of all pods that have claims.
    pub fn pods(&self) -> Vec<String> {
        self.state.lock().pods().into_iter().collect()
    }

    /// Devices of a container.
    ///
    /// # Errors
    /// A claim is not prepared: the container must not start.
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Result<Vec<Granted>, ClaimError> {
        let found = self.state.lock().of_container(pod, container)?;
        let granted = |(claim, driver, device): (Claim, String, Device)| Granted { claim: claim.name, driver, device };
        Ok(found.into_iter().map(granted).collect())
    }

    /// Asks drivers that register from now on about the health of their devices: the gate `ResourceHealthStatus`.
    pub fn watch_health(&self) {
        self.watches_health.store(true, Ordering::Relaxed);
    }

    /// Follows what a driver tells of its devices' health, until it is away.
    async fn follow_health(&self, driver: Driver, name: &str) {
        let follow = async {
            loop {
                driver.follow_health(|list| self.take_health(name, list)).await;
                self.forget_health(name);
                tokio::time::sleep(HEALTH_RETRY).await;
            }
        };
        tokio::select! {
            () = driver.gone.cancelled() => self.forget_health(name),
            () = follow => {}
        }
    }

    fn take_health(&self, driver: &str, list: Vec<v1alpha1::DeviceHealth>) {
        let changed = self.health.lock().update(driver, list, Timestamp::now());
        if changed.is_empty() {
            return;
        }
        self.save_health();
        let pods = self.state.lock().pods_with(driver, &changed);
        self.updates.add(pods);
    }

    fn forget_health(&self, driver: &str) {
        let is_forgotten = self.health.lock().clear(driver);
        if is_forgotten {
            self.save_health();
        }
    }

    /// Writes the checkpoint of health; a failure is logged: drivers tell it anew.
    fn save_health(&self) {
        let file = self.file.with_file_name(HEALTH_FILE);
        if let Err(error) = self.health.lock().write(&file) {
            tracing::error!(file = %file.display(), %error, "Failed to save health checkpoint after update");
        }
    }

    /// Health of the devices of a container's claims that were made for the pod. Upstream's `UpdateAllocatedResourcesStatus`.
    pub fn health(&self, pod: &Pod, container: &Container) -> ResourceHealths {
        let used = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
        let names: BTreeMap<&String, &String> =
            statuses.filter_map(|status| Some((&status.name, status.resource_claim_name.as_ref()?))).collect();
        let (state, known, now) = (self.state.lock(), self.health.lock(), Timestamp::now());
        let mut healths = ResourceHealths::new();
        for used in used {
            let claim = names.get(&used.name).and_then(|claim| state.get(pods::namespace(pod), claim));
            let devices = claim.map(|claim| known.of_claim(claim, now)).unwrap_or_default();
            health::add(&mut healths, (&used.name, used.request.as_deref()), devices);
        }
        healths
    }

    /// Deletes the devices of drivers that have not come back after a restart of the kubelet.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let wipe = async {
            tokio::time::sleep(WIPING_DELAY).await;
            self.wipe(|driver, known| !known.contains(driver)).await;
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = wipe => {}
        }
    }

    /// Deletes the node's slices of the drivers that are `gone`, given those that are registered; tried until it succeeds.
    async fn wipe(&self, is_gone: impl Fn(&String, &[String]) -> bool) {
        let Some(client) = &self.client else { return };
        let api: Api<ResourceSlice> = Api::all(client.clone());
        loop {
            match self.wipe_once(&api, &is_gone).await {
                Ok(()) => return,
                Err(kube::Error::Api(status)) if status.code == 404 => return,
                Err(error) => tracing::warn!(%error, "Could not delete the resource slices of drivers that are away"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn wipe_once(
        &self,
        api: &Api<ResourceSlice>,
        is_gone: &impl Fn(&String, &[String]) -> bool,
    ) -> kube::Result<()> {
        let own = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        for slice in api.list(&own).await? {
            if is_gone(&slice.spec.driver, &self.drivers.names())
                && let Some(name) = &slice.metadata.name
            {
                match api.delete(name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other?),
                }
            }
        }
        Ok(())
    }
}

/// Takes in drivers from the plugin registry.
pub struct ClaimHandler(pub Arc<ResourceClaims>);

#[async_trait]
impl Handler for ClaimHandler {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let unsuitable =
            |cause| UnsuitableDriver { name: plugin.name.clone(), endpoint: plugin.endpoint.clone(), cause };
        Ok(plugin::service(&plugin.versions).map(drop).map_err(unsuitable)?)
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        let driver = Driver::new(plugin)?;
        self.0.drivers.add(&plugin.name, driver.clone());
        if self.0.watches_health.load(Ordering::Relaxed) {
            let (claims, name) = (Arc::clone(&self.0), plugin.name.clone());
            tokio::spawn(async move { claims.follow_health(driver, &name).await });
        }
        Ok(())
    }

    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        if self.0.drivers.remove(plugin) {
            let (claims, name) = (Arc::clone(&self.0), plugin.name.clone());
            tokio::spawn(async move {
                tokio::time::sleep(WIPING_DELAY).await;
                claims.wipe(|driver, known| *driver == name && !known.contains(driver)).await;
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
