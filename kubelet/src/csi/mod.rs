//! Volumes of CSI drivers: what a pod's claim or inline volume needs of a driver's node service, call by call, in the order
//! that CSI demands. Answers for upstream's `pkg/volume/csi`.
//!
//! In: volumes as pods use them, registrations of drivers. Out: calls of drivers' sockets, files in [`layout`]'s places. The
//! files are the record of what is mounted: a call that may change the node is written down before it is made, and the record
//! goes after the call that undoes it. So the next kubelet knows what this one did. Calls for one volume never overlap.

mod attach;
mod driver;
mod drivers;
mod expansion;
mod layout;
mod migration;
mod node;
mod operations;
mod selinux;
mod teardown;
mod volume;

pub use drivers::{Drivers, KIND};
pub(crate) use operations::{Csi, Group, Ready};
pub(crate) use selinux::Selinux;
pub use volume::Volume;

/// The interface's messages.
pub mod v1 {
    #![allow(
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        clippy::all,
        missing_docs,
        reason = "generated from the CSI specification"
    )]
    tonic::include_proto!("csi.v1");
}

pub(crate) use migration::{inline as migrated_inline, persistent as migrated};

/// A call of a driver that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
struct CallError {
    /// `rpc error: code = Internal desc = …`.
    message: String,
    code: tonic::Code,
    /// False where the driver may have done the work, or may still do it.
    is_final: bool,
}

/// A step of making a volume ready that failed, with the text of its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Attaching, or waiting for it.
    Attach(String),
    /// Staging: once for the node.
    Stage(String),
    /// Publishing: once for each pod.
    Publish(String),
    /// Growing the file system, or the device.
    Expand(String),
}

#[cfg(test)]
mod tests;
