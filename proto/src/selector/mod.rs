//! Label and field selectors: text and object forms, checking, matching.
//!
//! Answers for upstream's `labels`, `fields` and `LabelSelectorAsSelector`; error texts are theirs because clients
//! see them. Knows nothing of resources: which fields a resource can be selected by is decided elsewhere.

mod error;
pub mod field;
pub mod format;
pub mod label;
mod parse;

pub use error::Error;
pub use field::FieldSelector;
pub use label::{Operator, Requirement, Selector};
