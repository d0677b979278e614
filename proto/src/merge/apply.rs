//! Server-side apply, and the ownership bookkeeping of every other write.
//!
//! Answers for upstream's field managers: the merge itself, conflicts, fields given up by their applier, and the
//! hand-over from client-side apply. What entries of other versions of the same kind own is compared in their version.

use std::borrow::Cow;

use serde_json::Value;

pub use super::error::{ConfigureError, Conflict, Error, ManagedFieldsError, TypeMismatch, VersionError};
use super::fieldset::{Element, Set, StoredFields, path_text};
pub use super::managed::{Compared, Ownable, complaint, keep_timestamps, manager_name, strip};
use super::managed::{
    Decoded, Entry, Managed, Owner, describe, entries, gvk, last_applied, sync_last_applied, take, unowned,
};
use super::shape::Type;
use super::typed;
pub use super::versions::{FieldsVersion, One, Versions};
use super::versions::{VersionedChanges, View};
use crate::json::{self, Strictness};
use crate::schema::zero;
use crate::schema::{Field, Gvk, Message};

/// Owner of what was there before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The one manager that takes over from client-side apply.
const KUBECTL: &str = "kubectl";

/// One write.
#[derive(Clone)]
pub struct Write<'a> {
    /// Field manager, see [`manager_name`].
    pub manager: &'a str,
    /// `apiVersion` of the request.
    pub api_version: &'a str,
    /// Subresource, empty for the resource itself.
    pub subresource: &'a str,
    /// The time as the entries hold it.
    pub now: &'a str,
    /// Fields that this write can own.
    pub ownable: &'a Ownable,
    /// The versions of the kind.
    pub versions: &'a dyn Versions,
}

/// Result of an apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The object with its managed fields, canonical but not defaulted.
    pub object: Value,
    /// Something besides ownership changed.
    pub changed: bool,
}

impl Write<'_> {
    fn view<'v>(&'v self, schema: &'v Message) -> View<'v> {
        View { schema, api_version: self.api_version, versions: self.versions, main: self.subresource.is_empty() }
    }

    fn owner(&self, applied: bool) -> Owner {
        let manager = if self.manager.is_empty() { "unknown" } else { self.manager };
        Owner {
            applied,
            manager: manager.to_owned(),
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }
}

/// The live object, or the empty one of its type that upstream's ownership starts from.
fn present<'v>(schema: &Message, live: &'v Value) -> Cow<'v, Value> {
    match live.is_object() {
        true => Cow::Borrowed(live),
        false => Cow::Owned(zero::value(&zero::Zero::Struct(schema)).unwrap_or_default()),
    }
}

/// Records who changed what in a create, update, patch or status write. `live` is null on create. The new object must
/// be canonical and defaulted; its managed fields, if any, replace the live ones (not through subresources).
pub fn update(schema: &Message, live: &Value, new: &mut Value, write: &Write<'_>) {
    let sent = take(new).filter(|_| write.subresource.is_empty()).map_or(Decoded::Unusable, |sent| {
        // Most writes send back what they read.
        let stored = entries(live) == Some(&sent);
        Managed::read(sent, stored)
    });
    let managed = match sent {
        Decoded::Managed(managed) => managed,
        Decoded::Reset => Managed::default(),
        Decoded::Unusable => match Managed::decode(live) {
            Decoded::Managed(managed) => managed,
            _ => Managed::default(),
        },
    };
    let exists = live.get("metadata").and_then(|m| m.get("uid")).and_then(Value::as_str).is_some_and(|u| !u.is_empty());
    if managed.0.is_empty() && exists {
        return;
    }
    let fits = schema.has_protobuf || (is_of(schema, new) && is_of(schema, live));
    if !fits {
        return;
    }
    // Owners who cannot be told what changed are forgotten, all of them.
    if let Ok(mut managed) = record(schema, live, new, managed, write, &write.owner(false)) {
        managed.cap();
        managed.encode(new);
    }
}

/// Reports whether an object, if any, conforms to its schema. Objects of built-in kinds always do: they were decoded by
/// it.
fn is_of(schema: &Message, object: &Value) -> bool {
    let Some(kind) = &schema.gvk else { return true };
    if !object.is_object() || gvk(object) == print_kind(kind) {
        return typed::fits(Type::Message(schema), object);
    }
    // Another version of it is converted.
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
    (group, text("kind")) == (&*kind.group, &*kind.kind)
}

fn print_kind(kind: &Gvk) -> String {
    format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind)
}

fn record(
    schema: &Message,
    live: &Value,
    new: &Value,
    mut managed: Managed,
    write: &Write<'_>,
    owner: &Owner,
) -> Result<Managed, VersionError> {
    let live = &*present(schema, live);
    let view = write.view(schema);
    view.reconcile(&mut managed, live)?;
    let mut changes = view.changes(&managed, live, new, write.ownable)?;
    // Where nobody owns anything, nobody has to know what was added.
    let nobody = managed.0.is_empty();
    let mut set = if nobody { std::mem::take(&mut changes.own.added) } else { changes.own.added.clone() };
    set.extend(&changes.own.modified);
    let nobodys = set.touches(unowned());
    set.subtract(unowned());
    let time = Some(write.now.to_owned());
    // Who owns already what he changes, and gives nothing up, owns the same afterwards.
    let same =
        |own: &StoredFields| !nobodys && !set.is_empty() && own.contains(&set) && !own.touches(&changes.own.removed);
    if let Some(own) = managed.0.iter_mut().find(|e| e.owner == *owner && same(&e.set)) {
        own.time = time;
        release(&mut managed, &changes, Some(owner));
        return Ok(managed);
    }
    release(&mut managed, &changes, None);
    if !set.is_empty() {
        if let Some(old) = managed.find(owner) {
            set.extend(old.set.set());
        }
        managed.put(Entry { owner: owner.clone(), set: set.into(), time });
    }
    Ok(managed)
}

/// Takes changed and removed fields from their owners.
fn release(managed: &mut Managed, changes: &VersionedChanges, except: Option<&Owner>) {
    for entry in managed.0.iter_mut().filter(|e| Some(&e.owner) != except) {
        let changes = changes.seen_by(&entry.owner.api_version);
        for gone in [&changes.modified, &changes.added, &changes.removed] {
            entry.set.subtract(gone);
        }
    }
    managed.drop_empty();
}

/// Applies a configuration to the live object (null when it is to be created).
///
/// # Errors
/// [`Error`]; nothing is changed then.
pub fn apply(schema: &Message, live: &Value, config: &Value, write: &Write<'_>, force: bool) -> Result<Applied, Error> {
    if schema.gvk.as_ref().is_some_and(|kind| print_kind(kind) != gvk(config)) {
        return Err(Error::ObjectType(gvk(config)));
    }
    if config.get("metadata").and_then(|m| m.get("managedFields")).is_some_and(|m| !m.is_null()) {
        return Err(Error::ManagedFields);
    }
    typed::check(Type::Message(schema), config)
        .map_err(|source| Error::Configuration { object: describe(config), source })?;
    let mut managed = match Managed::decode(live) {
        Decoded::Managed(managed) => managed,
        _ => Managed::default(),
    };
    let live = &*present(schema, live);
    if managed.0.is_empty() {
        let first = Owner { manager: BEFORE_FIRST_APPLY.to_owned(), ..write.owner(false) };
        managed = record(schema, &Value::Null, live, managed, write, &first)?;
    }
    write.view(schema).reconcile(&mut managed, live)?;
    let again = (write.manager == KUBECTL && !force).then(|| managed.clone());
    let outcome = match (attempt(schema, live, config, managed, write, force), again) {
        (Err(ApplyFailure::Conflicts(found)), Some(managed)) => {
            let allowed = taken_over(schema, live);
            let rest: Vec<Owned> = found.into_iter().filter(|o| !allowed.has(&o.path)).collect();
            if rest.is_empty() {
                attempt(schema, live, config, managed, write, true)
            } else {
                Err(ApplyFailure::Conflicts(rest))
            }
        }
        (other, _) => other,
    };
    let mut applied = outcome.map_err(|failure| match failure {
        ApplyFailure::Failed(error) => error,
        ApplyFailure::Conflicts(found) => Error::Conflicts(
            found.into_iter().map(|o| Conflict { owner: o.owner, field: path_text(&o.path) }).collect(),
        ),
    })?;
    if write.manager == KUBECTL && write.subresource.is_empty() && last_applied(&applied.object).is_some() {
        sync_last_applied(&mut applied.object, config);
    }
    Ok(applied)
}

/// Merges a configuration into an object without a thought of ownership, as policies do. What would be replaced as a
/// whole cannot be set: whoever names one field of it would take away the others.
///
/// # Errors
/// [`ConfigureError`].
pub fn configure(schema: &Message, live: &Value, config: &Value) -> Result<Value, ConfigureError> {
    let kind = Type::Message(schema);
    typed::check(kind, config).map_err(ConfigureError::Configuration)?;
    let atomic = typed::atomic_places(kind, config);
    if !atomic.is_empty() {
        return Err(ConfigureError::Atomic(atomic));
    }
    typed::check(kind, live).map_err(ConfigureError::Original)?;
    let mut merged = typed::merge(kind, live, config);
    json::decode_touched(schema, &mut merged, config, Strictness::Ignore).map_err(ConfigureError::Merged)?;
    Ok(merged)
}

/// The fields client-side apply set and nobody changed since: `kubectl apply --server-side` may take them.
fn taken_over(schema: &Message, live: &Value) -> Set {
    let last: Option<Value> = last_applied(live).and_then(|text| serde_json::from_str(text).ok());
    let Some(last) = last.filter(|l| typed::check(Type::Message(schema), l).is_ok()) else { return Set::new() };
    let changes = typed::compare(Type::Message(schema), &last, live);
    let set = typed::to_set(Type::Message(schema), &last);
    set.difference(&changes.modified).difference(&changes.added).difference(&changes.removed)
}

struct Owned {
    owner: String,
    path: Vec<Element>,
}

enum ApplyFailure {
    Failed(Error),
    Conflicts(Vec<Owned>),
}

/// The fields of others that would be changed, by owner.
fn conflicts(managed: &Managed, owner: &Owner, changes: &VersionedChanges) -> Vec<Owned> {
    let mut conflicts = Vec::new();
    for entry in managed.0.iter().filter(|e| e.owner != *owner) {
        let changes = changes.seen_by(&entry.owner.api_version);
        if !entry.set.touches(&changes.modified) && !entry.set.touches(&changes.added) {
            continue;
        }
        let gained = changes.modified.union(&changes.added);
        let described = entry.owner.describe();
        let paths = entry.set.set().intersection(&gained).paths();
        conflicts.extend(paths.into_iter().map(|path| Owned { owner: described.clone(), path }));
    }
    conflicts.sort_by(|a, b| a.owner.cmp(&b.owner));
    conflicts
}

fn attempt(
    schema: &Message,
    live: &Value,
    config: &Value,
    mut managed: Managed,
    write: &Write<'_>,
    force: bool,
) -> Result<Applied, ApplyFailure> {
    let kind = Type::Message(schema);
    let view = write.view(schema);
    let owner = write.owner(true);
    let merged = typed::merge(kind, live, config);
    let last = managed.find(&owner).cloned();
    let mut set = typed::to_set(kind, config);
    write.ownable.narrow(&mut set);
    let time = last.as_ref().and_then(|e| e.time.clone());
    let last_version = last.as_ref().map(|e| e.owner.api_version.clone()).unwrap_or_default();
    let mut last = last.map(|e| e.set.into_set()).unwrap_or_default();
    write.ownable.narrow(&mut last);
    // Who sets everything again gives nothing up.
    let keeps = last_version == write.api_version && last.difference(&set).is_empty();
    managed.put(Entry { owner: owner.clone(), set: set.into(), time });
    let failed = |e| ApplyFailure::Failed(Error::Prune(e));
    let pruned = if keeps { Ok(merged) } else { view.prune(merged, &managed, &last, &last_version).map_err(failed) };
    let mut pruned = pruned?;

    let changes = view.changes(&managed, live, &pruned, write.ownable).map_err(|e| ApplyFailure::Failed(e.into()))?;
    if !force {
        let conflicts = conflicts(&managed, &owner, &changes);
        if !conflicts.is_empty() {
            return Err(ApplyFailure::Conflicts(conflicts));
        }
    }
    release(&mut managed, &changes, Some(&owner));
    let changed = !changes.own.is_same();
    if let Some(entry) = managed.0.iter_mut().find(|e| e.owner == owner) {
        entry.set.subtract(unowned());
        if changed {
            entry.time = Some(write.now.to_owned());
        }
    }
    managed.drop_empty();
    let mut object = if changed {
        strip(&mut pruned);
        let touched = if keeps { config } else { &Value::Null };
        settle(schema, &mut pruned, touched).map_err(|e| ApplyFailure::Failed(e.into()))?;
        pruned
    } else {
        live.clone()
    };
    strip(&mut object);
    managed.encode(&mut object);
    Ok(Applied { object, changed })
}

/// Brings a merged object into canonical form. Of a custom one only the metadata has a Go type: what was emptied stays
/// null, about which its schema has a say.
fn settle(schema: &Message, merged: &mut Value, touched: &Value) -> Result<(), json::DecodeError> {
    if !schema.embedded_resource {
        return json::decode_touched(schema, merged, touched, Strictness::Ignore).map(drop);
    }
    let meta = schema.field("metadata").and_then(Field::message);
    let (Some(meta), Some(there)) = (meta, merged.get_mut("metadata")) else { return Ok(()) };
    let touched = touched.get("metadata").unwrap_or(&Value::Null);
    json::decode_touched(meta, there, touched, Strictness::Ignore).map(drop)
}

#[cfg(test)]
mod tests;
