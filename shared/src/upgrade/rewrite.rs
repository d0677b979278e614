//! The HTTP server only hands over the bytes of a connection when it switches to WebSocket. Clients of exec and
//! port-forward also ask for SPDY/3.1, so the head of a connection's first request is looked at before the server
//! sees it: any other `Upgrade` becomes `websocket`, with the real one in a header of ours. Those clients open a
//! connection for each such request, so only the first head matters.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A head that is longer is passed on as it is; the server refuses it.
const LONGEST_HEAD: usize = 64 << 10;
const CHUNK: usize = 4 << 10;

pub(super) struct Rewriting<S> {
    inner: S,
    state: State,
}

enum State {
    Collecting(BytesMut),
    Replaying(Bytes),
    Passing,
}

impl<S> Rewriting<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, state: State::Collecting(BytesMut::new()) }
    }

    pub(super) fn inner(&self) -> &S {
        &self.inner
    }
}

const END: &[u8] = b"\r\n\r\n";

/// Where the head ends, if it is complete. So many bytes of it were looked at before.
fn head_end(bytes: &[u8], seen: usize) -> Option<usize> {
    let from = seen.saturating_sub(END.len() - 1);
    let found = bytes.get(from..)?.windows(END.len()).position(|window| window == END)?;
    Some(from + found + END.len())
}

/// The bytes as the server should see them.
pub(super) fn rewrite(bytes: &[u8]) -> Bytes {
    let Some(end) = head_end(bytes, 0) else { return Bytes::copy_from_slice(bytes) };
    let mut out = Vec::with_capacity(bytes.len() + 64);
    for line in bytes[..end].split_inclusive(|byte| *byte == b'\n') {
        match upgrade_value(line) {
            Some(value) => {
                out.extend_from_slice(b"Upgrade: websocket\r\n");
                out.extend_from_slice(super::ASKED.as_bytes());
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
            // Nobody but us says this.
            None if line.to_ascii_lowercase().starts_with(super::ASKED.as_bytes()) => {}
            None => out.extend_from_slice(line),
        }
    }
    out.extend_from_slice(&bytes[end..]);
    Bytes::from(out)
}

/// The value of an `Upgrade` header that is not `websocket` and not one of the server's own.
fn upgrade_value(line: &[u8]) -> Option<&[u8]> {
    let at = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = line.split_at(at);
    let value = value[1..].trim_ascii();
    let foreign = !value.eq_ignore_ascii_case(b"websocket") && !value.eq_ignore_ascii_case(b"h2c");
    (name.eq_ignore_ascii_case(b"upgrade") && foreign).then_some(value)
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewriting<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Passing => return Pin::new(&mut this.inner).poll_read(cx, buf),
                State::Replaying(bytes) => {
                    let count = bytes.len().min(buf.remaining());
                    buf.put_slice(&bytes[..count]);
                    bytes.advance(count);
                    if bytes.is_empty() {
                        this.state = State::Passing;
                    }
                    return Poll::Ready(Ok(()));
                }
                State::Collecting(collected) => {
                    let mut chunk = [0; CHUNK];
                    let mut read = ReadBuf::new(&mut chunk);
                    ready!(Pin::new(&mut this.inner).poll_read(cx, &mut read))?;
                    let seen = collected.len();
                    collected.extend_from_slice(read.filled());
                    let ended = read.filled().is_empty();
                    if ended || collected.len() > LONGEST_HEAD || head_end(collected, seen).is_some() {
                        let bytes = rewrite(collected);
                        this.state = if bytes.is_empty() { State::Passing } else { State::Replaying(bytes) };
                        if ended && matches!(this.state, State::Passing) {
                            return Poll::Ready(Ok(()));
                        }
                    }
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewriting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_where_it_ends_however_it_comes() {
        let head = b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest";
        for first in 0..=head.len() {
            let found = head_end(&head[..first], 0).or_else(|| head_end(head, first));
            assert_eq!(found, Some(head.len() - 4), "{first}");
        }
        // What was seen is not looked at again.
        assert_eq!(head_end(head, head.len()), None);
    }
}
