//! FlexVolumes: volumes of drivers that are programs on the node. Answers for upstream's `pkg/volume/flexvolume`.
//!
//! | path | content |
//! |---|---|
//! | `pods/<uid>/volumes/<vendor>~<driver>/<volume>` | a volume of a pod |
//! | `plugins/kubernetes.io/flexvolume/<vendor>/<driver>/mounts/<volume>` | the device of a volume that is attached |
//!
//! What a driver does not support the kubelet does itself. What is mounted is read from the disk, by the next kubelet, too.

mod error;
mod expand;
mod setup;

pub(super) use error::{FlexError, FlexSecretError, UnknownDriver, UnmountError};

use super::disks::Host;
use super::disks::format;
use super::helper::{MOUNT, MountRequest, give};
use super::metrics::Plugin;
use super::mounts;
use crate::blocking::blocking;
use crate::files::make_private;
use crate::keyed_lock::KeyedLocks;
use crate::pods;
use crate::volumes::csi::VolumeGroup;
use base64::Engine as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use parking_lot::Mutex;
pub(super) use shared::flex::FlexVolume;
use shared::flex::{CallFailure, DriverAnswer, Drivers, FlexDriver, escape};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders of the kubelet's own plugins in a pod's.
const OWN: &str = "kubernetes.io~";

/// Facts of the pod for a driver.
fn about(pod: &Pod, secret: Option<&Secret>, group: Option<VolumeGroup>) -> BTreeMap<String, String> {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
    let mut facts: BTreeMap<String, String> = [
        ("pod.name", pods::name(pod).to_owned()),
        ("pod.namespace", pods::namespace(pod).to_owned()),
        ("pod.uid", pods::uid(pod).to_owned()),
        ("serviceAccount.name", account),
    ]
    .map(|(key, value)| (format!("kubernetes.io/{key}"), value))
    .into();
    if let Some(group) = group {
        facts.insert("kubernetes.io/mounterArgs.FsGroup".to_owned(), group.id.to_string());
    }
    for (name, value) in secret.iter().flat_map(|secret| secret.data.iter().flatten()) {
        let value = base64::engine::general_purpose::STANDARD.encode(&value.0);
        facts.insert(format!("kubernetes.io/secret/{name}"), value);
    }
    facts
}

/// Driver and name of a volume.
type Key = (String, String);

fn key(volume: &FlexVolume) -> Key {
    (volume.driver.clone(), volume.name.clone())
}

/// A step that failed, and why.
pub(super) type StepFailure = (&'static str, FlexError);

/// FlexVolumes of one node.
pub(super) struct Flex {
    plugins: PathBuf,
    pods: PathBuf,
    node: String,
    drivers: Drivers,
    host: Host,
    /// The controller manager attaches volumes: `enableControllerAttachDetach`.
    is_managed: bool,
    /// Pods by the attached volumes that they use or wait for.
    users: Mutex<HashMap<Key, HashSet<String>>>,
    /// Devices of volumes, as their drivers named them.
    devices: Mutex<HashMap<Key, String>>,
    locks: KeyedLocks<Key>,
}

/// Names below a folder; none if there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a folder that something was mounted on. The driver may have done so.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn prepare(folder: &Path) -> io::Result<bool> {
    make_private(folder)?;
    mounts::is_mount_point(folder)
}

impl Flex {
    /// FlexVolumes of drivers below the folder of plugins, for the node of this name.
    pub(super) fn new((root, node): (&Path, &str), drivers: &Path, is_managed: bool) -> Self {
        Self {
            plugins: root.join("plugins/kubernetes.io/flexvolume"),
            pods: root.join("pods"),
            node: node.to_owned(),
            drivers: Drivers::new(drivers),
            host: Host::default(),
            is_managed,
            users: Mutex::default(),
            devices: Mutex::default(),
            locks: KeyedLocks::default(),
        }
    }

    /// Folder of a pod's volume.
    pub(super) fn folder(&self, uid: &str, volume: &FlexVolume) -> PathBuf {
        self.pods.join(uid).join("volumes").join(escape(&volume.driver)).join(&volume.name)
    }

    fn device_folder(&self, (driver, name): &Key) -> PathBuf {
        self.plugins.join(driver).join("mounts").join(name)
    }

    /// Reports whether a volume is to be attached before it is mounted.
    ///
    /// # Errors
    /// There is no such driver; upstream's text.
    pub(super) async fn is_attached_first(&self, volume: &FlexVolume) -> Result<bool, UnknownDriver> {
        let driver = self.drivers.get(&volume.driver).await;
        let driver = driver.map_err(|cause| UnknownDriver { volume: volume.name.clone(), cause })?;
        Ok(driver.abilities.attach)
    }

    /// Reports whether the runtime may relabel a volume's files, and whether the file system's numbers are the volume's.
    pub(super) async fn abilities(&self, volume: &FlexVolume) -> (bool, bool) {
        let driver = self.drivers.get(&volume.driver).await;
        driver.map_or((true, false), |driver| (driver.abilities.selinux_relabel, driver.abilities.supports_metrics))
    }

    /// Mounts a volume for a pod: attached first where the driver does so and nobody else does, on the device that the node's
    /// status names. Gives the files to the pod's group. What is mounted is left as it is.
    ///
    /// # Errors
    /// The step that failed, with the driver's text.
    pub(super) async fn mount(
        &self,
        uid: &str,
        volume: &FlexVolume,
        attached: &str,
        facts: BTreeMap<String, String>,
        group: Option<VolumeGroup>,
    ) -> Result<(), StepFailure> {
        let driver = self.drivers.get(&volume.driver).await.map_err(|error| ("MountVolume.SetUp", error.into()))?;
        let key = key(volume);
        let _guard = self.locks.lock(&key).await;
        if driver.abilities.attach {
            self.users.lock().entry(key.clone()).or_default().insert(uid.to_owned());
            self.attach(&driver, volume, attached).await?;
        }
        let mounted = self.set_up(&driver, volume, &self.folder(uid, volume), facts, group).await;
        mounted.map_err(|error| ("MountVolume.SetUp", error))
    }

    /// Attaches a volume and mounts its device, unless that is done.
    async fn attach(&self, driver: &FlexDriver, volume: &FlexVolume, attached: &str) -> Result<(), StepFailure> {
        let (folder, json) = (self.device_folder(&key(volume)), volume.json(BTreeMap::new()));
        let device_error = |error: FlexError| ("MountVolume.MountDevice", error);
        let place = folder.clone();
        if blocking(move || mounts::is_mount_point(&place)).await.map_err(|error| device_error(error.into()))? {
            return Ok(());
        }
        let named = driver.call("getvolumename", &[&json]).await;
        if let Err(CallFailure::Failed(error)) = named {
            return Err(device_error(FlexError::Name(error)));
        }
        // Written down before the driver is asked: the next kubelet has to detach what may be attached.
        let place = folder.clone();
        blocking(move || make_private(&place)).await.map_err(|error| device_error(error.into()))?;
        let or = |answer: Result<DriverAnswer, CallFailure>, default: &str| match answer {
            Ok(answer) => Ok(answer.device),
            Err(CallFailure::NotSupported) => Ok(default.to_owned()),
            Err(CallFailure::Failed(error)) => Err(FlexError::Call(error)),
        };
        let mut device = attached.to_owned();
        if !self.is_managed {
            let answer = driver.call("attach", &[&json, &self.node]).await;
            device = or(answer, "").map_err(|error| ("AttachVolume.Attach", error))?;
        }
        let answer = driver.call("waitforattach", &[&device, &json]).await;
        let device = or(answer, &device).map_err(|error| ("MountVolume.WaitForAttach", error))?;
        self.devices.lock().insert(key(volume), device.clone());
        let at = folder.display().to_string();
        match driver.call("mountdevice", &[&at, &device, &json]).await {
            Ok(_) => Ok(()),
            // A driver without a device has nothing to mount yet.
            Err(CallFailure::NotSupported) if device.is_empty() => Ok(()),
            Err(CallFailure::NotSupported) => {
                let options = BTreeSet::from([if volume.read_only { "ro" } else { "rw" }.to_owned()]);
                let mounted = format::mount(&self.host, &device, &folder, &volume.kind, &options).await;
                mounted.map_err(|error| device_error(error.into()))
            }
            Err(CallFailure::Failed(error)) => Err(device_error(FlexError::Call(error))),
        }
    }

    async fn set_up(
        &self,
        driver: &FlexDriver,
        volume: &FlexVolume,
        folder: &Path,
        facts: BTreeMap<String, String>,
        group: Option<VolumeGroup>,
    ) -> Result<(), FlexError> {
        let place = folder.to_path_buf();
        if blocking(move || prepare(&place)).await? {
            return Ok(());
        }
        let at = folder.display().to_string();
        let mounted = match driver.call("mount", &[&at, &volume.json(facts)]).await {
            Ok(_) => Ok(()),
            Err(CallFailure::NotSupported) => {
                let request = MountRequest::bind(&self.device_folder(&key(volume)), false, &[]);
                request.mount(&self.host.program(MOUNT), folder).await.map(drop).map_err(FlexError::from)
            }
            Err(CallFailure::Failed(error)) => Err(FlexError::Call(error)),
        };
        let place = folder.to_path_buf();
        if let Err(error) = mounted {
            // What may be in it is not ours: a folder that is not empty stays.
            blocking(move || remove(&place)).await.ok();
            return Err(error);
        }
        if let Some(group) = group.filter(|_| !volume.read_only && driver.abilities.fs_group) {
            // Upstream does not fail for this.
            let given = give(&Plugin::flex(&volume.driver), place, group.into()).await;
            if let Err(error) = given {
                tracing::warn!(volume = volume.name, %error, "Failed to give the files to the pod's group");
            }
        }
        Ok(())
    }

    /// Volumes of a pod on the disk, by the folders of their drivers.
    fn of_pod(&self, uid: &str) -> Vec<(String, PathBuf)> {
        let volumes = self.pods.join(uid).join("volumes");
        let drivers = names(&volumes).into_iter().filter(|name| !name.starts_with(OWN));
        let below = |driver: String| {
            let folder = volumes.join(&driver);
            names(&folder).into_iter().map(move |name| (driver.replace('~', "/"), folder.join(name)))
        };
        drivers.flat_map(below).collect()
    }

    /// Unmounts the volumes of a pod.
    ///
    /// # Errors
    /// A driver is away, or failed; what is left is tried again by the next call.
    pub(super) async fn unmount(&self, uid: &str) -> Result<(), UnmountError> {
        let mut outcome = Ok(());
        for (driver, folder) in self.of_pod(uid) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let _guard = self.locks.lock(&(driver.clone(), name.clone())).await;
            if let Err(cause) = self.tear_down(&driver, &folder).await {
                outcome = outcome.and(Err(UnmountError { volume: name, cause: Box::new(cause) }));
            }
        }
        outcome
    }

    async fn tear_down(&self, driver: &str, folder: &Path) -> Result<(), FlexError> {
        match self.drivers.get(driver).await {
            Ok(driver) => match driver.call("unmount", &[&folder.display().to_string()]).await {
                Ok(_) => {}
                Err(CallFailure::NotSupported) => {
                    let place = folder.to_path_buf();
                    blocking(move || mounts::unmount_all(&place)).await?;
                }
                Err(CallFailure::Failed(error)) => return Err(FlexError::Call(error)),
            },
            Err(error) => {
                let place = folder.to_path_buf();
                if blocking(move || mounts::is_mount_point(&place)).await? {
                    return Err(error.into());
                }
            }
        }
        let place = folder.to_path_buf();
        Ok(blocking(move || if mounts::is_mount_point(&place)? { Ok(()) } else { remove(&place) }).await?)
    }

    /// Volumes whose device is on the node.
    fn on_node(&self) -> Vec<Key> {
        let is_there = |driver: &String| self.plugins.join(driver).join("mounts").is_dir();
        let drivers = names(&self.plugins).into_iter().flat_map(|one| {
            let two = names(&self.plugins.join(&one)).into_iter().map(|two| format!("{one}/{two}")).collect::<Vec<_>>();
            std::iter::once(one).chain(two)
        });
        let volumes = |driver: String| {
            let names = names(&self.plugins.join(&driver).join("mounts"));
            names.into_iter().map(move |name| (driver.clone(), name))
        };
        drivers.filter(is_there).flat_map(volumes).collect()
    }

    /// Names in the node's status of the volumes that an earlier kubelet left on the node.
    pub(super) fn in_use(&self) -> Vec<String> {
        self.on_node().into_iter().map(|(driver, name)| format!("{driver}/{name}")).collect()
    }

    /// Forgets a pod, and takes volumes from the node that no other uses: their names in the node's status.
    pub(super) async fn release(&self, uid: &str) -> Vec<String> {
        let mut dropped = Vec::new();
        self.users.lock().retain(|key, pods| {
            if pods.remove(uid) {
                dropped.push(key.clone());
            }
            !pods.is_empty()
        });
        if dropped.is_empty() {
            return Vec::new();
        }
        let gone = self.sweep().await;
        // Those that never came to be on the node are not to be found there.
        let users = self.users.lock();
        let is_unmade = |key: &Key| !users.contains_key(key) && !self.device_folder(key).exists();
        let unmade = dropped.iter().filter(|key| is_unmade(key)).map(|(driver, name)| format!("{driver}/{name}"));
        unmade.chain(gone).collect::<BTreeSet<String>>().into_iter().collect()
    }

    /// Takes volumes from the node that no pod uses: their names in the node's status. What cannot be taken now is tried
    /// again by the next sweep.
    pub(super) async fn sweep(&self) -> Vec<String> {
        let mut gone = Vec::new();
        for key in self.on_node() {
            let _guard = self.locks.lock(&key).await;
            if self.users.lock().contains_key(&key) || self.is_used(&key) {
                continue;
            }
            match self.take_down(&key).await {
                Ok(()) => gone.push(format!("{}/{}", key.0, key.1)),
                Err(error) => tracing::warn!(driver = key.0, volume = key.1, %error, "UnmountDevice failed"),
            }
        }
        gone
    }

    /// Reports whether a pod on the disk has a volume.
    fn is_used(&self, (driver, name): &Key) -> bool {
        let place = Path::new("volumes").join(escape(driver)).join(name);
        names(&self.pods).into_iter().any(|uid| self.pods.join(uid).join(&place).exists())
    }

    async fn take_down(&self, key: &Key) -> Result<(), FlexError> {
        let (driver, folder): (Arc<FlexDriver>, _) = (self.drivers.get(&key.0).await?, self.device_folder(key));
        let place = folder.clone();
        if blocking(move || mounts::is_mount_point(&place)).await? {
            match driver.call("unmountdevice", &[&folder.display().to_string()]).await {
                Ok(_) => {}
                Err(CallFailure::NotSupported) => {
                    let place = folder.clone();
                    blocking(move || mounts::unmount_all(&place)).await?;
                }
                Err(CallFailure::Failed(error)) => return Err(FlexError::Call(error)),
            }
        }
        if !self.is_managed {
            match driver.call("detach", &[&key.1, &self.node]).await {
                Ok(_) | Err(CallFailure::NotSupported) => {}
                Err(CallFailure::Failed(error)) => return Err(FlexError::Call(error)),
            }
        }
        self.devices.lock().remove(key);
        Ok(blocking(move || remove(&folder)).await?)
    }
}

#[cfg(test)]
mod tests;
