//! The registry: what is particular about each kind, by its row (`proto::resources`).
//!
//! Data and small pure functions; the pipelines in `verbs` run them. Nothing here talks HTTP or touches storage: what a
//! kind does around its writes is in `rest`, above the engine.

pub(crate) mod api_services;
pub(crate) mod apiextensions;
mod apps;
pub mod batch;
pub mod behavior;
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
pub mod tables;

pub use behavior::{ResourceBehavior, behavior};
pub use disabled_fields::FieldGates;
