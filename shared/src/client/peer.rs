//! The other side of a lane: a connection that is opened when first needed, and again when it is lost. Requests are handed
//! over to HTTP/2 where they are made, and answers are read there: no task and no channel lies between. Servers without
//! HTTP/2 are spoken to in HTTP/1.1, over as many connections as that takes ([`Http1`]).
//!
//! HOT: every request passes here.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use http::{Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming};
use hyper_util::client::legacy::connect::Connection;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Service};

use super::http1::{self, Http1};
use super::http2::{Http2, Http2Body, Mark};

/// Stream that a connection runs over.
pub(super) trait Io: hyper::rt::Read + hyper::rt::Write + Connection + Unpin + Send + 'static {}
impl<T: hyper::rt::Read + hyper::rt::Write + Connection + Unpin + Send + 'static> Io for T {}

/// Opens connections.
pub(super) trait Connector:
    Service<Uri, Response: Io, Future: Send + Unpin + 'static, Error: Into<BoxError>> + Clone + Send + Sync + 'static
{
}
impl<C> Connector for C where
    C: Service<Uri, Response: Io, Future: Send + Unpin + 'static, Error: Into<BoxError>>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// See the module.
pub(super) struct Peer<C> {
    connector: C,
    http1: Http1,
    speaks: Arc<Mutex<Option<Speaks>>>,
    /// Held while a connection is opened; when that failed last, and why. Who waited for it fails likewise.
    opening: tokio::sync::Mutex<Option<(Instant, Broken)>>,
}

#[derive(Clone)]
enum Speaks {
    Http1,
    Http2(Http2),
}

impl<C: Connector> Peer<C> {
    pub(super) fn new(connector: C) -> Self {
        Self { connector, http1: Http1::default(), speaks: Arc::default(), opening: tokio::sync::Mutex::default() }
    }

    /// Sends a request; `lane` is held until its answer has been read.
    pub(super) fn send(
        self: Arc<Self>,
        request: &Request<Bytes>,
        lane: Arc<()>,
    ) -> impl Future<Output = Result<Response<PeerResponseBody>, Broken>> + Send + use<C> {
        let begun = match self.known() {
            Some(Speaks::Http2(connection)) => Ok((connection.begin(request), connection)),
            _ => Err(Box::new(request.clone())),
        };
        async move {
            let answer = match begun {
                Ok((begun, connection)) => over_http2(begun, connection).await?,
                // Rare, and large: not a part of every request.
                Err(request) => Box::pin(self.open_and_send(*request)).await?,
            };
            Ok(answer.map(|parts| PeerResponseBody { parts, _lane: lane }))
        }
    }

    async fn open_and_send(&self, request: Request<Bytes>) -> Result<Response<Parts>, Broken> {
        match self.open(request.uri()).await? {
            Speaks::Http2(connection) => over_http2(connection.begin(&request), connection).await,
            Speaks::Http1 => Ok(self.http1.send(&self.connector, &request).await?.map(Parts::Http1)),
        }
    }

    fn known(&self) -> Option<Speaks> {
        let mut speaks = self.speaks.lock();
        if let Some(Speaks::Http2(connection)) = &mut *speaks
            && !connection.is_open()
        {
            *speaks = None;
        }
        speaks.clone()
    }

    async fn open(&self, uri: &Uri) -> Result<Speaks, Broken> {
        let since = Instant::now();
        let mut failed = self.opening.lock().await;
        if let Some(known) = self.known() {
            return Ok(known);
        }
        if let Some((_, why)) = failed.as_ref().filter(|(at, _)| *at > since) {
            return Err(why.clone());
        }
        match self.connect(uri).await {
            Ok(found) => {
                *self.speaks.lock() = Some(found.clone());
                Ok(found)
            }
            Err(why) => {
                *failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    async fn connect(&self, uri: &Uri) -> Result<Speaks, Broken> {
        if uri.scheme() != Some(&http::uri::Scheme::HTTPS) {
            return Ok(Speaks::Http1);
        }
        let io = http1::dial(&self.connector, uri).await?;
        if !io.connected().is_negotiated_h2() {
            self.http1.keep(io).await?;
            return Ok(Speaks::Http1);
        }
        let speaks = Arc::downgrade(&self.speaks);
        let retire = move |idle: &Mark| match speaks.upgrade() {
            Some(speaks) => retire(&speaks, idle),
            None => !Http2::is_read_from(idle),
        };
        Http2::over(io, retire).await.map(Speaks::Http2)
    }
}

/// Lets go of a connection that is not in use; who is about to use it holds the lock.
fn retire(speaks: &Mutex<Option<Speaks>>, idle: &Mark) -> bool {
    let mut speaks = speaks.lock();
    match &*speaks {
        Some(Speaks::Http2(connection)) if connection.is(idle) => {
            if connection.is_in_use() {
                return false;
            }
            *speaks = None;
            true
        }
        // Others have taken its place: it ends with the last answer that is read from it, and is listened to until then.
        _ => !Http2::is_read_from(idle),
    }
}

async fn over_http2(begun: Result<ResponseFuture, Broken>, connection: Http2) -> Result<Response<Parts>, Broken> {
    let answer = begun?.await.map_err(|error| connection.broken(error))?;
    Ok(answer.map(|stream| Parts::Http2(connection.reader(stream))))
}

/// The body of an answer.
pub(super) struct PeerResponseBody {
    parts: Parts,
    _lane: Arc<()>,
}

enum Parts {
    Http1(Incoming),
    Http2(Http2Body),
}

impl Body for PeerResponseBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.parts {
            Parts::Http1(body) => Pin::new(body).poll_frame(cx).map_err(Broken::because),
            Parts::Http2(reader) => Poll::Ready(ready!(reader.poll(cx)).map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.parts {
            Parts::Http1(body) => body.is_end_stream(),
            Parts::Http2(reader) => reader.is_at_end(),
        }
    }
}

/// Reasons for which a response is missing or incomplete.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    /// The other side did not answer pings.
    Lost,
    /// The connection could not be opened, ended, or the other side gave the request up.
    Other(Arc<dyn Error + Send + Sync>),
}

impl Broken {
    pub(super) fn because(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(error))
    }

    /// Wraps an HTTP/2 error.
    pub(super) fn http2(error: h2::Error) -> Self {
        if !error.is_io() {
            return Self::because(error);
        }
        Self::because(error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("http2: client connection lost"),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl Error for Broken {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Lost => None,
            Self::Other(error) => Some(&**error),
        }
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
