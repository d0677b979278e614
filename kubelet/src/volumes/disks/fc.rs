//! Disks behind Fibre Channel, found among the kernel's devices. Answers for upstream's `fc_util.go`.

use super::host::{Ended, Host, ProgramError};
use k8s_openapi::api::core::v1::FCVolumeSource;
use std::path::{Path, PathBuf};

/// Failures of Fibre Channel disks, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FcError {
    /// The source names no disk.
    #[error("fc: no fc disk information found. failed to make a new mounter")]
    Unnamed,
    /// A name that leads elsewhere.
    #[error("fc: invalid name {0:?}")]
    Name(String),
    /// The kernel knows no such disk.
    #[error("no fc disk found")]
    NotFound,
}

/// Failures of taking a Fibre Channel disk from the node.
#[derive(Debug, thiserror::Error)]
pub enum FcDetachError {
    /// The disk cannot be told.
    #[error(transparent)]
    Disk(#[from] FcError),
    /// `multipath` cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// `multipath` failed.
    #[error("failed to flush multipath device {device}: {}\n{}", .ended.status(), .ended.output)]
    Flush {
        /// The device.
        device: String,
        /// End of the program.
        ended: Ended,
    },
}

/// A disk by its ports and unit, or by its identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::volumes) enum FcTarget {
    /// World wide names of ports, and the unit.
    Unit(Vec<String>, String),
    /// World wide identifiers.
    Ids(Vec<String>),
}

/// Identifiers as the kernel's links have them: without spaces.
fn linked(ids: &[String]) -> impl Iterator<Item = String> {
    ids.iter().map(|id| id.replace(' ', "_"))
}

impl FcTarget {
    /// The disk of a volume.
    ///
    /// # Errors
    /// The source names none; upstream's text.
    pub(in crate::volumes) fn new(source: &FCVolumeSource) -> Result<Self, FcError> {
        let given = |list: &Option<Vec<String>>| list.clone().filter(|list| !list.is_empty());
        if let (Some(names), Some(unit)) = (given(&source.target_wwns), source.lun) {
            return Ok(Self::Unit(names, unit.to_string()));
        }
        given(&source.wwids).map(Self::Ids).ok_or(FcError::Unnamed)
    }

    /// Refuses names that lead elsewhere: they are parts of paths, and a pod's author may choose them.
    fn check(&self) -> Result<(), FcError> {
        let (Self::Unit(names, _) | Self::Ids(names)) = self;
        let odd = names.iter().find(|name| name.is_empty() || name.starts_with('.') || name.contains('/'));
        odd.map_or(Ok(()), |name| Err(FcError::Name(name.clone())))
    }

    /// Name of the disk in the node's status, as the controller manager knows it.
    pub(super) fn unique_name(&self) -> String {
        match self {
            Self::Unit(names, unit) => format!("[{}]:{unit}", names.join(" ")),
            Self::Ids(ids) => format!("[{}]", ids.join(" ")),
        }
    }

    /// The folder of the disk, below that of the plugin.
    pub(super) fn folder(&self) -> PathBuf {
        match self {
            Self::Unit(names, unit) => format!("{}-lun-{unit}", names.join("-")).into(),
            Self::Ids(ids) => linked(ids).collect::<Vec<String>>().join("-").into(),
        }
    }

    /// The disk that a folder is of. Upstream's `parsePDName`.
    pub(super) fn of_folder(folder: &Path) -> Option<Self> {
        let parts: Vec<String> = folder.file_name()?.to_str()?.split('-').map(str::to_owned).collect();
        match &parts[..] {
            [names @ .., lun, unit] if lun == "lun" && !names.is_empty() => {
                unit.parse::<u32>().ok().map(|_| Self::Unit(names.to_vec(), unit.clone()))
            }
            _ => Some(Self::Ids(parts)),
        }
    }

    /// Links of the kernel that may lead to the disk.
    fn links(&self, host: &Host) -> Vec<String> {
        let names = |folder: &str| host.names(folder).unwrap_or_default();
        match self {
            Self::Unit(ports, unit) => {
                let is_it = |port: &String, name: &String| {
                    let rest = name.strip_suffix(&format!("fc-0x{port}-lun-{unit}"));
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("pci-") && rest.ends_with('-'))
                };
                let links = names("dev/disk/by-path");
                let found = ports.iter().flat_map(|port| links.iter().filter(move |name| is_it(port, name)));
                found.map(|name| format!("/dev/disk/by-path/{name}")).collect()
            }
            Self::Ids(ids) => {
                let links = names("dev/disk/by-id");
                let known = linked(ids).map(|id| format!("scsi-{id}")).filter(|name| links.contains(name));
                known.map(|name| format!("/dev/disk/by-id/{name}")).collect()
            }
        }
    }

    /// The disk, or the multipath device that it is a path of, among those that the kernel knows.
    fn find(&self, host: &Host) -> (Option<String>, Option<String>) {
        let disks: Vec<String> = self.links(host).iter().filter_map(|link| host.resolve(link)).collect();
        (disks.last().cloned(), disks.iter().find_map(|disk| host.multipath_of(disk)))
    }
}

fn rescan(host: &Host) {
    for name in host.names("sys/class/scsi_host").unwrap_or_default() {
        if let Err(error) = host.tell(&format!("sys/class/scsi_host/{name}/scan"), "- - -") {
            tracing::warn!(host = name, %error, "Failed to scan for disks");
        }
    }
}

/// Finds a disk: its device, or that of several paths to it. Upstream's `searchDisk`.
///
/// # Errors
/// It is not there.
pub(super) fn attach(host: &Host, target: &FcTarget) -> Result<String, FcError> {
    target.check()?;
    let (_, multipath) = target.find(host);
    if let Some(device) = multipath {
        return Ok(device);
    }
    rescan(host);
    let (disk, multipath) = target.find(host);
    multipath.or(disk).ok_or(FcError::NotFound)
}

/// Takes a disk from the node that nothing is mounted of any more. Upstream's `DetachDisk`.
///
/// # Errors
/// A multipath device cannot be flushed.
pub(super) async fn detach(host: &Host, target: &FcTarget) -> Result<(), FcDetachError> {
    target.check()?;
    let devices = match target.find(host) {
        (_, Some(multipath)) => {
            let paths = host.paths_of(&multipath);
            let ended = host.run("multipath", &["-f", &multipath]).await?;
            if !ended.is_success() {
                return Err(FcDetachError::Flush { device: multipath, ended });
            }
            paths
        }
        (Some(disk), None) => vec![disk],
        (None, None) => Vec::new(),
    };
    for device in devices {
        drop(host.run("blockdev", &["--flushbufs", &device]).await);
        let name = device.trim_start_matches("/dev/");
        if let Err(error) = host.tell(&format!("sys/block/{name}/device/delete"), "1") {
            tracing::warn!(device, %error, "Failed to remove device from the SCSI subsystem");
        }
    }
    Ok(())
}
