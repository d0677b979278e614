//! Fields that managers can own through a resource or subresource: fields that a write cannot change are not owned.
//!
//! The facts are what upstream's strategies say of themselves. They need not be what these do: of a definition's
//! status nobody owns metadata, though a write changes it.

use proto::merge::apply::Ownable;
use proto::merge::fieldset::Set;
use proto::resources::Resource;

use super::strategy::{self, METADATA};

/// See the module.
pub fn ownable(row: &Resource, subresource: &str) -> Ownable {
    match (&*row.group, &*row.plural, subresource) {
        ("", "pods", "resize") => Ownable::Only(RESIZED),
        ("", "pods", "ephemeralcontainers") => Ownable::Only(&[&["spec", "ephemeralContainers"]]),
        // What is asked is never changed, approvers and signers have a part of the status each.
        ("certificates.k8s.io", "certificatesigningrequests", subresource) => match subresource {
            "approval" => except(&[&["spec"], &["status", "certificate"]]),
            "status" => except(&[&["spec"], &["status", "conditions"]]),
            _ => except(&[&["spec"], &["status"]]),
        },
        ("apiextensions.k8s.io", "customresourcedefinitions", "status") => except(&[&["spec"], &["metadata"]]),
        ("certificates.k8s.io", "podcertificaterequests", "status") => except(&[&["spec"]]),
        // Upstream names this group's versions wrongly, so that what it says of them is never heard.
        ("networking.k8s.io", "servicecidrs", _) => except(&[]),
        (_, _, "status") => except_restored(strategy::strategy_of(row).status_restores),
        (_, _, "") if !strategy::has_status(row) => except(&[]),
        _ => except(&[&["status"]]),
    }
}

/// Fields of the subresource `resize`.
const RESIZED: &[&[&str]] = &[
    &["spec", "containers", "*", "resources"],
    &["spec", "containers", "*", "resizePolicy"],
    &["spec", "initContainers", "*", "resources"],
    &["spec", "initContainers", "*", "resizePolicy"],
];

fn except(fields: &[&[&str]]) -> Ownable {
    Ownable::Except(Set::of_fields(fields))
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
