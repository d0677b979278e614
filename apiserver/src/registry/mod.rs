//! The registry: rows (from `proto::resources`) joined with what is particular about each kind.
//!
//! Data and small pure functions; the pipelines in `verbs` run them. Nothing here talks HTTP. The allocators under
//! `core` are the only parts that touch storage.

mod apiextensions;
mod apps;
pub mod batch;
pub mod certificates;
pub mod conversion;
pub mod core;
pub mod fields;
pub mod meta;
pub mod strategy;

use proto::resources::{self, Resource};

/// The row whose version is stored, for any group and plural the resource is served under.
pub fn storage_row(group: &str, plural: &str) -> Option<&'static Resource> {
    let any = resources::all().iter().find(|r| r.group == group && r.plural == plural)?;
    Some(storage_of(any))
}

/// The row whose version is stored. A row stored in a version that is not served is its own storage row.
pub fn storage_of(row: &'static Resource) -> &'static Resource {
    resources::find(&row.storage.0, &row.storage.1, &row.plural).unwrap_or(row)
}

/// True when a group is served at all.
pub fn group_exists(group: &str) -> bool {
    resources::all().iter().any(|r| r.group == group)
}

/// `pods` or `deployments.apps`: the resource as error messages name it.
pub fn qualified(row: &Resource) -> String {
    if row.group.is_empty() { row.plural.to_string() } else { format!("{}.{}", row.plural, row.group) }
}
