//! Strategy of a kind, as data: fields that clients may not set, `generation`, creation by PUT, graceful deletion.
//! Answers for upstream's `RESTCreateStrategy`, `RESTUpdateStrategy`.
//!
//! The generic pipeline asks [`strategy_of`] and never matches on kinds itself: a kind says its strategy in its home.

mod kind;
mod presets;
mod table;

pub(in crate::registry) use kind::METADATA;
pub use kind::{Count, Generation, StatusTreatment, Strategy, StrategyCx, has_status, restore};
pub(in crate::registry) use presets::{
    CONDITIONAL, CONDITIONAL_CREATES, CONDITIONAL_GENERATION, CREATES_ON_PUT, PLAIN, WITH_GENERATION,
};
pub use table::strategy_of;
