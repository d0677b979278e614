//! One HTTP/2 connection with the windows and the cipher that Go's clients use.

use std::sync::Arc;

use anyhow::{bail, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::pki::{Identity, Pki};

/// Media types.
pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// A connection; clones share it.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    port: u16,
}

/// Frames of a watch.
pub struct Watch {
    body: Incoming,
}

impl Watch {
    /// The next bytes, as they come.
    pub async fn next(&mut self) -> anyhow::Result<Bytes> {
        loop {
            let Some(frame) = self.body.frame().await else { bail!("the watch ended") };
            if let Ok(data) = frame?.into_data() {
                return Ok(data);
            }
        }
    }
}

/// Does `one` for every item, `at_once` at a time, of which it is told the number.
pub async fn side_by_side<T, Fut>(
    at_once: usize,
    items: impl Iterator<Item = T>,
    one: impl Fn(usize, T) -> Fut,
) -> anyhow::Result<()>
where
    Fut: Future<Output = anyhow::Result<()>>,
{
    let items = parking_lot::Mutex::new(items);
    let takers = (0..at_once).map(|taker| {
        let (items, one) = (&items, &one);
        async move {
            loop {
                let next = items.lock().next();
                let Some(item) = next else { return anyhow::Ok(()) };
                one(taker, item).await?;
            }
        }
    });
    try_join_all(takers).await.map(drop)
}

fn tls(pki: &Pki, identity: &Identity) -> anyhow::Result<rustls::ClientConfig> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256];
    let builder =
        rustls::ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(shared::cert::root_store(pki.ca.as_bytes())?);
    let mut config = match pki.pair(identity) {
        Some((certificate, key)) => builder.with_client_auth_cert(
            shared::cert::certificates(certificate.as_bytes())?,
            shared::cert::private_key(key.as_bytes())?,
        )?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Requests a path as the administrator from a server that need not speak HTTP/2, and returns the body.
pub async fn text_of(port: u16, pki: &Pki, path: &str) -> anyhow::Result<String> {
    let mut config = tls(pki, &Identity::Admin)?;
    config.alpn_protocols.clear();
    let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(ServerName::try_from("localhost")?, tcp).await?;
    // Of this version, so that the answer comes in one piece.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    ensure!(read.is_ok() || !answer.is_empty(), "{path}: no answer");
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

impl Client {
    /// Opens it.
    pub async fn connect(port: u16, pki: &Pki, identity: &Identity) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
        tcp.set_nodelay(true)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls(pki, identity)?));
        let stream = connector.connect(ServerName::try_from("localhost")?, tcp).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(4 << 20).initial_connection_window_size(1 << 30);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        // Ends with its last request.
        tokio::spawn(connection);
        Ok(Self { sender, port })
    }

    /// Any request; the answer is complete but for its body.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        let uri = format!("https://127.0.0.1:{}{path}", self.port);
        let mut b = Request::builder().method(method).uri(uri).header("user-agent", "bench/v1");
        for (name, value) in headers {
            b = b.header(*name, *value);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(b.body(Full::new(body))?).await?)
    }

    /// The number of bytes of the answer to a GET.
    pub async fn read(&mut self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<usize> {
        let response = self.send("GET", path, headers, Bytes::new()).await?;
        ensure!(response.status().is_success(), "{path}: {}", response.status());
        let mut body = response.into_body();
        let mut size = 0;
        while let Some(frame) = body.frame().await {
            size += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok(size)
    }

    /// GET.
    pub async fn get(&mut self, path: &str, accept: &str) -> anyhow::Result<Bytes> {
        self.call("GET", path, &[("accept", accept)], Bytes::new()).await
    }

    /// Any request that must succeed.
    pub async fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<Bytes> {
        let response = self.send(method, path, headers, body).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{method} {path}: {status} {}", String::from_utf8_lossy(&bytes));
        Ok(bytes)
    }

    /// Opens a watch.
    pub async fn watch(&mut self, path: &str, accept: &str) -> anyhow::Result<Watch> {
        let response = self.send("GET", path, &[("accept", accept)], Bytes::new()).await?;
        ensure!(response.status().is_success(), "{path}: {}", response.status());
        Ok(Watch { body: response.into_body() })
    }
}
