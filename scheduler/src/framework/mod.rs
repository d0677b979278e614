//! The scheduling framework: extension points, profiles, the decision itself.
//!
//! Answers for upstream's scheduler framework and its runtime. Pure: no I/O, no clock but the one it is handed.

pub mod api;
pub mod config;
mod context;
mod counted;
pub mod diagnosis;
pub mod domains;
pub mod event;
pub mod explain;
pub mod extender;
pub mod gangs;
pub mod ledger;
pub mod lister;
pub mod nominated;
pub mod parallel;
mod permission;
pub mod plugin;
pub mod profile;
mod profile_error;
mod queued_pod;
pub mod rule;
pub mod schedule;
pub mod state;
pub mod status;
pub mod table;

pub use config::{Configuration, Features, ProfileConfig};
pub use context::Context;
pub use diagnosis::{Diagnosis, Failure, Rejected};
pub use event::{Action, ClusterEvent, Delta, ExternalChange, Hint};
pub use ledger::Ledger;
pub use lister::Listers;
pub use nominated::Nominated;
pub use parallel::Threads;
pub use plugin::Plugin;
pub use profile::Profile;
pub use profile_error::ProfileError;
pub use queued_pod::QueuedPod;
pub use rule::Depends;
pub use schedule::{Cursor, Placement};
pub use state::CycleState;
pub use status::{Code, Status};

#[cfg(test)]
mod tests;
