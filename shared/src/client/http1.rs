//! Connections of a server that knows no HTTP/2: each carries one request at a time, and is used again afterwards.

use bytes::Bytes;
use http::header::HOST;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::fence::{Gate, Gated};
use super::http2::IDLE;
use super::peer::{Broken, Connector, Io};

/// Connections that were opened and may be used again.
#[derive(Default)]
pub(super) struct Http1 {
    kept: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    gate: Gate,
    used: Instant,
}

impl Connection {
    async fn over(io: impl Io) -> Result<Self, Broken> {
        let gate = Gate::default();
        let io = TokioIo::new(Gated::over(TokioIo::new(io), gate.clone()));
        let (mut sender, connection) = http1::handshake(io).await.map_err(Broken::because)?;
        // Ends with the connection, or with its sender.
        tokio::spawn(connection.with_upgrades());
        sender.ready().await.map_err(Broken::because)?;
        Ok(Self { sender, gate, used: Instant::now() })
    }

    fn may_be_used(&self) -> bool {
        !self.sender.is_closed() && self.used.elapsed() < IDLE
    }
}

impl Http1 {
    /// Keeps a connection that was opened to learn what the server speaks.
    pub(super) async fn keep(&self, io: impl Io) -> Result<(), Broken> {
        let connection = Connection::over(io).await?;
        self.kept.lock().push(connection);
        Ok(())
    }

    /// Sends a request over a connection that is free, or a new one.
    pub(super) async fn send(
        &self,
        connector: &impl Connector,
        request: &Request<Bytes>,
    ) -> Result<Response<Incoming>, Broken> {
        loop {
            let free = self.free();
            let is_new = free.is_none();
            let mut connection = match free {
                Some(free) => free,
                None => Connection::over(dial(connector, request.uri()).await?).await?,
            };
            if let Err(refused) = connection.gate.admit(request) {
                self.kept.lock().push(connection);
                return Err(refused);
            }
            match connection.sender.try_send_request(in_origin_form(request)).await {
                Ok(answer) => {
                    // Free again once the answer has been read.
                    connection.used = Instant::now();
                    self.kept.lock().push(connection);
                    return Ok(answer);
                }
                // The server had closed the connection before anything was written.
                Err(unsent) if !is_new && unsent.message().is_some() => {}
                Err(failed) => return Err(Broken::because(failed.into_error())),
            }
        }
    }

    /// Takes the connection that was used last and is free now; drops those that nobody can use any more.
    fn free(&self) -> Option<Connection> {
        let mut kept = self.kept.lock();
        kept.retain(Connection::may_be_used);
        let at = kept.iter().rposition(|connection| connection.sender.is_ready())?;
        Some(kept.remove(at))
    }
}

/// Opens a connection.
pub(super) async fn dial<C: Connector>(connector: &C, uri: &Uri) -> Result<C::Response, Broken> {
    connector.clone().oneshot(uri.clone()).await.map_err(|error| Broken::Other(error.into().into()))
}

/// Copy of a request with a path as its target, and the server in a header.
fn in_origin_form(request: &Request<Bytes>) -> Request<Full<Bytes>> {
    let mut copy = request.clone().map(Full::new);
    if let Ok(host) = HeaderValue::from_str(&host(request.uri())) {
        copy.headers_mut().entry(HOST).or_insert(host);
    }
    let path = request.uri().path_and_query().cloned();
    *copy.uri_mut() = path.unwrap_or(PathAndQuery::from_static("/")).into();
    copy
}

/// Value of the Host header: a port is left out where it is the usual one.
fn host(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let usual = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    match uri.port_u16().filter(|port| *port != usual) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_a_path_and_a_host() {
        for (uri, path, host) in [
            ("https://a/api?x=y", "/api?x=y", "a"),
            ("https://a:443/", "/", "a"),
            ("https://a:80/", "/", "a:80"),
            ("http://a:80/x", "/x", "a"),
            ("http://[::1]:8080/x", "/x", "[::1]:8080"),
        ] {
            let request = Request::get(uri).body(Bytes::new()).expect("a request");
            let sent = in_origin_form(&request);
            assert_eq!((sent.uri().to_string().as_str(), sent.headers()[HOST].to_str().expect("text")), (path, host));
        }
        let request = Request::get("http://a/x").header(HOST, "b").body(Bytes::new()).expect("a request");
        assert_eq!(in_origin_form(&request).headers()[HOST], "b");
    }
}
