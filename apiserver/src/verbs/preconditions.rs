//! What a write asks of the object as it is stored.

use proto::Value;
use shared::status::{Status, field};

use super::engine::{DeleteOptions, Target, conflict};
use crate::registry::meta;
use crate::registry::strategy::Strategy;

/// A write on another revision than the stored one fails.
pub(super) fn check_revision(t: &Target<'_>, strategy: &Strategy, new: &Value, stored: i64) -> Result<(), Status> {
    let asked = meta::revision(new).map_err(|e| Status::unknown(&e))?;
    if asked == 0 && !strategy.unconditional_update {
        let e = field::Error::invalid(
            field::Path::new("metadata").child("resourceVersion"),
            Value::from(0),
            "must be specified for an update",
        );
        // Upstream names the resource where the kind is not compiled in.
        let kind = if t.row.custom.is_some() { &t.row.plural } else { &t.row.kind };
        return Err(Status::invalid(&t.row.group, kind, t.name, vec![e]));
    }
    if asked != 0 && asked != stored {
        return Err(conflict(t.row, t.name));
    }
    Ok(())
}

/// What a delete asks of the object it is about.
pub fn check_preconditions(t: &Target<'_>, options: &DeleteOptions, object: &Value) -> Result<(), Status> {
    // These two name the kind, not the resource.
    if let Some(uid) = &options.uid {
        let there = meta::text(object, "uid");
        if uid != there {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({there}). The object might have been deleted and then recreated"
            );
            return Err(Status::conflict(&t.row.group, &t.row.kind, t.name, &why));
        }
    }
    if let Some(revision) = &options.resource_version {
        let there = meta::text(object, "resourceVersion");
        if revision != there {
            let why = format!(
                "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record ({there}). The object might have been modified"
            );
            return Err(Status::conflict(&t.row.group, &t.row.kind, t.name, &why));
        }
    }
    Ok(())
}
