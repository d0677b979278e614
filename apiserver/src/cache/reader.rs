//! The port policies read through: trees made on demand from cached bytes.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use proto::Value;
use proto::resources::{Resource, Row};

use super::cache_registry::CacheRegistry;
use super::cacher::{Cacher, Start, WatchStart};
use super::entry::Entry;
use crate::api::{Changed, Changes, Reader, Source, Stored};
use crate::machinery::GroupResource;
use crate::rows::Rows;
use crate::storage::codec;

/// Trees that are kept.
const KEPT: usize = 256;
/// The largest object whose tree is kept, and the longest list of such.
const SMALL: usize = 4 << 10;
const FEW: usize = 16;

/// Trees of small objects that were asked for lately: with every write admission asks for the same namespace, account
/// and classes. An object has one place it may be kept in, by where its entry lies in memory; the last one asked for
/// has it.
#[derive(Default)]
struct Trees(OnceLock<Box<[Mutex<Option<CachedTree>>]>>);

struct CachedTree {
    of: Arc<Entry>,
    tree: Arc<Value>,
}

impl Trees {
    fn get(&self, row: &Resource, entry: &Arc<Entry>) -> Option<Arc<Value>> {
        if entry.raw.size() > SMALL {
            return tree(row, entry);
        }
        let places = self.0.get_or_init(|| std::iter::repeat_with(Mutex::default).take(KEPT).collect());
        let at = BuildHasherDefault::<DefaultHasher>::default().hash_one(Arc::as_ptr(entry).addr());
        let place = places.get(usize::try_from(at).unwrap_or(0) % KEPT)?;
        if let Some(kept) = &*place.lock()
            && Arc::ptr_eq(&kept.of, entry)
        {
            return Some(kept.tree.clone());
        }
        let tree = tree(row, entry)?;
        *place.lock() = Some(CachedTree { of: entry.clone(), tree: tree.clone() });
        Some(tree)
    }
}

/// [`Reader`] over the watch caches.
pub struct CacheReader {
    caches: Arc<CacheRegistry>,
    rows: Rows,
    trees: Trees,
}

impl CacheReader {
    /// Reads from these caches, for the rows served.
    pub fn new(caches: Arc<CacheRegistry>, rows: Rows) -> Self {
        Self { caches, rows, trees: Trees::default() }
    }

    fn cacher(&self, resource: GroupResource<'_>) -> Option<(Row, Arc<Cacher>)> {
        // What is only asked and never stored has no place in etcd: its cache would be one of everything there.
        let row = self.rows.storage(resource).filter(|row| !row.etcd_prefix.is_empty())?;
        let cacher = self.caches.cacher(&row);
        Some((row, cacher))
    }
}

fn tree(row: &Resource, entry: &Entry) -> Option<Arc<Value>> {
    // What entered the cache was readable then.
    codec::value(row, &entry.raw).ok().map(Arc::new)
}

impl Reader for CacheReader {
    fn get(&self, resource: GroupResource<'_>, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let (row, cacher) = self.cacher(resource)?;
        let entry = if namespace.is_empty() { cacher.get(name) } else { cacher.get(&format!("{namespace}/{name}")) };
        self.trees.get(&row, &entry?)
    }

    fn list(&self, resource: GroupResource<'_>, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let Some((row, cacher)) = self.cacher(resource) else { return Vec::new() };
        let scope = namespace.filter(|ns| !ns.is_empty()).map(|ns| format!("{ns}/")).unwrap_or_default();
        let found = cacher.cached_entries(&scope);
        let few = found.len() <= FEW;
        found.iter().filter_map(|e| if few { self.trees.get(&row, e) } else { tree(&row, e) }).collect()
    }

    fn version(&self, resource: GroupResource<'_>) -> u64 {
        let Some((_, cacher)) = self.cacher(resource) else { return 0 };
        u64::try_from(cacher.revision()).unwrap_or(0)
    }

    fn synced(&self, resource: GroupResource<'_>) -> bool {
        self.cacher(resource).is_some_and(|(_, c)| c.is_ready())
    }

    fn source(&self, resource: GroupResource<'_>) -> Option<Arc<dyn Source>> {
        let (row, cacher) = self.cacher(resource)?;
        Some(Arc::new(FollowedResource { row, cacher }))
    }

    fn changed<'a>(&'a self, resource: GroupResource<'a>, since: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some((_, cacher)) = self.cacher(resource) else { return std::future::pending().await };
            cacher.wait_ready().await;
            if self.version(resource) != since {
                return;
            }
            let since = i64::try_from(since).unwrap_or(0);
            // History that is gone is a change as well.
            let begin =
                WatchStart { scope: "", start: Start::After(since), at_least: since, term: None, trigger: None };
            if let Ok(mut watch) = cacher.watch(begin, Arc::new(|_: &Entry| true))
                && watch.replay.is_empty()
            {
                watch.receiver.recv().await;
            }
        })
    }

    fn stored(&self, resource: GroupResource<'_>) -> Option<Stored> {
        let row = self.rows.storage(resource).filter(|row| !row.etcd_prefix.is_empty())?;
        if !self.caches.is_cached(&row) {
            let objects = u64::try_from(self.caches.counted(&row)?).unwrap_or(u64::MAX);
            return Some(Stored { objects, size: 0 });
        }
        let cacher = self.caches.cacher(&row);
        Some(Stored { objects: u64::try_from(cacher.len()).unwrap_or(u64::MAX), size: cacher.size_of_one() })
    }
}

struct FollowedResource {
    row: Row,
    cacher: Arc<Cacher>,
}

impl Source for FollowedResource {
    fn version(&self) -> u64 {
        self.cacher.sequence()
    }

    fn synced(&self) -> bool {
        self.cacher.is_ready()
    }

    fn changes(&self, since: u64) -> Changes {
        let news = self.cacher.since(since);
        let objects = news.entries.iter().map(|(entry, gone)| Changed {
            namespace: entry.namespace().to_owned(),
            name: entry.name().to_owned(),
            object: if *gone { None } else { tree(&self.row, entry) },
        });
        Changes { version: news.sequence, complete: news.complete, objects: objects.collect() }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::Raw;

    #[test]
    fn only_trees_of_small_objects_are_kept() {
        let row = proto::resources::find("", "v1", "configmaps").expect("a row");
        let entry = |text: &str| {
            let raw = Raw::Json(Bytes::from(format!(r#"{{"data":{{"a":"{text}"}}}}"#)));
            Arc::new(Entry::new("n/a", 1, raw, Vec::new(), std::iter::empty()))
        };
        let trees = Trees::default();
        let get = |e: &Arc<Entry>| trees.get(row, e).expect("a tree");
        // More than there are places for.
        let all: Vec<_> = (0..2 * KEPT).map(|i| entry(&i.to_string())).collect();
        for (i, e) in all.iter().enumerate() {
            let tree = get(e);
            assert_eq!(tree["data"]["a"], i.to_string());
            assert!(Arc::ptr_eq(&tree, &get(e)));
        }
        for (i, e) in all.iter().enumerate() {
            assert_eq!(get(e)["data"]["a"], i.to_string());
        }
        let large = entry(&"x".repeat(SMALL));
        assert!(!Arc::ptr_eq(&get(&large), &get(&large)));
    }
}
