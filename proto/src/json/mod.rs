//! The JSON codec: bytes to tree and back, guided by a schema.
//!
//! Answers for upstream's `sigs.k8s.io/json` and `encoding/json`: case-sensitive names, Go's conversions and error
//! texts, strict reports of unknown and duplicate fields, fields in the order of the Go struct. Decoded trees are
//! canonical: exactly what Go would print. Recursion is bounded by [`MAX_TREE_DEPTH`].

mod cursor;
mod decode;
mod encode;
mod error;
mod part;
mod plain;
mod scan;
mod text;
mod tree;
mod type_meta;

pub(crate) use decode::decode_any_at;
pub use decode::{Decoded, Strictness, decode, decode_any, decode_any_reporting};
pub use encode::{Indenter, encode, encode_any, encode_field, encode_pretty, indent, raw as encode_raw};
pub(crate) use encode::{
    empty_element as encode_element, int as encode_int, name as encode_name, one as encode_special,
    scalar as encode_scalar, text as encode_text, zero_value as encode_zero,
};
pub use error::DecodeError;
pub use part::decode_touched;
pub use scan::SyntaxError;
pub use text::canonicalize;
pub(crate) use text::{schema_props, time_value};
pub use tree::{MAX_TREE_DEPTH, number, whole};
pub use type_meta::{TypeMetaError, type_meta};

/// Validates JSON; the error has Go's words.
///
/// # Errors
/// The first character that is wrong.
pub fn syntax(bytes: &[u8]) -> Result<(), SyntaxError> {
    scan::check(bytes)
}
