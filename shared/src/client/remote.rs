//! Servers that are asked but are no API server: webhooks that a kubeconfig file names, issuers of tokens.
//!
//! One request at a time goes out with a deadline, an answer of bounded size comes back. Redirects are not followed:
//! credentials go where they were configured to go.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};

use super::connection::through;
use super::{Dialer, Once, Throttle, connect};
use crate::cert;
use crate::status::Status;

/// Most bytes of an answer.
const ANSWER_LIMIT: usize = 3 << 20;

/// Errors of a remote call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RemoteError {
    /// The configuration is of no use.
    #[error("{0}")]
    Config(String),
    /// The server cannot be reached, or the connection broke.
    #[error("{text}")]
    Connection {
        /// Text with method and URL.
        text: String,
        /// The connection was open before: another try may help.
        reset: bool,
    },
    /// The deadline passed.
    #[error("{0}: context deadline exceeded")]
    Deadline(String),
}

/// An answer, good or bad.
#[derive(Debug, Clone)]
pub struct Reply {
    /// HTTP status.
    pub code: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// Reports whether the code is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Reports whether the failure is temporary: upstream's clients retry then.
    pub fn may_pass(&self) -> bool {
        matches!(self.code, 429 | 500 | 504) || (!self.is_success() && self.headers.contains_key("retry-after"))
    }

    /// The failure in the words of upstream's clients.
    pub fn failure(&self) -> String {
        if let Ok(status) = serde_json::from_slice::<serde_json::Value>(&self.body)
            && status["kind"] == "Status"
            && let Some(message) = status["message"].as_str()
        {
            return message.to_owned();
        }
        let kind = self.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(2048)]);
        let said = if kind.unwrap_or("text/plain").starts_with("text/") { text.trim() } else { "unknown" };
        Status::answered(self.code, said).message
    }
}

/// See the module. Cheap to clone; connections are shared.
#[derive(Clone)]
pub struct Remote {
    client: Client,
    /// URL in messages.
    url: String,
    path: String,
}

impl Remote {
    /// The server and the credentials of a kubeconfig's current context. Connections are opened by `dialer`, where there
    /// is one.
    ///
    /// # Errors
    /// When the file, or a file it names, cannot be read or used.
    pub async fn from_kubeconfig(path: &str, dialer: Option<Dialer>) -> Result<Self, RemoteError> {
        let bad = |e: &dyn std::fmt::Display| RemoteError::Config(e.to_string());
        let file = super::kubeconfig::read(path).map_err(|e| bad(&e))?;
        let mut config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(|e| bad(&e))?;
        config.default_retry = false;
        Self::with(config, dialer)
    }

    /// A URL without credentials, trusted by the certificates in `ca` (PEM) or, without, by those of the system.
    ///
    /// # Errors
    /// A malformed URL or bundle.
    pub fn to(url: &str, ca: Option<&[u8]>, dialer: Option<Dialer>) -> Result<Self, RemoteError> {
        let uri: Uri = url.parse().map_err(|_| RemoteError::Config(format!("parse {url:?}: invalid URL")))?;
        let mut config = Config::new(uri);
        if let Some(pem) = ca {
            let chain = crate::cert::certificates(pem).map_err(|e| RemoteError::Config(e.to_string()))?;
            config.root_cert = Some(chain.iter().map(|c| c.to_vec()).collect());
        }
        config.default_retry = false;
        Self::with(config, dialer)
    }

    fn with(mut config: Config, dialer: Option<Dialer>) -> Result<Self, RemoteError> {
        let url = config.cluster_url.to_string();
        let path = config.cluster_url.path_and_query().map_or("/", |p| p.as_str()).to_owned();
        // The path is ours to set: the client would put a slash after it.
        let mut parts = config.cluster_url.clone().into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        config.cluster_url = Uri::from_parts(parts).map_err(|e| RemoteError::Config(e.to_string()))?;
        let unhurried = Throttle::new(0.0, 0);
        let client = match dialer {
            Some(dialer) => through(dialer, &config, &unhurried).map(|transport| transport.client()),
            None => connect(&config, &unhurried),
        };
        let client = client.map_err(|e| RemoteError::Config(e.to_string()))?;
        Ok(Self { client, url, path })
    }

    /// URL in messages.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Posts JSON. The deadline is told to the server (`?timeout=30s`).
    ///
    /// # Errors
    /// No answer.
    pub async fn post(&self, body: Bytes, deadline: Duration) -> Result<Reply, RemoteError> {
        let mark = if self.path.contains('?') { '&' } else { '?' };
        let timeout = crate::flags::format_duration(deadline);
        let request = Request::post(format!("{}{mark}timeout={timeout}", self.path))
            .header("content-type", "application/json")
            .header("accept", "application/json, */*")
            .body(Body::from(body));
        self.send(&format!("Post \"{}{mark}timeout={timeout}\"", self.url), request, deadline).await
    }

    /// Fetches the document.
    ///
    /// # Errors
    /// No answer.
    pub async fn get(&self, deadline: Duration) -> Result<Reply, RemoteError> {
        self.fetch(None, deadline).await
    }

    /// Fetches the document, as who has a token where there is one.
    ///
    /// # Errors
    /// No answer.
    pub async fn fetch(&self, token: Option<&str>, deadline: Duration) -> Result<Reply, RemoteError> {
        let mut request = Request::get(&self.path).header("accept", "*/*").extension(Once);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.send(&format!("Get \"{}\"", self.url), request.body(Body::empty()), deadline).await
    }

    async fn send(
        &self,
        what: &str,
        request: Result<Request<Body>, http::Error>,
        deadline: Duration,
    ) -> Result<Reply, RemoteError> {
        let request = request.map_err(|e| RemoteError::Config(e.to_string()))?;
        let broken = |error: &(dyn std::error::Error + 'static)| {
            let url: Option<Uri> = self.url.parse().ok();
            let (text, reset) = go_words(url.as_ref().and_then(Uri::host).unwrap_or_default(), error);
            RemoteError::Connection { text: format!("{what}: {text}"), reset }
        };
        let exchange = async {
            let response = self.client.send(request).await.map_err(|e| broken(&e))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_LIMIT).collect().await.map_err(|e| broken(e.as_ref()))?.to_bytes();
            Ok(Reply { code: head.status.as_u16(), headers: head.headers, body })
        };
        match tokio::time::timeout(deadline, exchange).await {
            Ok(done) => done,
            Err(_) => Err(RemoteError::Deadline(what.to_owned())),
        }
    }
}

/// The innermost cause as Go words it, and whether an open connection broke.
fn go_words(host: &str, error: &(dyn std::error::Error + 'static)) -> (String, bool) {
    let mut innermost = error;
    let mut io = None;
    loop {
        if let Some(found) = innermost.downcast_ref::<std::io::Error>() {
            io = Some(found.kind());
            if let Some(words) = cert::refusal(host, found) {
                return (words, false);
            }
        }
        match innermost.source() {
            Some(source) => innermost = source,
            None => break,
        }
    }
    use std::io::ErrorKind as K;
    match io {
        Some(K::ConnectionRefused) => ("dial tcp: connect: connection refused".to_owned(), false),
        Some(K::ConnectionReset | K::BrokenPipe) => ("connection reset by peer".to_owned(), true),
        Some(K::UnexpectedEof) => ("EOF".to_owned(), true),
        Some(K::HostUnreachable) => ("dial tcp: connect: no route to host".to_owned(), false),
        _ => (innermost.to_string(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A server on a free port that answers every request with `answer` and tells what it was asked.
    async fn server(answer: &'static str) -> (u16, tokio::sync::mpsc::Receiver<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (tell, told) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = vec![0; 4096];
                let n = stream.read(&mut buffer).await.unwrap_or(0);
                let _ = tell.send(String::from_utf8_lossy(&buffer[..n]).into_owned()).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (port, told)
    }

    #[tokio::test]
    async fn the_path_stays_as_configured() {
        let (port, mut told) = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
        let remote = Remote::to(&format!("http://127.0.0.1:{port}/authorize"), None, None).expect("a remote");
        let reply = remote.post(Bytes::from_static(b"{\"a\":1}"), Duration::from_secs(5)).await.expect("an answer");
        assert_eq!((reply.code, &reply.body[..]), (200, &b"{}"[..]));
        let asked = told.recv().await.expect("asked");
        assert!(asked.starts_with("POST /authorize?timeout=5s HTTP/1.1\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_not_an_order() {
        let (port, _told) = server(
            "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        )
        .await;
        let remote = Remote::to(&format!("http://127.0.0.1:{port}/x"), None, None).expect("a remote");
        let reply = remote.get(Duration::from_secs(5)).await.expect("an answer");
        assert_eq!((reply.code, reply.is_success(), reply.may_pass()), (302, false, false));
    }

    #[tokio::test]
    async fn nobody_there() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let remote = Remote::to(&format!("http://127.0.0.1:{port}/x"), None, None).expect("a remote");
        let error = remote.get(Duration::from_secs(5)).await.expect_err("nobody");
        assert_eq!(
            error.to_string(),
            format!("Get \"http://127.0.0.1:{port}/x\": dial tcp: connect: connection refused")
        );
    }
}
