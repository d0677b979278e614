//! Side results of a request, written down by the verbs on their way and read when the request has been answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::schema::Message;
use serde_json::{Value, json};
use shared::status::Status;

use super::{CaptureLevel, Content};
use crate::negotiate::{self, Format};

/// Side results of a request: warnings earned before it failed, annotations for the audit log.
#[derive(Clone, Debug, Default)]
pub struct RequestRecorder(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
    wanted: CaptureLevel,
    sent: Option<Content>,
}

impl RequestRecorder {
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the warnings of a write that failed.
    pub(crate) fn keep_warnings<T>(&self, outcome: Result<T, Status>, warnings: &[String]) -> Result<T, Status> {
        if outcome.is_err() {
            self.add_warnings(warnings.iter().cloned());
        }
        outcome
    }

    /// Adds warnings for the client.
    pub fn add_warnings(&self, warnings: impl IntoIterator<Item = String>) {
        self.recorded().warnings.extend(warnings);
    }

    /// Adds annotations for the audit log; those that are there stay.
    pub fn annotate(&self, annotations: BTreeMap<String, String>) {
        let mut notes = self.recorded();
        for (key, value) in annotations {
            notes.annotations.entry(key).or_insert(value);
        }
    }

    /// Notes of a request of which the audit log wants to know what it sent.
    pub fn recording(wanted: CaptureLevel) -> Self {
        let recorder = Self::default();
        recorder.recorded().wanted = wanted;
        recorder
    }

    /// Keeps the object that was sent, as far as it is wanted: whole in the form that clients see.
    pub fn record_object(&self, schema: Option<&Message>, object: &Value) {
        let mut notes = self.recorded();
        notes.sent = match notes.wanted {
            CaptureLevel::Nothing => None,
            CaptureLevel::Reference => Some(Content::Object(json!({"metadata": object["metadata"].clone()}))),
            CaptureLevel::All => {
                let text = schema.map(|schema| negotiate::envelope(Format::Json, false, Some(schema), object));
                let shown = text.and_then(|text| serde_json::from_slice(&text).ok());
                Some(Content::Object(shown.unwrap_or_else(|| object.clone())))
            }
        };
    }

    /// Keeps what was sent and is no object.
    pub fn record_other(&self, tree: impl FnOnce() -> Option<Value>) {
        let mut notes = self.recorded();
        if notes.wanted == CaptureLevel::All {
            notes.sent = tree().map(Content::Other);
        }
    }

    /// Takes the content of the request for the audit log.
    pub fn take_content(&self) -> Option<Content> {
        self.recorded().sent.take()
    }

    /// All warnings.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.recorded().warnings)
    }

    /// All annotations.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.recorded().annotations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_outlive_a_failure() {
        let recorder = RequestRecorder::default();
        assert!(recorder.keep_warnings(Ok(()), &["not this".to_owned()]).is_ok());
        assert!(recorder.keep_warnings::<()>(Err(Status::internal("x")), &["this".to_owned()]).is_err());
        assert_eq!(recorder.take_warnings(), ["this"]);
        assert!(recorder.take_warnings().is_empty());
    }
}
