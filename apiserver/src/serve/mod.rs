//! The secure port: TLS, HTTP/1.1 and HTTP/2, the way of a request from the socket to the verbs and back.
//!
//! In come connections, out go answers. Policies live in `access`, objects in `verbs`; nothing here knows kinds.

mod aggregated;
mod answer;
mod body;
mod conduct;
mod constants;
pub mod debug_socket;
mod ending;
mod handler;
pub mod health;
pub mod info;
pub mod listen;
mod logs;
mod meters;
mod passing;
mod paths;
mod server;
pub(crate) mod spans;
mod traced;
mod turns;

pub use conduct::Conduct;
pub use ending::Ending;
pub use server::Server;
