//! Labels and selectors, both ways, without looking at everything: which objects a selector picks, and which selectors
//! pick an object.
//!
//! Both work on the pairs that a selector requires. Objects are indexed by each of their labels, and a selector starts
//! from the rarest of its pairs. Selectors are filed under one of their pairs, whichever fewest others are filed under.
//! What comes out are candidates: whoever asks still compares the whole selector.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::Mutex;
use shared::informer::{Cached, Event, Informer, Object, Store};

use super::object::{Metadata, name, namespace};

/// Index of objects by each of their labels.
pub const BY_LABEL: &str = "label";

type Labels = BTreeMap<String, String>;

fn entry(namespace: &str, key: &str, value: &str) -> String {
    [namespace, "/", key, "=", value].concat()
}

/// The [`BY_LABEL`] entries of an object.
#[must_use]
pub fn entries(meta: &impl Metadata) -> Vec<String> {
    meta.labels().into_iter().flatten().map(|(key, value)| entry(namespace(meta), key, value)).collect()
}

/// Objects of a namespace that have at least one of the required pairs; all when nothing is required.
#[must_use]
pub fn candidates<K: Cached>(store: &Store<K>, namespace: &str, required: &Labels) -> Vec<Arc<K>> {
    if required.is_empty() {
        return store.list_namespace(namespace);
    }
    let all: Vec<String> = required.iter().map(|(key, value)| entry(namespace, key, value)).collect();
    store.by_rarest(BY_LABEL, &all)
}

/// A kind with a selector.
pub trait Selecting: Object {
    /// The pairs it requires; empty when it may pick anything, None when it picks nothing.
    fn required(&self) -> Option<&Labels>;
}

static NONE: Labels = Labels::new();

fn of(selector: &LabelSelector) -> Option<&Labels> {
    Some(selector.match_labels.as_ref().unwrap_or(&NONE))
}

impl Selecting for Service {
    fn required(&self) -> Option<&Labels> {
        self.spec.as_ref()?.selector.as_ref().filter(|s| !s.is_empty())
    }
}

impl Selecting for ReplicationController {
    fn required(&self) -> Option<&Labels> {
        self.spec.as_ref()?.selector.as_ref().filter(|s| !s.is_empty())
    }
}

impl Selecting for ReplicaSet {
    fn required(&self) -> Option<&Labels> {
        of(&self.spec.as_ref()?.selector)
    }
}

impl Selecting for Deployment {
    fn required(&self) -> Option<&Labels> {
        of(&self.spec.as_ref()?.selector)
    }
}

impl Selecting for StatefulSet {
    fn required(&self) -> Option<&Labels> {
        of(&self.spec.as_ref()?.selector)
    }
}

impl Selecting for DaemonSet {
    fn required(&self) -> Option<&Labels> {
        of(&self.spec.as_ref()?.selector)
    }
}

impl Selecting for Job {
    fn required(&self) -> Option<&Labels> {
        of(self.spec.as_ref()?.selector.as_ref()?)
    }
}

impl Selecting for CronJob {
    fn required(&self) -> Option<&Labels> {
        None
    }
}

impl Selecting for PodDisruptionBudget {
    fn required(&self) -> Option<&Labels> {
        of(self.spec.as_ref()?.selector.as_ref()?)
    }
}

type Pair = (Box<str>, Box<str>);
type Names = HashSet<Box<str>>;

/// The selectors of one namespace, by name.
#[derive(Default)]
pub struct Space {
    /// By key and value.
    by_pair: HashMap<Box<str>, HashMap<Box<str>, Names>>,
    /// Selectors that require no pair.
    open: Names,
    /// Under which pair each is filed.
    filed: HashMap<Box<str>, Pair>,
}

impl Space {
    /// Drops a selector.
    pub fn remove(&mut self, name: &str) {
        self.open.remove(name);
        let Some((key, value)) = self.filed.remove(name) else { return };
        let Some(values) = self.by_pair.get_mut(&key) else { return };
        let Some(names) = values.get_mut(&value) else { return };
        names.remove(name);
        if names.is_empty() {
            values.remove(&value);
        }
        if values.is_empty() {
            self.by_pair.remove(&key);
        }
    }

    /// Files a selector that requires these pairs.
    pub fn insert(&mut self, name: &str, required: &Labels) {
        let Some((key, value)) = required.iter().min_by_key(|(k, v)| self.under(k, v).map_or(0, HashSet::len)) else {
            self.open.insert(name.into());
            return;
        };
        let pair: Pair = (key.as_str().into(), value.as_str().into());
        let values = self.by_pair.entry(pair.0.clone()).or_default();
        values.entry(pair.1.clone()).or_default().insert(name.into());
        self.filed.insert(name.into(), pair);
    }

    /// Reports whether nothing is filed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.filed.is_empty() && self.open.is_empty()
    }

    fn under(&self, key: &str, value: &str) -> Option<&Names> {
        self.by_pair.get(key)?.get(value)
    }

    /// The selectors that may pick what has these labels.
    pub fn names<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a str> {
        let filed = labels.iter().filter_map(|(k, v)| self.under(k, v));
        self.open.iter().chain(filed.flatten()).map(|name| &**name)
    }
}

/// The selectors of one kind, kept up to date by its informer.
pub struct Selectors<K: Selecting> {
    store: Store<K>,
    spaces: Mutex<HashMap<Box<str>, Space>>,
}

impl<K: Selecting> Selectors<K> {
    /// Follow an informer.
    #[must_use]
    pub fn follow(informer: &Informer<K>) -> Arc<Self> {
        let this = Arc::new(Self { store: informer.store(), spaces: Mutex::default() });
        let state = Arc::clone(&this);
        informer.add_handler(move |event: &Event<K>| {
            let changed = match event {
                Event::Updated { old, new } => old.required() != new.required(),
                _ => true,
            };
            if changed {
                state.file(event.object(), matches!(event, Event::Deleted(_)));
            }
        });
        this
    }

    /// The objects that have the selectors.
    #[must_use]
    pub fn store(&self) -> &Store<K> {
        &self.store
    }

    fn file(&self, object: &K, gone: bool) {
        let meta = object.meta();
        let mut spaces = self.spaces.lock();
        let space = spaces.entry(namespace(meta).into()).or_default();
        space.remove(name(meta));
        if let Some(required) = object.required().filter(|_| !gone) {
            space.insert(name(meta), required);
        }
        if space.is_empty() {
            spaces.remove(namespace(meta));
        }
    }

    /// The objects whose selectors may pick what has these labels.
    #[must_use]
    pub fn candidates(&self, namespace: &str, labels: Option<&Labels>) -> Vec<Arc<K>> {
        let spaces = self.spaces.lock();
        let Some(space) = spaces.get(namespace) else { return Vec::new() };
        space.names(labels.unwrap_or(&NONE)).filter_map(|name| self.store.get(namespace, name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        text.split(' ').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn selectors_are_found_by_one_of_their_pairs() {
        let mut space = Space::default();
        for n in 0..100 {
            space.insert(&format!("s{n}"), &labels(&format!("a-tier=backend app=a{n}")));
        }
        space.insert("open", &labels(""));
        let found = |space: &Space, text: &str| {
            let labels = labels(text);
            let mut names: Vec<String> = space.names(&labels).map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(
            found(&space, "app=a7 a-tier=backend x=y"),
            ["open", "s0", "s7"],
            "one common pair costs one candidate"
        );
        space.remove("s7");
        space.remove("open");
        assert_eq!(found(&space, "app=a7"), [""; 0]);
        space.insert("s7", &labels("app=b"));
        assert_eq!(found(&space, "app=b"), ["s7"]);
    }
}
