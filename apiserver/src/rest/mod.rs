//! REST storages of the core group that do more than store an object: binding, eviction, tokens, and what Services are
//! given.
//!
//! Answers for upstream's `pkg/registry/core/rest`, for the storages of pods, Services and service accounts below
//! `pkg/registry/core`, and for the controllers that upstream starts with them. Stands above the engine, which knows it
//! as [`WriteHook`](crate::verbs::engine::WriteHook) and [`Actions`](crate::verbs::Actions) alone. What is handed out
//! once in a cluster (addresses, node ports) is noted in etcd by the allocators; what they say and what Services have is
//! brought in line by [`repair`].

mod actions;
mod address_ranges;
mod allocation_storage;
mod allocator_meters;
mod binding;
mod conditions;
pub(crate) mod default_range;
mod eviction;
pub(crate) mod ip_allocator;
pub(crate) mod kubernetes_service;
pub(crate) mod node_ports;
pub(crate) mod repair;
mod service;
mod service_families;
pub(crate) mod system_namespaces;
mod token;

pub(crate) use actions::CoreActions;
pub(crate) use allocation_storage::AllocationStorage;
pub(crate) use binding::BindingEffects;
pub(crate) use service::{ServiceRanges, Services};
