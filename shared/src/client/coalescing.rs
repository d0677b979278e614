//! One write for what several requests have to say at a time.
//!
//! h2 hands over frame by frame and wants each to leave at once: a record and a system call every time. Here frames are
//! held until their connection has looked for something to read twice, for which it is woken: when all who had something
//! to say have said it. Once is too early: others who were woken by the same news have yet to speak. HTTP/2 always reads.
//!
//! HOT: every request passes here.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http2::Heard;

/// Bytes that are held at most.
const MOST: usize = 64 << 10;
/// A buffer that grew larger is not kept.
const KEPT: usize = 16 << 10;

/// A connection; see the module. It notes when it hears something.
pub(super) struct CoalescingWriter<T> {
    io: T,
    heard: Arc<Heard>,
    held: Vec<u8>,
    /// Number of bytes sent.
    sent: usize,
    /// Set once the connection has asked for a batch.
    looked: bool,
}

impl<T> CoalescingWriter<T> {
    /// Over a connection that is open.
    pub(super) fn over(io: T, heard: Arc<Heard>) -> Self {
        Self { io, heard, held: Vec::new(), sent: 0, looked: false }
    }
}

impl<T: AsyncWrite + Unpin> CoalescingWriter<T> {
    /// Takes in bytes; waits where too many are held already.
    fn hold(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.held.len() >= MOST {
            ready!(self.send(cx))?;
        }
        let before = self.held.len();
        for part in parts {
            self.held.extend_from_slice(part);
        }
        Poll::Ready(Ok(self.held.len() - before))
    }

    /// Lets go what is held.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.held.len() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.held[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.held.clear();
        self.held.shrink_to(KEPT);
        self.sent = 0;
        self.looked = false;
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for CoalescingWriter<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // What cannot leave now leaves when there is room, for which this task is woken too.
        if self.looked
            && let Poll::Ready(Err(error)) = self.send(cx)
        {
            return Poll::Ready(Err(error));
        }
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        if read.is_ready() {
            self.heard.something();
        } else if !self.held.is_empty() && !self.looked {
            self.looked = true;
            cx.waker().wake_by_ref();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CoalescingWriter<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        self.hold(cx, &[IoSlice::new(part)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.hold(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Who has looked is woken by what it waits for.
        if !self.held.is_empty() && !self.looked {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Remembers each write; takes only as much as there is room for.
    #[derive(Default)]
    struct Wire {
        room: usize,
        writes: Vec<Vec<u8>>,
    }

    impl AsyncRead for Wire {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
            let taken = part.len().min(self.room);
            if taken == 0 {
                return Poll::Pending;
            }
            self.room -= taken;
            self.writes.push(part[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn over(wire: Wire) -> CoalescingWriter<Wire> {
        CoalescingWriter::over(wire, Arc::new(Heard::now()))
    }

    fn say(io: &mut CoalescingWriter<Wire>, text: &str) -> Poll<io::Result<usize>> {
        let cx = &mut Context::from_waker(Waker::noop());
        let said = Pin::new(&mut *io).poll_write(cx, text.as_bytes());
        assert!(Pin::new(io).poll_flush(cx).is_ready());
        said
    }

    fn look(io: &mut CoalescingWriter<Wire>) {
        let mut buffer = [0; 8];
        let mut buffer = ReadBuf::new(&mut buffer);
        assert!(Pin::new(io).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer).is_pending());
    }

    #[test]
    fn what_is_said_at_one_time_leaves_at_once() {
        let mut io = over(Wire { room: 5, ..Wire::default() });
        assert!(say(&mut io, "one ").is_ready() && say(&mut io, "tw").is_ready());
        look(&mut io);
        assert!(say(&mut io, "o").is_ready() && io.io.writes.is_empty(), "a body follows its head");
        look(&mut io);
        assert_eq!(io.io.writes, [b"one t"]);
        io.io.room = 100;
        look(&mut io);
        assert_eq!(io.io.writes[1..], [b"wo"], "the rest follows when there is room");
        assert!(say(&mut io, "bye").is_ready());
        assert!(Pin::new(&mut io).poll_shutdown(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(io.io.writes[2..], [b"bye"]);
    }

    #[test]
    fn too_much_waits_for_room() {
        let mut io = over(Wire::default());
        assert!(say(&mut io, &"x".repeat(MOST)).is_ready());
        assert!(say(&mut io, "more").is_pending());
        io.io.room = MOST;
        assert!(say(&mut io, "more").is_ready());
        assert_eq!((io.io.writes.len(), io.held.as_slice()), (1, b"more".as_slice()));
    }
}
