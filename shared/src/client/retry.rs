//! Requests that are sent again: those the server wants to have later (`Retry-After`), and reads whose connection broke.
//! Answers for client-go's `rest.withRetry`.
//!
//! HOT: every request passes here.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Throttle;
use super::overload::Overload;
use super::peer::Broken;
use super::request_metrics::{Measures, UnderWay};

/// Maximum number of retries.
const RETRIES: u32 = 10;
/// The longest wait, whatever the server says.
const LONGEST: Duration = Duration::from_mins(5);
/// Delay after a broken connection.
const BROKEN: Duration = Duration::from_secs(1);
/// A refusal is read up to so many bytes, so that its connection can be used again.
const DRAINED: u64 = 2 << 10;

/// Throttling delay from which it is logged, and the interval of that log line.
const LONG: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(10);
const THROTTLED: &str = "client-side throttling, not priority and fairness";

/// Marks a request, among its extensions, that is sent once, whatever is answered: where upstream asks without its client.
#[derive(Clone, Copy, Debug)]
pub struct Once;

/// Sends requests with throttling, back-off and retries; answers for client-go's `with_retry.go`.
pub(super) struct RetryPolicy {
    throttle: Throttle,
    overload: Option<Overload>,
    measures: Arc<Measures>,
    /// Time of the last log line about throttling.
    complained: Mutex<Option<Instant>>,
}

impl RetryPolicy {
    pub(super) fn new(throttle: Throttle, measures: Arc<Measures>) -> Self {
        Self { throttle, overload: Overload::from_env(), measures, complained: Mutex::default() }
    }

    /// Reports whether throttling may be logged again.
    fn may_log_throttling(&self, now: Instant) -> bool {
        let mut last = self.complained.lock();
        let due = last.is_none_or(|last| now.duration_since(last) >= SILENCE);
        if due {
            *last = Some(now);
        }
        due
    }

    /// Sends a request with `attempt`, again if need be. Who drops this future sends nothing more.
    pub(super) async fn send<B, E, Fut>(
        &self,
        request: &Request<Bytes>,
        mut attempt: impl FnMut(&Request<Bytes>) -> Fut,
    ) -> Result<Response<Measured<B>>, E>
    where
        B: hyper::body::Body<Data = Bytes>,
        E: Error + 'static,
        Fut: Future<Output = Result<Response<B>, E>>,
    {
        let mut under_way = self.measures.begin(request);
        let asked = match () {
            () if under_way.is_watch() => RequestClass::Watch,
            () if request.method() == Method::GET => RequestClass::Read,
            () => RequestClass::Write,
        };
        let mut limited = !under_way.is_watch();
        loop {
            if limited && let Some(waited) = self.throttle.turn().await {
                under_way.waited(waited);
                if waited > LONG && self.may_log_throttling(Instant::now()) {
                    tracing::info!(delay = ?waited, reason = THROTTLED, verb = %request.method(), URL = %request.uri(),
                        "Waited before sending request");
                }
            }
            if let Some(wait) = self.overload.as_ref().map(Overload::wait).filter(|wait| !wait.is_zero()) {
                Box::pin(tokio::time::sleep(wait)).await;
            }
            let last = under_way.attempts() == RETRIES || request.extensions().get::<Once>().is_some();
            under_way.sent();
            let result = attempt(request).await;
            let status = result.as_ref().ok().map(Response::status);
            under_way.answered(status);
            if let Some(overload) = &self.overload {
                overload.answered(status, Instant::now());
            }
            let wait = match &result {
                Ok(response) => retry_after(response.status(), response.headers()),
                Err(error) => breakage(error).filter(|what| asked.survives(*what)).map(|_| BROKEN),
            };
            let Some(wait) = wait.filter(|_| !last) else {
                return result.map(|response| response.map(|body| Measured { body, under_way }));
            };
            tracing::debug!(?wait, attempt = under_way.attempts(), url = %request.uri(), "Got a Retry-After response");
            // Rare, and large: not a part of every request.
            if let Ok(response) = result {
                Box::pin(drain(response)).await;
            }
            Box::pin(tokio::time::sleep(wait)).await;
            limited = true;
        }
    }
}

/// For how long the server asks to be left alone.
fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS && status.as_u16() < 500 {
        return None;
    }
    let seconds: i64 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(LONGEST))
}

/// Class of a request, which decides whether it is repeated.
#[derive(Clone, Copy, Debug)]
enum RequestClass {
    Read,
    Watch,
    /// A write: it may have been executed although the response is missing.
    Write,
}

impl RequestClass {
    fn survives(self, breakage: Breakage) -> bool {
        match self {
            Self::Read => matches!(breakage, Breakage::Reset | Breakage::Ended),
            Self::Watch => matches!(breakage, Breakage::Ended | Breakage::TimedOut),
            Self::Write => false,
        }
    }
}

/// Way in which a connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breakage {
    /// The other side does not know it.
    Reset,
    /// The other side closed it.
    Ended,
    /// The other side is silent.
    TimedOut,
}

/// Classifies an error as a broken connection, if it is one.
fn breakage(error: &(dyn Error + 'static)) -> Option<Breakage> {
    use std::io::ErrorKind as K;
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            match io.kind() {
                K::ConnectionReset => return Some(Breakage::Reset),
                K::UnexpectedEof | K::BrokenPipe | K::ConnectionAborted => return Some(Breakage::Ended),
                K::TimedOut => return Some(Breakage::TimedOut),
                _ => {}
            }
        }
        if matches!(error.downcast_ref(), Some(Broken::Lost)) {
            return Some(Breakage::Reset);
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(|e| e.is_incomplete_message() || e.is_canceled()) {
            return Some(Breakage::Ended);
        }
        if error.downcast_ref::<h2::Error>().is_some_and(h2::Error::is_go_away) {
            return Some(Breakage::Ended);
        }
        cause = error.source();
    }
    None
}

async fn drain<B: hyper::body::Body>(response: Response<B>) {
    let size = response.headers().get(CONTENT_LENGTH).and_then(|size| size.to_str().ok()?.parse::<u64>().ok());
    if size.is_some_and(|size| size <= DRAINED) {
        // How it ends is of no interest: at worst another connection is opened.
        drop(response.into_body().collect().await);
    }
}

/// The body of an answer whose parts are counted.
pub(super) struct Measured<B> {
    body: B,
    under_way: UnderWay,
}

impl<B: hyper::body::Body<Data = Bytes> + Unpin> hyper::body::Body for Measured<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.under_way.read(frame);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
