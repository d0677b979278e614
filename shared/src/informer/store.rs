//! The objects of one kind by namespace and name, with indexes. One writer (the reflector), many cheap readers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{Cached, Event};

pub(super) type IndexKeys<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;
type Namespace<K> = HashMap<Box<str>, Arc<K>>;
/// Namespace and name.
pub(super) type Key = (String, String);

struct Index<K> {
    keys: IndexKeys<K>,
    entries: HashMap<Box<str>, Bucket<K>>,
}

/// The objects under one value. Very many values have one object only.
enum Bucket<K> {
    One(Arc<K>),
    Many(HashMap<Address, Arc<K>>),
}

/// Where an object is in memory: tells apart what is in the store at one moment, in a fraction of a key's size.
type Address = usize;

fn address<K>(object: &Arc<K>) -> Address {
    Arc::as_ptr(object).addr()
}

impl<K> Bucket<K> {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(all) => all.len(),
        }
    }

    fn list(&self) -> Vec<Arc<K>> {
        match self {
            Self::One(object) => vec![Arc::clone(object)],
            Self::Many(all) => all.values().cloned().collect(),
        }
    }

    fn insert(&mut self, object: &Arc<K>) {
        match self {
            Self::One(first) => {
                let all = [&*first, object].map(|o| (address(o), Arc::clone(o)));
                *self = Self::Many(HashMap::from(all));
            }
            Self::Many(all) => drop(all.insert(address(object), Arc::clone(object))),
        }
    }

    fn replace(&mut self, old: &Arc<K>, new: &Arc<K>) {
        match self {
            Self::One(only) => *only = Arc::clone(new),
            Self::Many(all) => {
                all.remove(&address(old));
                all.insert(address(new), Arc::clone(new));
            }
        }
    }

    /// True when nothing is left.
    fn remove(&mut self, object: &Arc<K>) -> bool {
        match self {
            Self::One(only) => Arc::ptr_eq(only, object),
            Self::Many(all) => {
                all.remove(&address(object));
                all.is_empty()
            }
        }
    }
}

struct State<K> {
    objects: HashMap<Box<str>, Namespace<K>>,
    indexes: HashMap<&'static str, Index<K>>,
    resource_version: String,
}

/// A cloneable handle on the objects.
pub struct Store<K>(Arc<RwLock<State<K>>>);

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        let state = State { objects: HashMap::new(), indexes: HashMap::new(), resource_version: String::new() };
        Self(Arc::new(RwLock::new(state)))
    }
}

pub(super) fn key<K: Cached>(object: &K) -> Key {
    let (namespace, name) = object.cache_key();
    (namespace.to_owned(), name.to_owned())
}

impl<K: Cached> Store<K> {
    /// One object; the namespace is empty at cluster scope.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.0.read().objects.get(namespace)?.get(name).cloned()
    }

    /// Every object, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.0.read().objects.values().flat_map(HashMap::values).cloned().collect()
    }

    /// The objects of one namespace, in no order.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.0.read().objects.get(namespace).map(|found| found.values().cloned().collect()).unwrap_or_default()
    }

    /// The objects that `index` files under `value`; empty when there is no such index.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let state = self.0.read();
        let found = state.indexes.get(index).and_then(|index| index.entries.get(value));
        found.map(Bucket::list).unwrap_or_default()
    }

    /// The objects under whichever of `values` fewest are filed under: those that are under all values are among them.
    pub fn by_rarest(&self, index: &str, values: &[String]) -> Vec<Arc<K>> {
        let state = self.0.read();
        let Some(index) = state.indexes.get(index) else { return Vec::new() };
        let buckets = values.iter().map(|value| index.entries.get(value.as_str()));
        let rarest = buckets.min_by_key(|bucket| bucket.map_or(0, Bucket::len)).flatten();
        rarest.map(Bucket::list).unwrap_or_default()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.read().objects.values().map(HashMap::len).sum()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The revision up to which the store is complete.
    pub fn resource_version(&self) -> String {
        self.0.read().resource_version.clone()
    }

    pub(super) fn set_resource_version(&self, version: String) {
        self.0.write().resource_version = version;
    }

    pub(super) fn add_index(&self, name: &'static str, keys: IndexKeys<K>) {
        let mut state = self.0.write();
        let mut index = Index { keys, entries: HashMap::new() };
        for object in state.objects.values().flat_map(HashMap::values) {
            index.insert(object);
        }
        state.indexes.insert(name, index);
    }

    /// Adds or replaces; returns what happened, or nothing when the same revision is already here.
    pub(super) fn put(&self, object: K) -> Option<Event<K>> {
        let new = Arc::new(object);
        let (namespace, name) = new.cache_key();
        let mut state = self.0.write();
        let state = &mut *state;
        if !state.objects.contains_key(namespace) {
            state.objects.insert(namespace.into(), Namespace::new());
        }
        let space = state.objects.get_mut(namespace)?;
        let Some(held) = space.get_mut(name) else {
            space.insert(name.into(), Arc::clone(&new));
            state.indexes.values_mut().for_each(|index| index.insert(&new));
            return Some(Event::Added(new));
        };
        if held.cache_version().is_some() && held.cache_version() == new.cache_version() {
            return None;
        }
        let old = std::mem::replace(held, Arc::clone(&new));
        state.indexes.values_mut().for_each(|index| index.replace(&old, &new));
        Some(Event::Updated { old, new })
    }

    /// Removes; `last` is the final state the server told, if any.
    pub(super) fn remove(&self, (namespace, name): &Key, last: Option<K>) -> Option<Event<K>> {
        let mut state = self.0.write();
        let state = &mut *state;
        let space = state.objects.get_mut(namespace.as_str())?;
        let old = space.remove(name.as_str())?;
        if space.is_empty() {
            state.objects.remove(namespace.as_str());
        }
        for index in state.indexes.values_mut() {
            index.remove(&old);
        }
        Some(Event::Deleted(last.map_or(old, Arc::new)))
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let state = self.0.read();
        let pairs = state.objects.iter().flat_map(|(ns, space)| space.keys().map(move |name| (ns, name)));
        pairs.map(|(ns, name)| (ns.to_string(), name.to_string())).collect()
    }
}

impl<K: Cached> Index<K> {
    fn insert(&mut self, object: &Arc<K>) {
        for value in (self.keys)(object) {
            match self.entries.entry(value.into_boxed_str()) {
                Entry::Vacant(free) => drop(free.insert(Bucket::One(Arc::clone(object)))),
                Entry::Occupied(mut taken) => taken.get_mut().insert(object),
            }
        }
    }

    fn remove(&mut self, object: &Arc<K>) {
        for value in (self.keys)(object) {
            if self.entries.get_mut(value.as_str()).is_some_and(|bucket| bucket.remove(object)) {
                self.entries.remove(value.as_str());
            }
        }
    }

    /// Most changes leave an object where it is filed.
    fn replace(&mut self, old: &Arc<K>, new: &Arc<K>) {
        let (was, is) = ((self.keys)(old), (self.keys)(new));
        if was != is {
            self.remove(old);
            return self.insert(new);
        }
        for value in is {
            if let Some(bucket) = self.entries.get_mut(value.as_str()) {
                bucket.replace(old, new);
            }
        }
    }
}
