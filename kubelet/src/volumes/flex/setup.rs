//! FlexVolumes as pods get them.

use super::{FlexVolume, about};
use crate::pods;
use crate::volumes::setup::{Inner, SET_UP, driver_group, ready};
use crate::volumes::{MountedVolume, VolumeError};
use k8s_openapi::api::core::v1::{Pod, Secret};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

impl Inner {
    /// Mounts a FlexVolume for the pod. The wait for the controller manager is given up when the pod goes.
    pub(in crate::volumes) async fn mount_flex(
        &self,
        pod: &Pod,
        volume: &FlexVolume,
        gone: &CancellationToken,
    ) -> Result<MountedVolume, VolumeError> {
        let unknown = |message| VolumeError::Unknown { volume: volume.name.clone(), message };
        let failed = |(step, message)| VolumeError::SetUp { step, volume: volume.name.clone(), message };
        let (uid, unique) = (pods::uid(pod), volume.unique_name());
        if self.flex.is_attached_first(volume).await.map_err(unknown)? {
            let waiting = |message| failed(("MountVolume.WaitForAttach", message));
            tokio::select! {
                attached = self.csi.wait_for_controller(uid, &unique) => attached.map_err(waiting)?,
                () = gone.cancelled() => return Err(waiting("the pod's volumes are being taken down".to_owned())),
            }
            self.csi.hold(&unique);
        }
        let node = self.node.load_full();
        let attached =
            node.iter().flat_map(|node| node.status.iter()).flat_map(|status| status.volumes_attached.iter());
        let device = attached.flatten().find(|found| found.name == unique).map(|found| found.device_path.clone());
        let secret = self.flex_secret(pod, volume).await.map_err(|message| failed((SET_UP, message)))?;
        let group = driver_group(pod);
        let facts = about(pod, secret.as_deref(), group);
        let mounted = self.flex.mount(uid, volume, device.as_deref().unwrap_or_default(), facts, group).await;
        mounted.map_err(failed)?;
        let (selinux_relabel, _) = self.flex.abilities(volume).await;
        Ok(MountedVolume { selinux_relabel, ..ready(self.flex.folder(uid, volume), volume.read_only) })
    }

    /// The secret that a FlexVolume's driver is given; it has to be of the driver's type.
    async fn flex_secret(&self, pod: &Pod, volume: &FlexVolume) -> Result<Option<Arc<Secret>>, String> {
        let Some((namespace, name)) = &volume.secret else { return Ok(None) };
        let namespace = if namespace.is_empty() { pods::namespace(pod) } else { namespace.as_str() };
        let failed = |error: String| format!("couldn't get secret {namespace}/{name} err: {error}");
        let found = self.objects.secret(namespace, name).await.map_err(|error| failed(error.to_string()))?;
        if found.type_.as_deref() != Some(volume.driver.as_str()) {
            return Err(failed(format!("cannot get secret of type {}", volume.driver)));
        }
        Ok(Some(found))
    }
}
