//! Failures of CSI calls and of the steps that are made of them.

use crate::blocking::WorkError;
use crate::objects::ObjectError;
use crate::volumes::block::BlockError;
use crate::volumes::tokens::TokenError;
use shared::csi::Untranslatable;
use tokio::sync::watch::error::RecvError;

/// A call of a driver that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// `rpc error: code = Internal desc = …`.
    pub(super) message: String,
    pub(super) code: tonic::Code,
    /// False where the driver may have done the work, or may still do it.
    pub(super) is_final: bool,
}

/// Lives of volumes that a driver does not have, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LifecycleError {
    /// A driver without a description has persistent volumes alone.
    #[error("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")]
    NoDescription {
        /// The life.
        mode: &'static str,
        /// The driver's name.
        driver: String,
    },
    /// The description names other lives.
    #[error(
        "volume mode {mode:?} not supported by driver {driver} (only supports [{}])",
        .known.iter().map(|known| format!("{known:?}")).collect::<Vec<String>>().join(" ")
    )]
    Other {
        /// The life.
        mode: &'static str,
        /// The driver's name.
        driver: String,
        /// Lives of the description.
        known: Vec<String>,
    },
}

/// A driver that has not registered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("driver name {0} not found in the list of registered CSI drivers")]
pub struct NotRegistered(pub(super) String);

/// A volume of a plugin of old that no driver can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to translate in-tree pv to CSI: {0}")]
pub struct MigrationError(#[from] Untranslatable);

/// Failures of waiting for a volume to be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The attachment is on its way out.
    #[error("volume attachment is being deleted")]
    Deleted,
    /// The driver's message.
    #[error("{0}")]
    Driver(String),
    /// More time than it is given.
    #[error("timed out waiting for the condition")]
    Late,
    /// The pod goes.
    #[error("the pod's volumes are being taken down")]
    Gone,
    /// The attachment cannot be read.
    #[error("volume {handle} has GET error for volume attachment {attachment}: {cause}")]
    Read {
        /// The driver's name of the volume.
        handle: String,
        /// Name of the attachment.
        attachment: String,
        /// Cause.
        #[source]
        cause: ObjectError,
    },
    /// The node is not observed any more.
    #[error(transparent)]
    Unobserved(#[from] RecvError),
}

/// Failures of staging and publishing a volume, and of undoing it.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// The driver's description cannot be read.
    #[error("error getting CSIDriver {driver}: {cause}")]
    Description {
        /// The driver's name.
        driver: String,
        /// Cause.
        #[source]
        cause: ObjectError,
    },
    /// The driver's description cannot be read again.
    #[error(transparent)]
    DescriptionAgain(ObjectError),
    /// The driver does not have volumes of this life.
    #[error(transparent)]
    Lifecycle(#[from] LifecycleError),
    /// Another pod has a volume that one alone may have.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    /// The volume cannot have the label that the pod wants.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// The driver has not registered.
    #[error("kubernetes.io/csi: {step}: {cause}")]
    NoClient {
        /// Upstream's name of the step that failed.
        step: &'static str,
        /// Cause.
        #[source]
        cause: NotRegistered,
    },
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A secret cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A token cannot be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The files cannot be given to the pod's group.
    #[error("applyFSGroup failed for vol {handle}: {cause}")]
    Group {
        /// The driver's name of the volume.
        handle: String,
        /// Cause.
        #[source]
        cause: WorkError,
    },
    /// A device cannot be let go.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// Work on files failed.
    #[error(transparent)]
    Work(#[from] WorkError),
}

/// A secret that a driver needs and that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("fetching {field} {namespace}/{name} failed: {cause}")]
pub struct SecretError {
    pub(super) field: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    #[source]
    pub(super) cause: ObjectError,
}

/// Labels of SELinux that a volume cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The distribution's labels are damaged.
    #[error("invalid Label")]
    Invalid,
    /// The label of these options cannot be told.
    #[error("failed to construct SELinux label from context {context:?}: {cause}")]
    Unknown {
        /// The options as upstream prints them.
        context: String,
        /// Cause.
        #[source]
        cause: Box<LabelError>,
    },
    /// The pod's containers want different ones.
    #[error("multiple SELinux labels found: {}", .0.join(","))]
    Several(Vec<String>),
    /// Another pod has the volume with another one.
    #[error("conflicting SELinux labels of volume {volume}: {known:?} and {wanted:?}")]
    Conflict {
        /// Name of the volume.
        volume: String,
        /// The other pod's.
        known: String,
        /// The pod's own.
        wanted: String,
    },
    /// Another pod has the volume staged with another one.
    #[error(
        "waiting for unmount of volume {0:?}, because it is already mounted to a different pod with a different SELinux \
         label"
    )]
    Staged(String),
}

/// Failures of taking a pod's volumes from it.
#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    /// The records on the disk cannot be read.
    #[error(transparent)]
    Records(#[from] WorkError),
    /// A volume is left.
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : {cause}")]
    Volume {
        /// Name of the volume.
        volume: String,
        /// Cause.
        #[source]
        cause: Box<CsiError>,
    },
}

/// A step of making a volume ready that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeFailure {
    /// Attaching, or waiting for it.
    #[error(transparent)]
    Attach(AttachError),
    /// The node can have no more volumes of the driver: failure of the wait for the attachment.
    #[error(transparent)]
    Exhausted(AttachError),
    /// Staging: once for the node.
    #[error(transparent)]
    Stage(CsiError),
    /// Publishing: once for each pod.
    #[error(transparent)]
    Publish(CsiError),
    /// Giving a pod a device that is published.
    #[error(transparent)]
    Map(BlockError),
}
