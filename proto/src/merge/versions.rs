//! Objects in other versions of their kind, for owners whose entries speak of those.

use serde_json::Value;

use super::error::{TypeMismatch, VersionError};
use super::fieldset::Set;
use super::managed::{Entry, Managed, Ownable};
use super::reconcile::reconcile;
use super::shape::Type;
use super::typed::{self, Comparison};
use crate::schema::Message;

/// A version that an entry of managed fields speaks of.
#[derive(Debug, Clone)]
pub enum FieldsVersion<'v> {
    /// Objects are not converted to it: it is taken for the version at hand.
    Same,
    /// A version with its own schema.
    Other(&'v Message),
    /// There is no such version any more.
    Gone,
    /// Objects cannot be brought into it, and why.
    Lost(String),
}

/// The versions of a kind.
pub trait Versions {
    /// Finds the schema of a version.
    fn find(&self, api_version: &str) -> FieldsVersion<'_>;
    /// The object in a version that [`find`](Self::find) knows as another.
    fn convert(&self, object: &Value, api_version: &str) -> Value;
}

/// For whoever knows one version only.
#[derive(Debug, Clone, Copy)]
pub struct One;

impl Versions for One {
    fn find(&self, _: &str) -> FieldsVersion<'_> {
        FieldsVersion::Same
    }

    fn convert(&self, object: &Value, _: &str) -> Value {
        object.clone()
    }
}

/// The kind as a write sees it: in the version at hand, and in others.
#[derive(Clone, Copy)]
pub(super) struct View<'v> {
    pub schema: &'v Message,
    pub api_version: &'v str,
    pub versions: &'v dyn Versions,
    /// The write is not through a subresource.
    pub main: bool,
}

impl<'v> View<'v> {
    /// The version that an entry's version is taken for, and its type; none for one that is gone.
    fn place<'a>(&'a self, api_version: &'a str) -> Option<(&'a str, Type<'a>)> {
        if api_version == self.api_version {
            return Some((self.api_version, Type::Message(self.schema)));
        }
        match self.versions.find(api_version) {
            FieldsVersion::Same => Some((self.api_version, Type::Message(self.schema))),
            FieldsVersion::Other(schema) => Some((api_version, Type::Message(schema))),
            FieldsVersion::Gone | FieldsVersion::Lost(_) => None,
        }
    }

    /// The object in a version, which must know all that it holds.
    fn convert(&self, object: &Value, to: &str, kind: Type<'_>) -> Result<Value, TypeMismatch> {
        let there = object.get("apiVersion").and_then(Value::as_str).unwrap_or(self.api_version);
        if there == to {
            return Ok(object.clone());
        }
        let converted = self.versions.convert(object, to);
        typed::check(kind, &converted)?;
        Ok(converted)
    }

    /// Forgets owners of versions that are gone, and brings what the others own up to date with their schemas.
    ///
    /// # Errors
    /// The live object cannot be brought into the version of another owner.
    pub(super) fn reconcile(&self, managed: &mut Managed, live: &Value) -> Result<(), VersionError> {
        self.reach_others(managed, live)?;
        for Entry { owner, set, .. } in &mut managed.0 {
            if let Some((_, kind)) = self.place(&owner.api_version) {
                reconcile(kind, set);
            }
        }
        Ok(())
    }

    fn reach_others(&self, managed: &mut Managed, live: &Value) -> Result<(), VersionError> {
        if managed.0.iter().all(|e| e.owner.api_version == self.api_version) {
            return Ok(());
        }
        managed.0.retain(|e| !matches!(self.find(&e.owner.api_version), FieldsVersion::Gone));
        let mut others: Vec<&str> = managed.0.iter().map(|e| e.owner.api_version.as_str()).collect();
        others.sort_unstable();
        others.dedup();
        let reached = |version: &&str| match self.find(version) {
            FieldsVersion::Lost(why) => Err(VersionError::Lost(why)),
            FieldsVersion::Other(schema) => Ok(self.convert(live, version, Type::Message(schema)).map(drop)?),
            FieldsVersion::Same | FieldsVersion::Gone => Ok(()),
        };
        // All are looked at before any is judged: what only others know is asked for at once.
        let outcomes: Vec<Result<(), VersionError>> = others.iter().map(reached).collect();
        outcomes.into_iter().collect()
    }

    fn find(&self, api_version: &str) -> FieldsVersion<'v> {
        if api_version == self.api_version { FieldsVersion::Same } else { self.versions.find(api_version) }
    }

    /// Compares a write in every version of the entries; fields that are not `ownable` are ignored.
    ///
    /// # Errors
    /// One of the objects cannot be brought into such a version.
    pub(super) fn changes(
        &self,
        managed: &Managed,
        live: &Value,
        new: &Value,
        ownable: &Ownable,
    ) -> Result<VersionedChanges, VersionError> {
        let own = typed::compare(Type::Message(self.schema), live, new).narrowed(ownable);
        let mut others: Vec<(String, Comparison)> = Vec::new();
        for entry in &managed.0 {
            let Some((version, kind)) = self.place(&entry.owner.api_version) else { continue };
            if version == self.api_version || others.iter().any(|(known, _)| known == version) {
                continue;
            }
            let before = self.convert(live, version, kind).map_err(VersionError::Old)?;
            let after = self.convert(new, version, kind).map_err(VersionError::New)?;
            let changes = typed::compare(kind, &before, &after);
            // That a write of a custom object leaves its status alone, upstream knows for the version at hand only.
            let heard = self.schema.has_protobuf || !self.main;
            others.push((version.to_owned(), if heard { changes.narrowed(ownable) } else { changes }));
        }
        Ok(VersionedChanges { own, others })
    }

    /// Removes what the applier set last time, in the version of that time, and nobody owns any more.
    ///
    /// # Errors
    /// The object cannot be brought into a version on the way.
    pub(super) fn prune(
        &self,
        merged: Value,
        managed: &Managed,
        last: &Set,
        last_version: &str,
    ) -> Result<Value, VersionError> {
        let Some((version, kind)) = self.place(last_version).filter(|_| !last.is_empty()) else { return Ok(merged) };
        let merged = self.convert(&merged, version, kind).map_err(VersionError::Merged)?;
        let last = typed::with_named_fields(kind, last);
        let mut pruned = typed::remove(kind, &merged, &last);
        // Removing an element takes everything below it: put back what others (or the new configuration) own there.
        for (version, kind, owned) in self.owned(managed, version) {
            let [whole, rest] = [("merged", &merged), ("pruned", &pruned)].map(|(object, tree)| {
                let add_back = |source| VersionError::AddBack { object, version: version.to_owned(), source };
                self.convert(tree, version, kind).map_err(add_back)
            });
            let (whole, rest) = (whole?, rest?);
            let named = |set: &Set| typed::with_named_fields(kind, set);
            let keep = named(&typed::to_set(kind, &rest)).union(&named(&owned));
            pruned = typed::remove(kind, &whole, &named(&typed::to_set(kind, &whole)).difference(&keep));
        }
        // And what nobody owns but lay below a removed element whose place stays.
        let named = |value: &Value| typed::with_named_fields(kind, &typed::to_set(kind, value));
        let kept = named(&self.convert(&pruned, version, kind).map_err(VersionError::Dangling)?);
        let pruned = typed::remove(kind, &merged, &named(&merged).difference(&kept).intersection(&last));
        Ok(self.convert(&pruned, self.api_version, Type::Message(self.schema))?)
    }

    /// Owned fields by version, starting with `first`.
    fn owned<'a>(&'a self, managed: &'a Managed, first: &'a str) -> Vec<(&'a str, Type<'a>, Set)> {
        let mut all: Vec<(&str, Type<'_>, Set)> =
            self.place(first).into_iter().map(|(version, kind)| (version, kind, Set::new())).collect();
        for entry in &managed.0 {
            let Some((version, kind)) = self.place(&entry.owner.api_version) else { continue };
            match all.iter_mut().find(|(known, ..)| *known == version) {
                Some((_, _, set)) => set.extend(entry.set.set()),
                None => all.push((version, kind, entry.set.set().clone())),
            }
        }
        all
    }
}

/// Changes of a write in each version.
pub(super) struct VersionedChanges {
    pub own: Comparison,
    others: Vec<(String, Comparison)>,
}

impl VersionedChanges {
    /// Changes in the version of an entry.
    pub(super) fn seen_by(&self, api_version: &str) -> &Comparison {
        self.others.iter().find(|(known, _)| known == api_version).map_or(&self.own, |(_, changes)| changes)
    }
}
