//! HTTP/2 connections: each stream is a request to the app. actix-web's own HTTP/2 has no limit of streams, says no
//! GOAWAY and goes on answering streams that were reset, so this is done here, over h2 itself.
//!
//! Requests that were accepted are answered to their end whatever becomes of the connection: half a write is worse
//! than an answer nobody reads. Bodies end when their stream does.

mod coalescing;
mod wakes;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_http::body::{BodySize, BoxBody, MessageBody};
use actix_http::error::PayloadError;
use actix_http::header::{HeaderName, HeaderValue};
use actix_http::{HttpMessage as _, Method, Payload, Request, Response, Uri, Version};
use actix_web::Error;
use actix_web::dev::{Extensions, Service};
use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use tokio::time::{Instant, sleep};

use crate::run::Shutdown;
use coalescing::{CoalescingWriter, Holds, coalesced};
use wakes::Wakes;

/// Flow-control window of a request's body: nearly all objects are smaller.
const STREAM_WINDOW: u32 = 256 << 10;
/// The largest frame taken: how many a head may come in, with the protocol's usual ones, h2 finds out from this.
const FRAME: u32 = 16 << 10;
/// The largest head taken; a larger one is answered with 431.
const HEAD: u32 = 1 << 20;
/// The window of a connection is never larger than the protocol's.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// Requests may wait for as many times the limit of streams as this. Who resets streams to open new ones ends here.
const WAITING: usize = 4;
/// Time that a peer has after GOAWAY.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of a body handed over at once, and those of a stream that wait to be sent.
const CHUNK: usize = 64 << 10;

/// Settings of all connections.
pub(super) struct Settings {
    /// Streams at the same time.
    pub(super) streams: u32,
    /// A connection without streams ends after this.
    pub(super) idle: Duration,
    /// The peer must have said that it speaks HTTP/2 by then.
    pub(super) handshake: Duration,
    /// Connections end, with what they have begun.
    pub(super) shutdown: Shutdown,
}

/// Extensions of the connection; see [`super::connected`].
#[derive(Clone)]
pub(super) struct Noted(pub(super) Rc<Extensions>);

/// Peer of a connection.
pub(super) struct Peer {
    pub(super) address: Option<SocketAddr>,
    pub(super) noted: Noted,
}

type Accepted = (http::Request<RecvStream>, SendResponse<Bytes>);

/// Serves one connection to its end.
///
/// # Errors
/// The peer does not speak HTTP/2, or the connection broke.
pub(super) async fn serve<T, S, B>(io: T, app: &S, peer: &Peer, settings: &Settings) -> Result<(), h2::Error>
where
    T: Holds,
    S: Service<Request>,
    S::Response: Into<Response<B>>,
    S::Error: Into<Error>,
    B: MessageBody + 'static,
{
    let (io, outgoing) = coalesced(io);
    let Ok(made) = tokio::time::timeout(settings.handshake, builder(settings.streams).handshake(io)).await else {
        return Ok(());
    };
    let mut connection: Connection<CoalescingWriter<T>, Bytes> = made?;
    outgoing.gather();
    let most = usize::try_from(settings.streams).unwrap_or(usize::MAX);
    let (mut running, wakes) = (FuturesUnordered::new(), Wakes::new());
    let mut waiting: VecDeque<Accepted> = VecDeque::new();
    // Since when the peer is told to go.
    let mut leaving: Option<Instant> = None;
    let mut parting = pin!(sleep(LINGER));
    let mut idle = pin!(sleep(settings.idle));
    let mut shutdown = pin!(settings.shutdown.wait());
    let ended = loop {
        while running.len() < most
            && let Some(accepted) = waiting.pop_front()
        {
            running.push(answer(app, accepted, peer));
        }
        // Answers first, then the connection takes their frames and new requests; what is to be sent leaves when nobody has
        // anything to add.
        let leave = tokio::select! {
            biased;
            Some(last) = wakes.answers(running.next()) => {
                if running.is_empty() {
                    idle.as_mut().reset(Instant::now() + settings.idle);
                    parting.as_mut().reset(Instant::now() + LINGER);
                }
                last
            }
            next = wakes.connection(connection.accept()) => match next {
                None => break Ok(()),
                Some(Err(error)) => break Err(error),
                Some(Ok((_, mut respond))) if leaving.is_some_and(|since| since.elapsed() > LINGER) => {
                    respond.send_reset(Reason::REFUSED_STREAM);
                    false
                }
                Some(Ok(accepted)) => {
                    waiting.push_back(accepted);
                    let floods = waiting.len() > most.saturating_mul(WAITING);
                    if floods {
                        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                        waiting.clear();
                    }
                    floods
                }
            },
            () = &mut shutdown, if leaving.is_none() => true,
            () = &mut idle, if running.is_empty() && leaving.is_none() => true,
            // h2 itself waits for a peer that does not say that it has heard.
            () = &mut parting, if running.is_empty() && leaving.is_some() => break Ok(()),
            never = outgoing.send() => match never {},
        };
        if leave && leaving.is_none() {
            leaving = Some(Instant::now());
            parting.as_mut().reset(Instant::now() + LINGER);
            connection.graceful_shutdown();
        }
    };
    let open = outgoing.whole();
    drop(connection);
    while running.next().await.is_some() {}
    if let (Ok(()), Some(io)) = (&ended, open) {
        linger(io).await;
    }
    ended
}

/// Hears a peer out that was told to go: what it says to a socket that is closed would reset the connection, and what it
/// has not read yet would be lost. Upstream's server waits as long.
async fn linger<T: Holds>(mut io: CoalescingWriter<T>) {
    let mut nowhere = tokio::io::sink();
    // Whether it goes or breaks is all the same now.
    let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut io, &mut nowhere)).await;
}

fn builder(streams: u32) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW.saturating_mul(streams).min(LARGEST_WINDOW))
        .max_frame_size(FRAME)
        .max_send_buffer_size(CHUNK)
        .max_header_list_size(HEAD);
    builder
}

/// Answers one request; whether the connection is to take no more.
async fn answer<S, B>(app: &S, (request, respond): Accepted, peer: &Peer) -> bool
where
    S: Service<Request>,
    S::Response: Into<Response<B>>,
    S::Error: Into<Error>,
    B: MessageBody + 'static,
{
    let without_body = request.method() == http::Method::HEAD;
    let respond = Rc::new(RefCell::new(respond));
    let Some(request) = translated(request, peer, &respond) else {
        respond.borrow_mut().send_reset(Reason::PROTOCOL_ERROR);
        return false;
    };
    let response: Response<BoxBody> = match app.call(request).await {
        Ok(response) => response.into().map_into_boxed_body(),
        Err(error) => error.into().error_response().into(),
    };
    let (response, body) = response.into_parts();
    let size = body.size();
    let last = response.headers().get("connection").is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"close"));
    let ends = without_body || size.is_eof();
    // Nobody may be there any more to take it.
    let begun = respond.borrow_mut().send_response(head(&response, size), ends);
    if let Ok(sending) = begun
        && !ends
    {
        let left = if let BodySize::Sized(length) = size { Some(length) } else { None };
        send(sending, body, left).await;
    }
    last
}

/// Reports whether Go's server accepts a request that h2 accepts: it knows two schemes and no user info, and must be
/// able to parse the path.
fn is_taken(request: &http::Request<RecvStream>) -> bool {
    let uri = request.uri();
    let path = uri.path().as_bytes();
    let escaped = |at: usize| path.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    request.method() == http::Method::CONNECT
        // h2 keeps no scheme where a request names its host in a header alone.
        || uri.scheme_str().is_none_or(|scheme| matches!(scheme, "http" | "https"))
            && uri.authority().is_none_or(|authority| !authority.as_str().contains('@'))
            && path.iter().enumerate().filter(|(_, byte)| **byte == b'%').all(|(at, _)| escaped(at))
}

/// Reports whether a client waits for `100 Continue`.
fn expects(headers: &http::HeaderMap) -> bool {
    let said = headers.get_all(http::header::EXPECT).iter().filter_map(|value| value.to_str().ok());
    said.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("100-continue"))
}

/// The request as the app's framework has it. `None`: it is none.
fn translated(
    request: http::Request<RecvStream>,
    peer: &Peer,
    respond: &Rc<RefCell<SendResponse<Bytes>>>,
) -> Option<Request> {
    if !is_taken(&request) {
        return None;
    }
    let (parts, body) = request.into_parts();
    let goes_on = expects(&parts.headers).then(|| Rc::clone(respond));
    let payload = match body.is_end_stream() {
        true => Payload::None,
        false => Payload::Stream { payload: Box::pin(Incoming { body, goes_on }) as actix_http::BoxedPayloadStream },
    };
    let mut request = Request::with_payload(payload);
    let head = request.head_mut();
    head.method = Method::from_bytes(parts.method.as_str().as_bytes()).ok()?;
    head.uri = Uri::try_from(parts.uri.to_string()).ok()?;
    head.version = Version::HTTP_2;
    head.peer_addr = peer.address;
    for (name, value) in &parts.headers {
        let name = HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
        head.headers.append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    request.extensions_mut().insert(peer.noted.clone());
    Some(request)
}

/// The response's head as h2 has it, without what only HTTP/1.1 knows.
fn head(response: &Response<()>, size: BodySize) -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.status_mut() = http::StatusCode::from_u16(response.status().as_u16()).unwrap_or_default();
    let headers = head.headers_mut();
    for (name, value) in response.headers() {
        if matches!(name.as_str(), "connection" | "transfer-encoding" | "upgrade" | "keep-alive" | "content-length") {
            continue;
        }
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    }
    if let BodySize::Sized(length) = size {
        headers.insert(http::header::CONTENT_LENGTH, length.into());
    }
    if let Some(now) = date() {
        headers.entry(http::header::DATE).or_insert(now);
    }
    head
}

thread_local! {
    static DATE: RefCell<(i64, Option<http::HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// Now, as it is said in a header; the same for a second.
fn date() -> Option<http::HeaderValue> {
    let now = jiff::Timestamp::now();
    DATE.with_borrow_mut(|(second, text)| {
        if *second != now.as_second() || text.is_none() {
            let shown = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).ok()?;
            (*second, *text) = (now.as_second(), http::HeaderValue::from_str(&shown).ok());
        }
        text.clone()
    })
}

/// Sends a body to its end, or to the stream's. `left` is its length, where that is known.
async fn send(mut sending: SendStream<Bytes>, body: BoxBody, mut left: Option<u64>) {
    let mut body = pin!(body);
    loop {
        let next = tokio::select! {
            next = poll_fn(|cx| body.as_mut().poll_next(cx)) => next,
            _ = poll_fn(|cx| sending.poll_reset(cx)) => return,
        };
        let mut chunk = match next {
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => return sending.send_reset(Reason::INTERNAL_ERROR),
            None => {
                // A peer that has gone needs no end.
                sending.send_data(Bytes::new(), true).ok();
                return;
            }
        };
        left = left.map(|left| left.saturating_sub(chunk.len() as u64));
        while !chunk.is_empty() {
            sending.reserve_capacity(chunk.len().min(CHUNK));
            let Some(Ok(room)) = poll_fn(|cx| sending.poll_capacity(cx)).await else { return };
            let part = chunk.split_to(room.min(chunk.len()));
            let ends = left == Some(0) && chunk.is_empty();
            if part.is_empty() && !ends {
                continue;
            }
            if sending.send_data(part, ends).is_err() || ends {
                return;
            }
        }
    }
}

/// A request's body; what was read makes room for more.
struct Incoming {
    body: RecvStream,
    /// The client waits to be told to go on, which it is when somebody wants to hear more of it.
    goes_on: Option<Rc<RefCell<SendResponse<Bytes>>>>,
}

impl Stream for Incoming {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let broken = |error: h2::Error| PayloadError::Io(std::io::Error::other(error));
        if let Some(respond) = self.goes_on.take() {
            let mut go_on = http::Response::new(());
            *go_on.status_mut() = http::StatusCode::CONTINUE;
            // A peer that has gone need not be told.
            respond.borrow_mut().send_informational(go_on).ok();
        }
        let next = match ready!(self.body.poll_data(cx)) {
            None => None,
            Some(Err(error)) => Some(Err(broken(error))),
            Some(Ok(chunk)) => {
                let released = self.body.flow_control().release_capacity(chunk.len());
                Some(released.map(|()| chunk).map_err(broken))
            }
        };
        Poll::Ready(next)
    }
}

#[cfg(test)]
mod tests;
