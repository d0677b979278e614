//! A watch over how long a task holds its thread: what is not awaited delays every other task there.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Time that a task may hold its thread before that is told.
const LIMIT: Duration = Duration::from_secs(1);

/// A task of which each poll is timed.
pub(super) struct Watched {
    task: &'static str,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    report: fn(&'static str, Duration),
}

impl Watched {
    pub(super) fn new(task: &'static str, future: Pin<Box<dyn Future<Output = ()> + Send>>) -> Self {
        Self { task, future, report: warn }
    }
}

impl Future for Watched {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let begun = Instant::now();
        let polled = self.future.as_mut().poll(cx);
        (self.report)(self.task, begun.elapsed());
        polled
    }
}

fn warn(task: &'static str, held: Duration) {
    if held > LIMIT {
        tracing::warn!(task, held = ?held, "Task blocked its thread");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    static LONGEST: AtomicU64 = AtomicU64::new(0);

    #[tokio::test]
    async fn polls_are_timed_one_by_one() {
        let work = async {
            std::thread::sleep(Duration::from_millis(20));
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(20));
        };
        let report = |_: &'static str, held: Duration| {
            LONGEST.fetch_max(u64::try_from(held.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        };
        let begun = Instant::now();
        Watched { task: "busy", future: Box::pin(work), report }.await;
        let (longest, all) = (LONGEST.load(Ordering::Relaxed), begun.elapsed().as_millis());
        assert!(longest >= 20 && u128::from(longest) + 20 <= all, "{longest} of {all}");
    }
}
