//! Time for which nothing was heard of a kind, because its lists and watches failed.

use std::time::Duration;

use tokio::time::Instant;

/// Outages of one informer.
#[derive(Debug, Default)]
pub(super) struct Outages {
    since: Option<Instant>,
    before: Duration,
}

impl Outages {
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    pub(super) fn end(&mut self, now: Instant) {
        self.before = self.total(now);
        self.since = None;
    }

    /// Total length of the outages.
    pub(super) fn total(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_add_up() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut outages = Outages::default();
        outages.end(start);
        assert_eq!(outages.total(start + second), Duration::ZERO, "it was there all the time");
        outages.begin(start);
        outages.begin(start + second);
        assert_eq!(outages.total(start + second * 3), second * 3, "one outage, however often it is found");
        outages.end(start + second * 4);
        outages.begin(start + second * 10);
        assert_eq!(outages.total(start + second * 11), second * 5);
    }
}
