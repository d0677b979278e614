//! The other versions of a kind that entries of managed fields speak of, and its objects in them.
//!
//! Ownership of fields is computed in one go, without waiting. Conversions that need a webhook are recorded, asked for
//! afterwards by the pipeline, and the same is worked out once more ([`Conversions`]).

use std::collections::HashMap;

use parking_lot::Mutex;
use proto::Value;
use proto::merge::apply::{FieldsVersion, Versions};
use proto::resources::{Resource, Row};
use shared::status::Status;

use super::managers::WrittenKind;
use crate::machinery::tree;
use crate::registry::behavior;
use crate::storage::codec;

/// Results of conversion webhooks within one write, and the conversions that are still needed.
#[derive(Default)]
pub struct Conversions(Mutex<Memo>);

#[derive(Default)]
struct Memo {
    /// By version and text; or the failure of the webhook.
    known: HashMap<(String, String), Result<Value, Status>>,
    wanted: Vec<(String, Value)>,
}

impl Conversions {
    /// The object in a version. While that is not known the conversion is recorded as pending, and the object returned
    /// unchanged.
    fn get(&self, object: &Value, api_version: &str) -> Value {
        let mut memo = self.0.lock();
        let known = memo.known.get(&(api_version.to_owned(), object.to_string())).cloned();
        if known.is_none() && !memo.wanted.iter().any(|(version, o)| version == api_version && o == object) {
            memo.wanted.push((api_version.to_owned(), object.clone()));
        }
        known.and_then(Result::ok).unwrap_or_else(|| object.clone())
    }

    /// Error of a webhook that failed to convert into a version, or into any.
    fn failure(&self, api_version: Option<&str>) -> Option<String> {
        let memo = self.0.lock();
        let mut asked =
            memo.known.iter().filter(|((version, _), _)| api_version.is_none_or(|wanted| wanted == version));
        asked.find_map(|(_, converted)| converted.as_ref().err().map(|why| why.message.clone()))
    }

    /// Takes the objects that webhooks have to be asked about, with the versions they are wanted in.
    pub fn wanted(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.0.lock().wanted)
    }

    /// Records the result of converting an object.
    pub fn record(&self, object: &Value, api_version: String, converted: Result<Value, Status>) {
        self.0.lock().known.insert((api_version, object.to_string()), converted);
    }
}

/// Converter between the versions of a kind, for field management.
pub(super) struct VersionConverter<'r> {
    row: &'r Resource,
    others: Vec<Row>,
    conversions: Option<&'r Conversions>,
}

impl<'r> VersionConverter<'r> {
    pub(super) fn of(kind: WrittenKind<'r>, objects: [&Value; 2]) -> Self {
        let WrittenKind { rows, row, conversions } = kind;
        let mut others: Vec<Row> = Vec::new();
        for entry in objects.into_iter().flat_map(|o| tree::list(o, "/metadata/managedFields")) {
            let api_version = tree::text(entry, "/apiVersion");
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            if group == row.group && version == row.version {
                continue;
            }
            let known = |r: &&Row| r.group == group && r.version == version;
            if others.iter().find(known).is_none() {
                others.extend(behavior(row).other_version(rows, row, (group, version)));
            }
        }
        Self { row, others, conversions }
    }

    /// Error of the webhook, if a conversion failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.conversions.and_then(|known| known.failure(None))
    }

    fn row(&self, api_version: &str) -> Option<&Row> {
        self.others.iter().find(|r| r.api_version() == api_version)
    }
}

impl Versions for VersionConverter<'_> {
    fn find(&self, api_version: &str) -> FieldsVersion<'_> {
        let Some(row) = self.row(api_version) else {
            return behavior(self.row).unknown_version(api_version);
        };
        if behavior(row).converts_by_webhook() {
            let Some(conversions) = self.conversions else { return FieldsVersion::Same };
            if let Some(why) = conversions.failure(Some(api_version)) {
                return FieldsVersion::Lost(why);
            }
        }
        codec::served_schema(row).map_or(FieldsVersion::Gone, FieldsVersion::Other)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Value {
        let own = self.row.api_version();
        let to: &Resource = self.row(api_version).map_or(self.row, |row| row);
        let there = object.get("apiVersion").and_then(Value::as_str).unwrap_or(&own);
        let from: &Resource = self.row(there).map_or(self.row, |row| row);
        match self.conversions.filter(|_| behavior(to).converts_by_webhook()) {
            Some(conversions) => conversions.get(object, api_version),
            None => behavior(to).convert(object.clone(), (&from.group, &from.kind), to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_conversions_are_requested_once() {
        let (conversions, old, new) = (Conversions::default(), json!({"a": 1}), json!({"b": 1}));
        assert_eq!(conversions.get(&old, "g/v2"), old);
        conversions.get(&old, "g/v2");
        assert_eq!(conversions.wanted(), [("g/v2".to_owned(), old.clone())]);
        assert!(conversions.wanted().is_empty());
        conversions.record(&old, "g/v2".to_owned(), Ok(new.clone()));
        assert_eq!((conversions.get(&old, "g/v2"), conversions.failure(None)), (new, None));
        let why = Some("no".to_owned());
        conversions.record(&old, "g/v3".to_owned(), Err(Status::unknown("no")));
        assert_eq!((conversions.get(&old, "g/v3"), conversions.failure(Some("g/v3"))), (old, why));
        assert_eq!(conversions.failure(Some("g/v2")), None);
        assert!(conversions.wanted().is_empty());
    }
}
