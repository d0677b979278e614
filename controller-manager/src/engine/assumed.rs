//! Answers of the server to writes, until the watch shows them: a controller that chooses among objects must not choose
//! one twice because its cache is behind. Answers for upstream's assume caches.

use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;
use shared::informer::{Event, Informer, Object, Store};

use super::object::{self, Key};

/// A cache, with what is known to be newer than it.
pub struct Assumed<K> {
    cache: Store<K>,
    newer: Mutex<HashMap<Key, Arc<K>>>,
}

impl<K: Object> Assumed<K> {
    /// Follow an informer.
    #[must_use]
    pub fn follow(informer: &Informer<K>) -> Arc<Self> {
        let this = Arc::new(Self { cache: informer.store(), newer: Mutex::default() });
        let state = Arc::clone(&this);
        informer.add_handler(move |event: &Event<K>| {
            let shown = event.object();
            let (key, gone) = (Key::of(shown.meta()), matches!(event, Event::Deleted(_)));
            let mut newer = state.newer.lock();
            if newer.get(&key).is_some_and(|assumed| gone || !is_newer(&**assumed, &**shown)) {
                newer.remove(&key);
            }
        });
        this
    }

    /// The server has stored this in place of what the cache shows.
    pub fn wrote(&self, object: K) {
        let key = Key::of(object.meta());
        let mut newer = self.newer.lock();
        // What the cache does not hold at all has been deleted since.
        if self.cache.get(&key.namespace, &key.name).is_some_and(|shown| is_newer(&object, &*shown)) {
            newer.insert(key, Arc::new(object));
        }
    }

    /// One object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let assumed = self.newer.lock().get(&Key::new(namespace, name)).cloned();
        let shown = self.cache.get(namespace, name)?;
        Some(assumed.filter(|a| is_newer(&**a, &*shown)).unwrap_or(shown))
    }

    /// The objects that the cache files under a value of an index, and all that have been stored since: those may belong
    /// there by now, or no more.
    #[must_use]
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let newer = self.newer.lock();
        let mut all: Vec<Arc<K>> = self.cache.by_index(index, value);
        all.retain(|shown| !newer.get(&Key::of(shown.meta())).is_some_and(|a| is_newer(&**a, &**shown)));
        all.extend(newer.values().cloned());
        all
    }

    /// Every object, in no order.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<K>> {
        self.newest(self.cache.list())
    }

    /// The objects of a namespace, in no order.
    #[must_use]
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.newest(self.cache.list_namespace(namespace))
    }

    fn newest(&self, mut all: Vec<Arc<K>>) -> Vec<Arc<K>> {
        let newer = self.newer.lock();
        if !newer.is_empty() {
            for shown in &mut all {
                if let Some(assumed) = newer.get(&Key::of(shown.meta())).filter(|a| is_newer(&***a, &**shown)) {
                    *shown = Arc::clone(assumed);
                }
            }
        }
        all
    }
}

/// Reports whether `a` is a later version of the same object as `b`. Versions of one object are numbers that grow.
fn is_newer<K: Object>(a: &K, b: &K) -> bool {
    let version =
        |object: &K| object.meta().resource_version.as_deref().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    object::uid(a.meta()) == object::uid(b.meta()) && version(a) > version(b)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::json;

    use super::*;

    #[test]
    fn later_versions_of_the_same_object_are_newer() {
        let volume = |uid: &str, version: &str| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": "v", "uid": uid, "resourceVersion": version}}))
                .expect("volume")
        };
        for (a, b, want) in [
            (("u", "10"), ("u", "9"), true),
            (("u", "9"), ("u", "9"), false),
            (("u", "9"), ("u", "10"), false),
            (("old", "10"), ("new", "9"), false),
            (("u", ""), ("u", "9"), false),
        ] {
            assert_eq!(is_newer(&volume(a.0, a.1), &volume(b.0, b.1)), want, "{a:?} {b:?}");
        }
    }
}
