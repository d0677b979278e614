//! Shared parts of all five components: flags, serving, client, informers, authentication and authorization.

#![warn(missing_docs, unreachable_pub)]

pub mod address;
pub mod authn;
pub mod authz;
pub mod cel;
pub mod cert;
pub mod client;
pub mod config;
pub mod connections;
pub mod cron;
pub mod csi;
pub mod declared_features;
pub mod events;
pub mod flags;
pub mod flex;
pub mod fnv;
pub mod folder_watch;
pub mod grpc;
pub mod host_port;
pub mod informer;
pub mod leader;
pub mod metrics;
pub mod os;
pub mod patterns;
pub mod placement;
mod read_ahead;
pub mod run;
pub mod serve;
pub mod status;
pub mod tool;
pub mod traces;
pub mod typed;
pub mod types;
pub mod upgrade;
pub mod url;
pub mod version;
pub mod workqueue;
