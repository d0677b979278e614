//! Errors of server-side apply and of managed fields. Texts are upstream's.

use thiserror::Error;

use crate::json::DecodeError;
use crate::selector::format::quote;

/// Places of a tree that do not conform to its type: `.spec.x: field not declared in schema`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", listed(.0))]
pub struct TypeMismatch(pub(super) Vec<String>);

fn listed(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    }
}

/// Errors of identifying an element of an associative list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ElementError {
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    #[error("associative list with keys may not have a null element")]
    NullWithKeys,
    #[error("associative list with keys may not have non-map elements")]
    ScalarWithKeys,
    /// None of the keys, quoted and separated by blanks, is there.
    #[error(
        "associative list with keys has an element that omits all key fields [{0}] (and doesn't have default values for any key fields)"
    )]
    NoKeys(String),
}

/// Errors of reading an object's managed fields.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ManagedFieldsError {
    /// An entry's operation is another.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry has no version.
    #[error("apiVersion must not be empty")]
    NoVersion,
    /// The entry at this index does not say which form its fields have.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// Fields in a form that nobody knows.
    #[error("invalid fieldsType {} in managed fields entry {index}", quote(.fields_type))]
    FieldsType {
        /// Name of the form.
        fields_type: String,
        /// Index of the entry.
        index: usize,
    },
    /// Fields that are no set.
    #[error("error decoding versioned set from {0}")]
    Fields(String),
}

/// Errors of bringing an object into another version of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VersionError {
    /// There is no way to the version, and why.
    #[error("{0}")]
    Lost(String),
    /// The version does not know all that the object holds.
    #[error(transparent)]
    Mismatch(#[from] TypeMismatch),
    /// Mismatch of the object before the write.
    #[error("failed to convert old object: {0}")]
    Old(#[source] TypeMismatch),
    /// Mismatch of the object after the write.
    #[error("failed to convert new object: {0}")]
    New(#[source] TypeMismatch),
    /// Mismatch of the merged object in the version that was applied last.
    #[error("failed to convert merged object to last applied version: {0}")]
    Merged(#[source] TypeMismatch),
    /// Mismatch of an object in the version of another owner.
    #[error("failed add back owned items: failed to convert {object} object at version {version}: {source}")]
    AddBack {
        /// `merged` or `pruned`.
        object: &'static str,
        /// Version of the other owner.
        version: String,
        /// Places that the version does not know.
        source: TypeMismatch,
    },
    /// Mismatch of the pruned object in the version that was applied last.
    #[error("failed add back dangling items: failed to convert pruned object to last applied version: {0}")]
    Dangling(#[source] TypeMismatch),
}

/// A field that somebody else owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner as messages name it: `"x" using v1`.
    pub owner: String,
    /// The field: `.spec.replicas`.
    pub field: String,
}

/// Errors of an apply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The configuration is of another type, described here (400).
    #[error("invalid object type: {0}")]
    ObjectType(String),
    /// The configuration says who owns fields (400).
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The configuration does not conform to its type (500 without a reason).
    #[error("failed to create typed patch object ({object}): {source}")]
    Configuration {
        /// The object as messages name it.
        object: String,
        /// Places that do not conform.
        source: TypeMismatch,
    },
    /// The object cannot be brought into the version of an owner (500 without a reason).
    #[error(transparent)]
    Version(#[from] VersionError),
    /// Failed removal of the fields that the applier gave up (500 without a reason).
    #[error("failed to prune fields: {0}")]
    Prune(#[source] VersionError),
    /// The merged object cannot be read (500 without a reason).
    #[error(transparent)]
    Merged(#[from] DecodeError),
    /// Somebody else owns fields (409).
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
}

impl Error {
    /// Reports whether the client has to change its request (400).
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        matches!(self, Self::ObjectType(_) | Self::ManagedFields)
    }
}

/// Upstream's message about conflicts.
fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.owner, one.field);
    }
    let mut owners: Vec<&str> = conflicts.iter().map(|c| c.owner.as_str()).collect();
    owners.sort_unstable();
    owners.dedup();
    let mut lines = Vec::new();
    for owner in owners {
        lines.push(format!("conflicts with {owner}:"));
        lines.extend(conflicts.iter().filter(|c| c.owner == owner).map(|c| format!("- {}", c.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Errors of merging a configuration into an object without ownership.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigureError {
    /// The configuration does not conform to its type.
    #[error("failed to convert patch object to typed object: {0}")]
    Configuration(#[source] TypeMismatch),
    /// The configuration sets places that are replaced as a whole.
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}", .0.join(", "))]
    Atomic(Vec<String>),
    /// The object does not conform to its type.
    #[error("failed to convert original object to typed object: {0}")]
    Original(#[source] TypeMismatch),
    /// The merged object cannot be read.
    #[error("failed to convert typed object to object: {0}")]
    Merged(#[source] DecodeError),
}
