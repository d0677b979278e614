//! Remembers what tokens stand for, for a short while: asking is costly, and the same token comes with every request.
//! Many who ask the same at once wait for one answer. Answers for upstream's `pkg/authentication/token/cache`
//! (`cachedTokenAuthenticator`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use prometheus::{CounterVec, Gauge, GaugeVec, HistogramVec};
use sha2::{Digest, Sha256};
use shared::authn::{AuthnError, Identity};
use shared::metrics;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::TokenAuthenticator;

/// Tokens remembered.
const LIMIT: usize = 4096;

type Outcome = Option<Identity>;

struct CachedOutcome {
    outcome: Arc<OnceCell<Outcome>>,
    /// Set once there is an outcome.
    until: Option<Instant>,
}

/// Token authenticator with a cache of its results.
pub struct Cached<A> {
    inner: A,
    good: Duration,
    bad: Duration,
    known: Mutex<HashMap<[u8; 32], CachedOutcome>>,
    meters: Metrics,
}

/// Metrics of the token cache, under upstream's names.
struct Metrics {
    requests: CounterVec,
    took: HistogramVec,
    fetches: CounterVec,
    active: GaugeVec,
}

impl Metrics {
    fn new() -> Self {
        Self {
            requests: metrics::counter(
                "authentication_token_cache_request_total",
                "[ALPHA] Counter of token cache requests, by hit or miss.",
                &["status"],
            ),
            took: metrics::histogram(
                "authentication_token_cache_request_duration_seconds",
                "[ALPHA] Duration of token cache requests in seconds, by hit or miss.",
                &["status"],
                metrics::default_buckets(),
            ),
            fetches: metrics::counter(
                "authentication_token_cache_fetch_total",
                "[ALPHA] Counter of authentications behind the token cache, by success.",
                &["status"],
            ),
            active: metrics::gauge(
                "authentication_token_cache_active_fetch_count",
                "[ALPHA] Number of authentications in flight behind the token cache, and of requests blocked on one.",
                &["status"],
            ),
        }
    }

    /// Counts one in a state until what it returns is dropped.
    fn active(&self, state: &str) -> Active {
        let gauge = self.active.with_label_values(&[state]);
        gauge.inc();
        Active(gauge)
    }
}

struct Active(Gauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl<A: TokenAuthenticator> Cached<A> {
    /// Identities are kept for `good`, "nobody" for `bad`; zero keeps nothing. Errors are never kept.
    pub fn new(inner: A, good: Duration, bad: Duration) -> Self {
        Self { inner, good, bad, known: Mutex::default(), meters: Metrics::new() }
    }

    fn cell(&self, key: [u8; 32]) -> Arc<OnceCell<Outcome>> {
        let now = Instant::now();
        let mut known = self.known.lock();
        if let Some(entry) = known.get(&key)
            && entry.until.is_none_or(|until| until > now)
        {
            return entry.outcome.clone();
        }
        if known.len() >= LIMIT {
            known.retain(|_, e| e.until.is_some_and(|until| until > now));
        }
        if known.len() >= LIMIT {
            known.clear();
        }
        let outcome = Arc::new(OnceCell::new());
        known.insert(key, CachedOutcome { outcome: outcome.clone(), until: None });
        outcome
    }

    async fn fetch(&self, token: &str, audiences: &[String]) -> Result<Outcome, AuthnError> {
        let _active = self.meters.active("in_flight");
        let outcome = self.inner.token(token, audiences).await;
        let status = if outcome.is_ok() { "ok" } else { "error" };
        self.meters.fetches.with_label_values(&[status]).inc();
        outcome
    }

    /// Keeps an outcome for its time, or forgets it.
    fn finish(&self, key: [u8; 32], cell: &Arc<OnceCell<Outcome>>) {
        let ttl = match cell.get() {
            Some(Some(_)) => self.good,
            Some(None) => self.bad,
            None => Duration::ZERO,
        };
        let mut known = self.known.lock();
        let Some(entry) = known.get_mut(&key).filter(|e| Arc::ptr_eq(&e.outcome, cell)) else { return };
        if ttl.is_zero() {
            known.remove(&key);
        } else if entry.until.is_none() {
            entry.until = Some(Instant::now() + ttl);
        }
    }
}

#[async_trait]
impl<A: TokenAuthenticator> TokenAuthenticator for Cached<A> {
    async fn token(&self, token: &str, audiences: &[String]) -> Result<Outcome, AuthnError> {
        let mut hash = Sha256::new();
        hash.update(token.as_bytes());
        for audience in audiences {
            hash.update([0]);
            hash.update(audience.as_bytes());
        }
        let key: [u8; 32] = hash.finalize().into();
        let since = Instant::now();
        let cell = self.cell(key);
        let blocked = cell.get().is_none().then(|| self.meters.active("blocked"));
        let status = if blocked.is_some() { "miss" } else { "hit" };
        let outcome = cell.get_or_try_init(|| self.fetch(token, audiences)).await.cloned();
        self.finish(key, &cell);
        self.meters.requests.with_label_values(&[status]).inc();
        self.meters.took.with_label_values(&[status]).observe(since.elapsed().as_secs_f64());
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use shared::authn::UserInfo;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    #[async_trait]
    impl TokenAuthenticator for Counting {
        async fn token(&self, token: &str, _: &[String]) -> Result<Outcome, AuthnError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            match token {
                "jane" => Ok(Some(UserInfo { name: "jane".into(), ..UserInfo::default() }.into())),
                "error" => Err(AuthnError("down".into())),
                _ => Ok(None),
            }
        }
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_authentication() {
        let cached = Cached::new(Counting::default(), Duration::from_secs(10), Duration::ZERO);
        let asked = || cached.inner.0.load(Ordering::SeqCst);
        let (a, b) = tokio::join!(cached.token("jane", &[]), cached.token("jane", &[]));
        assert!(a.is_ok_and(|i| i.is_some()) && b.is_ok_and(|i| i.is_some()));
        assert_eq!(asked(), 1);
        let _ = cached.token("jane", &["other".to_owned()]).await;
        assert_eq!(asked(), 2, "another audience is another question");
        let forgetful = Cached::new(Counting::default(), Duration::from_nanos(1), Duration::ZERO);
        let _ = forgetful.token("jane", &[]).await;
        let _ = forgetful.token("jane", &[]).await;
        assert_eq!(forgetful.inner.0.load(Ordering::SeqCst), 2, "forgotten in time");
        for token in ["error", "nobody"] {
            let before = asked();
            let _ = cached.token(token, &[]).await;
            let _ = cached.token(token, &[]).await;
            assert_eq!(asked(), before + 2, "{token} is not kept");
        }
    }
}
