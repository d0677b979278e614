//! The API model: IDL, schema tables and the object engine

pub mod cbor;
pub mod defaulting;
pub mod discovery;
pub mod json;
pub mod merge;
pub mod openapi;
pub mod protobuf;
pub mod quantity;
pub mod resources;
mod scalar;
pub mod schema;
pub mod selector;
pub mod yaml;
mod zero;

pub use serde_json::Value;
