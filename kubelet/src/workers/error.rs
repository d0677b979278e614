//! Reasons why pods and containers are not made, changed or ended, in upstream's words.

use super::security::NonRootError;
use crate::cri::CriError;
use crate::devices::DeviceError;
use crate::env::{EnvError, SubPathError};
use crate::objects::ObjectError;
use crate::resource_claims::ClaimError;
use crate::userns::NamespaceError;
use crate::volumes::VolumeError;
use std::io;

/// Reasons why a container cannot be configured: texts of `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub enum ContainerConfigError {
    /// The cluster's services are not known yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    NoServices,
    /// An object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The volume of a file with variables is not there.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoFileVolume(String),
    /// A file of a volume cannot be read, or a sub-path cannot be had.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The environment cannot be built.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A `subPathExpr` cannot be expanded.
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    /// A volume that is to be mounted is not there.
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    NoVolume {
        /// The volume's name in the pod.
        volume: String,
        /// The container's name.
        container: String,
    },
    /// A mount cannot be read-only as it is to be.
    #[error("failed to resolve recursive read-only mode: {0}")]
    ReadOnly(#[from] ReadOnlyError),
    /// The hosts file cannot be written.
    #[error("failed to write hosts file: {0}")]
    Hosts(io::Error),
    /// The file of the termination message cannot be made.
    #[error("failed to create termination-log file: {0}")]
    TerminationLog(io::Error),
    /// A device cannot be passed on.
    #[error(transparent)]
    BlockDevice(#[from] BlockDeviceError),
    /// The container would run as root, and must not.
    #[error(transparent)]
    NonRoot(#[from] NonRootError),
    /// The pod has no user namespace.
    #[error(transparent)]
    Users(#[from] NamespaceError),
    /// The container has no devices of plugins.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A claim of devices is not prepared.
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// Block devices that cannot be passed into a container.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockDeviceError {
    /// The path in the container is not absolute.
    #[error("error DevicePath `{path}` must be an absolute path for container {container:?}")]
    Path {
        /// The path.
        path: String,
        /// The container's name.
        container: String,
    },
    /// The volume is not there, or is no device.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoVolume {
        /// The volume's name in the pod.
        volume: String,
        /// The container's name.
        container: String,
    },
}

/// Mounts that cannot be read-only with all below them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadOnlyError {
    /// The mount itself is not.
    #[error("volume {0:?} requested recursive read-only mode, but it is not read-only")]
    Writable(String),
    /// Later mounts below it could be written to.
    #[error(
        "volume {volume:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"
    )]
    Propagation {
        /// The volume's name in the pod.
        volume: String,
        /// Propagation of the mount.
        propagation: String,
    },
    /// The runtime's handler cannot do it.
    #[error("volume {0:?} requested recursive read-only mode, but it is not supported by the runtime")]
    Unable(String),
    /// No such mode.
    #[error("unknown recursive read-only mode {0:?}")]
    Unknown(String),
}

/// Reasons why a pod has no sandbox: texts of `FailedCreatePodSandBox`.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The pod's runtime class cannot be read.
    #[error(transparent)]
    Class(#[from] ObjectError),
    /// The pod has no user namespace.
    #[error(transparent)]
    Users(#[from] NamespaceError),
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] CriError),
}

/// Parts of a pod that the runtime does not stop.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A container.
    #[error("failed to kill container {name}: {cause}")]
    Container {
        /// The container's name.
        name: String,
        /// Cause.
        #[source]
        cause: CriError,
    },
    /// A sandbox.
    #[error("failed to stop sandbox {id}: {cause}")]
    Sandbox {
        /// The runtime's id.
        id: String,
        /// Cause.
        #[source]
        cause: CriError,
    },
}

/// Reasons why a container's resources are not changed.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// More memory is used than there may be then.
    #[error("attempting to set {of} memory limit ({limit}) below current usage ({used})")]
    BelowUsage {
        /// `pod` or `container "name"`.
        of: String,
        /// The limit.
        limit: i64,
        /// Memory that is used.
        used: u64,
    },
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] CriError),
}
