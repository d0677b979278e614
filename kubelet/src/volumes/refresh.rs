//! Volumes of running pods: content brought up to date, publication by drivers again, growth.

use super::VolumeError;
use super::claims::{Claimed, Use, VolumeSources};
use super::growth::{GrowthError, GrowthRequest};
use super::setup::{Inner, SET_UP, driver_error, driver_volume, has_content};
use crate::facts::PodFacts;
use crate::pods;
use k8s_openapi::api::core::v1::{Pod, Volume};
use tokio_util::sync::CancellationToken;

impl Inner {
    pub(super) async fn refresh(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        gone: &CancellationToken,
    ) -> Result<(), VolumeError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        // A token is renewed whatever a driver does: none waits for another, and none is left out for another's failure.
        let refreshed = volumes.iter().map(|volume| self.refresh_one(pod, facts, volume, gone));
        futures::future::join_all(refreshed).await.into_iter().collect()
    }

    async fn refresh_one(
        &self,
        pod: &Pod,
        facts: &PodFacts,
        volume: &Volume,
        gone: &CancellationToken,
    ) -> Result<(), VolumeError> {
        if has_content(volume) {
            let failed = |cause| VolumeError::set_up(SET_UP, &volume.name, cause);
            return self.set_up(pod, facts, volume).await.map(drop).map_err(failed);
        }
        if Use::of(pod, &volume.name).is_none() { Ok(()) } else { self.refresh_driver(pod, volume, gone).await }
    }

    /// Publishes a driver's volume again, and grows it, where that is wanted.
    async fn refresh_driver(&self, pod: &Pod, volume: &Volume, gone: &CancellationToken) -> Result<(), VolumeError> {
        let claimed = self.claimed(pod, volume).await?;
        let driver = match &claimed {
            Some(Claimed { source: VolumeSources::Csi(volume), .. }) => Some((**volume).clone()),
            Some(_) => None,
            None => driver_volume(pod, volume)?,
        };
        if let Some(driver) = driver {
            let ready = self.csi.prepare_again(pod, &driver);
            let refreshed = self.publish_when(ready, pod, &driver, gone).await;
            refreshed.map_err(|failure| driver_error(failure, &driver))?;
        }
        let Some(claimed) = claimed else { return Ok(()) };
        let grown = self.grow(pod, &claimed).await;
        grown.map_err(|cause| {
            let text = format!("NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {cause}", claimed.name);
            self.grower.warn(pod, "VolumeResizeFailed", &text);
            VolumeError::Growth { step: "NodeExpandVolume.NodeExpandVolume", volume: claimed.name, cause }
        })
    }

    /// Grows the volume of a claim on the node, where that is wanted and its plugin does so.
    pub(super) async fn grow(&self, pod: &Pod, claimed: &Claimed) -> Result<(), GrowthError> {
        let Some(size) = &claimed.size else { return Ok(()) };
        let (unique, is_read_only) = match &claimed.source {
            VolumeSources::Csi(volume) => (volume.unique_name(), volume.is_read_only()),
            VolumeSources::Flex(volume) if self.flex.grows(volume).await => {
                (volume.unique_name(), volume.read_only || claimed.read_only)
            }
            _ => return Ok(()),
        };
        let request =
            GrowthRequest { pod, claim: &claimed.claim, volume: &claimed.name, unique: &unique, size, is_read_only };
        let source = &claimed.source;
        let grown = self.grower.grow(request, async |sizes| match source {
            VolumeSources::Csi(volume) => self.csi.expand(pod, volume, sizes).await,
            VolumeSources::Flex(volume) => self.flex.expand(pods::uid(pod), volume, sizes).await,
            _ => Ok(()),
        });
        grown.await
    }
}
