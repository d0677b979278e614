//! Permission to write that ends by itself: a process that was frozen while it led finds what it had begun, and must not
//! finish it under another leader.
//!
//! [`Gate`] is the one place where it is asked for: when a request is handed to a connection, and again whenever the
//! connection has bytes to write. Between the two a request may wait for a stream, for a window or for a slow peer.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::peer::Broken;

/// Permission to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Writes pass.
    Granted,
    /// Ended by itself: nothing passes any more, not even what was begun.
    Expired,
    /// Not granted, or given back, which is when nothing is under way any more.
    Absent,
}

/// Lets writes pass for as long as they are permitted. Cheap to clone.
#[derive(Clone)]
pub struct Fence(Arc<dyn Fn() -> Permission + Send + Sync>);

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.permission()).finish()
    }
}

/// The error of a write that was held back.
#[derive(Debug, thiserror::Error)]
#[error("the request was not sent: the lease has expired")]
struct Closed;

impl Fence {
    /// By the permission, which is asked for with every write.
    pub fn new(permission: impl Fn() -> Permission + Send + Sync + 'static) -> Self {
        Self(Arc::new(permission))
    }

    /// Permission at this moment.
    pub fn permission(&self) -> Permission {
        (self.0)()
    }

    /// Reports whether writes pass now.
    pub fn is_open(&self) -> bool {
        self.permission() == Permission::Granted
    }

    /// Puts the fence in front of a request, where that is a write.
    pub(super) fn guard<B>(&self, request: &mut Request<B>) {
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            request.extensions_mut().insert(self.clone());
        }
    }
}

/// Fences of the requests that one connection was handed: one, or two where controllers migrate between leases.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<Mutex<Vec<Fence>>>);

impl Gate {
    /// Admits a request to the connection, unless its fence is closed. From then on nothing leaves the connection once
    /// that permission has expired: what was handed over may be in any of its bytes.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), Broken> {
        let Some(fence) = request.extensions().get::<Fence>() else { return Ok(()) };
        if !fence.is_open() {
            return Err(Broken::because(Closed));
        }
        let mut fences = self.0.lock();
        if !fences.iter().any(|known| Arc::ptr_eq(&known.0, &fence.0)) {
            fences.push(fence.clone());
        }
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        let expired = self.0.lock().iter().any(|fence| fence.permission() == Permission::Expired);
        if expired { Err(io::Error::other(Closed)) } else { Ok(()) }
    }
}

/// A connection behind its gate. One that may not write any more fails, and is replaced for those who read.
pub(super) struct Gated<T> {
    io: T,
    gate: Gate,
}

impl<T> Gated<T> {
    pub(super) fn over(io: T, gate: Gate) -> Self {
        Self { io, gate }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gated<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gated<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        self.gate.check()?;
        Pin::new(&mut self.io).poll_write(cx, part)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.gate.check()?;
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
