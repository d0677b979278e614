//! Asking another server to switch: the request's head is written and the response's head read by hand, since what
//! follows is no longer HTTP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

const LONGEST_HEAD: usize = 64 << 10;
/// Of a refusal's body, so much is read.
const LONGEST_BODY: usize = 64 << 10;
const MOST_HEADERS: usize = 100;

/// Head of an upgrade request.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path_and_query: String,
    /// Headers, `Host` among them.
    pub headers: HeaderMap,
}

/// Head of the response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
}

/// Result of an upgrade request.
pub enum Dialed<S> {
    /// The bytes are ours now.
    Switched(ResponseHead, Rewound<S>),
    /// The server declined: response and body.
    Refused(ResponseHead, Bytes),
}

/// Sends a request that asks for an upgrade, or for a tunnel (CONNECT, RFC 9110 section 9.3.6).
///
/// # Errors
/// The connection breaks, or what comes back is not HTTP.
pub async fn dial<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, head: &RequestHead) -> io::Result<Dialed<S>> {
    let mut text = format!("{} {} HTTP/1.1\r\n", head.method, head.path_and_query).into_bytes();
    for (name, value) in &head.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            text.extend_from_slice(part);
        }
    }
    text.extend_from_slice(b"\r\n");
    stream.write_all(&text).await?;
    stream.flush().await?;
    let mut buffer = BytesMut::with_capacity(4 << 10);
    let (response, length) = read_head(&mut stream, &mut buffer).await?;
    let rest = leftover(&mut buffer, length);
    let switched = match head.method.as_str() {
        "CONNECT" => response.status.is_success(),
        _ => response.status == StatusCode::SWITCHING_PROTOCOLS,
    };
    if switched {
        return Ok(Dialed::Switched(response, Rewound { first: rest, inner: stream }));
    }
    let announced = response.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let wanted = announced.unwrap_or(LONGEST_BODY).min(LONGEST_BODY);
    let mut body = rest.to_vec();
    while body.len() < wanted {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(count) => body.extend_from_slice(&chunk[..count]),
        }
    }
    Ok(Dialed::Refused(response, Bytes::from(body)))
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut BytesMut) -> io::Result<(ResponseHead, usize)> {
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(parsed) = parse(buffer)? {
            return Ok(parsed);
        }
        if buffer.len() > LONGEST_HEAD {
            return Err(io::Error::other("the response's head is too long"));
        }
    }
}

fn parse(bytes: &[u8]) -> io::Result<Option<(ResponseHead, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes).map_err(io::Error::other)? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let status = StatusCode::from_u16(response.code.unwrap_or_default()).map_err(io::Error::other)?;
    let mut headers = HeaderMap::new();
    for field in response.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(io::Error::other)?;
        headers.append(name, HeaderValue::from_bytes(field.value).map_err(io::Error::other)?);
    }
    Ok(Some((ResponseHead { status, headers }, length)))
}

/// A stream whose first bytes were read together with the head.
pub struct Rewound<S> {
    first: Bytes,
    inner: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Joins what was read too much with what comes after it.
fn leftover(buffer: &mut BytesMut, at: usize) -> Bytes {
    buffer.split_off(at).freeze()
}
