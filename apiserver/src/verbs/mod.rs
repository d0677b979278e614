//! The verbs: from a decoded request line and a body to an answer, for any resource row.
//!
//! In comes a [`VerbRequest`], out goes a [`Reply`] or a `Status`; what happens between is the same for every kind. Knows
//! neither sockets nor TLS. One file per verb; [`engine`] is the write pipeline they share.

mod actions;
pub mod closing;
mod component_status;
pub mod connect;
pub(crate) mod corrupt_objects;
pub mod delete;
mod dispatch;
pub mod engine;
pub mod get;
mod in_process;
pub mod list;
pub mod managers;
mod original;
mod outcome;
pub mod patch;
pub mod preconditions;
mod request;
mod route;
pub mod scale;
mod scale_managers;
pub mod select;
mod spans;
pub mod subresources;
pub mod table;
mod target;
mod update_meters;
mod version_converter;
pub mod watch;
mod watch_frames;
mod watch_meters;
mod watch_start;
pub mod write;

pub use actions::{Acting, Actions};
pub use dispatch::dispatch;
pub use in_process::{InProcess, MANAGER};
pub use list::{CHUNK, COMPRESS_FROM};
pub use request::{Body, Reply, VerbRequest, accepted, namespace_of};
pub use route::{Route, is_unserved, route};
pub use table::reply_object;
pub use target::target;
