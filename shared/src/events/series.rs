//! Events of events.k8s.io: what happens again before long is one event with a series, whatever it says. The first
//! repetition is written at once, further ones when the series has gone on for long or ended: client-go's rules.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::correlate::forget_older_half;
use super::{EventKind, Record, object_key};

/// Events remembered.
const REMEMBERED: usize = 4096;
/// A series that was quiet for so long has ended.
pub(super) const ENDED: Duration = Duration::from_secs(6 * 60);
/// A series that goes on is written once in so long.
const GOES_ON: Duration = Duration::from_secs(30 * 60);

/// Key of equal events in a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    object: String,
    related: String,
    kind: EventKind,
    action: String,
    reason: String,
}

struct KnownEvent {
    /// Namespace of the event.
    namespace: Box<str>,
    name: Box<str>,
    count: u32,
    last: (Timestamp, Instant),
    written: Instant,
}

/// An event and how often it has happened by now.
#[derive(Debug)]
pub(super) struct Repeated {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: u32,
    pub(super) last: Timestamp,
}

/// Action on an event.
#[derive(Debug)]
pub(super) enum EventAction {
    /// Create a new event.
    Create,
    /// Write the start of a series.
    Write(Repeated),
    /// Count in the series, without a write.
    Wait,
}

#[derive(Default)]
pub(super) struct Series(HashMap<Key, KnownEvent>);

impl KnownEvent {
    fn repeated(&self) -> Repeated {
        Repeated {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            count: self.count,
            last: self.last.0,
        }
    }
}

impl Series {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `namespace` and `name` are those of the event that is made if this one is new.
    pub(super) fn see(&mut self, record: &Record, namespace: String, name: String) -> EventAction {
        let now = Instant::now();
        let key = Key {
            object: format!("{}/{}", object_key(&record.about), record.about.field_path.as_deref().unwrap_or_default()),
            related: record.related.as_ref().map(object_key).unwrap_or_default(),
            kind: record.kind,
            action: record.action.clone().unwrap_or_default(),
            reason: record.reason.clone(),
        };
        if let Some(known) = self.0.get_mut(&key) {
            known.count += 1;
            known.last = (record.at, now);
            return if known.count == 2 { EventAction::Write(known.repeated()) } else { EventAction::Wait };
        }
        if self.0.len() >= REMEMBERED {
            forget_older_half(&mut self.0, |known| known.last.1);
        }
        let known = KnownEvent {
            namespace: namespace.into(),
            name: name.into(),
            count: 1,
            last: (record.at, now),
            written: now,
        };
        self.0.insert(key, known);
        EventAction::Create
    }

    /// The event is there no more.
    pub(super) fn forget(&mut self, namespace: &str, name: &str) {
        self.0.retain(|_, known| *known.namespace != *namespace || *known.name != *name);
    }

    /// Forgets what has ended. What is to be written of series that have, or that go on for long.
    pub(super) fn due(&mut self) -> Vec<Repeated> {
        let now = Instant::now();
        let mut due = Vec::new();
        self.0.retain(|_, known| {
            let ended = now.duration_since(known.last.1) >= ENDED;
            if known.count > 1 && (ended || now.duration_since(known.written) >= GOES_ON) {
                known.written = now;
                due.push(known.repeated());
            }
            !ended
        });
        due
    }
}
