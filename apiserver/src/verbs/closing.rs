//! The end of watches at shutdown: one after another, so that their clients do not all reconnect elsewhere at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Of watches that need not take turns.
pub const AT_ONCE: u32 = 0;

/// Paced termination of watches at shutdown.
#[derive(Debug, Default)]
pub struct WatchTermination {
    begun: CancellationToken,
    /// Watches that end in a second.
    pace: AtomicU32,
    /// Number of watches that were let go.
    gone: AtomicU32,
}

impl WatchTermination {
    /// From now on watches end, so many in a second or [`AT_ONCE`]. Only the first word counts.
    pub fn begin(&self, pace: u32) {
        if !self.has_begun() {
            self.pace.store(pace, Ordering::Release);
            self.begun.cancel();
        }
    }

    /// Reports whether watches are to end.
    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Until watches end.
    pub fn begun(&self) -> WaitForCancellationFutureOwned {
        self.begun.clone().cancelled_owned()
    }

    /// Until it is a watch's turn to end.
    pub async fn wait_turn(&self) {
        let before = self.gone.fetch_add(1, Ordering::Relaxed);
        if let Some(wait) = (Duration::from_secs(1) * before).checked_div(self.pace.load(Ordering::Acquire)) {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn watches_end_at_the_given_pace() {
        for (pace, want) in [(0, [0, 0, 0, 0]), (2, [0, 500, 1000, 1500]), (200, [0, 5, 10, 15])] {
            let (closing, began) = (WatchTermination::default(), Instant::now());
            closing.begin(pace);
            closing.begin(1);
            let ends = (0..4).map(async |_| {
                closing.begun().await;
                closing.wait_turn().await;
                began.elapsed().as_millis()
            });
            assert_eq!(futures::future::join_all(ends).await, want, "{pace}");
        }
    }
}
