//! Disks that pods use as devices: one folder a disk, with a file a pod that the device is bound over, and a link to the
//! device in each pod's folder. Answers for upstream's `MapBlockVolume` and `UnmapBlockVolume`.

use super::{DEVICES, Disk, Disks};
use crate::blocking::blocking;
use crate::files::make_private;
use crate::volumes::mounts;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Record of an iSCSI disk, beside the pods' files.
const RECORD: &str = "iscsi.json";

impl Disks {
    /// Gives a pod the device of a disk, by a link.
    ///
    /// # Errors
    /// The device cannot be attached, or not mapped: the step, and upstream's text.
    pub(in crate::volumes) async fn map(
        &self,
        uid: &str,
        disk: &Disk,
        link: &Path,
    ) -> Result<(), (&'static str, String)> {
        let folder = self.plugins.join(disk.target.plugin()).join(DEVICES).join(disk.target.folder());
        let attaching = |error| ("MapVolume.WaitForAttach", error);
        self.begin(uid, disk, &folder).map_err(attaching)?;
        let _guard = self.locks.lock(&folder).await;
        let device = self.attach(&disk.target, &folder).await.map_err(attaching)?;
        let device = self.host.root.join(device.trim_start_matches('/'));
        let (uid, link) = (uid.to_owned(), link.to_path_buf());
        let mapped = blocking(move || map(&device, &folder, &uid, &link)).await;
        mapped.map_err(|error| ("MapVolume.MapPodDevice", format!("blkUtil.MapDevice failed: {error}")))
    }

    /// Takes the device of a disk that others use from pods that are gone.
    pub(super) async fn unmap_gone(&self, plugin: &str, folder: &Path) {
        if !self.is_of_devices(plugin, folder) {
            return;
        }
        let (place, pods) = (folder.to_path_buf(), self.pods.clone());
        if let Err(error) = blocking(move || unmap_gone(&place, &pods)).await {
            tracing::warn!(folder = %folder.display(), error, "UnmapDevice failed");
        }
    }

    /// Reports whether a folder is that of a disk that pods use as a device.
    pub(super) fn is_of_devices(&self, plugin: &str, folder: &Path) -> bool {
        folder.starts_with(self.plugins.join(plugin).join(DEVICES))
    }
}

fn map(device: &Path, folder: &Path, uid: &str, link: &Path) -> io::Result<()> {
    make_private(folder)?;
    let bound = folder.join(uid);
    if !mounts::is_mount_point(&bound)? {
        fs::OpenOptions::new().create(true).append(true).open(&bound)?;
        mount(Some(device), &bound, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    if fs::read_link(link).is_ok_and(|known| known == device) {
        return Ok(());
    }
    if let Some(parent) = link.parent() {
        make_private(parent)?;
    }
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(device, link)
}

/// Takes the device from pods that are not on the disk any more. Reports whether a pod has it still.
pub(super) fn unmap_gone(folder: &Path, pods: &Path) -> io::Result<bool> {
    let mut is_used = false;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == RECORD {
            continue;
        }
        if pods.join(entry.file_name()).exists() {
            is_used = true;
            continue;
        }
        if mounts::is_mount_point(&entry.path())? {
            umount2(&entry.path(), MntFlags::UMOUNT_NOFOLLOW)?;
        }
        fs::remove_file(entry.path())?;
    }
    Ok(is_used)
}
