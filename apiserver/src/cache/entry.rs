//! What the cache keeps of an object: its bytes and the few values requests select by.
//!
//! Hot path: no trees are kept, no object is cloned, bytes are shared by reference count.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

/// An object's bytes with its `resourceVersion` stamped in.
#[derive(Clone, Debug)]
pub enum Raw {
    /// Protobuf of the storage version, without the envelope.
    Proto(Bytes),
    /// JSON, for the kinds that are stored so.
    Json(Bytes),
}

impl Raw {
    /// Size in memory.
    pub fn size(&self) -> usize {
        match self {
            Self::Proto(b) | Self::Json(b) => b.len(),
        }
    }
}

/// One object at one revision.
#[derive(Debug)]
pub struct Entry {
    /// `namespace/name`, or `name` at cluster scope: the key below the resource's prefix.
    pub key: Arc<str>,
    /// Revision of the last write.
    pub revision: i64,
    /// Bytes.
    pub raw: Raw,
    /// Labels, by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the resource's selectable fields, in their table's order.
    pub fields: Box<[Box<str>]>,
}

impl Entry {
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
        self.labels.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|i| &*self.labels[i].1)
    }
}

/// One change, as the ring keeps it.
#[derive(Clone, Debug)]
pub struct Change {
    /// Revision of the change.
    pub revision: i64,
    /// The object after it; none when deleted. A deleted object is in `before`, stamped with the deletion's revision.
    pub after: Option<Arc<Entry>>,
    /// The object before it, none when created.
    pub before: Option<Arc<Entry>>,
}

/// A change on its way to watchers: carries what was encoded for one, for the others.
#[derive(Debug)]
pub struct Live {
    /// The change.
    pub change: Change,
    /// JSON of the object in the storage version, filled by the first watcher that needs it.
    pub json: OnceLock<Bytes>,
}

/// What a watcher sees of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It came to be, or came to match.
    Added,
    /// It still matches.
    Modified,
    /// It is gone, or no longer matches.
    Deleted,
}

impl Seen {
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
    /// How the change looks through a filter, and the object to show for it.
    pub fn seen(&self, matches: impl Fn(&Entry) -> bool) -> Option<(Seen, &Arc<Entry>)> {
        let before = self.before.as_ref().filter(|e| matches(e));
        match (&self.after, before) {
            (Some(after), before) if matches(after) => {
                Some((if before.is_some() { Seen::Modified } else { Seen::Added }, after))
            }
            (Some(_) | None, Some(before)) => Some((Seen::Deleted, before)),
            _ => None,
        }
    }
}
