//! What all five components share: flags, serving, client, informers, access chains

pub mod address;
pub mod authn;
pub mod authz;
pub mod cel;
pub mod cert;
pub mod client;
pub mod config;
pub mod cron;
pub mod csi;
pub mod events;
pub mod flags;
pub mod grpc;
pub mod host_port;
pub mod informer;
pub mod leader;
pub mod metrics;
pub mod os;
pub mod patterns;
pub mod run;
pub mod serve;
pub mod status;
pub mod traces;
pub mod types;
pub mod upgrade;
pub mod version;
pub mod workqueue;
