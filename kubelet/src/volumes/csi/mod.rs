//! Volumes of CSI drivers: what a pod's claim or inline volume needs of a driver's node service, call by call, in the order
//! that CSI demands. Answers for upstream's `pkg/volume/csi`.
//!
//! In: volumes as pods use them, registrations of drivers. Out: calls of drivers' sockets, files in [`layout`]'s places. The
//! files are the record of what is mounted: a call that may change the node is written down before it is made, and the record
//! goes after the call that undoes it. So the next kubelet knows what this one did. Calls for one volume never overlap.

mod attach;
mod driver;
mod drivers;
mod error;
mod layout;
mod migration;
mod node;
mod operations;
mod selinux;
mod stats;
mod teardown;
pub mod v1;
mod volume;

pub use drivers::{Drivers, KIND};
pub(crate) use error::VolumeFailure;
pub use error::{AttachError, CsiError, MigrationError, UnpublishError};
pub(crate) use operations::{Csi, Ready, VolumeGroup};
pub(crate) use selinux::Selinux;
pub use volume::Volume;

pub(crate) use migration::{inline as migrated_inline, persistent as migrated};

#[cfg(test)]
mod tests;
