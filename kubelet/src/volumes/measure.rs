//! Numbers of a pod's volumes, each by the means of its plugin.

use super::claims::VolumeSources;
use super::flex::FlexVolume;
use super::metrics;
use super::setup::{Inner, content_plugin, driver_volume, has_content};
use super::usage::{Usage, VolumeUsage};
use crate::blocking::{Lane, STATISTICS, WALKS};
use crate::pods;
use crate::volumes::csi;
use k8s_openapi::api::core::v1::{Pod, Volume};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Ways to look at the numbers of files and devices, as metrics name them.
#[derive(Clone, Copy)]
enum Means {
    FileSystem,
    Folder,
    Device,
}

impl Means {
    fn name(self) -> &'static str {
        match self {
            Self::FileSystem => "statfs",
            Self::Folder => "du",
            Self::Device => "block",
        }
    }

    async fn look(self, path: PathBuf) -> Option<Usage> {
        let (lane, work): (&'static Lane, fn(&Path) -> Option<Usage>) = match self {
            Self::FileSystem => (&STATISTICS, Usage::of_file_system),
            Self::Folder => (&WALKS, Usage::of_folder),
            Self::Device => (&STATISTICS, Usage::of_device),
        };
        let begun = Instant::now();
        let found = lane.run(move || Ok(work(&path))).await.ok().flatten();
        metrics::looked(self.name(), begun);
        found
    }
}

impl Inner {
    /// Numbers of a pod's volumes.
    pub(super) async fn usage(&self, pod: &Pod) -> Vec<VolumeUsage> {
        let mut found = Vec::new();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let claimed = self.claims.lock().get(&(pods::uid(pod).to_owned(), volume.name.clone())).cloned();
            let (claim, source) = claimed.unzip();
            if let Some(usage) = self.usage_of(pod, volume, source).await {
                found.push(VolumeUsage { volume: volume.name.clone(), claim, usage });
            }
        }
        found
    }

    /// Numbers of a volume; none for kinds that have none: a path of the node is not the pod's.
    async fn usage_of(&self, pod: &Pod, volume: &Volume, claimed: Option<VolumeSources>) -> Option<Usage> {
        let is_own = has_content(volume) || volume.empty_dir.is_some();
        let plugin = if volume.empty_dir.is_some() { "empty-dir" } else { content_plugin(volume).0 };
        match claimed {
            Some(VolumeSources::Csi(driver)) => self.usage_by_driver(pod, &volume.name, &driver).await,
            Some(VolumeSources::Local(path)) => Means::FileSystem.look(path).await,
            Some(VolumeSources::Device(path)) => Means::Device.look(path).await,
            // To ask a server that is away may take for ever.
            Some(VolumeSources::Path(_) | VolumeSources::Nfs(_)) => None,
            Some(VolumeSources::Disk(disk)) => {
                let name = self.names.lock().get(&(pods::uid(pod).to_owned(), volume.name.clone())).cloned()?;
                if disk.is_block {
                    return Means::Device.look(self.device_link(pods::uid(pod), disk.target.plugin(), &name)).await;
                }
                Means::FileSystem.look(self.folder(pod, disk.target.plugin(), &name)).await
            }
            Some(VolumeSources::Flex(flex)) => self.flex_usage(pod, &flex).await,
            None if is_own => Means::Folder.look(self.folder(pod, plugin, &volume.name)).await,
            None if volume.flex_volume.is_some() => {
                let flex = FlexVolume::inline(&volume.name, volume.flex_volume.as_ref()?);
                self.flex_usage(pod, &flex).await
            }
            None => self.usage_by_driver(pod, &volume.name, &driver_volume(pod, volume).ok()??).await,
        }
    }

    /// Numbers of a FlexVolume; none where its driver does not let the file system tell them.
    async fn flex_usage(&self, pod: &Pod, volume: &FlexVolume) -> Option<Usage> {
        if !self.flex.abilities(volume).await.1 {
            return None;
        }
        Means::FileSystem.look(self.flex.folder(pods::uid(pod), volume)).await
    }

    /// Numbers as a driver tells them. A volume that is not well is reported about its pod.
    async fn usage_by_driver(&self, pod: &Pod, name: &str, volume: &csi::Volume) -> Option<Usage> {
        let begun = Instant::now();
        let found = self.csi.usage(pods::uid(pod), volume).await;
        metrics::looked(&volume.driver, begun);
        let (usage, condition) = found?;
        if let Some(condition) = condition {
            self.grower.warn(pod, "VolumeConditionAbnormal", &format!("Volume {name}: {condition}"));
        }
        Some(usage)
    }
}
