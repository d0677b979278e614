//! Reading ahead of TLS, which asks for 4 KB at a time: one system call for all that has come.
//!
//! HOT: every byte that a server or a client hears passes here.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read at a time: two records of the largest size, and what belongs to them.
const MOST: usize = 34 << 10;

thread_local! {
    /// Read buffer of a thread. A connection has a buffer of its own only while bytes wait to be taken.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; MOST].into());
}

/// A connection; see the module.
#[derive(Debug)]
pub struct ReadAhead<T> {
    io: T,
    /// Bytes read ahead.
    held: Vec<u8>,
    /// Number of them taken.
    taken: usize,
}

impl<T> ReadAhead<T> {
    /// Over a connection of which nothing has been read.
    pub fn of(io: T) -> Self {
        Self { io, held: Vec::new(), taken: 0 }
    }

    /// The connection itself.
    pub fn inner(&self) -> &T {
        &self.io
    }

    fn give(&mut self, into: &mut ReadBuf<'_>) {
        let rest = &self.held[self.taken..];
        let part = rest.len().min(into.remaining());
        into.put_slice(&rest[..part]);
        self.taken += part;
        if self.taken == self.held.len() {
            (self.held, self.taken) = (Vec::new(), 0);
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            self.give(into);
            return Poll::Ready(Ok(()));
        }
        if into.remaining() >= MOST {
            return Pin::new(&mut self.io).poll_read(cx, into);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
            let come = read.filled();
            let (asked, more) = come.split_at(come.len().min(into.remaining()));
            into.put_slice(asked);
            self.held.extend_from_slice(more);
            Poll::Ready(Ok(()))
        })
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, part)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl<T: Connection> Connection for ReadAhead<T> {
    fn connected(&self) -> Connected {
        self.io.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Gives each of its pieces at once, and counts how often it is asked.
    struct Pieces {
        left: VecDeque<Vec<u8>>,
        asked: usize,
    }

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.asked += 1;
            match self.left.pop_front() {
                Some(piece) if piece.is_empty() => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                Some(piece) => into.put_slice(&piece),
                None => {}
            }
            Poll::Ready(Ok(()))
        }
    }

    fn ahead(pieces: &[Vec<u8>]) -> ReadAhead<Pieces> {
        ReadAhead::of(Pieces { left: pieces.iter().cloned().collect(), asked: 0 })
    }

    #[expect(clippy::cast_possible_truncation, reason = "below 251")]
    fn numbers(from: usize, count: usize) -> Vec<u8> {
        (from..from + count).map(|n| (n % 251) as u8).collect()
    }

    #[tokio::test]
    async fn what_has_come_is_read_at_once_and_given_in_order() {
        let mut io = ahead(&[numbers(0, 20_000), numbers(20_000, 5)]);
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        for want in [4096, 4096, 4096, 4096, 3616, 5] {
            let got = io.read(&mut part).await.expect("bytes");
            assert_eq!(got, want);
            all.extend_from_slice(&part[..got]);
        }
        assert_eq!((all, io.inner().asked), (numbers(0, 20_005), 2));
        assert_eq!(io.held.capacity(), 0, "who waits holds nothing");
        assert_eq!(io.read(&mut part).await.expect("the end"), 0);
    }

    #[tokio::test]
    async fn a_large_room_is_read_into_directly() {
        let mut io = ahead(&[numbers(0, 40_000)]);
        let mut room = vec![0; 40_000];
        assert_eq!(io.read(&mut room).await.expect("bytes"), 40_000);
        assert_eq!(room, numbers(0, 40_000));
    }

    #[tokio::test]
    async fn what_came_before_a_failure_is_not_lost() {
        let mut io = ahead(&[numbers(0, 10), Vec::new()]);
        let mut few = [0; 4];
        for want in [4, 4, 2] {
            assert_eq!(io.read(&mut few).await.expect("bytes"), want);
        }
        assert_eq!(io.read(&mut few).await.expect_err("lost").kind(), io::ErrorKind::ConnectionReset);
    }
}
