//! Manifests from a URL, read again every `httpCheckFrequency`.
//! Answers for upstream's `pkg/kubelet/config/http.go`.

use super::manifest::{ManifestError, Owner};
use super::{Source, SourceSet, manifest};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use shared::host_port;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

/// Largest answer that is read.
const MAX_ANSWER: usize = 10 << 20;
/// Longest time for one request.
const DEADLINE: Duration = Duration::from_secs(10);

/// Reasons why no pods are read from a URL.
#[derive(Debug, thiserror::Error)]
enum UrlError {
    /// A scheme that is not `http`.
    #[error("unsupported protocol scheme in {0}")]
    Scheme(http::Uri),
    /// Nobody listens.
    #[error(transparent)]
    Dial(#[from] io::Error),
    /// The connection broke.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// A header that is to be sent is none.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The server refuses.
    #[error("{url}: {status}")]
    Status { url: http::Uri, status: http::StatusCode },
    /// The answer is long, or broke off.
    #[error(transparent)]
    Body(BoxError),
    /// The server takes too long.
    #[error("{0}: context deadline exceeded")]
    Late(String),
    /// The answer is empty.
    #[error("zero-length data received from {0}")]
    Empty(String),
    /// The answer is no manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

async fn fetch(url: &http::Uri, headers: &BTreeMap<String, Vec<String>>) -> Result<Vec<u8>, UrlError> {
    if url.scheme_str() != Some("http") {
        return Err(UrlError::Scheme(url.clone()));
    }
    let host = host_port::bare(url.host().unwrap_or_default()).to_owned();
    let port = url.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = http::Request::get(path).header(http::header::HOST, host_port::join(&host, port));
    for (name, values) in headers {
        for value in values {
            request = request.header(name.as_str(), value.as_str());
        }
    }
    let request = request.body(Empty::<bytes::Bytes>::new())?;
    let exchange = async move {
        let answer = sender.send_request(request).await?;
        if answer.status() != http::StatusCode::OK {
            return Err(UrlError::Status { url: url.clone(), status: answer.status() });
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(UrlError::Body)?;
        Ok(body.to_bytes().to_vec())
    };
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        _ = connection => exchange.await,
    }
}

fn pods(url: &str, text: &[u8], owner: &Owner, now: Timestamp) -> Result<Vec<Pod>, UrlError> {
    if text.is_empty() {
        return Err(UrlError::Empty(url.to_owned()));
    }
    let list = manifest::decode(&String::from_utf8_lossy(text))?;
    list.into_iter().map(|pod| Ok(manifest::adopt(pod, "http", url, owner, now)?)).collect()
}

/// Asks until shutdown and sends the whole set whenever it changed.
pub async fn watch(
    url: String,
    headers: BTreeMap<String, Vec<String>>,
    owner: Owner,
    every: Duration,
    sender: mpsc::Sender<SourceSet>,
    shutdown: CancellationToken,
) {
    let target: http::Uri = match url.parse() {
        Ok(target) => target,
        Err(error) => {
            tracing::error!(url, %error, "The manifest URL is not usable");
            return;
        }
    };
    let mut last: Option<Vec<u8>> = None;
    loop {
        let answer = tokio::time::timeout(DEADLINE, fetch(&target, &headers)).await;
        match answer.unwrap_or_else(|_| Err(UrlError::Late(url.clone()))) {
            Ok(text) if last.as_ref() == Some(&text) => {}
            Ok(text) => match pods(&url, &text, &owner, Timestamp::now()) {
                Ok(pods) => {
                    last = Some(text);
                    if sender.send(SourceSet { source: Source::Url, pods }).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::error!(url, %error, "Failed to read pods from URL"),
            },
            Err(error) => tracing::error!(url, %error, "Failed to read pods from URL"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}
