//! Failures of CSI calls and of the steps that are made of them.

/// A call of a driver that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct CallError {
    /// `rpc error: code = Internal desc = …`.
    pub(super) message: String,
    pub(super) code: tonic::Code,
    /// False where the driver may have done the work, or may still do it.
    pub(super) is_final: bool,
}

/// A step of making a volume ready that failed, with the text of its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeFailure {
    /// Attaching, or waiting for it.
    Attach(String),
    /// The node can have no more volumes of the driver: text of the wait for the attachment.
    Exhausted(String),
    /// Staging: once for the node.
    Stage(String),
    /// Publishing: once for each pod.
    Publish(String),
    /// Giving a pod a device that is published.
    Map(String),
}

impl VolumeFailure {
    /// The cause.
    pub(super) fn text(&self) -> &str {
        let (Self::Attach(text) | Self::Exhausted(text) | Self::Stage(text) | Self::Publish(text) | Self::Map(text)) =
            self;
        text
    }
}
