//! What was written about slices and not yet seen: a sync on a stale cache would create slices twice.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;

use crate::engine::object::{self, Key};
use crate::engine::rest::Written as Answer;

/// uid → (generation, deleted).
type Written = HashMap<String, (i64, bool)>;

/// Generations of slices as last written, by owner.
#[derive(Debug, Default)]
pub struct Tracker {
    written: Mutex<HashMap<Key, Written>>,
}

impl Tracker {
    /// A slice was created or updated; `answer` is what the server stored.
    pub fn wrote(&self, key: &Key, answer: Answer) {
        self.written.lock().entry(key.clone()).or_default().insert(answer.uid, (answer.generation, false));
    }

    /// A slice was deleted.
    pub fn deleted(&self, key: &Key, uid: &str) {
        self.written.lock().entry(key.clone()).or_default().insert(uid.to_owned(), (0, true));
    }

    /// The watch showed that a slice is gone.
    pub fn gone(&self, key: &Key, uid: &str) {
        if let Some(m) = self.written.lock().get_mut(key) {
            m.remove(uid);
        }
    }

    /// The owner is gone.
    pub fn forget(&self, key: &Key) {
        self.written.lock().remove(key);
    }

    /// Whether the cache lags behind what was written.
    #[must_use]
    pub fn stale(&self, key: &Key, cached: &[Arc<EndpointSlice>]) -> bool {
        let written = self.written.lock();
        let Some(written) = written.get(key) else { return false };
        let find = |uid: &str| cached.iter().find(|s| object::uid(&s.metadata) == uid);
        written.iter().any(|(uid, (generation, deleted))| match find(uid) {
            None => !deleted,
            Some(s) => *deleted || s.metadata.generation.unwrap_or(0) < *generation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn waits_for_the_cache() {
        let (t, key) = (Tracker::default(), Key::new("ns", "svc"));
        let slice = |generation: i64| -> Arc<EndpointSlice> {
            Arc::new(
                serde_json::from_value(
                    json!({"metadata": {"uid": "u", "generation": generation}, "addressType": "IPv4", "endpoints": []}),
                )
                .expect("slice"),
            )
        };
        assert!(!t.stale(&key, &[]));
        t.wrote(&key, Answer { uid: "u".into(), generation: 2, ..Answer::default() });
        assert!(t.stale(&key, &[]));
        assert!(t.stale(&key, &[slice(1)]));
        assert!(!t.stale(&key, &[slice(2)]));
        t.deleted(&key, "u");
        assert!(t.stale(&key, &[slice(2)]));
        assert!(!t.stale(&key, &[]));
        t.wrote(&key, Answer { uid: "v".into(), generation: 1, ..Answer::default() });
        t.gone(&key, "v");
        assert!(!t.stale(&key, &[]), "deleted by somebody else before we saw it");
    }
}
