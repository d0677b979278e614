//! Pauses between attempts at something that may work later: each is longer than the one before. Whatever tries again
//! waits by one of these; what is tried, and how often, is the business of whoever tries.

use std::time::Duration;

use rand::Rng as _;

/// The pauses of one row of attempts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    /// Growth of the delay: numerator and denominator.
    grows: (u32, u32),
    /// By how many hundredths a pause may be longer, so that not all come back at once.
    jitter: u32,
    next: Duration,
}

impl Backoff {
    /// Each is twice as long as the one before, up to the longest.
    pub(crate) fn doubling(first: Duration, longest: Duration) -> Self {
        Self { first, longest, grows: (2, 1), jitter: 0, next: first }
    }

    /// Upstream's for webhooks, whose attempts are counted: each is half as long again.
    pub(crate) fn of_webhook(first: Duration) -> Self {
        Self { first, longest: Duration::MAX, grows: (3, 2), jitter: 20, next: first }
    }

    /// Something worked: what fails next is waited for as at first.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the next delay and lengthens the one after it.
    pub(crate) fn pause(&mut self) -> Duration {
        let (times, by) = self.grows;
        let pause = self.next;
        self.next = (pause.saturating_mul(times) / by).min(self.longest);
        pause.saturating_add(pause / 100 * rand::rng().random_range(0..=self.jitter))
    }

    /// Waits.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_reset() {
        let mut backoff = Backoff::doubling(Duration::from_millis(20), Duration::from_millis(50));
        assert_eq!([(); 4].map(|()| backoff.pause().as_millis()), [20, 40, 50, 50]);
        backoff.reset();
        assert_eq!(backoff.pause().as_millis(), 20);
        let mut backoff = Backoff::of_webhook(Duration::from_millis(400));
        for least in [400, 600, 900] {
            let pause = backoff.pause().as_millis();
            assert!((least..=least * 6 / 5).contains(&pause), "{pause}");
        }
    }
}
