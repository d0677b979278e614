//! The kubelet: runs the pods of one node through a container runtime.

pub mod cri;
pub mod env;
pub mod events;
pub mod facts;
pub mod hooks;
pub mod objects;
pub mod pleg;
pub mod pods;
pub mod probes;
pub mod resources;
pub mod settings;
pub mod sources;
pub mod status;
pub mod volumes;
pub mod workers;
