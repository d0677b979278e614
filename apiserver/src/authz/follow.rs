//! Something derived from all objects of some resources, kept up to date from the watch cache.
//!
//! Whoever reads brings it up to date first: what the cache knows, the reader sees. Costs one comparison per
//! resource when nothing changed, and otherwise as much as what changed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde_json::Value;

use crate::api::{Reader, Source};
use crate::machinery::GroupResource;

/// Index derived from objects.
pub trait Observer {
    /// Takes over one object's current state; `None` when it is gone.
    fn observe(&mut self, resource: GroupResource<'_>, namespace: &str, name: &str, object: Option<&Value>);
    /// The objects of a resource it has taken over: namespace and name.
    fn known(&self, resource: GroupResource<'_>) -> Vec<(String, String)>;
}

/// Index that is kept in step with watch caches, change by change.
pub struct Follower<T> {
    derived: RwLock<T>,
    sources: &'static [GroupResource<'static>],
    reader: Arc<dyn Reader>,
    opened: OnceLock<Vec<Option<Arc<dyn Source>>>>,
    seen: Vec<AtomicU64>,
    /// One reader brings the news, the others wait for it.
    turn: Mutex<()>,
}

impl<T: Observer + Default> Follower<T> {
    /// Over these resources, which are opened at the first use.
    pub fn new(reader: Arc<dyn Reader>, sources: &'static [GroupResource<'static>]) -> Self {
        let seen = sources.iter().map(|_| AtomicU64::new(0)).collect();
        Self { derived: RwLock::default(), sources, reader, opened: OnceLock::new(), seen, turn: Mutex::default() }
    }

    fn opened(&self) -> &[Option<Arc<dyn Source>>] {
        self.opened.get_or_init(|| self.sources.iter().map(|resource| self.reader.source(*resource)).collect())
    }

    /// Reports whether all resources have been read. The first call opens them.
    pub fn synced(&self) -> bool {
        self.opened().iter().flatten().all(|s| s.synced())
    }

    /// Locks the index for reading, after catching up with the cache.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        for (at, source) in self.opened().iter().enumerate() {
            if let Some(source) = source
                && source.version() != self.seen[at].load(Ordering::Acquire)
            {
                self.catch_up(at, source.as_ref());
            }
        }
        self.derived.read()
    }

    fn catch_up(&self, at: usize, source: &dyn Source) {
        let _turn = self.turn.lock();
        let since = self.seen[at].load(Ordering::Acquire);
        if source.version() == since {
            return;
        }
        let resource = self.sources[at];
        // Objects are decoded before the lock is taken.
        let news = source.changes(since);
        let mut derived = self.derived.write();
        if news.complete {
            let mut gone: HashSet<(String, String)> = derived.known(resource).into_iter().collect();
            for object in &news.objects {
                gone.remove(&(object.namespace.clone(), object.name.clone()));
            }
            for (namespace, name) in gone {
                derived.observe(resource, &namespace, &name, None);
            }
        }
        for object in &news.objects {
            derived.observe(resource, &object.namespace, &object.name, object.object.as_deref());
        }
        drop(derived);
        self.seen[at].store(news.version, Ordering::Release);
    }
}
