//! Preconditions of a write on the stored object. Answers for upstream's `Preconditions.Check`.

use proto::Value;
use shared::status::{Status, field};

use super::engine::{DeleteOptions, WriteTarget, conflict};
use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::registry::apiextensions::custom_resource_definition::CUSTOM_RESOURCE_DEFINITIONS;
use crate::registry::behavior;
use crate::registry::core::namespace::NAMESPACES;
use crate::registry::strategy::Strategy;

/// A write on another revision than the stored one fails.
pub(super) fn check_revision(t: &WriteTarget<'_>, strategy: &Strategy, new: &Value, stored: i64) -> Result<(), Status> {
    let asked = meta::revision(new).map_err(|e| Status::unknown(&e.to_string()))?;
    if asked == 0 && !strategy.unconditional_update {
        let e = field::Error::invalid(
            field::Path::new("metadata").child("resourceVersion"),
            Value::from(0),
            "must be specified for an update",
        );
        let kind = behavior(t.row).update_error_kind(t.row);
        return Err(Status::invalid(&t.row.group, kind, t.name, vec![e]));
    }
    if asked != 0 && asked != stored {
        return Err(conflict(t.row, t.name));
    }
    Ok(())
}

/// Checks the preconditions of a delete: uid and resource version.
pub fn check_preconditions(t: &WriteTarget<'_>, options: &DeleteOptions, object: &Value) -> Result<(), Status> {
    for (what, key, asked, since) in [
        ("UID", "uid", &options.uid, "deleted and then recreated"),
        ("ResourceVersion", "resourceVersion", &options.resource_version, "modified"),
    ] {
        let there = meta::text(object, key);
        let Some(asked) = asked.as_ref().filter(|asked| *asked != there) else { continue };
        if names_resource(&t.row.group, &t.row.plural) {
            let why = format!("Precondition failed: {what} in precondition: {asked}, {what} in object meta: {there}");
            return Err(Status::conflict(&t.row.group, &t.row.plural, t.name, &why));
        }
        let why = format!(
            "the {what} in the precondition ({asked}) does not match the {what} in record ({there}). The object might have been {since}"
        );
        return Err(Status::conflict(&t.row.group, &t.row.kind, t.name, &why));
    }
    Ok(())
}

/// Refused deletes name the kind, but for those that go in steps of their own.
fn names_resource(group: &str, plural: &str) -> bool {
    matches!(GroupResource::new(group, plural), NAMESPACES | CUSTOM_RESOURCE_DEFINITIONS)
}
