//! The registry: rows (from `proto::resources`) joined with what is particular about each kind. Answers for upstream's
//! `pkg/registry/generic/registry` (`Store`).
//!
//! Data and small pure functions; the pipelines in `verbs` run them. Nothing here talks HTTP. The allocators under
//! `core` are the only parts that touch storage.

pub(crate) mod api_services;
pub(crate) mod apiextensions;
mod apps;
pub mod batch;
pub mod certificates;
pub mod conversion;
pub mod core;
mod deprecation;
mod devices;
mod disabled_fields;
mod discovery;
pub mod fields;
pub mod meta;
pub mod owners;
pub mod ownership;
mod resource_claim;
mod resource_config;
mod rows;
mod stored;
pub mod strategy;

pub use deprecation::deprecation_warning;
pub use disabled_fields::FieldGates;
use proto::resources::{Resource, Row};
pub use resource_config::{EmulatedApis, ResourceConfig, select_resources};
pub use rows::{Rows, builtin, builtin_group, compiled, version_rank};
pub use stored::storage_hash;

/// The row writes of a row work in: that in whose version objects are kept, but custom resources are judged in the
/// version of the request.
pub fn working(row: &Row) -> Row {
    if row.custom.is_some() { row.clone() } else { row.storage() }
}

/// `pods` or `deployments.apps`: the resource as error messages name it.
pub fn qualified(row: &Resource) -> String {
    if row.group.is_empty() { row.plural.to_string() } else { format!("{}.{}", row.plural, row.group) }
}
