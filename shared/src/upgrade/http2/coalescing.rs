//! One write for what several streams have to say at a time.
//!
//! h2 hands over frame by frame and wants each to leave at once: a system call every time, which costs more than all the
//! rest of a small answer. [`CoalescingWriter`] encrypts frames as they come and lets them go when its [`Outgoing`] is polled:
//! when everybody who had something to say has said it. A peer that takes bytes as fast as they come does not keep others
//! of the same thread waiting: when as much as is held has left it is their turn.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, IoSlice, Write as _};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

/// A connection that can take bytes in without sending them.
pub(in super::super) trait Holds: AsyncRead + AsyncWrite + Unpin {
    /// Takes in some of the bytes; none of them when it holds enough. They leave when the connection is flushed.
    fn hold(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Holds for TlsStream<S> {
    fn hold(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // rustls holds 64 KB, unless it is told otherwise.
        self.get_mut().1.writer().write_vectored(parts)
    }
}

struct CoalescingState<T> {
    io: T,
    gathers: bool,
    /// A full buffer was sent, and other connections have not had their turn since.
    sent: bool,
}

/// A connection as h2 has it; see the module.
pub(super) struct CoalescingWriter<T>(Rc<RefCell<CoalescingState<T>>>);

/// Lets go what waits. Does not keep the connection.
pub(super) struct Outgoing<T>(Weak<RefCell<CoalescingState<T>>>);

/// Over a connection.
pub(super) fn coalesced<T>(io: T) -> (CoalescingWriter<T>, Outgoing<T>) {
    let inner = Rc::new(RefCell::new(CoalescingState { io, gathers: false, sent: false }));
    let outgoing = Outgoing(Rc::downgrade(&inner));
    (CoalescingWriter(inner), outgoing)
}

impl<T: Holds> CoalescingState<T> {
    fn take(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if !self.gathers {
            return Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        }
        let taken = self.io.hold(parts)?;
        if taken > 0 || parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(taken));
        }
        if self.sent {
            // Wakes this task when the runtime has looked at all connections.
            return pin!(tokio::task::yield_now()).poll(cx).map(|()| Ok(0));
        }
        self.sent = true;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        Poll::Ready(self.io.hold(parts))
    }
}

impl<T: Holds> Outgoing<T> {
    /// From now on frames wait for [`Outgoing::send`].
    pub(super) fn gather(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.borrow_mut().gathers = true;
        }
    }

    /// The connection itself, while h2 still has it.
    pub(super) fn whole(&self) -> Option<CoalescingWriter<T>> {
        self.0.upgrade().map(CoalescingWriter)
    }

    /// Lets go what waits, and is never done. What fails is seen by whoever reads or writes next.
    pub(super) async fn send(&self) -> Infallible {
        std::future::poll_fn(|cx| {
            if let Some(inner) = self.0.upgrade() {
                let mut inner = inner.borrow_mut();
                inner.sent = false;
                let _ = Pin::new(&mut inner.io).poll_flush(cx);
            }
            Poll::Pending
        })
        .await
    }
}

impl<T: Holds> AsyncRead for CoalescingWriter<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, into)
    }
}

impl<T: Holds> AsyncWrite for CoalescingWriter<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().take(cx, &[IoSlice::new(part)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().take(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        if inner.gathers { Poll::Ready(Ok(())) } else { Pin::new(&mut inner.io).poll_flush(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        ready!(Pin::new(&mut inner.io).poll_flush(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
pub(super) mod testing {
    use tokio::io::DuplexStream;

    use super::*;

    /// Capacity of a pipe in bytes.
    const MOST: usize = 64 << 10;

    /// A pipe that holds bytes as a TLS connection does.
    pub(in super::super) struct Pipe {
        io: DuplexStream,
        held: Vec<u8>,
    }

    impl Pipe {
        pub(in super::super) fn new(io: DuplexStream) -> Self {
            Self { io, held: Vec::new() }
        }
    }

    impl Holds for Pipe {
        fn hold(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            let before = self.held.len();
            for part in parts {
                let room = MOST - self.held.len();
                self.held.extend_from_slice(&part[..part.len().min(room)]);
            }
            Ok(self.held.len() - before)
        }
    }

    impl AsyncRead for Pipe {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_read(cx, into)
        }
    }

    impl AsyncWrite for Pipe {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.io).poll_write(cx, part)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let this = self.get_mut();
            while !this.held.is_empty() {
                let sent = ready!(Pin::new(&mut this.io).poll_write(cx, &this.held))?;
                this.held.drain(..sent);
            }
            Pin::new(&mut this.io).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_shutdown(cx)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::testing::Pipe;
    use super::*;

    #[tokio::test]
    async fn writes_leave_together_and_in_order() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let (mut io, outgoing) = coalesced(Pipe::new(ours));
        io.write_all(b"before").await.expect("written");
        outgoing.gather();
        let mut seen = vec![0; 6];
        theirs.read_exact(&mut seen).await.expect("not held back yet");
        for part in [&b"one"[..], b"two"] {
            io.write_all(part).await.expect("taken");
            io.flush().await.expect("said to be gone");
        }
        assert!(theirs.read(&mut seen).now_or_never().is_none(), "nothing has left");
        assert!(outgoing.send().now_or_never().is_none(), "never done");
        assert_eq!(theirs.read(&mut seen).await.ok(), Some(6));
        assert_eq!(seen, b"onetwo");
        io.write_all(b"last").await.expect("taken");
        io.shutdown().await.expect("closed");
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.expect("the end");
        assert_eq!(rest, b"last");
    }

    #[tokio::test]
    async fn a_fast_reader_does_not_keep_others_waiting() {
        const WHOLE: usize = 8 << 20;
        let (ours, mut theirs) = tokio::io::duplex(2 * WHOLE);
        let (mut io, outgoing) = coalesced(Pipe::new(ours));
        outgoing.gather();
        let sent = Rc::new(std::cell::Cell::new(0));
        let whole = vec![7; WHOLE];
        let writing = async {
            for chunk in whole.chunks(1 << 10) {
                io.write_all(chunk).await.expect("taken");
                sent.set(sent.get() + chunk.len());
            }
        };
        let turn = async { tokio::task::yield_now().await };
        tokio::select! {
            biased;
            () = writing => panic!("all of it was sent in one turn"),
            never = outgoing.send() => match never {},
            () = turn => {}
        }
        assert!(sent.get() < 1 << 20, "{}", sent.get());
        let mut seen = vec![0; 64 << 10];
        theirs.read_exact(&mut seen).await.expect("some of it");
    }

    #[tokio::test]
    async fn what_is_held_is_bounded_by_the_peers_patience() {
        let (ours, mut theirs) = tokio::io::duplex(1);
        let (mut io, outgoing) = coalesced(Pipe::new(ours));
        outgoing.gather();
        let chunk = [7; 1 << 10];
        let mut taken = 0;
        while io.write(&chunk).now_or_never().is_some() {
            taken += chunk.len();
            assert!(taken < 1 << 20, "no end");
        }
        let reading = async {
            let mut seen = vec![0; taken];
            theirs.read_exact(&mut seen).await.map(|_| seen.iter().all(|b| *b == 7))
        };
        tokio::select! {
            seen = reading => assert_eq!(seen.ok(), Some(true)),
            never = outgoing.send() => match never {},
        }
    }
}
