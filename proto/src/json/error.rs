//! Errors of decoding JSON and YAML.

use thiserror::Error;

use super::scan::SyntaxError;
use crate::quantity::ParseError;
use crate::scalar::{Base64Error, TimeError};

/// Errors of decoding an object. The text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// Not YAML, and why.
    #[error("{0}")]
    Yaml(String),
    /// A value of the wrong type or form.
    #[error("{0}")]
    Type(String),
    /// Text that is no quantity.
    #[error(transparent)]
    Quantity(#[from] ParseError),
    /// Text that is no time.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// Text that is not base64.
    #[error(transparent)]
    Base64(#[from] Base64Error),
    /// Unknown or duplicate fields under [`super::Strictness::Strict`].
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
}
