//! One HTTP/2 connection.
//!
//! HOT: every request passes here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::coalescing::CoalescingWriter;
use super::fence::{Gate, Gated};
use super::peer::{Broken, Io};

/// A peer that has been silent for so long is asked whether it is there, and is gone when it does not answer, as client-go
/// has it.
const SILENCE: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(15);
/// A connection that nothing was asked on for so long is closed, as client-go has it.
pub(super) const IDLE: Duration = Duration::from_secs(90);
/// Flow-control windows of one response and of the connection, in bytes.
const STREAM_WINDOW: u32 = 2 << 20;
const WINDOW: u32 = 5 << 20;
/// Streams that the other side is taken to allow until it says how many.
const STREAMS: usize = 100;

/// A connection, for whoever has something to ask. It ends with the last of them.
#[derive(Clone)]
pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    gate: Gate,
    lost: Mark,
}

/// Identity of a connection, set when pings went unanswered.
pub(super) type Mark = Arc<AtomicBool>;

impl Http2 {
    /// Over bytes that HTTP/2 was agreed on for. Once nothing was asked on it for [`IDLE`], `retire` is to let go of the
    /// handle it keeps, unless [`Http2::is_in_use`] after all; it says whether it did.
    pub(super) async fn over(
        io: impl Io,
        retire: impl Fn(&Mark) -> bool + Send + Sync + 'static,
    ) -> Result<Self, Broken> {
        let heard = Arc::new(Heard::now());
        let gate = Gate::default();
        let io = CoalescingWriter::over(Gated::over(TokioIo::new(io), gate.clone()), Arc::clone(&heard));
        let opened = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(WINDOW)
            .initial_max_send_streams(STREAMS)
            .enable_push(false)
            .handshake(io)
            .await;
        let (sender, mut connection) = opened.map_err(Broken::http2)?;
        let lost = Mark::default();
        let (pings, silent) = (connection.ping_pong(), Arc::clone(&lost));
        // Both end with the connection.
        let mut driver = tokio::spawn(connection);
        tokio::spawn(async move {
            tokio::select! {
                // How it ended is told to those who ask.
                _ = &mut driver => {}
                end = silence(pings, &heard, || retire(&silent)) => if matches!(end, End::Lost) {
                    silent.store(true, Ordering::Relaxed);
                    driver.abort();
                }
            }
        });
        Ok(Self { sender, gate, lost })
    }

    /// Reports whether this is the connection of that mark.
    pub(super) fn is(&self, mark: &Mark) -> bool {
        Arc::ptr_eq(&self.lost, mark)
    }

    /// Reports whether a request or a response body uses the connection.
    pub(super) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.lost) > 2
    }

    /// Reports whether a response body still uses a connection that left the pool.
    pub(super) fn is_read_from(mark: &Mark) -> bool {
        Arc::strong_count(mark) > 1
    }

    /// Reports whether requests can be sent.
    pub(super) fn is_open(&mut self) -> bool {
        // Pending only after a request of this very handle, which others are used for.
        matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
    }

    /// Hands over a request; its answer is to be waited for.
    pub(super) fn begin(&self, request: &Request<Bytes>) -> Result<ResponseFuture, Broken> {
        self.gate.admit(request)?;
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.headers_mut() = request.headers().clone();
        let body = request.body();
        if !body.is_empty() || matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH) {
            head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let sent = self.sender.clone().send_request(head, body.is_empty());
        let (answer, mut stream) = sent.map_err(|error| self.broken(error))?;
        if !body.is_empty() {
            // Held by the connection until the other side has room: it is in memory anyway.
            stream.send_data(body.clone(), true).map_err(|error| self.broken(error))?;
        }
        Ok(answer)
    }

    /// Reader of the rest of a response.
    pub(super) fn reader(self, stream: RecvStream) -> Http2Body {
        Http2Body { stream, connection: self }
    }

    /// Classifies the failure of a request.
    pub(super) fn broken(&self, error: h2::Error) -> Broken {
        if self.lost.load(Ordering::Relaxed) { Broken::Lost } else { Broken::http2(error) }
    }
}

/// An answer's body; the connection stays open for it.
pub(super) struct Http2Body {
    stream: RecvStream,
    connection: Http2,
}

impl Http2Body {
    /// The next part. Trailers are nothing to our callers.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        let Some(part) = ready!(self.stream.poll_data(cx)) else { return Poll::Ready(None) };
        let taken = part.and_then(|bytes| {
            self.stream.flow_control().release_capacity(bytes.len())?;
            Ok(bytes)
        });
        Poll::Ready(Some(taken.map_err(|error| self.connection.broken(error))))
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// Time of the last frame received.
pub(super) struct Heard {
    opened: Instant,
    /// Milliseconds after that.
    last: AtomicU64,
}

impl Heard {
    pub(super) fn now() -> Self {
        Self { opened: Instant::now(), last: AtomicU64::new(0) }
    }

    /// Something was.
    pub(super) fn something(&self) {
        let since = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.opened + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// Reasons to stop pinging a connection.
enum End {
    /// The other side does not answer.
    Lost,
    /// The connection was given up, and closes with its last handle.
    Idle,
}

/// Ends when nobody answers any more, or nobody has asked for long.
async fn silence(pings: Option<PingPong>, heard: &Heard, retire: impl Fn() -> bool) -> End {
    let Some(mut pings) = pings else { return std::future::pending().await };
    // When it was used last, as far as is known, and what was heard of it last but for answers to pings.
    let (mut used, mut known) = (heard.last(), heard.last());
    loop {
        let last = heard.last();
        if last != known {
            (used, known) = (last, last);
        }
        if used + IDLE <= Instant::now() {
            if retire() {
                return End::Idle;
            }
            used = Instant::now();
        }
        let due = last + SILENCE;
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
            continue;
        }
        match tokio::time::timeout(ANSWER, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => known = heard.last(),
            // The connection has ended, and says so itself.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => return End::Lost,
        }
    }
}
