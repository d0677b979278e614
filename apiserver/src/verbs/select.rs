//! Selectors of a request as a filter over cached entries.

use std::sync::Arc;

use proto::resources::Resource;
use proto::selector::{FieldSelector, Selector};
use shared::status::Status;

use super::query::Query;
use crate::cache::{Entry, Filter};
use crate::registry::fields::{self, Place};

/// The selectors of a request.
#[derive(Clone)]
pub struct Selection {
    labels: Selector,
    fields: Vec<(Place, bool, String)>,
}

impl Selection {
    /// Reads `labelSelector` and `fieldSelector`.
    pub fn read(query: &Query, row: &Resource) -> Result<Self, Status> {
        let bad = |e: String| Status::bad_request(&e);
        let labels = match query.get("labelSelector") {
            None | Some("") => Selector::everything(),
            Some(text) => Selector::parse(text).map_err(|e| bad(e.to_string()))?,
        };
        let parsed = FieldSelector::parse(query.get("fieldSelector").unwrap_or("")).map_err(|e| bad(e.to_string()))?;
        let mut terms = Vec::new();
        for t in parsed.terms() {
            let place = fields::resolve(&row.group, &row.version, &row.plural, &row.kind, row.namespaced, &t.field)
                .map_err(bad)?;
            terms.push((place, t.equal, t.value.clone()));
        }
        Ok(Self { labels, fields: terms })
    }

    /// Everything.
    pub fn all() -> Self {
        Self { labels: Selector::everything(), fields: Vec::new() }
    }

    /// Only this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.fields.push((Place::Name, true, name.to_owned()));
        self
    }

    /// True without selectors.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The name all matches must have.
    pub fn name(&self) -> Option<&str> {
        self.fields.iter().find(|(p, equal, _)| *p == Place::Name && *equal).map(|(_, _, v)| v.as_str())
    }

    /// Whether an entry matches.
    pub fn matches(&self, e: &Entry) -> bool {
        self.fields.iter().all(|(place, equal, want)| {
            let value = match place {
                Place::Name => e.name(),
                Place::Namespace => e.namespace(),
                Place::Value(i) => e.fields.get(*i).map_or("", |v| v),
            };
            (value == want) == *equal
        }) && self.labels.matches_with(|key| e.label(key))
    }

    /// As a cache filter.
    pub fn filter(self) -> Filter {
        Arc::new(move |e| self.matches(e))
    }
}
