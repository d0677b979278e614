//! The core group: strategies of pods, namespaces, volumes and their like. Pure; storages that do more than store an
//! object are in `rest`.

mod addresses;
mod app_armor;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod secret;
pub(crate) mod service;
pub mod service_account;
pub(crate) mod service_update;
pub mod volume;
