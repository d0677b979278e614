//! The secure port: TLS, HTTP/1.1 and HTTP/2, the way of a request from the socket to the verbs and back.
//!
//! In come connections, out go answers. Policies live in `access`, objects in `verbs`; nothing here knows kinds.

mod aggregated;
mod answer;
mod body;
mod chain;
mod constants;
mod context;
pub mod debug_socket;
mod endpoint;
mod graceful_shutdown;
pub mod health;
pub mod info;
pub mod listen;
mod logs;
mod meters;
mod passing;
mod paths;
mod response_policy;
mod server;
mod sessions;
pub(crate) mod spans;
mod traced;
mod yield_queue;

pub use graceful_shutdown::GracefulShutdown;
pub use response_policy::ResponsePolicy;
pub use server::Server;
