//! The core group: what pods, services, namespaces and volumes do beyond the generic path.
//!
//! Strategies are pure. What is handed out once in a cluster (addresses, node ports) is noted in etcd by the
//! allocators; what they say and what services have is brought in line by [`repair`].

mod address_ranges;
mod addresses;
mod allocator_meters;
mod app_armor;
pub mod binding;
mod conditions;
pub mod default_range;
pub mod eviction;
pub mod ip_allocator;
pub mod kubernetes_service;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod node_ports;
pub mod pod;
pub mod repair;
pub mod secret;
pub mod service;
pub mod service_account;
mod service_families;
pub mod service_update;
pub mod system_namespaces;
pub mod volume;
