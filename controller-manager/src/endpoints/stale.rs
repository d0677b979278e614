//! Versions of endpoints that were written over here. A cache that still shows one is behind: what it shows would be
//! written in vain, or, looking as it should by chance, would let what was written stand.

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::engine::object::Key;

/// The last version of each that is known to be replaced.
#[derive(Debug, Default)]
pub struct Replaced {
    versions: Mutex<HashMap<Key, String>>,
}

impl Replaced {
    /// An update of the version `old` was answered with the version `new`, or with none that could be read. An update
    /// that changed nothing replaces nothing.
    pub fn note(&self, key: &Key, old: &str, new: &str) {
        if !new.is_empty() && old != new {
            self.versions.lock().insert(key.clone(), old.to_owned());
        }
    }

    /// Reports whether `shown` is outdated.
    #[must_use]
    pub fn has(&self, key: &Key, shown: &str) -> bool {
        self.versions.lock().get(key).is_some_and(|old| old == shown)
    }

    /// The service is gone.
    pub fn forget(&self, key: &Key) {
        self.versions.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_over_is_stale_until_the_cache_shows_more() {
        let (replaced, key, other) = (Replaced::default(), Key::new("ns", "a"), Key::new("ns", "b"));
        replaced.note(&key, "5", "8");
        for (key, shown, stale) in [(&key, "5", true), (&key, "8", false), (&key, "9", false), (&other, "5", false)] {
            assert_eq!(replaced.has(key, shown), stale, "{shown}");
        }
        replaced.note(&key, "9", "9");
        assert!(!replaced.has(&key, "9"), "nothing was changed, so no event will come");
        replaced.forget(&key);
        assert!(!replaced.has(&key, "5"), "an object made anew is another");
    }
}
