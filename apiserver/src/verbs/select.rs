//! Selectors of a request as a filter over cached entries.

use std::sync::Arc;

use proto::resources::{Resource, Row};
use proto::selector::{FieldSelector, Operator, Selector};
use shared::status::Status;

use crate::cache::{Entry, Filter, IndexKey, Term, Trigger};
use crate::machinery::query::Query;
use crate::registry::behavior;
use crate::registry::fields::{self, FieldSource};

/// The selectors of a request.
#[derive(Clone)]
pub struct Selection {
    labels: Selector,
    fields: Vec<(FieldSource, bool, String)>,
}

impl Selection {
    /// Reads `labelSelector` and `fieldSelector`.
    pub fn read(query: &Query, row: &Resource) -> Result<Self, Status> {
        Self::read_checking(query, row, || Ok(()))
    }

    /// Reads the selectors of a query, running upstream's checks between parsing the selectors and looking at the
    /// fields that they name.
    pub fn read_checking(
        query: &Query,
        row: &Resource,
        check: impl FnOnce() -> Result<(), Status>,
    ) -> Result<Self, Status> {
        let bad = |e: String| Status::bad_request(&e);
        let labels = match query.get("labelSelector") {
            None | Some("") => Selector::everything(),
            Some(text) => Selector::parse(text).map_err(|e| bad(e.to_string()))?,
        };
        let parsed = FieldSelector::parse(query.get("fieldSelector").unwrap_or("")).map_err(|e| bad(e.to_string()))?;
        check()?;
        let mut terms = Vec::new();
        for t in parsed.terms() {
            let place = fields::resolve_for(row, &t.field).map_err(|e| bad(e.to_string()))?;
            terms.push((place, t.equal, t.value.clone()));
        }
        Ok(Self { labels, fields: terms })
    }

    /// Selects every object.
    pub fn everything() -> Self {
        Self { labels: Selector::everything(), fields: Vec::new() }
    }

    /// Only this name, which conditions on fields must say as well.
    pub fn named(mut self, name: &str) -> Result<Self, Status> {
        if self.fields.is_empty() {
            self.fields.push((FieldSource::Name, true, name.to_owned()));
        } else if self.name() != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Ok(self)
    }

    /// The part of a selection that can be decided before conversion: name and namespace.
    #[must_use]
    pub fn of_any_version(&self) -> Self {
        let placed = |(place, ..): &&(FieldSource, bool, String)| !matches!(place, FieldSource::Value(_));
        Self { labels: Selector::everything(), fields: self.fields.iter().filter(placed).cloned().collect() }
    }

    /// True when only an object in the row's version can be judged: conversion may change labels and fields.
    pub fn needs_version(&self, row: &Row) -> bool {
        let values = self.fields.iter().any(|(place, ..)| matches!(place, FieldSource::Value(_)));
        behavior(row).converts_by_webhook() && (values || !self.labels.is_empty())
    }

    /// True without selectors.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The name all matches must have.
    pub fn name(&self) -> Option<&str> {
        self.exactly(FieldSource::Name)
    }

    /// The namespace all matches must be in.
    pub fn namespace(&self) -> Option<&str> {
        // What is no name of a namespace is part of no key.
        self.exactly(FieldSource::Namespace).filter(|ns| !ns.is_empty() && !ns.contains('/'))
    }

    fn exactly(&self, at: FieldSource) -> Option<&str> {
        self.fields.iter().find(|(place, equal, _)| *place == at && *equal).map(|(_, _, value)| value.as_str())
    }

    /// A condition that an index answers: of a field, else of a label.
    pub fn term(&self) -> Option<Term> {
        if let Some((field, value)) = self.trigger() {
            return Some(Term { by: IndexKey::Field(field), values: vec![value.into()] });
        }
        self.labels.requirements().iter().find_map(|r| {
            let positive = matches!(r.operator(), Operator::In | Operator::Equals | Operator::DoubleEquals);
            let values = || r.values().map(str::to_owned).collect();
            positive.then(|| Term { by: IndexKey::Label(r.key().into()), values: values() })
        })
    }

    /// A selectable field that all matches have the same value of.
    pub fn trigger(&self) -> Option<Trigger> {
        self.fields.iter().find_map(|(place, equal, value)| match place {
            FieldSource::Value(field) if *equal => Some((*field, value.as_str().into())),
            _ => None,
        })
    }

    /// Reports whether an entry matches.
    pub fn matches(&self, e: &Entry) -> bool {
        self.fields_match(e.name(), e.namespace(), |i| e.field(i)) && self.labels.matches_with(|key| e.label(key))
    }

    /// Reports whether an object of this name without namespace and labels matches.
    pub fn matches_name(&self, name: &str) -> bool {
        self.fields_match(name, "", |_| "") && self.labels.matches_with(|_| None)
    }

    fn fields_match<'a>(&self, name: &'a str, namespace: &'a str, value: impl Fn(usize) -> &'a str) -> bool {
        self.fields.iter().all(|(place, equal, want)| {
            let there = match place {
                FieldSource::Name => name,
                FieldSource::Namespace => namespace,
                FieldSource::Value(i) => value(*i),
            };
            (there == want) == *equal
        })
    }

    /// Turns the selection into a cache filter.
    pub fn filter(self) -> Filter {
        Arc::new(move |e| self.matches(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_names_select_nothing() {
        let row = proto::resources::find("", "v1", "pods").expect("row");
        for (query, wanted) in [
            ("", Some("a")),
            ("labelSelector=x", Some("a")),
            ("fieldSelector=metadata.name%3Da", Some("a")),
            ("fieldSelector=spec.nodeName%3Dn,metadata.name%3Da", Some("a")),
            ("fieldSelector=metadata.name%3Db", None),
            ("fieldSelector=metadata.name!%3Db", None),
            ("fieldSelector=spec.nodeName%3Dn", None),
        ] {
            let found = Selection::read(&Query::parse(query), row).expect("a selection").named("a");
            assert_eq!(found.ok().as_ref().and_then(Selection::name), wanted, "{query}");
        }
    }

    #[test]
    fn names_alone() {
        let row = proto::resources::find("", "v1", "componentstatuses").expect("row");
        for (query, wanted) in [
            ("", Some(true)),
            ("fieldSelector=metadata.name%3Da", Some(true)),
            ("fieldSelector=metadata.name!%3Da", Some(false)),
            ("labelSelector=x", Some(false)),
            ("labelSelector=!x", Some(true)),
            ("fieldSelector=spec.x%3D1", None),
        ] {
            let found = Selection::read(&Query::parse(query), row).ok().map(|s| s.matches_name("a"));
            assert_eq!(found, wanted, "{query}");
        }
    }

    #[test]
    fn field_selector_pins_one_object() {
        let row = proto::resources::find("", "v1", "pods").expect("row");
        let no = Err("fieldSelector metadata.name doesn't match requested name".to_owned());
        for (query, want) in [
            ("", Ok(())),
            ("labelSelector=x", Ok(())),
            ("fieldSelector=", Ok(())),
            ("fieldSelector=metadata.name%3Da", Ok(())),
            ("fieldSelector=metadata.name%3Da,spec.nodeName%3Dn", Ok(())),
            ("fieldSelector=metadata.name%3Db", no.clone()),
            ("fieldSelector=spec.nodeName%3Dn", no.clone()),
            ("fieldSelector=metadata.name!%3Da", no),
        ] {
            let selection = Selection::read(&Query::parse(query), row).expect("a selection");
            let got = selection.named("a").map(|s| assert_eq!(s.name(), Some("a"))).map_err(|s| s.message);
            assert_eq!(got, want, "{query}");
        }
    }
}
