//! Disks that the node reaches over a network: iSCSI and Fibre Channel. A disk is attached and mounted once, below the
//! plugin's folder, and bound into every pod that uses it; the last pod takes it from the node. Answers for upstream's
//! `pkg/volume/iscsi` and `pkg/volume/fc`.
//!
//! | path | content |
//! |---|---|
//! | `plugins/kubernetes.io/iscsi/iface-<interface>/<portal>-<target>-lun-<unit>` | an iSCSI disk, over its record |
//! | `plugins/kubernetes.io/fc/<port>-…-lun-<unit>`, `…/<identifier>-…` | a Fibre Channel disk |
//! | `plugins/kubernetes.io/<plugin>/volumeDevices/<the same>/<uid>` | its device, for a pod that uses the disk as one |
//!
//! What is mounted where is read from the kernel, by the next kubelet, too.

mod devices;
mod fc;
pub(super) mod format;
mod host;
mod iscsi;

pub(super) use fc::{FcError, FcTarget};
pub(super) use host::{Ended, ProgramError};
pub(super) use iscsi::{Chap, IscsiTarget, of_persistent};

use super::block::BlockError;
use super::helper::{MOUNT, MountError, MountRequest};
use super::mounts;
use crate::blocking::{MOUNTING, UNMOUNTING, WorkError, blocking};
use crate::files::make_private;
use crate::keyed_lock::KeyedLocks;
use fc::FcDetachError;
use format::FormatError;
pub(crate) use host::Host;
use iscsi::IscsiError;
use nix::mount::{MntFlags, umount2};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

const ISCSI: &str = "iscsi";
const FC: &str = "fc";
/// Folder of disks that pods use as devices.
const DEVICES: &str = "volumeDevices";

/// Failures of disks.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A name that leads elsewhere.
    #[error("invalid disk {0:?}")]
    Name(PathBuf),
    /// An iSCSI disk cannot be attached or detached.
    #[error(transparent)]
    Iscsi(#[from] IscsiError),
    /// A Fibre Channel disk cannot be attached.
    #[error(transparent)]
    Fc(#[from] FcError),
    /// A Fibre Channel disk cannot be detached.
    #[error(transparent)]
    FcDetach(#[from] FcDetachError),
    /// The file system cannot be made or mounted.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The folder cannot be bound.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The device cannot be held or let go.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// Work on its folder failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// A step that failed, and why.
pub(super) type DiskFailure = (&'static str, Box<DiskError>);

/// A disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DiskTarget {
    Iscsi(Box<(IscsiTarget, Chap)>),
    Fc(FcTarget),
}

/// A disk with the manner of its use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Disk {
    pub(super) target: DiskTarget,
    /// Kind of file system that a disk without one gets; empty for `ext4`.
    pub(super) kind: String,
    pub(super) read_only: bool,
    /// `mountOptions`.
    pub(super) options: Vec<String>,
    /// Pods use the device, not a file system on it.
    pub(super) is_block: bool,
}

impl DiskTarget {
    /// Name of the plugin.
    pub(super) fn plugin(&self) -> &'static str {
        match self {
            Self::Iscsi(_) => ISCSI,
            Self::Fc(_) => FC,
        }
    }

    /// Name of the volume in the node's status. Upstream's `GetVolumeName`.
    pub(super) fn unique_name(&self) -> String {
        let name = match self {
            Self::Iscsi(disk) => disk.0.unique_name(),
            Self::Fc(target) => target.unique_name(),
        };
        format!("kubernetes.io/{}/{name}", self.plugin())
    }

    fn folder(&self) -> PathBuf {
        match self {
            Self::Iscsi(disk) => disk.0.folder(),
            Self::Fc(target) => target.folder(),
        }
    }

    /// The disk that a folder below a plugin's is of.
    fn of_folder(plugin: &str, folder: &Path) -> Option<Self> {
        match plugin {
            ISCSI => Some(Self::Iscsi(Box::new((IscsiTarget::of_folder(folder)?, Chap::default())))),
            _ => FcTarget::of_folder(folder).map(Self::Fc),
        }
    }
}

/// Disks of one node.
pub(super) struct Disks {
    plugins: PathBuf,
    pods: PathBuf,
    host: Host,
    /// Pods by the folders of the disks that they use or wait for.
    users: Mutex<HashMap<PathBuf, HashSet<String>>>,
    /// Names of disks in the node's status, by their folders, until they are taken from the node.
    names: Mutex<HashMap<PathBuf, String>>,
    locks: KeyedLocks<PathBuf>,
    /// Logins and logouts of one target do not overlap.
    targets: KeyedLocks<String>,
}

impl Disks {
    /// Disks below a root directory.
    pub(super) fn new(root: &Path) -> Self {
        let (plugins, pods) = (root.join("plugins/kubernetes.io"), root.join("pods"));
        let (locks, targets) = (KeyedLocks::default(), KeyedLocks::default());
        let (users, host) = (Mutex::default(), Host::default());
        let disks = Self { plugins, pods, host, users, names: Mutex::default(), locks, targets };
        let left = disks.folders().into_iter().filter_map(|(plugin, folder)| {
            let name = DiskTarget::of_folder(plugin, &folder)?.unique_name();
            Some((folder, name))
        });
        let left = left.collect();
        *disks.names.lock() = left;
        disks
    }

    /// Names in the node's status of disks that are on the node: those that an earlier kubelet left.
    pub(super) fn in_use(&self) -> Vec<String> {
        let names: BTreeSet<String> = self.names.lock().values().cloned().collect();
        names.into_iter().collect()
    }

    /// Mounts a disk at a place of a pod. Reports whether it was mounted there now.
    ///
    /// # Errors
    /// It cannot be attached, or not mounted: the step, and upstream's text.
    pub(super) async fn mount(&self, uid: &str, disk: &Disk, at: &Path) -> Result<bool, DiskFailure> {
        let folder = self.plugins.join(disk.target.plugin()).join(disk.target.folder());
        let failed = |step, error| (step, Box::new(error));
        self.begin(uid, disk, &folder).map_err(|error| failed("MountVolume.WaitForAttach", error))?;
        let _guard = self.locks.lock(&folder).await;
        let place = folder.clone();
        let is_mounted = MOUNTING.run(move || mounts::is_mount_point(&place)).await;
        if !is_mounted.map_err(|error| failed("MountVolume.MountDevice", error.into()))? {
            let device = self.attach(&disk.target, &folder).await;
            let device = device.map_err(|error| failed("MountVolume.WaitForAttach", error))?;
            let mounted = self.mount_device(&device, disk, &folder).await;
            mounted.map_err(|error| failed("MountVolume.MountDevice", error))?;
        }
        let request = MountRequest::bind(&folder, disk.read_only, &disk.options);
        let bound = request.mount(&self.host.program(MOUNT), at).await;
        bound.map_err(|error| failed("MountVolume.SetUp", error.into()))
    }

    /// Notes that a pod uses the disk of a folder.
    fn begin(&self, uid: &str, disk: &Disk, folder: &Path) -> Result<(), DiskError> {
        self.users.lock().entry(folder.to_path_buf()).or_default().insert(uid.to_owned());
        self.names.lock().insert(folder.to_path_buf(), disk.target.unique_name());
        // A name that leads elsewhere is refused before anything is made of it.
        if !folder.starts_with(&self.plugins) || folder.components().any(|part| part.as_os_str() == "..") {
            return Err(DiskError::Name(disk.target.folder()));
        }
        Ok(())
    }

    async fn attach(&self, target: &DiskTarget, folder: &Path) -> Result<String, DiskError> {
        match target {
            DiskTarget::Iscsi(disk) => {
                let (target, chap) = &**disk;
                let device = {
                    let _guard = self.targets.lock(&target.iqn).await;
                    iscsi::attach(&self.host, target, chap).await?
                };
                let (folder, target) = (folder.to_path_buf(), target.clone());
                blocking(move || make_private(&folder).and_then(|()| iscsi::remember(&folder, &target))).await?;
                Ok(device)
            }
            DiskTarget::Fc(target) => {
                let (host, target) = (self.host.clone(), target.clone());
                Ok(MOUNTING.run(move || Ok(fc::attach(&host, &target))).await??)
            }
        }
    }

    async fn mount_device(&self, device: &str, disk: &Disk, folder: &Path) -> Result<(), DiskError> {
        let place = folder.to_path_buf();
        blocking(move || make_private(&place)).await?;
        let read_only = disk.read_only.then(|| "ro".to_owned());
        let options: BTreeSet<String> = disk.options.iter().cloned().chain(read_only).collect();
        Ok(format::mount(&self.host, device, folder, &disk.kind, &options).await?)
    }

    /// Forgets a pod, and takes disks from the node that no other uses: their names in the node's status.
    pub(super) async fn release(&self, uid: &str) -> Vec<String> {
        let was_user = {
            let mut users = self.users.lock();
            let before: usize = users.values().map(HashSet::len).sum();
            users.values_mut().for_each(|pods| _ = pods.remove(uid));
            users.retain(|_, pods| !pods.is_empty());
            before != users.values().map(HashSet::len).sum::<usize>()
        };
        if was_user { self.sweep().await } else { Vec::new() }
    }

    /// Takes disks from the node that no pod uses: their names in the node's status. What cannot be taken now is tried again
    /// by the next sweep.
    pub(super) async fn sweep(&self) -> Vec<String> {
        let mut gone = Vec::new();
        for (plugin, folder) in self.folders() {
            let _guard = self.locks.lock(&folder).await;
            if self.users.lock().contains_key(&folder) {
                self.unmap_gone(plugin, &folder).await;
                continue;
            }
            match self.take_down(plugin, &folder).await {
                Ok(true) => gone.extend(self.names.lock().remove(&folder)),
                Ok(false) => {}
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "UnmountDevice failed"),
            }
        }
        gone.extend(self.forget_unmade());
        gone
    }

    /// Forgets disks that nobody uses and that never came to be on the node: their names in the node's status.
    fn forget_unmade(&self) -> Vec<String> {
        let users = self.users.lock();
        let mut names = self.names.lock();
        let is_unmade = |folder: &PathBuf| !users.contains_key(folder) && !folder.exists();
        let unmade: Vec<PathBuf> = names.keys().filter(|folder| is_unmade(folder)).cloned().collect();
        unmade.iter().filter_map(|folder| names.remove(folder)).collect()
    }

    /// Folders of disks.
    fn folders(&self) -> Vec<(&'static str, PathBuf)> {
        let below = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_iface =
            |folder: &PathBuf| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("iface-"));
        let (iscsi, fc) = (self.plugins.join(ISCSI), self.plugins.join(FC));
        let targets = [iscsi.join(DEVICES), iscsi].into_iter().flat_map(below).filter(is_iface).flat_map(below);
        let ports = [fc.join(DEVICES), fc].into_iter().flat_map(below).filter(|folder| !folder.ends_with(DEVICES));
        targets.map(|folder| (ISCSI, folder)).chain(ports.map(|folder| (FC, folder))).collect()
    }

    /// Unmounts and detaches a disk that no pod has mounted. Reports whether it is not on the node any more.
    async fn take_down(&self, plugin: &str, folder: &Path) -> Result<bool, DiskError> {
        let (place, pods, is_device) = (folder.to_path_buf(), self.pods.clone(), self.is_of_devices(plugin, folder));
        let unmount = move || {
            if mounts::mounts_of_the_same(&place, &pods)? > 0 {
                return Ok(true);
            }
            if mounts::is_mount_point(&place)? {
                umount2(&place, MntFlags::UMOUNT_NOFOLLOW)?;
            }
            Ok(false)
        };
        let is_used = match is_device {
            true => self.blocks().let_go_of_gone(folder, &self.pods).await?,
            false => UNMOUNTING.run(unmount).await?,
        };
        if is_used {
            return Ok(false);
        }
        let Some(target) = DiskTarget::of_folder(plugin, folder) else { return Ok(false) };
        match &target {
            DiskTarget::Iscsi(disk) => {
                let target = &disk.0;
                let _guard = self.targets.lock(&target.iqn).await;
                let is_last = iscsi::is_last(&self.plugins.join(ISCSI), target);
                iscsi::detach(&self.host, target, is_last).await?;
            }
            DiskTarget::Fc(target) => fc::detach(&self.host, target).await?,
        }
        let place = folder.to_path_buf();
        blocking(move || remove(&place)).await?;
        Ok(true)
    }
}

/// Removes the folder of a disk and its record: never what is mounted there, and never what somebody put there.
fn remove(folder: &Path) -> std::io::Result<()> {
    if mounts::is_mount_point(folder)? {
        return Err(std::io::Error::other(format!("{} is still mounted", folder.display())));
    }
    match fs::remove_file(folder.join("iscsi.json")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests;
