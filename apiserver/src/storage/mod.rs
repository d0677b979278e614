//! Storage: the only room that talks to etcd.
//!
//! In come keys and bytes, out go bytes with the revision that wrote them. Keys are upstream's
//! (`<prefix>/pods/<namespace>/<name>`), every write is one transaction with a precondition on the key's revision, so
//! an acknowledged write is in etcd and a lost race is seen. What the bytes mean is the business of [`codec`]; nothing
//! here knows kinds, HTTP or users. Between those bytes and etcd stand the transformers of encryption at rest.

mod call;
pub mod codec;
mod compact;
mod connect;
mod errors;
mod failover;
mod grpc;
mod lease;
mod members;
mod meters;
mod near;
mod resolve;
mod secure;
mod settings;
mod size;
mod spans;
mod store;
mod trace_injector;
pub mod transform;
mod versions;

pub use codec::Raw;
pub use compact::compact_forever;
pub use connect::{Options, ServerOverride, overrides};
pub use errors::Error;
pub use grpc::Watch;
pub use settings::{Caching, SettingsError, check_backend, stores_json};
pub use size::poll_size;
use store::Etcd;
pub use store::{Keys, Page, Store, Stored, WriteResult, other_than_asked};
pub use transform::Transformers;
