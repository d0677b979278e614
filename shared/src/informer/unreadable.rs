//! Objects that are there and cannot be decoded.
//!
//! In: their identities, from the watch. Out: whether an object that a store does not have is there all the same. Whoever
//! acts on the absence of an object asks here first. Never: a reason to stop following the others.

use foldhash::{HashMap, HashSet};
use parking_lot::RwLock;

use super::store::Key;
use crate::metrics;
use crate::typed::Identity;

/// Most objects of one informer that are known one by one; of more, all absent objects count as unreadable.
const MOST: usize = 10_000;

/// The unreadable objects of one informer.
#[derive(Debug, Default)]
pub struct Unreadable(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<Key, Identity>,
    /// Some were too many to be known.
    overflowed: bool,
}

impl Unreadable {
    /// Reports whether an object is there and cannot be decoded; the namespace is empty at cluster scope.
    pub fn contains(&self, namespace: &str, name: &str) -> bool {
        let state = self.0.read();
        state.overflowed || state.by_key.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// Reports whether an object with this uid is there and cannot be decoded.
    pub fn contains_uid(&self, uid: &str) -> bool {
        let state = self.0.read();
        state.overflowed || state.by_key.values().any(|identity| identity.uid == uid)
    }

    /// Reports whether every object could be decoded.
    pub fn is_empty(&self) -> bool {
        let state = self.0.read();
        state.by_key.is_empty() && !state.overflowed
    }

    /// Notes an object, and says so once for each of its versions.
    pub(super) fn insert(&self, kind: &str, identity: Identity, why: &str) {
        let key = (identity.namespace.clone(), identity.name.clone());
        let mut state = self.0.write();
        let known = state.by_key.get(&key);
        if known.is_some_and(|known| known.resource_version == identity.resource_version) {
            return;
        }
        tracing::error!(
            kind,
            namespace = identity.namespace,
            name = identity.name,
            resourceVersion = identity.resource_version,
            err = why,
            "Failed to decode object"
        );
        metrics::counter(
            "ironclad_informer_undecodable_objects_total",
            "Number of object versions that an informer could not decode, by kind.",
            &["kind"],
        )
        .with_label_values(&[kind])
        .inc();
        if known.is_some() || state.by_key.len() < MOST {
            state.by_key.insert(key, identity);
        } else {
            state.overflowed = true;
        }
    }

    /// HOT: called for every object that is read; nearly always there is nothing, and no key is made.
    pub(super) fn remove(&self, (namespace, name): (&str, &str)) {
        if !self.0.read().by_key.is_empty() {
            self.0.write().by_key.remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    /// Keeps those that a list has named.
    pub(super) fn retain(&self, listed: &HashSet<Key>) {
        let mut state = self.0.write();
        state.by_key.retain(|key, _| listed.contains(key));
        state.overflowed &= state.by_key.len() >= MOST;
    }
}
