//! Back-off per item for things that keep failing, doubling from an initial to a longest time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Remembers how often each item failed lately.
#[derive(Debug)]
pub struct Backoff {
    initial: Duration,
    longest: Duration,
    items: HashMap<String, (Duration, Instant)>,
}

impl Backoff {
    /// Nothing failed yet.
    #[must_use]
    pub fn new(initial: Duration, longest: Duration) -> Self {
        Self { initial, longest, items: HashMap::new() }
    }

    /// Returns the time that the item still has to wait; None when it may be tried.
    #[must_use]
    pub fn waiting(&self, item: &str, now: Instant) -> Option<Duration> {
        let (delay, since) = self.items.get(item)?;
        delay.checked_sub(now.saturating_duration_since(*since)).filter(|d| !d.is_zero())
    }

    /// The item is tried again: the next time waits twice as long, unless all was well for long enough.
    pub fn next(&mut self, item: &str, now: Instant) {
        let (initial, longest) = (self.initial, self.longest);
        self.items.retain(|_, (_, since)| now.saturating_duration_since(*since) < longest * 2);
        let entry = self.items.entry(item.to_owned()).or_insert((Duration::ZERO, now));
        entry.0 = if entry.0.is_zero() { initial } else { (entry.0 * 2).min(longest) };
        entry.1 = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_and_forgets() {
        let (s, t0) = (Duration::from_secs, Instant::now());
        let mut b = Backoff::new(s(1), s(4));
        assert_eq!(b.waiting("x", t0), None);
        for want in [1, 2, 4, 4] {
            b.next("x", t0);
            assert_eq!(b.waiting("x", t0), Some(s(want)));
        }
        assert_eq!(b.waiting("x", t0 + s(3)), Some(s(1)));
        assert_eq!(b.waiting("x", t0 + s(4)), None);
        b.next("y", t0 + s(9));
        b.next("x", t0 + s(9));
        assert_eq!(b.waiting("x", t0 + s(9)), Some(s(1)), "forgotten after twice the longest time");
    }
}
