//! Failures of FlexVolumes, in upstream's words.

use crate::blocking::WorkError;
use crate::objects::ObjectError;
use crate::volumes::disks::format::FormatError;
use crate::volumes::helper::MountError;
use shared::flex::NoDriver;

/// Failures of FlexVolumes, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum FlexError {
    /// No such driver.
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    /// The driver's message.
    #[error("{0}")]
    Call(String),
    /// The driver's message about the name of a volume.
    #[error("GetVolumeName failed from getDeviceMountPath: {0}")]
    Name(String),
    /// A device cannot be mounted.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A folder cannot be bound.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Work on a folder failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// A volume whose driver is not there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to get Plugin from volumeSpec for volume {volume:?} err={cause}")]
pub struct UnknownDriver {
    pub(super) volume: String,
    #[source]
    pub(super) cause: NoDriver,
}

/// A volume of a pod that cannot be unmounted.
#[derive(Debug, thiserror::Error)]
#[error("UnmountVolume.TearDown failed for volume {volume:?} : {cause}")]
pub struct UnmountError {
    pub(super) volume: String,
    #[source]
    pub(super) cause: Box<FlexError>,
}

/// A secret that a driver is not given.
#[derive(Debug, thiserror::Error)]
#[error("couldn't get secret {namespace}/{name} err: {cause}")]
pub struct FlexSecretError {
    pub(super) namespace: String,
    pub(super) name: String,
    #[source]
    pub(super) cause: FlexSecretProblem,
}

/// Reasons why a driver is not given a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum FlexSecretProblem {
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Another type than this one.
    #[error("cannot get secret of type {0}")]
    Type(String),
}
