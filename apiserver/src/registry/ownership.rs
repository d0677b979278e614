//! Fields that managers can own through a resource or subresource: fields that a write cannot change are not owned.
//!
//! The facts are what upstream's strategies say of themselves. They need not be what these do: of a definition's
//! status nobody owns metadata, though a write changes it.

use proto::merge::apply::Ownable;
use proto::resources::Resource;

use super::kinds::kind_of;
use super::ownable::except;
use super::strategy::{self, METADATA};

/// See the module.
pub fn ownable(row: &Resource, subresource: &str) -> Ownable {
    if let Some(own) = kind_of(row).and_then(|kind| kind.ownership?(subresource)) {
        return own;
    }
    match subresource {
        "status" => except_restored(strategy::strategy_of(row).status_restores),
        "" if !strategy::has_status(row) => except(&[]),
        _ => except(&[&["status"]]),
    }
}

/// A write of `status` leaves the specification and some metadata alone.
fn except_restored(metadata: &[&str]) -> Ownable {
    if metadata == METADATA {
        return except(&[&["spec"], &["metadata"]]);
    }
    let restored: Vec<[&str; 2]> = metadata.iter().map(|field| ["metadata", field]).collect();
    let mut all: Vec<&[&str]> = restored.iter().map(<[&str; 2]>::as_slice).collect();
    all.push(&["spec"]);
    except(&all)
}
