//! Expectations: writes that were sent but that the informer has not shown yet. Answers for upstream's
//! `ControllerExpectations`.
//!
//! Until the cache has caught up a controller that counts pods would count wrongly and create or delete again.
//! Expectations that are never met expire, so that a lost event costs a delay and not a deadlock: whoever waits for them
//! looks again then.

use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;

use super::object::Key;

/// Time after which unmet expectations no longer block a key.
const EXPIRY: Duration = Duration::from_mins(5);

#[derive(Debug)]
struct Pending {
    owner: String,
    adds: i64,
    deletes: HashSet<String>,
    since: Instant,
}

impl Pending {
    /// For how long it still counts; none when all of it was seen.
    fn left(&self, now: Instant) -> Option<Duration> {
        if self.adds <= 0 && self.deletes.is_empty() {
            return None;
        }
        EXPIRY.checked_sub(now.saturating_duration_since(self.since))
    }
}

/// Pending creations (counted) and deletions (by uid) of each key.
#[derive(Debug, Default)]
pub struct Expectations {
    pending: Mutex<HashMap<Key, Pending>>,
}

impl Expectations {
    /// Returns the expectations of one owner. Those of another owner that had its name before are dropped.
    #[must_use]
    pub fn of<'a>(&'a self, key: &'a Key, owner: &'a str) -> Expected<'a> {
        Expected { all: self, key, owner }
    }

    /// The key's object is gone.
    pub fn forget(&self, key: &Key) {
        self.pending.lock().remove(key);
    }
}

/// Expectations of one owner.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    all: &'a Expectations,
    key: &'a Key,
    owner: &'a str,
}

impl Expected<'_> {
    /// Returns how long the cache has been behind; none when it shows all that was written.
    #[must_use]
    pub fn unmet(self, now: Instant) -> Option<Duration> {
        self.with(|pending| pending.left(now)).flatten()
    }

    /// Before writing: what the informer will show, besides what it has not shown yet.
    pub fn expect(self, adds: i64, deletes: impl IntoIterator<Item = String>, now: Instant) {
        let deletes = deletes.into_iter().collect();
        let mut pending = Pending { owner: self.owner.to_owned(), adds, deletes, since: now };
        let mut all = self.all.pending.lock();
        if let Some(before) = all.remove(self.key).filter(|p| p.owner == self.owner && p.left(now).is_some()) {
            pending.adds += before.adds.max(0);
            pending.deletes.extend(before.deletes);
        }
        if pending.left(now).is_some() {
            all.insert(self.key.clone(), pending);
        }
    }

    /// A creation was seen, or failed. True when that was the last of what was expected.
    pub fn created(self) -> bool {
        self.with(|pending| {
            pending.adds -= 1;
            pending.adds == 0 && pending.deletes.is_empty()
        })
        .unwrap_or(false)
    }

    /// A deletion (or its start) was seen, or failed. True when that was the last of what was expected.
    pub fn deleted(self, uid: &str) -> bool {
        self.with(|pending| pending.deletes.remove(uid) && pending.deletes.is_empty() && pending.adds <= 0)
            .unwrap_or(false)
    }

    fn with<R>(self, look: impl FnOnce(&mut Pending) -> R) -> Option<R> {
        self.all.pending.lock().get_mut(self.key).filter(|pending| pending.owner == self.owner).map(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_until_seen_or_expired() {
        let (all, key, t0) = (Expectations::default(), Key::new("ns", "rs"), Instant::now());
        let e = all.of(&key, "uid");
        assert_eq!(e.unmet(t0), None);
        e.expect(2, ["u1".to_owned()], t0);
        assert_eq!(e.unmet(t0), Some(EXPIRY));
        assert!(!e.created());
        assert!(!e.created());
        assert!(e.unmet(t0).is_some(), "a deletion is still out");
        assert!(!e.deleted("other"));
        assert!(e.deleted("u1"), "the last");
        assert!(!e.deleted("u1"), "once");
        assert_eq!(e.unmet(t0), None);
        e.expect(1, [], t0);
        assert_eq!(e.unmet(t0 + EXPIRY / 5 * 4), Some(EXPIRY / 5), "until when it is waited for it");
        assert_eq!(e.unmet(t0 + EXPIRY + Duration::from_secs(1)), None);
        all.forget(&key);
        assert_eq!(e.unmet(t0), None);
    }

    #[test]
    fn who_comes_after_another_of_that_name_does_not_wait_for_what_that_one_wrote() {
        let (all, key, t0) = (Expectations::default(), Key::new("ns", "job"), Instant::now());
        let (old, new) = (all.of(&key, "old"), all.of(&key, "new"));
        old.expect(2, ["u1".to_owned()], t0);
        assert_eq!(new.unmet(t0), None);
        new.expect(1, [], t0);
        assert!(!old.created() && !old.deleted("u1"), "what the old one made is not what the new one waits for");
        assert!(new.unmet(t0).is_some());
        assert!(new.created());
        assert_eq!((old.unmet(t0), new.unmet(t0)), (None, None));
    }
}
