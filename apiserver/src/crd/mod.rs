//! Custom resources: definitions become rows, and objects of those rows are served by the same pipeline as any other.
//!
//! Answers for the schemas, the strategy and the conversion of upstream's `apiextensions-apiserver`. [`definition`]
//! compiles a definition to rows; the rest judges objects against a version's [`schema`] and moves them between
//! versions. Nothing here speaks HTTP or etcd, or follows definitions (`definitions` does); only [`convert`] calls out,
//! to conversion webhooks.

mod check;
mod conversion;
pub mod convert;
mod costs;
mod defaults;
mod definition;
mod embedded;
pub mod field_path;
pub mod formats;
mod jsonpath;
mod lists;
mod merge;
mod meters;
pub mod objects;
pub mod openapi;
pub mod openapi_v2;
mod prune;
mod rule;
mod rule_check;
mod rules;
mod schema;
pub mod schema_options;
mod structural;
mod structure;
mod types;
pub mod validate;
mod version;

pub use definition::{is_true, rows};
pub use formats::is_valid;
pub use jsonpath::JsonPath;
pub use meters::publish;
pub(crate) use meters::regenerated;
pub use version::{CrdVersion, Pieces, Scale, changes_version, converts, version, version_of, versions};
