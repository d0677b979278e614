//! Field management: `metadata.managedFields` after a write. Answers for upstream's
//! `pkg/endpoints/handlers/fieldmanager`.

use std::borrow::Cow;

use proto::Value;
use proto::merge::apply::{self, Error, One, Ownable, Versions, Write};
use proto::merge::fieldset::Set;
use proto::resources::Resource;
use proto::schema::{self, Message};
use shared::status::Status;

use super::version_converter::{Conversions, VersionConverter};
use crate::machinery::meta;
use crate::machinery::query::WriteOptions;
use crate::registry::ownership::ownable;
use crate::rows::Rows;
use crate::storage::codec;

fn record(versions: &dyn Versions, row: &Resource, subresource: &str, live: &Value, new: &mut Value, manager: &str) {
    let Ok(schema) = codec::served_schema(row) else { return };
    let api_version = row.api_version();
    let ownable = ownable(row, subresource);
    let now = meta::now();
    let write = Write { manager, api_version: &api_version, subresource, now: &now, ownable: &ownable, versions };
    apply::update(schema, live, new, &write);
}

/// A new object: everything set belongs to `manager`.
pub fn created(row: &Resource, subresource: &str, object: &mut Value, manager: &str) {
    record(&One, row, subresource, &Value::Null, object, manager);
}

/// The kind that a write is about: what is served, the row of the request, and what webhooks make of its objects.
#[derive(Clone, Copy)]
pub struct WrittenKind<'a> {
    /// See there.
    pub rows: &'a Rows,
    /// See there.
    pub row: &'a Resource,
    /// See there.
    pub conversions: Option<&'a Conversions>,
}

/// A changed object: what changed belongs to `manager` now.
pub fn updated(kind: WrittenKind<'_>, subresource: &str, old: &Value, new: &mut Value, manager: &str) {
    let kin = VersionConverter::of(kind, [old, new]);
    record(&kin, kind.row, subresource, old, new, manager);
}

/// Server-side apply. Returns the object, canonical but not defaulted.
pub fn applied(
    kind: WrittenKind<'_>,
    subresource: &str,
    old: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
) -> Result<Value, Status> {
    let row = kind.row;
    let schema = codec::served_schema(row).map_err(|e| Status::internal(&e.to_string()))?;
    let mut config = Cow::Borrowed(applied);
    if old.is_none() {
        meta::set_text(config.to_mut(), "resourceVersion", "");
    }
    let old = old.unwrap_or(&Value::Null);
    let (kin, api_version) = (VersionConverter::of(kind, [old, old]), row.api_version());
    let ownable = ownable(row, subresource);
    let now = meta::now();
    let manager = &options.field_manager;
    let write = Write { manager, api_version: &api_version, subresource, now: &now, ownable: &ownable, versions: &kin };
    let applied = apply_as(schema, old, &config, &write, options);
    match kin.failure() {
        Some(why) if applied.as_ref().err().is_none_or(|refused| refused.code == 409) => Err(Status::unknown(&why)),
        _ => applied,
    }
}

/// Updates managed fields in terms of a Scale.
fn of_scale<T>(manager: &str, write: impl FnOnce(&Message, &Write<'_>) -> Result<T, Status>) -> Result<T, Status> {
    let schema = schema::kind("autoscaling", "v1", "Scale").ok_or_else(Status::generic_not_found)?;
    let ownable = Ownable::Except(Set::of_fields(&[&["status"]]));
    let (now, api_version, subresource) = (meta::now(), "autoscaling/v1", "scale");
    write(schema, &Write { manager, api_version, subresource, now: &now, ownable: &ownable, versions: &One })
}

/// A changed Scale: replicas that changed belong to `manager` now.
pub fn updated_scale(old: &Value, new: &mut Value, manager: &str) -> Result<(), Status> {
    of_scale(manager, |schema, write| {
        apply::update(schema, old, new, write);
        Ok(())
    })
}

/// Server-side apply of a Scale.
pub fn applied_scale(old: &Value, applied: &Value, options: &WriteOptions) -> Result<Value, Status> {
    of_scale(&options.field_manager, |schema, write| apply_as(schema, old, applied, write, options))
}

fn apply_as(
    schema: &Message,
    old: &Value,
    config: &Value,
    write: &Write<'_>,
    options: &WriteOptions,
) -> Result<Value, Status> {
    let outcome = apply::apply(schema, old, config, write, options.force).map_err(|e| {
        let message = e.to_string();
        match e {
            Error::Conflicts(conflicts) => {
                let pairs: Vec<(String, String)> =
                    conflicts.into_iter().map(|c| (format!("conflict with {}", c.owner), c.field)).collect();
                let mut status = Status::apply_conflict(&pairs);
                status.message = message;
                status
            }
            refused if refused.is_bad_request() => Status::bad_request(&message),
            _ => Status::unknown(&message),
        }
    })?;
    Ok(outcome.object)
}
