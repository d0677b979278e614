//! Growth of FlexVolumes' file systems, after the controller manager has let their drivers grow the volumes. Answers for
//! upstream's `expander.go`.

use super::{Flex, FlexVolume, key};
use crate::blocking::{WorkError, blocking};
use crate::volumes::disks::format;
use crate::volumes::growth::{GrowthFailure, Sizes};
use crate::volumes::mounts;
use shared::flex::CallFailure;
use std::collections::BTreeMap;

impl Flex {
    /// Reports whether the node has work of its own when a volume grows.
    pub(in crate::volumes) async fn grows(&self, volume: &FlexVolume) -> bool {
        self.drivers.get(&volume.driver).await.is_ok_and(|driver| driver.abilities.requires_fs_resize)
    }

    /// Grows the file system of a pod's volume, by the driver, or by the distribution's programs where it does not do so.
    ///
    /// # Errors
    /// The driver or a program failed.
    pub(in crate::volumes) async fn expand(
        &self,
        uid: &str,
        volume: &FlexVolume,
        sizes: Sizes,
    ) -> Result<(), GrowthFailure> {
        let failed = |message: String| GrowthFailure { message, is_final: true, ..GrowthFailure::default() };
        let driver = self.drivers.get(&volume.driver).await.map_err(|error| failed(error.to_string()))?;
        let _guard = self.locks.lock(&key(volume)).await;
        let device = self.device_of(volume).await.map_err(|error| failed(error.to_string()))?;
        let at = self.folder(uid, volume);
        let (json, path) = (volume.json(BTreeMap::new()), at.display().to_string());
        let (new, old) = (sizes.new.to_string(), sizes.old.to_string());
        match driver.call("expandfs", &[&json, &device, &path, &new, &old]).await {
            Ok(_) => Ok(()),
            Err(CallFailure::NotSupported) => {
                tracing::warn!(volume = volume.name, device, "Using default filesystem resize");
                format::grow(&self.host, &device, &at).await.map_err(|error| failed(error.to_string()))
            }
            Err(CallFailure::Failed(error)) => Err(failed(error)),
        }
    }

    /// The device of a volume as its driver named it, or as the kernel has it mounted since an earlier kubelet.
    async fn device_of(&self, volume: &FlexVolume) -> Result<String, WorkError> {
        let key = key(volume);
        if let Some(device) = self.devices.lock().get(&key) {
            return Ok(device.clone());
        }
        let folder = self.device_folder(&key);
        Ok(blocking(move || mounts::source(&folder)).await?.unwrap_or_default())
    }
}
