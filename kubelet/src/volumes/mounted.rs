//! Volumes as containers get them.

use std::path::PathBuf;

/// A volume that is ready to be bound into containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// Path of the content on the host.
    pub host_path: PathBuf,
    /// The volume itself is read-only (config map, secret, downward API, projected): mounts are, too.
    pub read_only: bool,
    /// The runtime shall relabel it for SELinux.
    pub selinux_relabel: bool,
    /// A single file rather than a directory (hostPath `File`, `Socket`, devices).
    pub is_file: bool,
    /// A block device, for `volumeDevices`: the path is its node, or a link to it.
    pub is_block: bool,
}
