//! Custom resources: definitions become rows, and objects of those rows are served by the same pipeline as any other.
//!
//! Answers for upstream's `apiextensions-apiserver`. [`controller`] follows the definitions, accepts names, publishes
//! rows and cleans up; [`definition`] compiles one to rows; the rest judges objects against a version's [`schema`] and
//! moves them between versions. Nothing here speaks HTTP or etcd; only [`convert`] calls out, to conversion webhooks.

mod check;
pub mod controller;
pub mod convert;
mod defaults;
mod definition;
mod embedded;
pub mod field_path;
mod finalizer;
pub mod formats;
mod jsonpath;
mod lists;
mod merge;
mod meters;
mod names;
pub mod objects;
pub mod openapi;
pub mod openapi_v2;
mod prune;
mod rule_check;
mod rules;
mod schema;
pub mod schema_options;
mod structural;
mod structure;
mod types;
pub mod validate;

pub use definition::{CrdVersion, Scale, changes_version, converts, rows, version, version_of, versions};
pub use formats::is_valid;
pub use jsonpath::JsonPath;
pub use meters::publish;
pub use names::set_condition;
