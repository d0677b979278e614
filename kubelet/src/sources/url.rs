//! Manifests from a URL, read again every `httpCheckFrequency`.
//! Answers for upstream's `pkg/kubelet/config/http.go`.

use super::manifest::Owner;
use super::{Source, SourceSet, manifest};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use shared::host_port;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Largest answer that is read.
const MAX_ANSWER: usize = 10 << 20;
/// Longest time for one request.
const DEADLINE: Duration = Duration::from_secs(10);

async fn fetch(url: &http::Uri, headers: &BTreeMap<String, Vec<String>>) -> Result<Vec<u8>, String> {
    if url.scheme_str() != Some("http") {
        return Err(format!("unsupported protocol scheme in {url}"));
    }
    let host = host_port::bare(url.host().unwrap_or_default()).to_owned();
    let port = url.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = http::Request::get(path).header(http::header::HOST, host_port::join(&host, port));
    for (name, values) in headers {
        for value in values {
            request = request.header(name.as_str(), value.as_str());
        }
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|e| e.to_string())?;
    let exchange = async move {
        let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        if answer.status() != http::StatusCode::OK {
            return Err(format!("{url}: {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|e| e.to_string())?;
        Ok(body.to_bytes().to_vec())
    };
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        _ = connection => exchange.await,
    }
}

fn pods(url: &str, text: &[u8], owner: &Owner, now: Timestamp) -> Result<Vec<Pod>, String> {
    if text.is_empty() {
        return Err(format!("zero-length data received from {url}"));
    }
    let list = manifest::decode(&String::from_utf8_lossy(text)).map_err(|e| e.to_string())?;
    list.into_iter().map(|pod| manifest::adopt(pod, "http", url, owner, now).map_err(|e| e.to_string())).collect()
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
        match answer.unwrap_or_else(|_| Err(format!("{url}: context deadline exceeded"))) {
            Ok(text) if last.as_ref() == Some(&text) => {}
            Ok(text) => match pods(&url, &text, &owner, Timestamp::now()) {
                Ok(pods) => {
                    last = Some(text);
                    if sender.send(SourceSet { source: Source::Url, pods }).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::error!(url, error, "Failed to read pods from URL"),
            },
            Err(error) => tracing::error!(url, error, "Failed to read pods from URL"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}
