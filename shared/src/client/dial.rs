//! Connections that somebody else opens for a client: through a proxy, say.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes to and from the other side.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}
/// Any of them.
pub type BoxStream = Pin<Box<dyn Stream>>;

type Dial = dyn Fn(String) -> BoxFuture<'static, io::Result<BoxStream>> + Send + Sync;

/// Opens connections to `host:port`; HTTP clients take it as their connector.
#[derive(Clone)]
pub struct Dialer(Arc<Dial>);

impl Dialer {
    /// Wraps a dial function.
    pub fn new(dial: impl Fn(String) -> BoxFuture<'static, io::Result<BoxStream>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(dial))
    }

    /// A connection to `host:port`.
    ///
    /// # Errors
    /// Whatever keeps it from being opened.
    pub async fn open(&self, address: String) -> io::Result<BoxStream> {
        (self.0)(address).await
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}

impl tower::Service<Uri> for Dialer {
    type Response = Line;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Line>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
        let dialed = (self.0)(format!("{}:{port}", uri.host().unwrap_or_default()));
        Box::pin(async move { Ok(Line(TokioIo::new(dialed.await?))) })
    }
}

/// A connection as HTTP clients take it.
pub struct Line(TokioIo<BoxStream>);

impl Connection for Line {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Line {
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
