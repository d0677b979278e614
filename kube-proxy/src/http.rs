//! Plain HTTP for the proxy's read-only ports: health, metrics and the health-check ports of services. Listeners come
//! and go with services, so they are tasks of the runtime and no servers with threads of their own.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use shared::connections::{ConnectionLimits, Limited};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Connections to one port at the same time; beyond them the oldest of the busiest source makes room.
const CONNECTIONS: usize = 1_024;
/// A client must have sent its request by then.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer.
pub(crate) struct ProxyResponse {
    /// HTTP status.
    pub status: StatusCode,
    /// Media type.
    pub content_type: Cow<'static, str>,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// Content.
    pub body: Bytes,
}

/// Answers a request.
pub(crate) type Handler =
    Arc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = ProxyResponse> + Send>> + Send + Sync>;

/// Answers by the path alone.
pub(crate) fn by_path(page: impl Fn(&str) -> ProxyResponse + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| Box::pin(std::future::ready(page(request.uri().path()))))
}

impl ProxyResponse {
    /// A text with status 200.
    #[must_use]
    pub(crate) fn text(body: impl Into<String>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: "text/plain; charset=utf-8".into(),
            headers: Vec::new(),
            body: Bytes::from(body.into()),
        }
    }

    /// A JSON document.
    #[must_use]
    pub(crate) fn json(status: StatusCode, body: String) -> Self {
        Self { status, content_type: "application/json".into(), headers: Vec::new(), body: body.into() }
    }

    /// Answers an unknown path as Go's mux does.
    #[must_use]
    pub(crate) fn not_found() -> Self {
        Self { status: StatusCode::NOT_FOUND, ..Self::text("404 page not found\n") }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Ok(content_type) = HeaderValue::from_str(&self.content_type) {
            headers.insert(CONTENT_TYPE, content_type);
        }
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        response
    }
}

/// Binds an address. `0.0.0.0` is every address of both families, as in Go, where the machine has IPv6.
///
/// # Errors
/// The address is taken or not ours.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    if address.ip() == IpAddr::from([0, 0, 0, 0])
        && let Ok(listener) = bind_both(address.port())
    {
        return Ok(listener);
    }
    TcpListener::bind(address).await
}

fn bind_both(port: u16) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// Answers requests until `stop`.
pub(crate) async fn serve(listener: TcpListener, stop: CancellationToken, answer: Handler) {
    let limits = ConnectionLimits::new(CONNECTIONS);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors, most likely: let some close.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let stream = Limited::new(stream, limits.admit(peer.ip()));
        let answer = Arc::clone(&answer);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let page = answer(request);
                async move { Ok::<_, Infallible>(page.await.into_response()) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
            // A client that breaks off concerns nobody else.
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn requests_are_answered_beside_connections_that_say_nothing() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(listener, stop.clone(), by_path(|path| ProxyResponse::text(path.to_owned()))));
        let mut held = Vec::new();
        for _ in 0..300 {
            held.push(TcpStream::connect(address).await.expect("a connection"));
        }
        let mut asks = TcpStream::connect(address).await.expect("a connection");
        asks.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.expect("a request");
        let mut answer = String::new();
        let read = asks.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), read).await.expect("in time").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("/healthz"), "{answer}");
        stop.cancel();
        served.await.expect("the server ends");
    }

    async fn asked(address: SocketAddr, request: &str) -> String {
        let mut asks = TcpStream::connect(address).await.expect("a connection");
        let request = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\n3");
        asks.write_all(request.as_bytes()).await.expect("a request");
        let mut answer = Vec::new();
        asks.read_to_end(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn pages_for_debugging_are_those_of_the_other_components() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let pages: Handler = Arc::new(|request| Box::pin(crate::debug::page(request)));
        let served = tokio::spawn(serve(listener, stop.clone(), pages));
        for (request, expected) in [
            ("GET /debug/pprof/", "<title>/debug/pprof/"),
            ("GET /debug/pprof", "HTTP/1.1 302 Found"),
            ("GET /debug/pprof/heap", "Unknown profile"),
            ("GET /debug/flags", "<title>/debug/flags/"),
            ("GET /debug/flags/v", "unsupported http method"),
            ("PUT /debug/flags/v", "successfully set klog.logging.verbosity to 3"),
        ] {
            let answer = asked(address, request).await;
            assert!(answer.contains(expected), "{request}: {answer}");
        }
        assert!(crate::debug::has("/debug/pprof/profile") && !crate::debug::has("/debug/pprofx"));
        stop.cancel();
        served.await.expect("the server ends");
    }
}
