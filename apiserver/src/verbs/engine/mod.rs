//! The write pipeline: one path for every kind. Answers for upstream's `registry.Store`.
//!
//! Create, update and delete run here in upstream's order: admission may change the object, the strategy fixes what
//! clients do not decide, validation and admission judge, storage writes under a precondition. Objects travel in the
//! storage row's version; callers convert at the edges. Nothing here knows HTTP. Creation stands here, everything else
//! in files of its own.

mod admission;
mod delete;
mod errors;
mod forms;
mod hook;
mod pending;
mod pipeline;
mod target;
mod update;

pub use errors::{conflict, not_found, storage_status};
pub use hook::{Begin, Release, Reservation, WriteHook};
pub use pipeline::{Engine, WritePolicy};
pub use target::{Change, DeleteOptions, Deleted, WriteTarget};

/// Rounds of an update that keeps losing races.
pub(in crate::verbs) const UPDATE_ROUNDS: usize = 50;
