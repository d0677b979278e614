//! Who owns which fields: `metadata.managedFields` after a write.

use proto::Value;
use proto::merge::apply::{self, Error, Write, reset_fields};
use proto::resources::Resource;
use proto::schema::Message;
use shared::status::Status;

use super::query::{FieldValidation, WriteOptions};
use crate::negotiate::decode_tree;
use crate::registry::meta;
use crate::storage::codec;

fn record(row: &Resource, subresource: &str, live: &Value, new: &mut Value, manager: &str) {
    let Ok(schema) = codec::served_schema(row) else { return };
    let api_version = row.api_version();
    let reset = reset_fields(&row.group, &row.plural, subresource);
    let now = meta::now();
    let write = Write { manager, api_version: &api_version, subresource, now: &now, reset: &reset };
    apply::update(schema, live, new, &write);
}

/// A new object: everything set belongs to `manager`.
pub fn created(row: &Resource, subresource: &str, object: &mut Value, manager: &str) {
    record(row, subresource, &Value::Null, object, manager);
}

/// A changed object: what changed belongs to `manager` now.
pub fn updated(row: &Resource, subresource: &str, old: &Value, new: &mut Value, manager: &str) {
    record(row, subresource, old, new, manager);
}

fn unknown_fields(schema: &Message, applied: &Value, validation: FieldValidation) -> Result<Vec<String>, Status> {
    // What a custom resource's schema does not know has been refused already.
    if validation == FieldValidation::Ignore || schema.embedded_resource {
        return Ok(Vec::new());
    }
    let found = decode_tree(schema, applied, FieldValidation::Warn).map(|d| d.warnings).unwrap_or_default();
    if validation == FieldValidation::Strict && !found.is_empty() {
        return Err(Status::bad_request(&format!("error strict decoding YAML: {}", found.join(", "))));
    }
    Ok(found)
}

/// Server-side apply. Returns the object, canonical but not defaulted, and warnings.
pub fn applied(
    row: &Resource,
    subresource: &str,
    old: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
) -> Result<(Value, Vec<String>), Status> {
    let schema = codec::served_schema(row).map_err(|e| Status::internal(&e.to_string()))?;
    let api_version = row.api_version();
    let reset = reset_fields(&row.group, &row.plural, subresource);
    let now = meta::now();
    let write =
        Write { manager: &options.field_manager, api_version: &api_version, subresource, now: &now, reset: &reset };
    let mut config = applied.clone();
    if old.is_none() {
        meta::set_text(&mut config, "resourceVersion", "");
    }
    let outcome =
        apply::apply(schema, old.unwrap_or(&Value::Null), &config, &write, options.force).map_err(|e| match e {
            Error::BadRequest(text) => Status::bad_request(&text),
            Error::Unknown(text) => Status::unknown(&text),
            Error::Conflicts(conflicts) => {
                let message = Error::Conflicts(conflicts.clone()).to_string();
                let pairs: Vec<(String, String)> =
                    conflicts.into_iter().map(|c| (format!("conflict with {}", c.owner), c.field)).collect();
                let mut status = Status::apply_conflict(&pairs);
                status.message = message;
                status
            }
        })?;
    let warnings = unknown_fields(schema, applied, options.field_validation)?;
    Ok((outcome.object, warnings))
}
