//! Pace of calls with bursts: of pulls (`registryPullQPS`, `registryBurst`, upstream's `throttleImagePulling`), and of
//! questions about podresources.

use parking_lot::Mutex;
use std::time::Instant;

/// A bucket of calls that fills at a steady rate.
pub(crate) struct Pace {
    /// Calls a second; none for as many as are asked for.
    rate: Option<f64>,
    most: f64,
    left: Mutex<(f64, Option<Instant>)>,
}

impl Pace {
    pub(crate) fn new(qps: i32, burst: i32) -> Self {
        let most = f64::from(burst.max(0));
        Self { rate: (qps > 0).then(|| f64::from(qps)), most, left: Mutex::new((most, None)) }
    }

    /// Takes a call out of the bucket; false where none is left.
    pub(crate) fn accepts(&self, now: Instant) -> bool {
        let Some(rate) = self.rate else { return true };
        let mut state = self.left.lock();
        let (left, since) = *state;
        let earned = since.map_or(0.0, |since| now.saturating_duration_since(since).as_secs_f64() * rate);
        let left = (left + earned).min(self.most);
        let accepted = left >= 1.0;
        *state = (if accepted { left - 1.0 } else { left }, Some(now));
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn bursts_are_followed_by_a_steady_rate() {
        let (pace, start) = (Pace::new(2, 3), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        for (millis, accepted) in
            [(0, true), (0, true), (0, true), (0, false), (400, false), (500, true), (600, false), (60_000, true)]
        {
            assert_eq!(pace.accepts(at(millis)), accepted, "{millis}");
        }
    }

    #[test]
    fn no_rate_is_no_limit() {
        let pace = Pace::new(0, 0);
        assert!((0..100).all(|_| pace.accepts(Instant::now())));
    }
}
