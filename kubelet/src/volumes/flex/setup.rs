//! FlexVolumes as pods get them.

use super::error::{FlexSecretError, FlexSecretProblem};
use super::{FlexVolume, about};
use crate::pods;
use crate::volumes::error::SetUpError;
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
        let failed = |step, cause: SetUpError| VolumeError::set_up(step, &volume.name, cause);
        let (uid, unique) = (pods::uid(pod), volume.unique_name());
        if self.flex.is_attached_first(volume).await.map_err(|error| VolumeError::unknown(&volume.name, error))? {
            let waiting = |cause| failed("MountVolume.WaitForAttach", cause);
            tokio::select! {
                attached = self.csi.wait_for_controller(uid, &unique) => attached.map_err(|error| waiting(error.into()))?,
                () = gone.cancelled() => return Err(waiting(SetUpError::Gone)),
            }
            self.csi.hold(&unique);
        }
        let node = self.node.load_full();
        let attached =
            node.iter().flat_map(|node| node.status.iter()).flat_map(|status| status.volumes_attached.iter());
        let device = attached.flatten().find(|found| found.name == unique).map(|found| found.device_path.clone());
        let secret = self.flex_secret(pod, volume).await.map_err(|error| failed(SET_UP, error.into()))?;
        let group = driver_group(pod);
        let facts = about(pod, secret.as_deref(), group);
        let mounted = self.flex.mount(uid, volume, device.as_deref().unwrap_or_default(), facts, group).await;
        mounted.map_err(|(step, error)| failed(step, error.into()))?;
        let (selinux_relabel, _) = self.flex.abilities(volume).await;
        Ok(MountedVolume { selinux_relabel, ..ready(self.flex.folder(uid, volume), volume.read_only) })
    }

    /// The secret that a FlexVolume's driver is given; it has to be of the driver's type.
    async fn flex_secret(&self, pod: &Pod, volume: &FlexVolume) -> Result<Option<Arc<Secret>>, FlexSecretError> {
        let Some((namespace, name)) = &volume.secret else { return Ok(None) };
        let namespace = if namespace.is_empty() { pods::namespace(pod) } else { namespace.as_str() };
        let failed = |cause| FlexSecretError { namespace: namespace.to_owned(), name: name.clone(), cause };
        let found = self.objects.secret(namespace, name).await.map_err(|error| failed(error.into()))?;
        if found.type_.as_deref() != Some(volume.driver.as_str()) {
            return Err(failed(FlexSecretProblem::Type(volume.driver.clone())));
        }
        Ok(Some(found))
    }
}
