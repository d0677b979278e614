//! The registry: what is particular about each kind, by its row (`proto::resources`).
//!
//! Data and small pure functions; the pipelines in `verbs` run them. Nothing here talks HTTP or touches storage: what a
//! kind does around its writes is in `rest`, above the engine.

pub(crate) mod admissionregistration;
pub(crate) mod api_services;
pub(crate) mod apiextensions;
pub(crate) mod apiregistration;
pub(crate) mod apiserverinternal;
pub(crate) mod apps;
pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod autoscaling;
pub mod batch;
pub mod behavior;
pub mod certificates;
pub mod conversion;
pub(crate) mod coordination;
pub mod core;
mod deprecation;
mod devices;
mod disabled_fields;
pub(crate) mod discovery;
pub(crate) mod events;
mod field_gates;
pub mod fields;
pub(crate) mod flowcontrol;
mod gated_fields;
pub(crate) mod kind;
pub(crate) mod kinds;
mod life_cycle;
pub(crate) mod networking;
pub(crate) mod node;
mod options;
mod ownable;
pub mod owners;
pub mod ownership;
pub(crate) mod policy;
pub(crate) mod rbac;
pub(crate) mod resource;
mod resource_claim;
pub mod resource_config;
mod rollback;
pub(crate) mod scheduling;
pub mod selectable;
pub(crate) mod storage;
pub(crate) mod storagemigration;
mod stored_versions;
pub mod strategy;
pub mod tables;

pub use behavior::{ResourceBehavior, behavior};
pub use field_gates::FieldGates;
pub(crate) use kinds::{admin_access, is_question, pod_template};
