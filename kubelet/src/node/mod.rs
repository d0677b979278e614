//! The node object: registration, conditions and the rest of its status, the Lease heartbeat.
//!
//! [`object`] and [`conditions`] are pure; [`agent`] asks the runtime and writes to the API server; [`lease`] beats.
//! Nothing else in the kubelet writes to the node object.

pub mod addresses;
pub mod agent;
pub mod conditions;
pub mod kmsg;
pub mod lease;
pub mod logind;
pub mod object;
pub mod shutdown;
pub mod shutdown_pods;
pub mod shutdown_times;
pub mod tunables;
pub mod util_chains;
