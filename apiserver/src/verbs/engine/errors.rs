//! Errors of the engine as clients see them. Answers for upstream's `InterpretCreateError`, `InterpretUpdateError`.

use proto::resources::Resource;
use shared::status::Status;

use crate::machinery::meta;
use crate::rows::qualified;
use crate::storage::{self, Stored, codec};

/// `409`: the name is that of another object, which may be about to go.
pub(super) fn taken(row: &Resource, storage: &Resource, name: &str, there: Option<&Stored>) -> Status {
    let mut status = Status::already_exists(&row.group, &row.plural, name);
    let there = there.and_then(|there| codec::decode(storage, &there.value, there.revision).ok());
    if there.is_some_and(|there| !meta::text(&there, "deletionTimestamp").is_empty()) {
        status.message = format!("object is being deleted: {}", status.message);
    }
    status
}

/// `409`: somebody else wrote first.
pub fn conflict(row: &Resource, name: &str) -> Status {
    Status::conflict(
        &row.group,
        &row.plural,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

/// A storage failure as clients see it.
pub fn storage_status(error: &storage::Error) -> Status {
    match error {
        storage::Error::Compacted => Status::expired("The resourceVersion for the provided list is too old."),
        storage::Error::Transform { why, .. } => Status::internal(&why.to_string()),
        other => Status::unknown(&other.to_string()),
    }
}

/// The text of a name that does not exist.
pub fn not_found(row: &Resource, name: &str) -> String {
    format!("{} {name:?} not found", qualified(row))
}
