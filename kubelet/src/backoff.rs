//! Exponential back-off per key, with upstream's arithmetic: doubling from 10 s to 5 min, forgotten when the last
//! event lies more than twice the maximum after the last update.

use jiff::{SignedDuration, Timestamp};
use shared::flags::FeatureGates;
use std::collections::HashMap;
use std::time::Duration;

/// First delay.
const INITIAL: SignedDuration = SignedDuration::from_secs(10);
/// Longest delay.
const MAXIMUM: SignedDuration = SignedDuration::from_mins(5);
/// First and longest delay with the gate `ReduceDefaultCrashLoopBackOffDecay`.
const REDUCED: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(1), SignedDuration::from_mins(1));

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

    /// Delays of containers that crash: `configured` is the longest where its gate lets it be.
    pub fn of_crashes(gates: &FeatureGates, configured: Duration) -> Self {
        let reduced = gates.enabled("ReduceDefaultCrashLoopBackOffDecay");
        let (initial, maximum) = if reduced { REDUCED } else { (INITIAL, MAXIMUM) };
        let configured = gates.enabled("KubeletCrashLoopBackOffMax").then(|| SignedDuration::try_from(configured).ok());
        Self::new(initial, configured.flatten().unwrap_or(maximum))
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
    #[test]
    fn gates_say_how_long_a_crashing_container_waits() {
        let (seconds, minutes) = (SignedDuration::from_secs, SignedDuration::from_mins);
        for (reduced, limited, configured, expected) in [
            (false, true, 300, (seconds(10), minutes(5))),
            (false, true, 5, (seconds(5), seconds(5))),
            (false, false, 5, (seconds(10), minutes(5))),
            (true, false, 300, (seconds(1), minutes(1))),
            (true, true, 300, (seconds(1), minutes(5))),
        ] {
            let set = [("ReduceDefaultCrashLoopBackOffDecay", reduced), ("KubeletCrashLoopBackOffMax", limited)];
            let gates = FeatureGates::default().with(&set.map(|(gate, on)| (gate.to_owned(), on)).into());
            let backoff = Backoff::of_crashes(&gates.expect("gates"), Duration::from_secs(configured));
            assert_eq!((backoff.initial, backoff.maximum), expected, "{reduced} {limited} {configured}");
        }
    }
}
