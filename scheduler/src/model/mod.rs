//! Model of the cluster, reduced to what decisions need.
//!
//! API objects come in once, through [`PodInfo::from_api`] and [`NodeBase::from_api`], and everything after works on
//! the compact forms here. Nothing in this room does I/O, looks at a clock or panics on odd objects.

pub mod cache;
pub mod claim;
pub mod demand;
pub mod devices;
pub mod extended;
pub mod node;
pub mod pod;
pub mod protobuf;
pub mod requests;
pub mod resource;
pub mod selector;
pub mod snapshot;
pub mod volume;
mod wire;

pub use cache::Cache;
pub use claim::PodClaim;
pub use demand::{AffinityTerm, Demand, HostPort, SpreadConstraint};
pub use devices::Inventory;
pub use node::{NodeBase, NodeInfo};
pub use pod::PodInfo;
pub use resource::Resource;
pub use selector::{Labels, Selector};
pub use snapshot::Snapshot;
pub use volume::VolumeUse;
