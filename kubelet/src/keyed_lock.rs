//! Locks by key: work on the same thing does not overlap, and work on another does not wait.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// Locks of things that are known by a key.
#[derive(Debug)]
pub struct KeyedLocks<K>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> KeyedLocks<K> {
    /// Waits until nobody holds the key, and holds it as long as the guard lives.
    pub async fn lock(&self, key: &K) -> OwnedMutexGuard<()> {
        let lock = Arc::clone(self.0.lock().entry(key.clone()).or_default());
        let guard = lock.lock_owned().await;
        // Those that nobody holds or waits for are dropped: the map has one, and whoever holds it another.
        self.0.lock().retain(|known, lock| known == key || Arc::strong_count(lock) > 1);
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn one_key_is_held_once_and_forgotten() {
        let locks = KeyedLocks::default();
        let first = locks.lock(&"a").await;
        locks.lock(&"b").await;
        let waited = tokio::time::timeout(Duration::from_secs(1), locks.lock(&"a")).await;
        assert!(waited.is_err(), "it is held");
        drop(first);
        drop(locks.lock(&"c").await);
        assert_eq!(locks.0.lock().len(), 1, "only the last one is remembered");
        locks.lock(&"a").await;
    }
}
