//! Connections that stop being HTTP: exec, attach and port-forward switch to SPDY/3.1 or WebSocket frames (RFC 9110
//! section 7.8). Both ends are here: [`listen`] and [`accept`] for whoever is asked to switch, [`dial`] for whoever
//! asks, [`relay`] for whoever stands between.
//!
//! What the frames mean is none of this room's business.
//!
//! # From the socket to a handler
//!
//! The API server and the components with a secure port are actix-web apps. actix-web hands over a connection only for
//! WebSocket, reads and refuses heads of HTTP/1 in ways of its own, and its HTTP/2 has neither limits of streams nor
//! GOAWAY. So it is given requests, and not sockets; between the two stand, outermost first:
//!
//! | layer | for |
//! |---|---|
//! | `crate::connections` | a place for each connection: strangers do not get the last ones, the busiest source makes room |
//! | `crate::read_ahead` | one system call for all bytes that have arrived |
//! | `tokio_rustls` ([`listen`]) | TLS; the protocol is chosen by ALPN |
//! | [`http1_filter`] | HTTP/1: passes on heads and bodies that were validated, keeps the protocol that was really asked for ([`protocol`]) and the error of a refused head ([`refusal`]) in headers of its own |
//! | [`request_head`] [`chunked_body`] | HTTP/1: what Go's server accepts and refuses, with its codes and texts. Pure |
//! | actix-http's HTTP/1 | parsing of what was passed on, responses, keep-alive |
//! | [`pipelining`] | HTTP/1: one request at a time, in order; a refused one is answered in its turn |
//! | [`http2`] | HTTP/2 over h2 in place of actix-http's: limits of streams, GOAWAY, one write for all streams of a connection |
//! | the app | one handler for all paths (`serve::chain` of the API server), which sees the request that was sent |

mod chunked_body;
mod dial;
mod http1_filter;
mod http2;
mod listen;
mod pipelining;
mod request_head;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::BodyStream;
use actix_web::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING, UPGRADE};
use actix_web::http::{StatusCode, Version};
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse, web};
use futures::StreamExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, DuplexStream, ReadBuf};
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use crate::connections::Standing;
pub use dial::{Dialed, RequestHead, ResponseHead, Rewound, dial};
pub use listen::{Listening, Secured, serve};
use request_head::{ASKED, REFUSED};

/// Bytes that may wait between the two sides of a connection, each way.
const BUFFER: usize = 64 << 10;
/// The protocol that a request wants to switch to: `SPDY/3.1`, `websocket`, …
pub fn protocol(request: &HttpRequest) -> Option<String> {
    let headers = request.headers();
    let wanted = headers.get(CONNECTION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !wanted.split(',').any(|option| option.trim().eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    // What was really asked for counts only where something was asked for.
    let upgrade = headers.get(UPGRADE)?;
    headers.get(ASKED).unwrap_or(upgrade).to_str().ok().map(str::to_owned)
}

/// Validates an HTTP/1 head; returns it as the HTTP library gets it.
///
/// # Errors
/// The code and the text that it is refused with.
pub fn judged(head: &[u8]) -> Result<Vec<u8>, (u16, &'static str)> {
    request_head::parse(head).map(|head| head.bytes)
}

/// The answer to a request that stands for one whose head was refused.
pub fn refusal(request: &HttpRequest) -> Option<HttpResponse> {
    let said = request.headers().get(REFUSED).filter(|_| request.version() != Version::HTTP_2)?.to_str().ok()?;
    let (code, why) = said.split_once(' ').unwrap_or((said, ""));
    let mut response = HttpResponse::build(StatusCode::from_bytes(code.as_bytes()).ok()?);
    if !why.is_empty() {
        response.insert_header((CONTENT_TYPE, "text/plain; charset=utf-8"));
    }
    Some(response.force_close().body(why.to_owned()))
}

/// Returns an extension of a request's connection.
pub fn connected<T: Clone + 'static>(request: &HttpRequest) -> Option<T> {
    let noted = |noted: &http2::Noted| noted.0.get::<T>().cloned();
    request.conn_data::<T>().cloned().or_else(|| request.extensions().get().and_then(noted))
}

/// Notes that a request was authenticated: its connection gets one of the places that strangers do not get.
pub fn authenticated(request: &HttpRequest) {
    if let Some(standing) = connected::<Standing>(request) {
        standing.authenticated();
    }
}

/// Reports whether a request has no body although the library waits for one: it asks for an upgrade and declares no
/// body.
pub fn is_bare(request: &HttpRequest) -> bool {
    let headers = request.headers();
    request.version() != Version::HTTP_2
        && headers.contains_key(UPGRADE)
        && !headers.contains_key(CONTENT_LENGTH)
        && !headers.contains_key(TRANSFER_ENCODING)
}

/// The client's headers as it sent them.
pub fn headers(request: &HttpRequest) -> HeaderMap {
    let mut headers = request.headers().clone();
    if let Some(asked) = headers.get(ASKED).cloned() {
        headers.insert(UPGRADE, asked);
        headers.remove(ASKED);
    }
    headers
}

/// The raw bytes of a connection that has switched. Dropping it closes the connection.
pub struct Upgraded(DuplexStream);

/// Answers `101 Switching Protocols` with the headers of `head`; the connection's bytes are the returned stream, once
/// the response was returned to the server.
pub fn accept(request: &HttpRequest, payload: web::Payload, head: &ResponseHead) -> (HttpResponse, Upgraded) {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (read, mut write) = tokio::io::split(theirs);
    let mut payload = payload.into_inner();
    actix_web::rt::spawn(async move {
        while let Some(Ok(chunk)) = payload.next().await {
            if write.write_all(&chunk).await.is_err() {
                return;
            }
        }
        // The other side may be gone already, which is what this would tell it.
        write.shutdown().await.ok();
    });
    let mut response = HttpResponse::build(StatusCode::SWITCHING_PROTOCOLS);
    for (name, value) in &head.headers {
        if name != CONNECTION && name != UPGRADE {
            response.append_header((name.clone(), value.clone()));
        }
    }
    let chosen = head.headers.get(UPGRADE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    response.upgrade(chosen.or_else(|| protocol(request)).unwrap_or_default());
    (response.body(BodyStream::new(ReaderStream::new(read))), Upgraded(ours))
}

impl AsyncRead for Upgraded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Time that pending bytes have to reach the peer after a direction ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Side on which a direction of the relay broke.
enum Broke {
    /// Reading failed.
    Heard(io::Error),
    /// Writing failed.
    Said(io::Error),
}

/// Copies one way to its end.
async fn pass(from: impl AsyncRead + Unpin, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), Broke> {
    let mut from = BufReader::with_capacity(BUFFER, from);
    loop {
        let some = match from.fill_buf().await {
            Ok(some) if !some.is_empty() => some,
            // Whatever became of it, what was said before is to arrive.
            heard => {
                let heard = heard.map(drop).map_err(Broke::Heard);
                return to.flush().await.map_err(Broke::Said).and(heard);
            }
        };
        to.write_all(some).await.map_err(Broke::Said)?;
        let count = some.len();
        from.consume(count);
    }
}

/// Copies both ways until one side closes; what that side had sent has then reached the other. A side that takes no more,
/// like a command that is done before its input is, is heard out.
pub async fn relay<A, B>(a: A, b: B)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (a_read, mut a_write) = tokio::io::split(a);
    let (b_read, mut b_write) = tokio::io::split(b);
    let (mut there, mut back) = (pin!(pass(a_read, &mut b_write)), pin!(pass(b_read, &mut a_write)));
    let ended = tokio::select! {
        ended = &mut there => match ended {
            Err(Broke::Said(_)) => timeout(LAST_WORDS, back).await.unwrap_or(ended),
            ended => ended,
        },
        ended = &mut back => match ended {
            Err(Broke::Said(_)) => timeout(LAST_WORDS, there).await.unwrap_or(ended),
            ended => ended,
        },
    };
    if let Err(Broke::Heard(error) | Broke::Said(error)) = ended {
        tracing::debug!(%error, "Upgraded connection failed");
    }
}
