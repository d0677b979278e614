//! Sets that stay as they were stored until somebody needs more of them.

use std::cell::OnceCell;

use serde_json::{Map, Value};

use super::{Element, Set};

/// A set as it is stored, read when somebody needs more than to look for a few paths in it: of an object's owners most
/// writes touch none. The stored form must be canonical, as it is where it was stored by a server.
#[derive(Debug, Clone)]
pub(in crate::merge) struct StoredFields {
    stored: Option<Value>,
    read: OnceCell<Set>,
}

impl From<Set> for StoredFields {
    fn from(set: Set) -> Self {
        Self { stored: None, read: OnceCell::from(set) }
    }
}

impl PartialEq for StoredFields {
    fn eq(&self, other: &Self) -> bool {
        self.set() == other.set()
    }
}

impl StoredFields {
    /// A stored set; null is an empty one.
    pub(in crate::merge) fn stored(fields: Value) -> Self {
        let stored = if fields.is_object() { fields } else { Value::Object(Map::new()) };
        Self { stored: Some(stored), read: OnceCell::new() }
    }

    /// The stored form, where nobody needed more.
    pub(in crate::merge) fn unread(&self) -> Option<&Value> {
        self.stored.as_ref().filter(|_| self.read.get().is_none())
    }

    /// The set.
    pub(in crate::merge) fn set(&self) -> &Set {
        self.read.get_or_init(|| self.stored.as_ref().and_then(Set::parse).unwrap_or_default())
    }

    /// The set, for oneself.
    pub(in crate::merge) fn into_set(self) -> Set {
        self.set();
        self.read.into_inner().unwrap_or_default()
    }

    /// The stored form.
    pub(in crate::merge) fn into_value(self) -> Value {
        match self.stored {
            Some(stored) => stored,
            None => self.set().to_value(),
        }
    }

    /// See [`Set::is_empty`].
    pub(in crate::merge) fn is_empty(&self) -> bool {
        match (&self.stored, self.read.get()) {
            (Some(stored), None) => stored.as_object().is_none_or(Map::is_empty),
            _ => self.set().is_empty(),
        }
    }

    /// See [`Set::touches`].
    pub(in crate::merge) fn touches(&self, other: &Set) -> bool {
        match (&self.stored, self.read.get()) {
            (Some(stored), None) => stored_touches(stored, other),
            _ => self.set().touches(other),
        }
    }

    /// See [`Set::contains`].
    pub(in crate::merge) fn contains(&self, other: &Set) -> bool {
        match (&self.stored, self.read.get()) {
            (Some(stored), None) => stored_contains(stored, other),
            _ => self.set().contains(other),
        }
    }

    /// Changes the set.
    pub(in crate::merge) fn change(&mut self, how: impl FnOnce(&mut Set)) {
        let mut set = std::mem::replace(self, Self::from(Set::new())).into_set();
        how(&mut set);
        *self = Self::from(set);
    }

    /// See [`Set::subtract`].
    pub(in crate::merge) fn subtract(&mut self, other: &Set) {
        if self.touches(other) {
            self.change(|set| set.subtract(other));
        }
    }
}

/// Stored subset of an element; `None` when neither it nor anything below it is in the set.
fn stored_at<'v>(stored: &'v Value, element: &Element) -> Option<&'v Value> {
    stored.get(element.stored())
}

fn stored_member(stored: &Value, element: &Element) -> bool {
    let below = stored_at(stored, element).and_then(Value::as_object);
    below.is_some_and(|below| below.is_empty() || below.contains_key("."))
}

fn stored_touches(stored: &Value, other: &Set) -> bool {
    other.members.iter().any(|m| stored_member(stored, m))
        || other.children.iter().any(|(e, below)| stored_at(stored, e).is_some_and(|own| stored_touches(own, below)))
}

fn stored_contains(stored: &Value, other: &Set) -> bool {
    other.members.iter().all(|m| stored_member(stored, m))
        && other.children.iter().all(|(e, below)| match stored_at(stored, e) {
            Some(own) => stored_contains(own, below),
            None => below.is_empty(),
        })
}
