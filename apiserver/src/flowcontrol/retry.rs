//! Back-off for rejected clients: longer while a priority level keeps rejecting. Pure. Answers for upstream's
//! `droppedRequestsTracker`, `GetRetryAfter`.

use std::collections::VecDeque;

/// The longest wait asked for, in seconds.
const LONGEST: i64 = 32;

/// Refusals of one priority level by second.
#[derive(Debug)]
pub(super) struct Refusals {
    history: VecDeque<(i64, i64)>,
    current: (i64, i64),
    wait: i64,
    raised: i64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { history: VecDeque::new(), current: (0, 0), wait: 1, raised: 0 }
    }
}

impl Refusals {
    /// Current value of `Retry-After`, in seconds.
    pub(super) fn seconds(&self) -> i64 {
        self.wait
    }

    /// Notes a refusal in second `now`.
    pub(super) fn record(&mut self, now: i64) {
        if self.current.0 == now {
            self.current.1 += 1;
            return;
        }
        self.history.push_back(self.current);
        while self.history.front().is_some_and(|(second, _)| now - second > LONGEST) {
            self.history.pop_front();
        }
        self.current = (now, 1);
        self.adjust(now);
    }

    /// Doubles the wait when three refusals came per second of it, at most once in its length; takes a second away
    /// when there was less than one per second.
    fn adjust(&mut self, now: i64) {
        let recent = self.history.iter().filter(|(second, _)| now - second <= self.wait && *second < now);
        let refused: i64 = recent.map(|(_, count)| count).sum();
        if now - self.raised >= self.wait && refused >= 3 * self.wait {
            self.wait = (self.wait * 2).min(LONGEST);
            self.raised = now;
        } else if refused < self.wait && self.wait > 1 {
            self.wait -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: impl IntoIterator<Item = (i64, usize)>) -> i64 {
        let mut refusals = Refusals::default();
        for (second, count) in seconds {
            for _ in 0..count {
                refusals.record(second);
            }
        }
        refusals.seconds()
    }

    #[test]
    fn waits() {
        assert_eq!(after([]), 1);
        assert_eq!(after([(100, 2), (101, 2)]), 1, "few refusals");
        assert_eq!(after([(100, 3), (101, 1)]), 2);
        assert_eq!(after((100..103).map(|s| (s, 10))), 2, "doubled once within its length");
        assert_eq!(after((100..200).map(|s| (s, 100))), LONGEST);
        assert_eq!(after([(100, 3), (101, 1), (110, 1)]), 1, "quiet again");
    }
}
