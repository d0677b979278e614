//! Errors of the protobuf codec, in the words of upstream's generated code.

use thiserror::Error;

/// Errors of decoding an object. The text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// Bytes end too early.
    #[error("unexpected EOF")]
    UnexpectedEof,
    /// A varint of more than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A length below zero.
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    /// A field number below one.
    #[error("proto: illegal tag {0} (wire type {1})")]
    IllegalTag(i64, u8),
    /// A wire type that does not exist.
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    /// The wire type is not that of the field.
    #[error("proto: wrong wireType = {0} for field {1}")]
    WrongWireType(u8, String),
    /// A group end without its start.
    #[error("proto: unexpected end of group")]
    UnexpectedEndOfGroup,
    /// No envelope.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Prefix,
    /// Too many messages inside each other.
    #[error("proto: exceeded max depth")]
    Depth,
    /// The envelope names a type that is not known.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// `apiVersion` of the envelope.
        api_version: String,
        /// `kind` of the envelope.
        kind: String,
    },
    /// A value has no valid text form.
    #[error("{0}")]
    Value(String),
}
