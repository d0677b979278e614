//! Exponential back-off per key, with upstream's arithmetic: doubling from 10 s to 5 min, forgotten when the last
//! event lies more than twice the maximum after the last update.

use jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;
use std::time::Duration;

/// First delay.
pub const INITIAL: SignedDuration = SignedDuration::from_secs(10);
/// Longest delay.
pub const MAXIMUM: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Copy, Debug)]
struct BackoffEntry {
    delay: SignedDuration,
    updated: Timestamp,
}

/// Delays by key.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: SignedDuration,
    maximum: SignedDuration,
    entries: HashMap<String, BackoffEntry>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(INITIAL, MAXIMUM)
    }
}

impl Backoff {
    /// Delays from `initial` to `maximum`.
    pub fn new(initial: SignedDuration, maximum: SignedDuration) -> Self {
        Self { initial: initial.min(maximum), maximum, entries: HashMap::new() }
    }

    fn expired(&self, entry: BackoffEntry, event: Timestamp) -> bool {
        event.duration_since(entry.updated) > self.maximum * 2
    }

    /// The current delay of a key.
    pub fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |e| e.delay.unsigned_abs())
    }

    /// Returns the time left to wait after `event`, if the key is in back-off. An event further ahead than the delay is one
    /// before the clock was set back: nothing waits until the clock comes there again.
    pub fn remaining(&self, key: &str, event: Timestamp, now: Timestamp) -> Option<SignedDuration> {
        let entry = *self.entries.get(key)?;
        if self.expired(entry, event) {
            return None;
        }
        let left = entry.delay - now.duration_since(event);
        (left > SignedDuration::ZERO && left <= entry.delay * 2).then_some(left)
    }

    /// Records that the key is tried again after `event`.
    pub fn next(&mut self, key: &str, event: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(entry) if !self.expired(*entry, event) => (entry.delay * 2).min(self.maximum),
            _ => self.initial,
        };
        self.entries.insert(key.to_owned(), BackoffEntry { delay, updated: now });
    }

    /// Forgets keys that nothing happened to for so long that they begin anew.
    pub fn forget_old(&mut self, now: Timestamp) {
        let longest = self.maximum * 2;
        self.entries.retain(|_, entry| now.duration_since(entry.updated) <= longest);
    }

    /// Reports whether something is known of a key.
    pub fn knows(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Forgets a key.
    pub fn reset(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_nothing_waiting() {
        let mut backoff = Backoff::default();
        backoff.next("k", at(0), at(0));
        for (now, expected) in
            [(1, Some(9)), (0, Some(10)), (-2, Some(12)), (-10, Some(20)), (-11, None), (-86_400, None)]
        {
            assert_eq!(backoff.remaining("k", at(0), at(now)).map(|left| left.as_secs()), expected, "{now} s");
        }
    }

    #[test]
    fn doubles_to_the_maximum_and_resets() {
        let mut backoff = Backoff::default();
        let mut now = 0;
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            backoff.next("k", at(now), at(now));
            assert_eq!(i64::try_from(backoff.delay("k").as_secs()), Ok(expected));
            assert_eq!(backoff.remaining("k", at(now), at(now + 4)).map(|d| d.as_secs()), Some(expected - 4));
            assert_eq!(backoff.remaining("k", at(now), at(now + expected)), None);
            now += expected;
        }
        // The container ran for more than ten minutes before it ended: back to the start.
        assert_eq!(backoff.remaining("k", at(now + 700), at(now + 700)), None);
        backoff.next("k", at(now + 700), at(now + 700));
        assert_eq!(backoff.delay("k").as_secs(), 10);
    }
}
