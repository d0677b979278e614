//! The JSON codec: bytes to tree and back, guided by a schema.
//!
//! Answers for upstream's `sigs.k8s.io/json` and `encoding/json`: case-sensitive names, Go's conversions and error
//! texts, strict reports of unknown and duplicate fields, fields in the order of the Go struct. Decoded trees are
//! canonical: exactly what Go would print. Recursion is bounded by [`MAX_TREE_DEPTH`].

mod cursor;
mod decode;
mod encode;
mod part;
mod plain;
mod scan;
mod text;
mod type_meta;

use serde_json::Number;
use thiserror::Error;

use crate::Value;
use crate::quantity::ParseError;
use crate::scalar::{Base64Error, TimeError};

pub(crate) use decode::decode_any_at;
pub use decode::{decode, decode_any, decode_any_reporting};
pub use encode::{Indenter, encode, encode_any, encode_field, encode_pretty, indent, raw as encode_raw};
pub(crate) use encode::{
    empty_element as encode_element, int as encode_int, name as encode_name, one as encode_special,
    scalar as encode_scalar, text as encode_text, zero_value as encode_zero,
};
pub use part::decode_touched;
pub use scan::SyntaxError;
pub use text::canonicalize;
pub(crate) use text::{schema_props, time_value};
pub use type_meta::{TypeMetaError, type_meta};

/// Deepest nesting that becomes a tree.
pub const MAX_TREE_DEPTH: usize = 256;
/// Additional depth for field names in an object's own managed fields: every accepted object can be written and read
/// again.
const NAMES: usize = 16;

/// The integer that a float is, where JSON's readers tell it apart from its neighbours.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
pub fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_991.0;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// A float as the tree keeps it: whole numbers of exact size as integers, so that equal values have one form. `None` for
/// what is no number in JSON.
#[must_use]
pub fn number(value: f64) -> Option<Number> {
    whole(value).map(Number::from).or_else(|| Number::from_f64(value))
}

/// Validates JSON; the error has Go's words.
///
/// # Errors
/// The first character that is wrong.
pub fn syntax(bytes: &[u8]) -> Result<(), SyntaxError> {
    scan::check(bytes)
}

/// Treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Drop them silently.
    Ignore,
    /// Drop and report them.
    Warn,
    /// Fail.
    Strict,
}

/// A decoded object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The canonical tree.
    pub value: Value,
    /// Unknown and duplicate fields, in the order of the text.
    pub warnings: Vec<String>,
}

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
    /// Unknown or duplicate fields under [`Strictness::Strict`].
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
}
