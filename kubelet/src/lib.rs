//! The kubelet: runs the pods of one node through a container runtime.

#![warn(missing_docs, unreachable_pub)]

pub mod annotations;
pub mod api;
pub mod backoff;
mod blocking;
mod bounded;
mod calls;
pub mod certs;
pub mod config;
mod cpu_set;
pub mod cpus;
pub mod cri;
mod dbus;
pub mod devices;
mod disk;
pub mod env;
pub mod events;
pub mod eviction;
mod exclusive;
pub mod facts;
mod files;
pub mod hooks;
pub mod images;
pub mod keyed_lock;
mod lock;
pub mod memory;
mod metrics;
pub mod node;
pub mod objects;
pub mod pleg;
pub mod plugins;
pub mod pod_certificates;
pub mod pod_resources;
pub mod pods;
pub mod pressure;
pub mod probes;
mod reasons;
pub mod resource_claims;
pub mod resource_health;
pub mod resources;
mod run;
pub mod server;
pub mod settings;
pub mod source_set;
pub mod sources;
pub mod stats;
pub mod status;
pub mod topology;
mod trees;
pub mod userns;
pub mod volumes;
pub mod watchdog;
mod watched;
pub mod workers;

pub use run::run;
