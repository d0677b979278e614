//! Graceful shutdown: rejects late requests and limits how long watches take to end. Answers for upstream's
//! `preparedGenericAPIServer.RunWithContext`, `WithWatchTerminationDuringShutdown`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use shared::flags::FlagSet;
use shared::status::Status;
use tokio::time::Instant;

use super::answer::{self, Shape};
use crate::access::is_long_running;
use crate::api::RequestInfo;

/// Answered to the end, so that probes and scrapers see how it goes.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];
/// Prefix of the server's own user agent as a client.
const SERVER_USER_AGENT: &str = "kube-apiserver/";
/// Fewest watches that end in a second.
const MIN_WATCHES_PER_SECOND: u32 = 200;
/// Interval at which the drain checks whether all requests are done.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// State of graceful shutdown, and counts of requests in flight.
#[derive(Debug, Default)]
pub struct GracefulShutdown {
    /// `--shutdown-send-retry-after`
    retry_after: bool,
    /// `--shutdown-delay-duration`
    delay: Duration,
    /// `--request-timeout`: no request takes longer.
    requests: Duration,
    /// `--shutdown-watch-termination-grace-period`
    watches: Duration,
    begun: AtomicBool,
    /// Requests that are being answered, of those that came in time; streams are not counted.
    running: Arc<AtomicUsize>,
    /// Watches that are open.
    watching: Arc<AtomicUsize>,
    /// Other streams: logs that are followed.
    streams: Arc<AtomicUsize>,
}

/// A request or a watch that is counted while it lasts.
pub(super) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl GracefulShutdown {
    /// From the flags.
    pub fn from_flags(flags: &FlagSet) -> Self {
        Self {
            retry_after: flags.boolean("shutdown-send-retry-after"),
            delay: flags.duration("shutdown-delay-duration"),
            requests: flags.duration("request-timeout"),
            watches: flags.duration("shutdown-watch-termination-grace-period"),
            ..Self::default()
        }
    }

    /// Reports whether clients are sent away over a port that stays open until all are served
    /// (`--shutdown-send-retry-after`).
    pub fn sends_retry_after(&self) -> bool {
        self.retry_after
    }

    /// For how long requests are still taken, so that others hear that there will be no more.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// From now on requests come too late.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }

    /// A request that comes in time is waited for.
    pub(super) fn begin_request(&self) -> Option<InFlight> {
        let counted = InFlight::new(&self.running);
        (!self.begun.load(Ordering::SeqCst)).then_some(counted)
    }

    /// An answer that is sent.
    pub(super) fn begin_response(&self) -> InFlight {
        InFlight::new(&self.running)
    }

    pub(super) fn begin_watch(&self) -> InFlight {
        InFlight::new(&self.watching)
    }

    /// An answer of which nobody knows the end, and that is no watch.
    pub(super) fn begin_stream(&self) -> InFlight {
        InFlight::new(&self.streams)
    }

    /// The answer to a request that comes too late.
    pub(super) fn reject_late(&self, info: &RequestInfo, agent: &str, shape: &Shape) -> Option<HttpResponse> {
        if !self.begun.load(Ordering::Acquire) || agent.starts_with(SERVER_USER_AGENT) {
            return None;
        }
        if EXEMPT.iter().any(|path| info.path.starts_with(path)) {
            return None;
        }
        if self.retry_after {
            let why = "The apiserver is shutting down, please try again later.\n";
            let mut response = answer::closing_connection(answer::text(429, why, shape));
            response.headers_mut().remove(CACHE_CONTROL);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return Some(response);
        }
        let waited_for = if info.verb == "watch" { !self.watches.is_zero() } else { !is_long_running(info) };
        if !waited_for {
            return None;
        }
        let mut response = answer::failure(&Status::service_unavailable("apiserver is shutting down"), shape);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        Some(response)
    }

    /// Waits for requests, as long as one may take.
    pub async fn drain_requests(&self) {
        wait(&self.running, self.requests).await;
    }

    /// Number of watches to end in a second so that all have ended within the grace period; `None` without one.
    pub fn watches_per_second(&self) -> Option<u32> {
        let open = u128::try_from(self.watching.load(Ordering::SeqCst)).unwrap_or(u128::MAX);
        let needed = open.saturating_mul(1000).checked_div(self.watches.as_millis())?;
        Some(u32::try_from(needed).unwrap_or(u32::MAX).max(MIN_WATCHES_PER_SECOND))
    }

    /// Waits for all that is sent, streams too.
    pub async fn drain_streams(&self, patience: Duration) {
        let all = [&self.running, &self.watching, &self.streams];
        futures::future::join_all(all.map(|count| wait(count, patience))).await;
    }

    /// Waits for watches as long as they are given.
    pub async fn drain_watches(&self) {
        wait(&self.watching, self.watches).await;
    }
}

async fn wait(count: &AtomicUsize, patience: Duration) {
    let until = Instant::now() + patience;
    while count.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machinery::query::Query;
    use crate::serve::info::request_info;
    use actix_web::http::ConnectionType;

    #[test]
    fn late_requests_are_rejected() {
        for (flags, line, agent, want) in [
            ("", "/api/v1/pods", "kubectl/1", Some(503)),
            ("", "/api/v1/pods?watch=1", "kubectl/1", None),
            ("--shutdown-watch-termination-grace-period=1s", "/api/v1/pods?watch=1", "kubectl/1", Some(503)),
            ("", "/readyz", "kube-probe/1", None),
            ("--shutdown-send-retry-after", "/api/v1/pods", "kubectl/1", Some(429)),
            ("--shutdown-send-retry-after", "/api/v1/pods?watch=1", "kubectl/1", Some(429)),
            ("--shutdown-send-retry-after", "/api/v1/pods", "kube-apiserver/v1.35.4", None),
            ("--shutdown-send-retry-after", "/livez/ping", "kube-probe/1", None),
            ("--shutdown-send-retry-after", "/metrics", "prometheus", None),
        ] {
            let args: Vec<&str> = Some(flags).filter(|f| !f.is_empty()).into_iter().collect();
            let graceful_shutdown = GracefulShutdown::from_flags(&FlagSet::of("kube-apiserver", &args).expect("flags"));
            let (path, query) = line.split_once('?').unwrap_or((line, ""));
            let info = request_info("GET", path, &Query::parse(query));
            let shape = Shape { audit_id: "a".to_owned(), ..Shape::default() };
            let refusal = || graceful_shutdown.reject_late(&info, agent, &shape);
            assert!(refusal().is_none(), "not before the end");
            graceful_shutdown.begin();
            assert!(graceful_shutdown.begin_request().is_none(), "it is not waited for");
            let Some(refusal) = refusal() else {
                assert_eq!(None, want, "{flags} {line} {agent}");
                continue;
            };
            assert_eq!(Some(refusal.status().as_u16()), want, "{flags} {line} {agent}");
            let has = ["audit-id", "x-content-type-options", "connection", "cache-control"]
                .map(|name| refusal.headers().contains_key(name));
            let closes = refusal.head().connection_type() == ConnectionType::Close;
            assert_eq!((has, closes), ([true, true, want == Some(429), want == Some(503)], want == Some(429)));
        }
    }

    /// The drain waits for requests until they finish, and no longer than the longest request may take.
    #[tokio::test(start_paused = true)]
    async fn drain_waits_for_requests() {
        let graceful_shutdown = GracefulShutdown::from_flags(&FlagSet::of("kube-apiserver", &[]).expect("flags"));
        for (takes, waited) in [(30, 30), (90, 60)] {
            let (begun, request) = (Instant::now(), graceful_shutdown.begin_request().expect("in time"));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                drop(request);
            });
            graceful_shutdown.drain_requests().await;
            assert_eq!(begun.elapsed().as_secs(), waited, "a request of {takes} s");
        }
    }

    #[tokio::test]
    async fn drain_waits_for_watches_within_the_grace_period() {
        let args = ["--shutdown-watch-termination-grace-period=50ms"];
        let graceful_shutdown = GracefulShutdown::from_flags(&FlagSet::of("kube-apiserver", &args).expect("flags"));
        let (begun, open) = (Instant::now(), graceful_shutdown.begin_watch());
        graceful_shutdown.drain_watches().await;
        assert!(begun.elapsed() >= Duration::from_millis(50));
        drop(open);
        assert_eq!(futures::FutureExt::now_or_never(graceful_shutdown.drain_watches()), Some(()));
    }

    /// The drain waits for streams, watches and responses as long as it is allowed.
    #[tokio::test(start_paused = true)]
    async fn drain_waits_for_streams() {
        let graceful_shutdown = GracefulShutdown::from_flags(&FlagSet::of("kube-apiserver", &[]).expect("flags"));
        for open in [GracefulShutdown::begin_watch, GracefulShutdown::begin_stream, GracefulShutdown::begin_response] {
            let (begun, open) = (Instant::now(), open(&graceful_shutdown));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                drop(open);
            });
            graceful_shutdown.drain_streams(Duration::from_secs(2)).await;
            assert_eq!(begun.elapsed().as_secs(), 2);
            graceful_shutdown.drain_streams(Duration::from_secs(2)).await;
            assert_eq!(begun.elapsed().as_secs(), 3);
        }
    }

    /// So many in a second that all have ended in time, and not fewer than may be at once anyway.
    #[test]
    fn watches_per_second_fit_the_grace_period() {
        for (grace, watches, want) in
            [("0s", 9, None), ("10s", 0, Some(200)), ("10s", 500, Some(200)), ("500ms", 500, Some(1000))]
        {
            let args = [format!("--shutdown-watch-termination-grace-period={grace}")];
            let graceful_shutdown =
                GracefulShutdown::from_flags(&FlagSet::of("kube-apiserver", &[args[0].as_str()]).expect("flags"));
            let _open: Vec<_> = (0..watches).map(|_| graceful_shutdown.begin_watch()).collect();
            assert_eq!(graceful_shutdown.watches_per_second(), want, "{grace} {watches}");
        }
    }
}
