//! The protobuf codec, byte for byte as upstream's generated code, and the `k8s\0` envelope.
//!
//! Every field that is not a Go pointer is written, also when zero; nil pointers and empty lists and maps are not.
//! Unknown fields are skipped. Recursion is bounded by [`crate::json::MAX_TREE_DEPTH`].

mod decode;
mod encode;
mod envelope;
mod error;
mod presence;
mod transcode;
pub(crate) mod wire;

pub use decode::{decode, lookup};
pub use encode::encode;
pub use envelope::{Envelope, MAGIC, decode_envelope, decode_unwrapped, encode_envelope, unwrap, wrap, wrap_around};
pub use error::Error;
pub use presence::lacks;
pub use transcode::to_json;
pub use wire::{Fields, KnownFields, Values, Wire, fields, known_fields, sign_parts, values};
/// To write messages whose fields somebody knows by number.
pub use wire::{bytes as write_bytes, length as write_length, nested as write_nested, number as write_number};
