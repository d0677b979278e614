//! A token bucket in front of a client. Watches pass without, as client-go has it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// The longest pause between two requests, however few a second are asked for.
const RAREST: Duration = Duration::from_secs(24 * 60 * 60);

/// Limits the requests of one client; clones share the budget.
#[derive(Clone)]
pub struct Throttle(Option<Arc<Mutex<Bucket>>>);

struct Bucket {
    /// Time one request costs.
    cost: Duration,
    /// Burst, as time at the average rate.
    burst: Duration,
    /// Time at which all requests so far are paid for.
    paid: Instant,
}

impl Bucket {
    /// Takes one token; the time to wait before using it.
    fn take(&mut self, now: Instant) -> Duration {
        let floor = now.checked_sub(self.burst).unwrap_or(now);
        self.paid = self.paid.max(floor) + self.cost;
        self.paid.saturating_duration_since(now)
    }
}

impl Throttle {
    /// `qps` requests per second on average, up to `burst` at once; no limit when `qps` is 0 or less.
    pub fn new(qps: f32, burst: u32) -> Self {
        if qps.is_nan() || qps <= 0.0 {
            return Self(None);
        }
        let cost = Duration::try_from_secs_f32(1.0 / qps).map_or(RAREST, |cost| cost.min(RAREST));
        let burst = cost.saturating_mul(burst.max(1));
        let now = Instant::now();
        Self(Some(Arc::new(Mutex::new(Bucket { cost, burst, paid: now.checked_sub(burst).unwrap_or(now) }))))
    }

    /// Waits until a request may go; how long that took, none where nothing is limited. Who does not wait to the end
    /// leaves the turn to others.
    pub(super) async fn turn(&self) -> Option<Duration> {
        let bucket = self.0.as_deref()?;
        let delay = bucket.lock().take(Instant::now());
        if !delay.is_zero() {
            let reserved = Reserved(bucket);
            // Rare, and large: not a part of every request.
            Box::pin(sleep(delay)).await;
            std::mem::forget(reserved);
        }
        Some(delay)
    }
}

/// A token that is waited for.
struct Reserved<'a>(&'a Mutex<Bucket>);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut bucket = self.0.lock();
        bucket.paid = bucket.paid.checked_sub(bucket.cost).unwrap_or(bucket.paid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_the_average_holds() {
        let throttle = Throttle::new(10.0, 5);
        let together = futures::future::join_all((0..8).map(|_| throttle.turn())).await;
        let waits: Vec<u128> = together.into_iter().flatten().map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 100, 200, 300]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(throttle.turn().await, Some(Duration::ZERO), "an idle client gets its burst back");
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_takes_no_token() {
        let throttle = Throttle::new(1.0, 1);
        throttle.turn().await;
        for _ in 0..10 {
            assert!(tokio::time::timeout(Duration::from_millis(10), throttle.turn()).await.is_err());
        }
        assert!(throttle.turn().await.expect("a limit") <= Duration::from_secs(1));
    }

    #[tokio::test]
    async fn no_limit_without_qps() {
        for qps in [0.0, -1.0, f32::NAN] {
            let throttle = Throttle::new(qps, 0);
            for _ in 0..1000 {
                assert_eq!(throttle.turn().await, None);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hardly_any_request_a_second() {
        for qps in [1e-6, f32::MIN_POSITIVE, 1e-45] {
            let throttle = Throttle::new(qps, u32::MAX);
            assert_eq!(throttle.turn().await, Some(Duration::ZERO), "{qps}");
        }
    }
}
