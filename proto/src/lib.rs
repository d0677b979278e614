//! The API model: what is known of types and resources, and what can be done with any object of them.
//!
//! In come the IDL of `k8s/` (compiled to the tables of [`schema`] and [`resources`]) and bytes or trees; out go trees,
//! bytes, merged objects, documents. Everything is written once over the tables: nothing here names a kind but what
//! upstream computes for it ([`defaulting`]), and nothing here knows networks, etcd or time.

#![warn(missing_docs, unreachable_pub)]

pub mod cbor;
pub mod defaulting;
pub mod discovery;
pub mod json;
pub mod merge;
pub mod numbers;
pub mod openapi;
pub mod protobuf;
pub mod quantity;
pub mod resources;
pub mod scalar;
pub mod schema;
pub mod selector;
pub mod yaml;

pub use serde_json::Value;
