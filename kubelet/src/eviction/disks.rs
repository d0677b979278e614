//! Disks of a node: which of nodefs, imagefs and containerfs are one, what is reclaimed there before pods go, and which
//! files of a pod count for the shortage of one. Pure. Answers for upstream's `buildSignalToNodeReclaimFuncs`,
//! `buildSignalToRankFunc`, `HasDedicatedImageFs` and `HasDedicatedContainerFs`.
//!
//! The signals of containerfs need no place of their own: their thresholds are those of the file system that the writable
//! layers are on (`UpdateContainerFsThresholds`), which is nodefs where images alone are apart, and imagefs otherwise.

use super::signals::Signal;
use crate::cri::v1;

/// File systems of pods, images and writable layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskLayout {
    /// All are one.
    #[default]
    Shared,
    /// Images and writable layers are on one that is not nodefs: `dedicatedImageFs`.
    Dedicated,
    /// Images are apart, writable layers on nodefs: `splitContainerImageFs`.
    Split,
}

/// Unused things of the node that give back room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// `DeleteAllUnusedContainers`.
    Containers,
    /// `DeleteUnusedImages`.
    Images,
}

/// Files of a pod that count; images count for none, as no pod owns them (`fsStatsType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredFiles {
    /// Writable layers: `fsStatsRoot`.
    pub layers: bool,
    /// Logs: `fsStatsLogs`.
    pub logs: bool,
    /// Volumes that keep data on the node: `fsStatsLocalVolumeSource`.
    pub volumes: bool,
}

impl DiskLayout {
    /// From the runtime's answer and the device numbers of the root directory and of the image file system.
    pub fn of(answer: &v1::ImageFsInfoResponse, root: u64, images: u64) -> Self {
        let first = |list: &[v1::FilesystemUsage]| {
            list.first().and_then(|usage| usage.fs_id.as_ref()).map(|id| id.mountpoint.clone())
        };
        let is_split = match (first(&answer.image_filesystems), first(&answer.container_filesystems)) {
            (Some(images), Some(containers)) => images != containers,
            _ => false,
        };
        match (root != images, is_split) {
            (false, _) => Self::Shared,
            (true, false) => Self::Dedicated,
            (true, true) => Self::Split,
        }
    }

    /// Returns what is reclaimed for the sake of a signal before a pod has to go, in order.
    pub fn reclaims(self, signal: Signal) -> &'static [Reclaim] {
        match (self, signal) {
            (_, Signal::Memory | Signal::PodsMemory | Signal::Processes) => &[],
            (Self::Dedicated, Signal::NodeDisk | Signal::NodeInodes) => &[],
            (Self::Split, Signal::NodeDisk | Signal::NodeInodes) => &[Reclaim::Containers],
            (Self::Split, Signal::ImageDisk | Signal::ImageInodes) => &[Reclaim::Images],
            (Self::Shared | Self::Dedicated, _) => &[Reclaim::Containers, Reclaim::Images],
        }
    }

    /// Returns the files of a pod that count for the shortage of a signal.
    pub fn counted(self, signal: Signal) -> MeasuredFiles {
        let is_image = matches!(signal, Signal::ImageDisk | Signal::ImageInodes);
        match (self, is_image) {
            (Self::Shared, _) | (Self::Split, false) => MeasuredFiles { layers: true, logs: true, volumes: true },
            (Self::Dedicated, false) => MeasuredFiles { layers: false, logs: true, volumes: true },
            (Self::Dedicated, true) => MeasuredFiles { layers: true, logs: false, volumes: false },
            (Self::Split, true) => MeasuredFiles { layers: false, logs: false, volumes: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(images: &[&str], containers: &[&str]) -> v1::ImageFsInfoResponse {
        let usage = |path: &&str| v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: (*path).to_owned() }),
            ..v1::FilesystemUsage::default()
        };
        v1::ImageFsInfoResponse {
            image_filesystems: images.iter().map(usage).collect(),
            container_filesystems: containers.iter().map(usage).collect(),
        }
    }

    #[test]
    fn layouts_are_told_by_devices_and_the_runtimes_mount_points() {
        for (images, containers, device, expected) in [
            (&["/c"][..], &[][..], 1, DiskLayout::Shared),
            (&["/c"], &["/c"], 2, DiskLayout::Dedicated),
            (&["/c"], &[], 2, DiskLayout::Dedicated),
            (&["/i"], &["/c"], 2, DiskLayout::Split),
            (&["/i"], &["/c"], 1, DiskLayout::Shared),
            (&[], &["/c"], 2, DiskLayout::Dedicated),
        ] {
            assert_eq!(DiskLayout::of(&answer(images, containers), 1, device), expected, "{images:?} {containers:?}");
        }
    }

    #[test]
    fn each_disk_is_relieved_of_what_is_on_it() {
        use DiskLayout::{Dedicated, Shared, Split};
        use Reclaim::{Containers, Images};
        for (layout, signal, reclaims, counted) in [
            (Shared, Signal::NodeDisk, &[Containers, Images][..], [true, true, true]),
            (Shared, Signal::ImageInodes, &[Containers, Images], [true, true, true]),
            (Dedicated, Signal::NodeInodes, &[], [false, true, true]),
            (Dedicated, Signal::ImageDisk, &[Containers, Images], [true, false, false]),
            (Split, Signal::NodeDisk, &[Containers], [true, true, true]),
            (Split, Signal::ImageDisk, &[Images], [false, false, false]),
        ] {
            let found = layout.counted(signal);
            assert_eq!(layout.reclaims(signal), reclaims, "{layout:?} {signal:?}");
            assert_eq!([found.layers, found.logs, found.volumes], counted, "{layout:?} {signal:?}");
        }
        assert_eq!(Shared.reclaims(Signal::Memory), []);
    }
}
