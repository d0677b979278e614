//! The API model: IDL, schema tables and the object engine

pub mod quantity;
pub mod resources;
pub mod schema;

pub use serde_json::Value;
