//! Disks that pods use as devices: one folder a disk, with a file a pod that the device is bound over, and a link to the
//! device in each pod's folder.

use super::{DEVICES, Disk, DiskError, DiskFailure, Disks};
use crate::blocking::blocking;
use crate::volumes::block;
use std::path::Path;

impl Disks {
    /// Gives a pod the device of a disk, by a link.
    ///
    /// # Errors
    /// The device cannot be attached, or not mapped: the step, and upstream's text.
    pub(in crate::volumes) async fn map(&self, uid: &str, disk: &Disk, link: &Path) -> Result<(), DiskFailure> {
        let folder = self.plugins.join(disk.target.plugin()).join(DEVICES).join(disk.target.folder());
        let attaching = |error| ("MapVolume.WaitForAttach", Box::new(error));
        let mapping = |error: DiskError| ("MapVolume.MapBlockVolume", Box::new(error));
        self.begin(uid, disk, &folder).map_err(attaching)?;
        let _guard = self.locks.lock(&folder).await;
        let device = self.attach(&disk.target, &folder).await.map_err(attaching)?;
        let device = self.host.root.join(device.trim_start_matches('/'));
        self.blocks().hold(&device, &folder, uid).await.map_err(|error| mapping(error.into()))?;
        let link = link.to_path_buf();
        blocking(move || block::link(&device, &link)).await.map_err(|error| mapping(error.into()))
    }

    /// Takes the device of a disk that others use from pods that are gone.
    pub(super) async fn unmap_gone(&self, plugin: &str, folder: &Path) {
        if !self.is_of_devices(plugin, folder) {
            return;
        }
        if let Err(error) = self.blocks().let_go_of_gone(folder, &self.pods).await {
            tracing::warn!(folder = %folder.display(), %error, "UnmapDevice failed");
        }
    }

    /// Reports whether a folder is that of a disk that pods use as a device.
    pub(super) fn is_of_devices(&self, plugin: &str, folder: &Path) -> bool {
        folder.starts_with(self.plugins.join(plugin).join(DEVICES))
    }

    pub(super) fn blocks(&self) -> block::BlockDevices {
        block::BlockDevices { host: self.host.clone() }
    }
}
