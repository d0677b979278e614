//! What was written about slices and not yet seen: a sync on a stale cache would create slices twice.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::slice::Slice;
use crate::engine::object::Key;
use crate::engine::rest::Written as Answer;

/// What was written for one owner.
#[derive(Debug, Default)]
struct Written {
    /// uid → (generation, deleted).
    slices: HashMap<String, (i64, bool)>,
    /// A look was put off until the cache shows it.
    awaited: bool,
}

/// Generations of slices as last written, by owner.
#[derive(Debug, Default)]
pub struct Tracker {
    written: Mutex<HashMap<Key, Written>>,
}

impl Tracker {
    /// A slice was created or updated; `answer` is what the server stored.
    pub fn wrote(&self, key: &Key, answer: Answer) {
        let mut all = self.written.lock();
        all.entry(key.clone()).or_default().slices.insert(answer.uid, (answer.generation, false));
    }

    /// A slice was deleted.
    pub fn deleted(&self, key: &Key, uid: &str) {
        self.written.lock().entry(key.clone()).or_default().slices.insert(uid.to_owned(), (0, true));
    }

    /// The watch showed that a slice is gone.
    pub fn gone(&self, key: &Key, uid: &str) {
        if let Some(m) = self.written.lock().get_mut(key) {
            m.slices.remove(uid);
        }
    }

    /// The owner is gone.
    pub fn forget(&self, key: &Key) {
        self.written.lock().remove(key);
    }

    /// Whether a slice that the watch shows calls for a look: not when it is what was written here, unless a look was put
    /// off for it.
    #[must_use]
    pub fn news(&self, key: &Key, slice: &Slice) -> bool {
        let mut all = self.written.lock();
        let Some(written) = all.get_mut(key) else { return true };
        let own = (slice.meta().generation(), false);
        written.slices.get(slice.meta().uid()) != Some(&own) || std::mem::take(&mut written.awaited)
    }

    /// Whether the cache lags behind what was written.
    #[must_use]
    pub fn stale(&self, key: &Key, cached: &[Arc<Slice>]) -> bool {
        let mut all = self.written.lock();
        let Some(written) = all.get_mut(key) else { return false };
        let find = |uid: &str| cached.iter().find(|s| s.meta().uid() == uid);
        written.awaited = written.slices.iter().any(|(uid, (generation, deleted))| match find(uid) {
            None => !deleted,
            Some(s) => *deleted || s.meta().generation() < *generation,
        });
        written.awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn waits_for_the_cache() {
        let (t, key) = (Tracker::default(), Key::new("ns", "svc"));
        let slice = |generation: i64| -> Arc<Slice> {
            let object =
                json!({"metadata": {"uid": "u", "generation": generation}, "addressType": "IPv4", "endpoints": []});
            Arc::new(Slice::of_json(&object).expect("slice"))
        };
        assert!(!t.stale(&key, &[]));
        t.wrote(&key, Answer { uid: "u".into(), generation: 2, ..Answer::default() });
        assert!(t.stale(&key, &[]));
        assert!(t.stale(&key, &[slice(1)]));
        assert!(t.news(&key, &slice(2)), "a look was put off for it");
        assert!(!t.stale(&key, &[slice(2)]));
        assert!(!t.news(&key, &slice(2)), "nobody waits for what was written here");
        assert!(t.news(&key, &slice(3)), "somebody else wrote it");
        t.deleted(&key, "u");
        assert!(t.stale(&key, &[slice(2)]));
        assert!(!t.stale(&key, &[]));
        t.wrote(&key, Answer { uid: "v".into(), generation: 1, ..Answer::default() });
        t.gone(&key, "v");
        assert!(!t.stale(&key, &[]), "deleted by somebody else before we saw it");
    }
}
