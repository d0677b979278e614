//! Objects in other versions of their kind, for owners whose entries speak of those.

use serde_json::Value;

use super::fieldset::Set;
use super::managed::{Managed, Ownable};
use super::shape::Type;
use super::typed::{self, Comparison};
use crate::schema::Message;

/// A version that an entry of managed fields speaks of.
#[derive(Debug, Clone, Copy)]
pub enum Version<'v> {
    /// Objects are not converted to it: it is taken for the version at hand.
    Same,
    /// It has fields of its own.
    Other(&'v Message),
    /// There is no such version any more.
    Gone,
}

/// The versions of a kind.
pub trait Versions {
    /// What is known of one.
    fn find(&self, api_version: &str) -> Version<'_>;
    /// The object in a version that [`find`](Self::find) knows as another.
    fn convert(&self, object: &Value, api_version: &str) -> Value;
}

/// For whoever knows one version only.
#[derive(Debug, Clone, Copy)]
pub struct One;

impl Versions for One {
    fn find(&self, _: &str) -> Version<'_> {
        Version::Same
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
}

impl<'v> View<'v> {
    /// The version that an entry's version is taken for, and its type; none for one that is gone.
    fn place<'a>(&'a self, api_version: &'a str) -> Option<(&'a str, Type<'a>)> {
        if api_version == self.api_version {
            return Some((self.api_version, Type::Message(self.schema)));
        }
        match self.versions.find(api_version) {
            Version::Same => Some((self.api_version, Type::Message(self.schema))),
            Version::Other(schema) => Some((api_version, Type::Message(schema))),
            Version::Gone => None,
        }
    }

    fn convert(&self, object: &Value, to: &str) -> Value {
        let there = object.get("apiVersion").and_then(Value::as_str).unwrap_or(self.api_version);
        if there == to { object.clone() } else { self.versions.convert(object, to) }
    }

    /// Forgets owners of versions that are gone.
    pub(super) fn forget_gone(&self, managed: &mut Managed) {
        managed.0.retain(|e| self.place(&e.owner.api_version).is_some());
    }

    /// What a write changes, in every version that an entry speaks of; what is not `ownable` is not looked at.
    pub(super) fn changes(&self, managed: &Managed, live: &Value, new: &Value, ownable: &Ownable) -> Changes {
        let own = typed::compare(Type::Message(self.schema), live, new).narrowed(ownable);
        let mut others: Vec<(String, Comparison)> = Vec::new();
        for entry in &managed.0 {
            let Some((version, kind)) = self.place(&entry.owner.api_version) else { continue };
            if version == self.api_version || others.iter().any(|(known, _)| known == version) {
                continue;
            }
            let changes = typed::compare(kind, &self.convert(live, version), &self.convert(new, version));
            others.push((version.to_owned(), changes.narrowed(ownable)));
        }
        Changes { own, others }
    }

    /// Removes what the applier set last time, in the version of that time, and nobody owns any more.
    pub(super) fn prune(&self, merged: Value, managed: &Managed, last: &Set, last_version: &str) -> Value {
        let Some((version, kind)) = self.place(last_version).filter(|_| !last.is_empty()) else { return merged };
        let merged = self.convert(&merged, version);
        let last = typed::with_named_fields(kind, last);
        let mut pruned = typed::remove(kind, &merged, &last);
        // Removing an element takes everything below it: put back what others (or the new configuration) own there.
        for (version, kind, owned) in self.owned(managed, version) {
            let (whole, rest) = (self.convert(&merged, version), self.convert(&pruned, version));
            let named = |set: &Set| typed::with_named_fields(kind, set);
            let keep = named(&typed::to_set(kind, &rest)).union(&named(&owned));
            pruned = typed::remove(kind, &whole, &named(&typed::to_set(kind, &whole)).difference(&keep));
        }
        // And what nobody owns but lay below a removed element whose place stays.
        let named = |value: &Value| typed::with_named_fields(kind, &typed::to_set(kind, value));
        let kept = named(&self.convert(&pruned, version));
        let pruned = typed::remove(kind, &merged, &named(&merged).difference(&kept).intersection(&last));
        self.convert(&pruned, self.api_version)
    }

    /// What is owned, by version, beginning with `first`.
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

/// What a write changes, as each version has it.
pub(super) struct Changes {
    pub own: Comparison,
    others: Vec<(String, Comparison)>,
}

impl Changes {
    /// As an entry of a version sees it.
    pub(super) fn seen_by(&self, api_version: &str) -> &Comparison {
        self.others.iter().find(|(known, _)| known == api_version).map_or(&self.own, |(_, changes)| changes)
    }
}
