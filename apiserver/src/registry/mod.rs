//! The registry: rows (from `proto::resources`) joined with what is particular about each kind.
//!
//! Data and small pure functions; the pipelines in `verbs` run them. Nothing here talks HTTP. The allocators under
//! `core` are the only parts that touch storage.

mod apiextensions;
mod apps;
pub mod batch;
pub mod certificates;
mod choice;
pub mod conversion;
pub mod core;
mod devices;
mod discovery;
mod ending;
pub mod fields;
mod gated;
pub mod meta;
pub mod owners;
pub mod ownership;
mod resource_claim;
mod rows;
mod stored;
pub mod strategy;

pub use choice::{Behaving, Choice, chosen};
pub use ending::ending;
pub use gated::Gated;
use proto::resources::{Resource, Row};
pub use rows::{Rows, builtin, builtin_group, compiled, version_rank};
pub use stored::storage_hash;

/// The row writes of a row work in: that in whose version objects are kept, but custom resources are judged in the version of the
/// request.
pub fn working(row: &Row) -> Row {
    if row.custom.is_some() { row.clone() } else { row.storage() }
}

/// `pods` or `deployments.apps`: the resource as error messages name it.
pub fn qualified(row: &Resource) -> String {
    if row.group.is_empty() { row.plural.to_string() } else { format!("{}.{}", row.plural, row.group) }
}
