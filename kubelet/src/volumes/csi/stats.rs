//! Statistics of volumes, asked from their drivers.

use super::driver::Capability;
use super::operations::Csi;
use super::v1;
use super::volume::Volume;
use crate::volumes::Usage;

impl Csi {
    /// Asks a volume's driver for its numbers, and what is wrong with it; none where it does not know them. Upstream's
    /// `metricsCsi`.
    pub(crate) async fn usage(&self, uid: &str, volume: &Volume) -> Option<(Usage, Option<String>)> {
        if !self.is_published(uid, &volume.name) {
            return None;
        }
        let driver = self.drivers.get(&volume.driver).ok()?;
        let able = driver.capabilities().await.ok()?;
        if !able.contains(&Capability::GetVolumeStats) {
            return None;
        }
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: volume.handle.clone(),
            volume_path: self.layout.target(uid, &volume.name, volume.is_block).display().to_string(),
            staging_target_path: self.staging_text(volume, &able),
        };
        let answer = driver.stats(request).await;
        let answer =
            answer.inspect_err(|error| tracing::warn!(volume = volume.name, %error, "NodeGetVolumeStats failed"));
        let answer = answer.ok()?;
        let with_health = self.tells_health && able.contains(&Capability::VolumeCondition);
        let usage = Usage::of_driver(&answer, with_health);
        let condition = answer.volume_condition.filter(|_| usage.is_abnormal == Some(true));
        Some((usage, condition.map(|condition| condition.message)))
    }
}
