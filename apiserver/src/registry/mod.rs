//! The registry: rows (from `proto::resources`) joined with what is particular about each kind. Answers for upstream's
//! `pkg/registry/generic/registry` (`Store`).
//!
//! Data and small pure functions; the pipelines in `verbs` run them. Nothing here talks HTTP. The allocators under
//! `core` are the only parts that touch storage.

pub(crate) mod api_services;
pub(crate) mod apiextensions;
mod apps;
pub mod batch;
pub mod certificates;
pub mod conversion;
pub mod core;
mod devices;
mod disabled_fields;
mod discovery;
pub mod fields;
pub mod owners;
pub mod ownership;
mod resource_claim;
pub mod strategy;

pub use disabled_fields::FieldGates;
