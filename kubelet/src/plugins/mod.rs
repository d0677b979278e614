//! Plugins of a node: programs that serve a socket below `<root-dir>/plugins_registry`, register there and are used by the module
//! of their type. Answers for upstream's `pkg/kubelet/pluginmanager`.
//!
//! In: sockets that come and go. Out: calls of a [`Handler`]. A type of plugins is one handler and one line in [`Handlers`].

mod handler;
pub mod metrics;
mod registration;
mod socket;
mod watcher;

pub use handler::{Handler, HandlerError, Handlers, Plugin};
pub use registration::v1;
pub use socket::{SocketError, call_error, channel, serve};
pub use watcher::run;

/// The folder of sockets, below the root directory.
pub const REGISTRY: &str = "plugins_registry";
