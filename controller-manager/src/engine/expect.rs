//! Expectations: writes that were sent but that the informer has not shown yet.
//!
//! Until the cache has caught up a controller that counts pods would count wrongly and create or delete again.
//! Expectations that are never met expire, so that a lost event costs a delay and not a deadlock.

use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use super::object::Key;

/// How long unmet expectations block a key.
const EXPIRY: Duration = Duration::from_mins(5);

#[derive(Debug)]
struct Pending {
    adds: i64,
    deletes: HashSet<String>,
    since: Instant,
}

/// Pending creations (counted) and deletions (by uid) of each key.
#[derive(Debug, Default)]
pub struct Expectations {
    pending: Mutex<HashMap<Key, Pending>>,
}

impl Expectations {
    /// Whether the cache shows all that was written for `key`.
    pub fn satisfied(&self, key: &Key, now: Instant) -> bool {
        self.pending
            .lock()
            .get(key)
            .is_none_or(|p| (p.adds <= 0 && p.deletes.is_empty()) || now.saturating_duration_since(p.since) > EXPIRY)
    }

    /// Before writing: what the informer will show, besides what it has not shown yet.
    pub fn expect(&self, key: &Key, adds: i64, deletes: impl IntoIterator<Item = String>, now: Instant) {
        let mut pending = Pending { adds, deletes: deletes.into_iter().collect(), since: now };
        if let Some(before) = self.pending.lock().remove(key)
            && now.saturating_duration_since(before.since) <= EXPIRY
        {
            pending.adds += before.adds.max(0);
            pending.deletes.extend(before.deletes);
        }
        if pending.adds == 0 && pending.deletes.is_empty() {
            self.pending.lock().remove(key);
        } else {
            self.pending.lock().insert(key.clone(), pending);
        }
    }

    /// A creation was seen, or failed. True when that was the last of what was expected.
    pub fn created(&self, key: &Key) -> bool {
        self.pending.lock().get_mut(key).is_some_and(|p| {
            p.adds -= 1;
            p.adds == 0 && p.deletes.is_empty()
        })
    }

    /// A deletion (or its start) was seen, or failed. True when that was the last of what was expected.
    pub fn deleted(&self, key: &Key, uid: &str) -> bool {
        self.pending.lock().get_mut(key).is_some_and(|p| p.deletes.remove(uid) && p.deletes.is_empty() && p.adds <= 0)
    }

    /// The key's object is gone.
    pub fn forget(&self, key: &Key) {
        self.pending.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_until_seen_or_expired() {
        let (e, key, t0) = (Expectations::default(), Key::new("ns", "rs"), Instant::now());
        assert!(e.satisfied(&key, t0));
        e.expect(&key, 2, ["u1".to_owned()], t0);
        assert!(!e.satisfied(&key, t0));
        assert!(!e.created(&key));
        assert!(!e.created(&key));
        assert!(!e.satisfied(&key, t0), "a deletion is still out");
        assert!(!e.deleted(&key, "other"));
        assert!(e.deleted(&key, "u1"), "the last");
        assert!(!e.deleted(&key, "u1"), "once");
        assert!(e.satisfied(&key, t0));
        e.expect(&key, 1, [], t0);
        assert!(e.satisfied(&key, t0 + EXPIRY + Duration::from_secs(1)));
        e.forget(&key);
        assert!(e.satisfied(&key, t0));
    }
}
