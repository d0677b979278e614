//! A token bucket in front of a client. Watches pass unthrottled once they stream; only requests are counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Request;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer, Service};

/// Limits the requests of one client; clones share the budget.
#[derive(Clone)]
pub struct Throttle(Option<Arc<Mutex<Bucket>>>);

struct Bucket {
    /// Time one request costs.
    cost: Duration,
    /// How far ahead of the average we may be.
    burst: Duration,
    /// When all requests so far are paid for.
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
        if qps <= 0.0 {
            return Self(None);
        }
        let cost = Duration::from_secs_f32(1.0 / qps);
        let burst = cost.saturating_mul(burst.max(1));
        let now = Instant::now();
        Self(Some(Arc::new(Mutex::new(Bucket { cost, burst, paid: now.checked_sub(burst).unwrap_or(now) }))))
    }

    fn delay(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, |bucket| bucket.lock().take(Instant::now()))
    }
}

impl<S> Layer<S> for Throttle {
    type Service = Throttled<S>;

    fn layer(&self, inner: S) -> Throttled<S> {
        Throttled { inner, throttle: self.clone(), turn: Turn::None, waited: Duration::ZERO }
    }
}

/// Where the next request stands.
enum Turn {
    /// It has not asked for a token.
    None,
    /// It waits for its token.
    Waiting(Pin<Box<Sleep>>),
    /// It may go.
    Granted,
}

/// How long a request waited for its turn, among its extensions. One that nothing limits has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waited(pub(super) Duration);

/// A service behind a [`Throttle`]: not ready before the next request may go.
pub struct Throttled<S> {
    inner: S,
    throttle: Throttle,
    turn: Turn,
    waited: Duration,
}

impl<S: Clone> Clone for Throttled<S> {
    /// What the original has waited for is its own.
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), throttle: self.throttle.clone(), turn: Turn::None, waited: Duration::ZERO }
    }
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Throttled<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if matches!(self.turn, Turn::None) {
            let delay = self.throttle.delay();
            self.waited = delay;
            self.turn = if delay.is_zero() { Turn::Granted } else { Turn::Waiting(Box::pin(sleep(delay))) };
        }
        if let Turn::Waiting(sleep) = &mut self.turn {
            ready!(sleep.as_mut().poll(cx));
            self.turn = Turn::Granted;
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        self.turn = Turn::None;
        if self.throttle.0.is_some() {
            request.extensions_mut().insert(Waited(self.waited));
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_the_average_holds() {
        let throttle = Throttle::new(10.0, 5);
        let waits: Vec<u128> = (0..8).map(|_| throttle.delay().as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 100, 200, 300]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(throttle.delay().as_millis(), 0, "an idle client gets its burst back");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_carry_how_long_they_waited() {
        use tower::{ServiceBuilder, ServiceExt as _, service_fn};
        let waited = async |throttle: Throttle, requests: usize| {
            let mut service = ServiceBuilder::new().layer(throttle).service(service_fn(async |request: Request<()>| {
                Ok::<_, std::convert::Infallible>(request.extensions().get::<Waited>().copied())
            }));
            let mut last = None;
            for _ in 0..requests {
                let Ok(seen) = service.ready().await.expect("ready").call(Request::new(())).await;
                last = seen;
            }
            last
        };
        assert_eq!(waited(Throttle::new(10.0, 1), 1).await, Some(Waited(Duration::ZERO)));
        assert_eq!(waited(Throttle::new(2.0, 1), 2).await, Some(Waited(Duration::from_millis(500))));
        assert_eq!(waited(Throttle::new(0.0, 0), 2).await, None);
    }

    #[tokio::test]
    async fn no_limit_without_qps() {
        let throttle = Throttle::new(0.0, 0);
        assert!((0..1000).all(|_| throttle.delay().is_zero()));
    }
}
