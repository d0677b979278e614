//! An API server that is not this one: it stands behind an API service and says what reached it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::Pki;

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// Serves `GROUP/v1` with `flunders`; lives as long as the test's runtime.
pub struct Extension {
    port: u16,
    down: Arc<AtomicBool>,
}

pub const GROUP: &str = "wardle.example.com";

fn full(code: u16, kind: &str, text: String) -> Response<Body> {
    let body = http_body_util::Full::new(Bytes::from(text)).boxed_unsync();
    Response::builder().status(code).header("content-type", kind).body(body).expect("a response")
}

fn discovery() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": [
        {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get", "list"]}]})
}

/// Echoes a request: method, path, user and headers.
async fn echo(request: Request<Incoming>, peer: String) -> Value {
    let mut headers = serde_json::Map::new();
    for (name, value) in request.headers() {
        let list = headers.entry(name.as_str()).or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(json!(String::from_utf8_lossy(value.as_bytes())));
        }
    }
    let (method, path) = (request.method().to_string(), request.uri().to_string());
    let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    json!({"method": method, "path": path, "headers": headers, "peer": peer, "length": body.len()})
}

async fn answer(mut request: Request<Incoming>, peer: String, old: bool) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let root = format!("/apis/{GROUP}/v1");
    if path == root {
        return Ok(full(200, "application/json", discovery().to_string()));
    }
    if old && path.starts_with("/openapi/v3") {
        return Ok(full(404, "text/plain", "404 page not found\n".to_owned()));
    }
    if path == "/openapi/v2" || path.starts_with("/openapi/v3") {
        return Ok(super::extension_schemas::answer(&path));
    }
    if path == "/apis" {
        return Ok(full(406, "text/plain", String::new()));
    }
    if request.headers().get("upgrade").is_some() {
        let switched = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(switched.await.expect("switched"));
            let mut line = [0; 5];
            stream.read_exact(&mut line).await.expect("five bytes");
            line.reverse();
            stream.write_all(&line).await.expect("written");
            stream.shutdown().await.expect("closed");
        });
        let response = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "echo");
        return Ok(response.body(http_body_util::Empty::new().boxed_unsync()).expect("a response"));
    }
    if request.uri().query().is_some_and(|q| q.contains("watch=")) {
        // Never ends by itself.
        let first = futures::stream::iter(["{\"type\":\"ADDED\"}\n", "{\"type\":\"MODIFIED\"}\n"]);
        let frames =
            first.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))).chain(futures::stream::pending());
        return Ok(Response::new(StreamBody::new(frames).boxed_unsync()));
    }
    if path.ends_with("/elsewhere") {
        let response = Response::builder().status(302).header("location", "https://example.com/");
        return Ok(response.body(http_body_util::Empty::new().boxed_unsync()).expect("a response"));
    }
    Ok(full(200, "application/json", echo(request, peer).await.to_string()))
}

impl Extension {
    pub async fn start(pki: &Pki) -> Self {
        Self::begin(pki, false).await
    }

    /// One that knows nothing of OpenAPI v3.
    pub async fn start_old(pki: &Pki) -> Self {
        Self::begin(pki, true).await
    }

    async fn begin(pki: &Pki, old: bool) -> Self {
        let key = shared::cert::PemPair { certificate: pki.server.0.clone(), key: pki.server.1.clone() };
        let key = Arc::new(shared::cert::ReloadingKey::from_pem(&key).expect("a pair"));
        let tls = shared::cert::server_config(key, false).expect("server tls");
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let down = Arc::new(AtomicBool::new(false));
        let closed = down.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, closed) = (acceptor.clone(), closed.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                    let peer = chain.first().map(common_name).unwrap_or_default();
                    let service = hyper::service::service_fn(move |request| {
                        let (peer, closed) = (peer.clone(), closed.load(Ordering::Acquire));
                        async move {
                            if closed {
                                Ok(full(500, "text/plain", "down".to_owned()))
                            } else {
                                answer(request, peer, old).await
                            }
                        }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    // A caller that goes away ends its connection.
                    let _ = http.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                });
            }
        });
        Self { port, down }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes every response a failure, or ends that.
    pub fn down(&self, down: bool) {
        self.down.store(down, Ordering::Release);
    }
}

fn common_name(certificate: &rustls_pki_types::CertificateDer<'_>) -> String {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).expect("a certificate");
    parsed.subject().iter_common_name().next().and_then(|n| n.as_str().ok()).unwrap_or_default().to_owned()
}
