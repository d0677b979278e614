//! Failures of volumes, from their causes to the texts of events.

use super::block::BlockError;
use super::claims::VolumeClaimError;
use super::content::ContentError;
use super::disks::{DiskError, FcError};
use super::flex::{FlexError, FlexSecretError, UnknownDriver, UnmountError};
use super::growth::GrowthError;
use super::helper::MountError;
use super::mounts;
use crate::blocking::WorkError;
use crate::objects::ObjectError;
use crate::volumes::csi::{AttachError, CsiError, MigrationError, UnpublishError};
use tokio::task::JoinError;

/// Reasons why a volume could not be made ready. Retried by the worker; the text goes into a `FailedMount` event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A volume that failed: `MountVolume.SetUp failed for volume "x" : configmap "y" not found`.
    #[error("{step} failed for volume \"{volume}\" : {cause}")]
    SetUp {
        /// Upstream's name of the step: `MountVolume.SetUp`.
        step: &'static str,
        /// The volume's name in the pod, or that of the persistent volume.
        volume: String,
        /// The cause.
        #[source]
        cause: Box<SetUpError>,
    },
    /// The node can have no more volumes of a driver: it does not take the pod.
    #[error(
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{volume}], unattached \
         volumes=[{volume}], failed to process volumes=[]: {cause}"
    )]
    Exhausted {
        /// The volume's name in the pod.
        volume: String,
        /// Failure of the wait for the attachment.
        #[source]
        cause: AttachError,
    },
    /// A volume is there, and cannot grow to the size that it shall have.
    #[error("{step} failed while expanding volume for volume \"{volume}\" : {cause}")]
    Growth {
        /// Upstream's name of the step.
        step: &'static str,
        /// Name of the persistent volume.
        volume: String,
        /// The cause.
        #[source]
        cause: GrowthError,
    },
    /// The object that a volume names is not known (yet).
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
         volumes=[{volume}]: {cause}"
    )]
    Unknown {
        /// The volume's name in the pod.
        volume: String,
        /// The cause.
        #[source]
        cause: UnknownVolume,
    },
    /// A sub-path could not be prepared: the container waits with `CreateContainerConfigError` and this text.
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    /// Tear-down failed.
    #[error(transparent)]
    TearDown(#[from] TearDownError),
}

impl VolumeError {
    /// A step of a volume that failed.
    pub(super) fn set_up(step: &'static str, volume: &str, cause: impl Into<SetUpError>) -> Self {
        Self::SetUp { step, volume: volume.to_owned(), cause: Box::new(cause.into()) }
    }

    /// A volume of a pod that cannot be known.
    pub(super) fn unknown(volume: &str, cause: impl Into<UnknownVolume>) -> Self {
        Self::Unknown { volume: volume.to_owned(), cause: cause.into() }
    }

    /// Reason of the event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SetUp { step, .. } | Self::Growth { step, .. } if step.starts_with("MapVolume.") => "FailedMapVolume",
            _ => "FailedMount",
        }
    }
}

/// Causes of a step that failed.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// The pod goes while its volume is waited for.
    #[error("the pod's volumes are being taken down")]
    Gone,
    /// The volume cannot be used on this node.
    #[error("no matching NodeSelectorTerms")]
    OtherNode,
    /// No plugin is for the volume of this name.
    #[error("no volume plugin matched for volume {0}")]
    NoPlugin(String),
    /// The secret by which a disk's target knows the node cannot be read.
    #[error("couldn't get secret {namespace}/{name} error: {cause}")]
    Secret {
        /// Namespace of the secret.
        namespace: String,
        /// Name of the secret.
        name: String,
        /// Cause.
        #[source]
        cause: ObjectError,
    },
    /// The controller manager does not attach the volume.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The driver's volume cannot be staged or published.
    #[error(transparent)]
    Csi(#[from] CsiError),
    /// A device cannot be held.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A disk cannot be mounted or mapped.
    #[error(transparent)]
    Disk(#[from] Box<DiskError>),
    /// The source names no disk.
    #[error(transparent)]
    NoDisk(#[from] FcError),
    /// A FlexVolume cannot be mounted.
    #[error(transparent)]
    Flex(#[from] FlexError),
    /// A FlexVolume's secret is not given to its driver.
    #[error(transparent)]
    FlexSecret(#[from] FlexSecretError),
    /// The distribution's helpers do not mount it.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The content cannot be had.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// Work on files failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// Reasons why a volume that a pod names is not known.
#[derive(Debug, thiserror::Error)]
pub enum UnknownVolume {
    /// The claim stands for none.
    #[error(transparent)]
    Claim(#[from] VolumeClaimError),
    /// A volume of a plugin of old cannot be translated.
    #[error(transparent)]
    Migration(#[from] MigrationError),
    /// No driver for it.
    #[error(transparent)]
    Flex(#[from] UnknownDriver),
}

/// Failures of what containers have of a volume.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// The path is refused.
    #[error(transparent)]
    Refused(#[from] mounts::SubPathError),
    /// The path cannot be bound. Users are not told what is where on the host.
    #[error("failed to prepare subPath for volumeMount {mount:?} of container {container:?}")]
    Bind {
        /// The volume's name in the pod.
        mount: String,
        /// The container's name.
        container: String,
    },
    /// A file of a volume cannot be read.
    #[error("failed to read file of a volume: {0}")]
    Read(WorkError),
}

/// Failures of taking down the volumes of a pod.
#[derive(Debug, thiserror::Error)]
pub enum TearDownError {
    /// Nothing is begun for a pod any more whose volumes are taken down.
    #[error("the pod's volumes are being taken down")]
    Gone,
    /// Work on the pod's volumes panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
    /// Work on files failed.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// A driver's volume is left.
    #[error(transparent)]
    Csi(#[from] UnpublishError),
    /// A FlexVolume is left.
    #[error(transparent)]
    Flex(#[from] UnmountError),
}
