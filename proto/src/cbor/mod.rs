//! The CBOR codec (RFC 8949, as upstream restricts it): CBOR becomes JSON text, and the JSON codec does the rest; what
//! the JSON codec would write is written as CBOR.
//!
//! Output begins with the tag that says it is CBOR, has no indefinite lengths, the shortest forms, and keys sorted by
//! their bytes. Texts and names are byte strings, since Go's texts need not be UTF-8; contents that JSON shows in base64
//! are bare and carry the tag that says so. Input may be anything that has a meaning in JSON: no NaN, no infinity, no
//! `undefined`, no big numbers, no key twice. Recursion is bounded by [`MAX_DEPTH`].

mod decode;
mod encode;
mod half;

use thiserror::Error;

pub use decode::{stored_to_json, to_json};
pub use encode::{encode, event};

/// Prefix of all output: the head of tag 55799.
pub const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];
/// Deepest nesting that is read.
pub const MAX_DEPTH: usize = 64;
/// Most elements of an array, or pairs of a map, that a client may send.
pub const MAX_ELEMENTS: usize = 1024;

/// Tags with a meaning of their own.
mod tag {
    pub(super) const TIME_TEXT: u64 = 0;
    pub(super) const TIME_NUMBER: u64 = 1;
    pub(super) const BIG_POSITIVE: u64 = 2;
    pub(super) const BIG_NEGATIVE: u64 = 3;
    pub(super) const LATER_BASE64_URL: u64 = 21;
    pub(super) const LATER_BASE64: u64 = 22;
    pub(super) const LATER_HEX: u64 = 23;
}

/// Errors of CBOR that JSON cannot express.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// No bytes.
    #[error("EOF")]
    Empty,
    /// The end came too early.
    #[error("unexpected EOF")]
    Cut,
    /// Something follows the item.
    #[error("cbor: {0} bytes of extraneous data starting at index {1}")]
    Trailing(usize, usize),
    /// No item begins so.
    #[error("cbor: {0}")]
    Malformed(String),
    /// Nested too deeply.
    #[error("cbor: exceeded max nested level {MAX_DEPTH}")]
    TooDeep,
    /// An array or map with too many elements.
    #[error("cbor: exceeded max number of {0}")]
    TooMany(String),
    /// A text that is none.
    #[error("cbor: invalid UTF-8 string")]
    Utf8,
    /// One key twice in a map.
    #[error("cbor: found duplicate map key {0:?} at map element index {1}")]
    Duplicate(String, usize),
    /// Well-formed, but nothing that JSON has.
    #[error("cbor: data item of cbor type {0} is not accepted by protocol: {1}")]
    Unacceptable(&'static str, String),
    /// A value that does not fit.
    #[error("cbor: cannot unmarshal {0} into Go value of type {1}")]
    Type(&'static str, String),
}

#[cfg(test)]
mod tests;
