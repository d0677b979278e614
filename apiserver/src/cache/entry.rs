//! An entry of the watch cache: the bytes of an object and the few values that requests select by.
//!
//! Hot path: no trees are kept, no object is cloned, bytes are shared by reference count.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::encoded::Encoded;
use crate::storage::Raw;

/// Short texts in one allocation.
#[derive(Debug, Default)]
struct Texts {
    ends: Box<[u32]>,
    all: Box<str>,
}

impl Texts {
    fn of<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let (mut ends, mut all) = (Vec::new(), String::new());
        for text in texts {
            all.push_str(text);
            // Objects are far smaller than that.
            ends.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
        }
        Self { ends: ends.into(), all: all.into() }
    }

    fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        self.all.get(start..end)
    }
}

/// One object at one revision.
#[derive(Debug)]
pub struct Entry {
    /// `namespace/name`, or `name` at cluster scope: the key below the resource's prefix.
    pub key: Arc<str>,
    /// Revision of the last write.
    pub revision: i64,
    /// Lease the key hangs on, or 0.
    pub lease: i64,
    /// A write would store the object in another form now: under another encryption key, or with defaults added since.
    pub stale: bool,
    /// Bytes.
    pub raw: Raw,
    /// Encoded form of the object.
    pub encoded: Encoded,
    labels: usize,
    /// Names and values of labels by name, then the values of selectable fields in their table's order.
    texts: Texts,
}

impl Entry {
    /// `fields` are the values of the resource's selectable fields, in their table's order.
    pub fn new<'a>(
        key: &str,
        revision: i64,
        raw: Raw,
        mut labels: Vec<(&'a str, &'a str)>,
        fields: impl Iterator<Item = &'a str>,
    ) -> Self {
        labels.sort_unstable();
        let texts = Texts::of(labels.iter().flat_map(|(k, v)| [*k, *v]).chain(fields));
        Self {
            key: key.into(),
            revision,
            lease: 0,
            raw,
            encoded: Encoded::default(),
            stale: false,
            labels: labels.len(),
            texts,
        }
    }

    /// With what the store says about it.
    #[must_use]
    pub fn stored_as(mut self, lease: i64, stale: bool) -> Self {
        self.lease = lease;
        self.stale |= stale;
        self
    }

    /// Namespace, empty at cluster scope.
    pub fn namespace(&self) -> &str {
        self.key.rsplit_once('/').map_or("", |(ns, _)| ns)
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.key.rsplit_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.labels);
        while low < high {
            let middle = low.midpoint(high);
            match self.texts.get(2 * middle)?.cmp(key) {
                std::cmp::Ordering::Equal => return self.texts.get(2 * middle + 1),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The value of a selectable field.
    pub fn field(&self, i: usize) -> &str {
        self.texts.get(2 * self.labels + i).unwrap_or("")
    }
}

/// One change, as the ring keeps it.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the change.
    pub revision: i64,
    /// The object after it; none when deleted.
    pub after: Option<Arc<Entry>>,
    /// The object before it, as it was stored; none when created.
    pub before: Option<Arc<Entry>>,
}

/// A change on its way to watchers: carries what was encoded for one, for the others.
#[derive(Debug)]
pub struct SharedEvent {
    /// The change.
    pub change: Change,
    /// Whole frames of the change as watchers without selectors see it, filled by the first that needs them.
    pub json: OnceLock<Bytes>,
    /// The encoded event in protobuf.
    pub protobuf: OnceLock<Bytes>,
}

impl SharedEvent {
    /// Wraps a change without encoding it yet.
    pub fn new(change: Change) -> Self {
        Self { change, json: OnceLock::new(), protobuf: OnceLock::new() }
    }
}

/// Type of the event that a watcher receives for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object was created, or began to match the filter.
    Added,
    /// The object matches the filter still.
    Modified,
    /// The object was deleted, or matches the filter no longer.
    Deleted,
}

impl EventType {
    /// The event type on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

impl Change {
    /// Returns the event that a watcher with this filter receives, with the object to show (at the revision of the
    /// change); `None` when the filter matches neither state.
    pub fn event_for(&self, matches: impl Fn(&Entry) -> bool) -> Option<(EventType, &Arc<Entry>)> {
        let before = self.before.as_ref().filter(|e| matches(e));
        match (&self.after, before) {
            (Some(after), before) if matches(after) => {
                Some((if before.is_some() { EventType::Modified } else { EventType::Added }, after))
            }
            (Some(_) | None, Some(before)) => Some((EventType::Deleted, before)),
            _ => None,
        }
    }

    /// Returns the event of a watcher without a filter.
    pub fn unfiltered_event(&self) -> Option<EventType> {
        self.event_for(|_| true).map(|(seen, _)| seen)
    }

    /// Bytes that only this change keeps in memory.
    pub fn weight(&self) -> usize {
        self.before.as_ref().map_or(0, |e| e.raw.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found() {
        let labels = vec![("b", "2"), ("a", "1"), ("c", "")];
        let e = Entry::new("ns/x", 1, Raw::Json(Bytes::new()), labels, ["node", "", "Running"].into_iter());
        assert_eq!((e.label("a"), e.label("b"), e.label("c"), e.label("d")), (Some("1"), Some("2"), Some(""), None));
        assert_eq!((e.field(0), e.field(1), e.field(2), e.field(3)), ("node", "", "Running", ""));
        assert_eq!((e.namespace(), e.name()), ("ns", "x"));
    }
}
