//! Strategy of a kind, as data: fields that clients may not set, `generation`, creation by PUT, graceful deletion.
//! Answers for upstream's `RESTCreateStrategy`, `RESTUpdateStrategy`.
//!
//! The generic pipeline asks [`strategy_of`] and never matches on kinds itself. A new kind is one row of the table, if
//! that.

mod kind;
mod table;

pub(in crate::registry) use kind::METADATA;
pub use kind::{Count, Generation, StatusTreatment, Strategy, StrategyCx, has_status, restore};
pub use table::strategy_of;
