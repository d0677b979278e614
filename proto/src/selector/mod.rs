//! Label and field selectors: text and object forms, checking, matching.
//!
//! Answers for upstream's `labels`, `fields` and `LabelSelectorAsSelector`; error texts are theirs because clients
//! see them. Knows nothing of resources: which fields a resource can be selected by is decided elsewhere.

pub mod field;
pub mod format;
pub mod label;
mod parse;

pub use field::FieldSelector;
pub use label::{Operator, Requirement, Selector};

/// Error of parsing a selector; the text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
