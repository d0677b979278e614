//! What the scheduler knows of the cluster, reduced to what decisions need.
//!
//! API objects come in once, through [`PodInfo::from_api`] and [`NodeInfo`]'s setters, and everything after works on
//! the compact forms here. Nothing in this room does I/O, looks at a clock or panics on odd objects.

pub mod cluster;
pub mod node;
pub mod pod;
pub mod quantity;
pub mod requests;
pub mod resource;
pub mod selector;

pub use cluster::Cluster;
pub use node::NodeInfo;
pub use pod::{Demand, PodInfo};
pub use resource::Resource;
