//! The objects of one kind by namespace and name, with indexes. One writer (the reflector), many cheap readers.
//!
//! An object has a slot from its first version to its last. Names and indexes hold slots, so a change of an object is the
//! change of its slot, and an index has to do with it only when the object is to be found elsewhere.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use parking_lot::RwLock;

use super::{Cached, Event, Unreadable};
use crate::run;

pub(super) type IndexKeys<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;
/// Reports whether an update leaves an object's index keys unchanged; false when only computing them would tell.
pub(super) type Unmoved<K> = Box<dyn Fn(&K, &K) -> bool + Send + Sync>;
/// Is told of a change: the object before, and after it.
pub(super) type Observer<K> = Box<dyn Fn(Option<&K>, Option<&K>) + Send + Sync>;
type Namespace = HashMap<Box<str>, Slot>;
/// Namespace and name.
pub(super) type Key = (String, String);
type Slot = u32;

struct Slots<K> {
    all: Vec<Option<Arc<K>>>,
    free: Vec<Slot>,
}

impl<K> Slots<K> {
    fn get(&self, slot: Slot) -> Option<&Arc<K>> {
        self.all.get(slot as usize)?.as_ref()
    }

    fn add(&mut self, object: Arc<K>) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.all[slot as usize] = Some(object);
            return slot;
        }
        self.all.push(Some(object));
        Slot::try_from(self.all.len() - 1).expect("so many objects do not fit in memory")
    }

    fn replace(&mut self, slot: Slot, object: Arc<K>) -> Option<Arc<K>> {
        self.all.get_mut(slot as usize)?.replace(object)
    }

    fn remove(&mut self, slot: Slot) -> Option<Arc<K>> {
        let object = self.all.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(object)
    }

    fn held(&self) -> impl Iterator<Item = (Slot, &Arc<K>)> {
        (0..).zip(&self.all).filter_map(|(slot, object)| Some((slot, object.as_ref()?)))
    }
}

struct Index<K> {
    keys: IndexKeys<K>,
    unmoved: Unmoved<K>,
    entries: HashMap<Box<str>, Bucket>,
}

/// The objects under one value. Very many values have one object only.
enum Bucket {
    One(Slot),
    Many(HashSet<Slot>),
}

impl Bucket {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(all) => all.len(),
        }
    }

    fn list<K>(&self, slots: &Slots<K>) -> Vec<Arc<K>> {
        match self {
            Self::One(slot) => slots.get(*slot).cloned().into_iter().collect(),
            Self::Many(all) => all.iter().filter_map(|slot| slots.get(*slot)).cloned().collect(),
        }
    }

    fn insert(&mut self, slot: Slot) {
        match self {
            Self::One(first) => *self = Self::Many([*first, slot].into_iter().collect()),
            Self::Many(all) => drop(all.insert(slot)),
        }
    }

    /// True when nothing is left.
    fn remove(&mut self, slot: Slot) -> bool {
        match self {
            Self::One(only) => *only == slot,
            Self::Many(all) => {
                all.remove(&slot);
                all.is_empty()
            }
        }
    }
}

struct State<K> {
    objects: HashMap<Box<str>, Namespace>,
    slots: Slots<K>,
    indexes: HashMap<&'static str, Index<K>>,
    observers: Vec<Observer<K>>,
    resource_version: String,
}

impl<K> State<K> {
    fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        self.objects.get(namespace).into_iter().flat_map(HashMap::values).filter_map(|slot| self.slots.get(*slot))
    }
}

/// A cloneable handle on the objects, and on what is known of those that cannot be decoded.
pub struct Store<K>(Arc<RwLock<State<K>>>, Arc<Unreadable>);

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), Arc::clone(&self.1))
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        let slots = Slots { all: Vec::new(), free: Vec::new() };
        let state = State {
            objects: HashMap::default(),
            slots,
            indexes: HashMap::default(),
            observers: Vec::new(),
            resource_version: String::new(),
        };
        Self(Arc::new(RwLock::new(state)), Arc::default())
    }
}

pub(super) fn key<K: Cached>(object: &K) -> Key {
    let (namespace, name) = object.cache_key();
    (namespace.to_owned(), name.to_owned())
}

/// The one hand that writes a store which no informer feeds.
pub struct Feed<K>(Store<K>);

impl<K: Cached> Feed<K> {
    /// Adds an object or takes over its new form.
    pub fn put(&self, object: K) {
        self.0.put(object);
    }
}

impl<K: Cached> Store<K> {
    /// A store and the hand that writes it, for simulations and tests.
    pub fn fed() -> (Self, Feed<K>) {
        let store = Self::default();
        (store.clone(), Feed(store))
    }

    /// A store of given objects that nothing feeds, for simulations and tests.
    pub fn of(objects: impl IntoIterator<Item = K>) -> Self {
        let store = Self::default();
        for object in objects {
            store.put(object);
        }
        store
    }

    /// One object; the namespace is empty at cluster scope.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let state = self.0.read();
        state.slots.get(*state.objects.get(namespace)?.get(name)?).cloned()
    }

    /// Objects that are there and cannot be decoded. Asked by those who delete or give up something because an object
    /// is gone.
    pub fn unreadable(&self) -> &Unreadable {
        &self.1
    }

    /// Every object, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.0.read().slots.held().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// The objects that `wanted` picks, in no order. Others are looked at and not touched.
    pub fn select(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.0.read().slots.held().filter(|(_, object)| wanted(object)).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// The objects of one namespace, in no order.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.0.read().in_namespace(namespace).cloned().collect()
    }

    /// The objects that `index` files under `value`; empty when there is no such index.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let state = self.0.read();
        let found = state.indexes.get(index).and_then(|index| index.entries.get(value));
        found.map(|bucket| bucket.list(&state.slots)).unwrap_or_default()
    }

    /// The objects under whichever of `values` fewest are filed under: those that are under all values are among them.
    pub fn by_rarest(&self, index: &str, values: &[String]) -> Vec<Arc<K>> {
        let state = self.0.read();
        let Some(index) = state.indexes.get(index) else { return Vec::new() };
        let buckets = values.iter().map(|value| index.entries.get(value.as_str()));
        let rarest = buckets.min_by_key(|bucket| bucket.map_or(0, Bucket::len)).flatten();
        rarest.map(|bucket| bucket.list(&state.slots)).unwrap_or_default()
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

    pub(super) fn add_index(&self, name: &'static str, keys: IndexKeys<K>, unmoved: Unmoved<K>) {
        let mut state = self.0.write();
        let mut index = Index { keys, unmoved, entries: HashMap::default() };
        for (slot, object) in state.slots.held() {
            index.insert(slot, object);
        }
        state.indexes.insert(name, index);
    }

    pub(super) fn add_observer(&self, observer: Observer<K>) {
        let mut state = self.0.write();
        state.slots.held().for_each(|(_, object)| observe(&observer, None, Some(object)));
        state.observers.push(observer);
    }

    /// Adds or replaces; returns what happened, or nothing when the same revision is already here.
    pub(super) fn put(&self, object: K) -> Option<Event<K>> {
        let new = Arc::new(object);
        let (namespace, name) = new.cache_key();
        let mut state = self.0.write();
        let State { objects, slots, indexes, observers, .. } = &mut *state;
        if !objects.contains_key(namespace) {
            objects.insert(namespace.into(), Namespace::default());
        }
        let space = objects.get_mut(namespace)?;
        let Some(slot) = space.get(name).copied() else {
            let slot = slots.add(Arc::clone(&new));
            space.insert(name.into(), slot);
            indexes.values_mut().for_each(|index| index.insert(slot, &new));
            observers.iter().for_each(|observer| observe(observer, None, Some(&new)));
            return Some(Event::Added(new));
        };
        let version = slots.get(slot)?.cache_version();
        if version.is_some() && version == new.cache_version() {
            return None;
        }
        let old = slots.replace(slot, Arc::clone(&new))?;
        indexes.values_mut().for_each(|index| index.replace(slot, &old, &new));
        observers.iter().for_each(|observer| observe(observer, Some(&old), Some(&new)));
        Some(Event::Updated { old, new })
    }

    /// Removes; `last` is the final state the server told, if any.
    pub(super) fn remove(&self, (namespace, name): &Key, last: Option<K>) -> Option<Event<K>> {
        let mut state = self.0.write();
        let State { objects, slots, indexes, observers, .. } = &mut *state;
        let space = objects.get_mut(namespace.as_str())?;
        let slot = space.remove(name.as_str())?;
        if space.is_empty() {
            objects.remove(namespace.as_str());
        }
        let old = slots.remove(slot)?;
        indexes.values_mut().for_each(|index| index.remove(slot, &old));
        observers.iter().for_each(|observer| observe(observer, Some(&old), None));
        Some(Event::Deleted(last.map_or(old, Arc::new)))
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let state = self.0.read();
        let pairs = state.objects.iter().flat_map(|(ns, space)| space.keys().map(move |name| (ns, name)));
        pairs.map(|(ns, name)| (ns.to_string(), name.to_string())).collect()
    }
}

/// Tells an observer of a change; one that panics does not take the store with it.
fn observe<K: Cached>(observer: &Observer<K>, old: Option<&K>, new: Option<&K>) {
    if let Err(panic) = run::contained(|| observer(old, new)) {
        let key = new.or(old).map(Cached::cache_key);
        tracing::error!(kind = %K::kind_name(), ?key, %panic, "Observed a panic in an observer");
    }
}

impl<K: Cached> Index<K> {
    /// The values that an object is filed under; none where finding them panics, each time.
    fn values(&self, object: &K) -> Vec<String> {
        run::contained(|| (self.keys)(object)).unwrap_or_else(|panic| {
            tracing::error!(kind = %K::kind_name(), key = ?object.cache_key(), %panic, "Observed a panic in an index");
            Vec::new()
        })
    }

    fn insert(&mut self, slot: Slot, object: &K) {
        for value in self.values(object) {
            match self.entries.entry(value.into_boxed_str()) {
                Entry::Vacant(free) => drop(free.insert(Bucket::One(slot))),
                Entry::Occupied(mut taken) => taken.get_mut().insert(slot),
            }
        }
    }

    fn remove(&mut self, slot: Slot, object: &K) {
        for value in self.values(object) {
            if self.entries.get_mut(value.as_str()).is_some_and(|bucket| bucket.remove(slot)) {
                self.entries.remove(value.as_str());
            }
        }
    }

    /// Most changes leave an object where it is filed.
    fn replace(&mut self, slot: Slot, old: &K, new: &K) {
        if !(self.unmoved)(old, new) && self.values(old) != self.values(new) {
            self.remove(slot, old);
            self.insert(slot, new);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    #[test]
    fn observers_are_told_what_was_stored_before_and_is_after() {
        let map = |name: &str, version: &str| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": name, "resourceVersion": version}})).expect("a map")
        };
        let store = Store::of([map("a", "1")]);
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        store.add_observer(Box::new(move |old: Option<&ConfigMap>, new: Option<&ConfigMap>| {
            let version = |m: &ConfigMap| m.metadata.resource_version.clone().unwrap_or_default();
            heard.lock().push((old.map(version), new.map(version)));
            assert_ne!(new.map(version).as_deref(), Some("9"), "a panic is the observer's alone");
        }));
        store.put(map("a", "2"));
        store.put(map("a", "2"));
        store.put(map("b", "9"));
        // The last state that the server told is not what was stored.
        store.remove(&(String::new(), "a".to_owned()), Some(map("a", "7")));
        let version = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let wanted = [("", "1"), ("1", "2"), ("", "9"), ("2", "")].map(|(old, new)| (version(old), version(new)));
        assert_eq!(*told.lock(), wanted);
        assert_eq!(store.len(), 1);
    }
}
