//! Indexes of a cache by the value of a label or a selectable field. Answers for upstream's `pkg/storage/cacher/store`
//! (`threadedStoreIndexer`).
//!
//! An index is born by use: the second list that selects by a label or field makes one, and the one not used for
//! longest goes when there are too many. Lists that select nothing pay for none.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;

/// Indexes per resource.
const MOST: usize = 8;
/// Number of recent conditions without an index that are remembered.
const REMEMBERED: usize = 32;
/// Caches that are smaller are looked through.
pub(super) const WORTH_IT: usize = 128;

/// Value that an index is built by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IndexKey {
    /// The value of a label.
    Label(Box<str>),
    /// A selectable field, by its place in the resource's table.
    Field(usize),
}

impl IndexKey {
    /// The value of an object.
    pub fn value<'e>(&self, entry: &'e Entry) -> Option<&'e str> {
        match self {
            Self::Label(key) => entry.label(key),
            Self::Field(i) => Some(entry.field(*i)),
        }
    }
}

/// A condition that an index answers: the value is one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// By what.
    pub by: IndexKey,
    /// Allowed values, each once.
    pub values: Vec<String>,
}

type Objects = BTreeMap<Arc<str>, Arc<Entry>>;

#[derive(Debug)]
struct Index {
    by: IndexKey,
    values: HashMap<Box<str>, Objects>,
    used: AtomicU64,
}

impl Index {
    fn insert(&mut self, entry: &Arc<Entry>) {
        if let Some(value) = self.by.value(entry) {
            if let Some(objects) = self.values.get_mut(value) {
                objects.insert(entry.key.clone(), entry.clone());
            } else {
                self.values.insert(value.into(), Objects::from([(entry.key.clone(), entry.clone())]));
            }
        }
    }

    fn remove(&mut self, entry: &Entry) {
        let Some(value) = self.by.value(entry) else { return };
        if let Some(objects) = self.values.get_mut(value) {
            objects.remove(&entry.key);
            if objects.is_empty() {
                self.values.remove(value);
            }
        }
    }
}

/// The indexes of one cache.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    all: Vec<Index>,
    asked: VecDeque<IndexKey>,
    clock: AtomicU64,
}

impl Indexes {
    /// The objects that meet the term, by key; none when there is no index for it.
    pub(super) fn find<'i>(&'i self, term: &Term) -> Option<Vec<&'i Arc<Entry>>> {
        let index = self.all.iter().find(|i| i.by == term.by)?;
        index.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let mut found: Vec<&Arc<Entry>> =
            term.values.iter().filter_map(|v| index.values.get(v.as_str())).flat_map(BTreeMap::values).collect();
        if term.values.len() > 1 {
            found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        }
        Some(found)
    }

    /// Makes an index if this is not the first time it is asked for.
    pub(super) fn build_if_repeated<'e>(&mut self, by: &IndexKey, objects: impl Iterator<Item = &'e Arc<Entry>>) {
        if self.all.iter().any(|i| i.by == *by) {
            return;
        }
        let Some(before) = self.asked.iter().position(|a| a == by) else {
            self.asked.truncate(REMEMBERED - 1);
            self.asked.push_front(by.clone());
            return;
        };
        self.asked.remove(before);
        if self.all.len() >= MOST
            && let Some(oldest) = (0..self.all.len()).min_by_key(|i| self.all[*i].used.load(Ordering::Relaxed))
        {
            self.all.swap_remove(oldest);
        }
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let mut index = Index { by: by.clone(), values: HashMap::new(), used };
        objects.for_each(|e| index.insert(e));
        self.all.push(index);
    }

    /// Follows a change.
    pub(super) fn apply(&mut self, before: Option<&Arc<Entry>>, after: Option<&Arc<Entry>>) {
        for index in &mut self.all {
            match (before, after) {
                (Some(before), Some(after)) if index.by.value(before) != index.by.value(after) => {
                    index.remove(before);
                    index.insert(after);
                }
                (_, Some(after)) => index.insert(after),
                (Some(before), None) => index.remove(before),
                (None, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cache::Raw;

    fn entry(key: &str, app: &str, node: &str) -> Arc<Entry> {
        let labels = if app.is_empty() { vec![] } else { vec![("app", app)] };
        Arc::new(Entry::new(key, 1, Raw::Json(Bytes::new()), labels, std::iter::once(node)))
    }

    fn keys(found: Option<Vec<&Arc<Entry>>>) -> Option<Vec<&str>> {
        found.map(|f| f.iter().map(|e| &*e.key).collect())
    }

    #[test]
    fn is_made_the_second_time_and_follows_changes() {
        let all = [entry("a", "x", "n1"), entry("b", "y", "n1"), entry("c", "", "n2")];
        let mut indexes = Indexes::default();
        let app = Term { by: IndexKey::Label("app".into()), values: vec!["y".into(), "x".into()] };
        let node = Term { by: IndexKey::Field(0), values: vec!["n1".into()] };
        indexes.build_if_repeated(&app.by, all.iter());
        assert_eq!(keys(indexes.find(&app)), None);
        for by in [&app.by, &node.by, &node.by] {
            indexes.build_if_repeated(by, all.iter());
        }
        assert_eq!(keys(indexes.find(&app)), Some(vec!["a", "b"]));
        indexes.apply(Some(&all[0]), Some(&entry("a", "z", "n1")));
        indexes.apply(Some(&all[1]), None);
        indexes.apply(None, Some(&entry("d", "y", "n1")));
        assert_eq!(keys(indexes.find(&app)), Some(vec!["d"]));
        assert_eq!(keys(indexes.find(&node)), Some(vec!["a", "d"]));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut indexes = Indexes::default();
        for i in 0..3 * MOST {
            let by = IndexKey::Label(i.to_string().into());
            indexes.build_if_repeated(&by, std::iter::empty());
            indexes.build_if_repeated(&by, std::iter::empty());
        }
        assert_eq!(indexes.all.len(), MOST);
    }
}
