//! HTTP requests of probes and hooks: TLS without verification (a container's certificate
//! is its own business), redirects within the host, answers read up to a bound.
//! Answers for upstream's `pkg/probe/http` (`DoHTTPProbe`, `NewProbeRequest`).

use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderName, HeaderValue, InvalidHeaderValue, LOCATION, USER_AGENT};
use http::{HeaderMap, Method, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use shared::cert::CertError;
use shared::host_port;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The most of an answer's body that is read.
const BODY_LIMIT: usize = 10 << 10;
const REDIRECT_LIMIT: usize = 10;

/// Actions that describe no request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The agent's name is no header.
    #[error(transparent)]
    Agent(#[from] InvalidHeaderValue),
    /// The container has no such port.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// A port that is neither a number nor the name of one of the container's ports; upstream's text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't find port: {port:?} in container {container:?}")]
pub struct PortError {
    port: IntOrString,
    container: String,
}

/// A request that was not answered, in Go's words.
#[derive(Debug, thiserror::Error)]
#[error("Get {url:?}: {cause}")]
pub struct HttpError {
    url: String,
    /// Cause.
    #[source]
    pub cause: HttpProblem,
}

/// Reasons why a request was not answered, in Go's words.
#[derive(Debug, thiserror::Error)]
pub enum HttpProblem {
    /// Too many redirects.
    #[error("stopped after {} redirects", REDIRECT_LIMIT)]
    Redirects,
    /// Too little time.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Late,
    /// Nobody listens.
    #[error("dial tcp {authority}: connect: {}", reason(.cause))]
    Dial {
        /// Host and port.
        authority: String,
        /// Cause.
        #[source]
        cause: io::Error,
    },
    /// The host has no name that TLS could be spoken with.
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
    /// TLS cannot be spoken.
    #[error(transparent)]
    Tls(#[from] CertError),
    /// The server speaks HTTP where TLS is expected.
    #[error("http: server gave HTTP response to HTTPS client")]
    NotTls,
    /// The handshake of TLS failed.
    #[error(transparent)]
    Handshake(io::Error),
    /// The request cannot be written.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// The connection broke, or what came is no HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}
/// A GET request.
#[derive(Clone, Debug)]
pub struct Request {
    secure: bool,
    host: String,
    port: u16,
    path: String,
    headers: HeaderMap,
}

/// Response to the probe.
#[derive(Clone, Debug)]
pub struct ProbeResponse {
    /// The status code of the last answer.
    pub status: u16,
    /// The beginning of its body.
    pub body: String,
    /// A redirect to another host, which is not followed.
    pub redirected_to: Option<String>,
}

impl Request {
    /// The request that an action describes.
    ///
    /// # Errors
    /// The port is neither a number nor the name of one of the container's ports.
    pub fn new(action: &HTTPGetAction, container: &Container, pod_ip: &str, agent: &str) -> Result<Self, RequestError> {
        let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(pod_ip);
        let mut headers = HeaderMap::new();
        for header in action.http_headers.iter().flatten() {
            let name = HeaderName::try_from(header.name.as_str());
            let value = HeaderValue::try_from(header.value.as_str());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        headers.entry(USER_AGENT).or_insert(HeaderValue::try_from(agent)?);
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        let path = action.path.as_deref().unwrap_or_default();
        Ok(Self {
            secure: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
            host: host.to_owned(),
            port: port_number(&action.port, container)?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            headers,
        })
    }
}

impl Request {
    /// Returns the same request over plain HTTP, without credentials.
    #[must_use]
    pub fn without_tls(&self) -> Self {
        let mut plain = Self { secure: false, ..self.clone() };
        plain.headers.remove(AUTHORIZATION);
        plain
    }

    /// Returns host and port.
    #[must_use]
    pub fn authority(&self) -> String {
        authority(self)
    }
}

/// A port given by number or by the name of a container port.
///
/// # Errors
/// Not a port.
pub fn port_number(port: &IntOrString, container: &Container) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.clone().find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port);
            named.or_else(|| name.parse().ok())
        }
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| PortError { port: port.clone(), container: container.name.clone() })
}

/// Sends a request and follows redirects that stay on its host.
///
/// # Errors
/// What went wrong on the way, in words for an event.
pub async fn send(request: &Request, timeout: Duration) -> Result<ProbeResponse, HttpError> {
    let url = url(request);
    let work = async {
        let mut request = request.clone();
        for _ in 0..REDIRECT_LIMIT {
            let (answer, location) = exchange(&request).await?;
            let Some(location) = location.filter(|_| (300..400).contains(&answer.status)) else { return Ok(answer) };
            match follow(&request, &location) {
                Some(next) => request = next,
                None => return Ok(ProbeResponse { redirected_to: Some(location), ..answer }),
            }
        }
        Err(HttpProblem::Redirects)
    };
    let result = tokio::time::timeout(timeout, work).await;
    result.unwrap_or(Err(HttpProblem::Late)).map_err(|cause| HttpError { url, cause })
}

fn url(request: &Request) -> String {
    format!("{}://{}{}", if request.secure { "https" } else { "http" }, authority(request), request.path)
}

fn authority(request: &Request) -> String {
    host_port::join(&request.host, request.port)
}

/// The next request after a redirect, if it stays on the same host.
fn follow(request: &Request, location: &str) -> Option<Request> {
    let target: Uri = location.parse().ok()?;
    let mut next = request.clone();
    if let Some(host) = target.host() {
        if host_port::bare(host) != request.host {
            return None;
        }
        next.secure = target.scheme_str() == Some("https");
        next.port = target.port_u16().unwrap_or(if next.secure { 443 } else { 80 });
    }
    next.path = target.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
    Some(next)
}

async fn exchange(request: &Request) -> Result<(ProbeResponse, Option<String>), HttpProblem> {
    let dial = |cause| HttpProblem::Dial { authority: authority(request), cause };
    let stream = TcpStream::connect((request.host.as_str(), request.port)).await.map_err(dial)?;
    if !request.secure {
        return over(stream, request).await;
    }
    let name = ServerName::try_from(request.host.clone())?;
    let client = shared::cert::client_tls(shared::cert::Trust::Anybody, None)?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let stream = connector.connect(name, stream).await.map_err(tls_error)?;
    over(stream, request).await
}

/// The failure of a handshake.
fn tls_error(error: io::Error) -> HttpProblem {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => HttpProblem::NotTls,
        _ => HttpProblem::Handshake(error),
    }
}

/// The kernel's words as Go prints them: lower case, without the number.
pub(super) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::HostUnreachable => "no route to host".into(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        std::io::ErrorKind::TimedOut => "i/o timeout".into(),
        _ => error.to_string(),
    }
}

async fn over<S>(stream: S, request: &Request) -> Result<(ProbeResponse, Option<String>), HttpProblem>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut builder = http::Request::builder().method(Method::GET).uri(&request.path);
    if !request.headers.contains_key(HOST) {
        builder = builder.header(HOST, authority(request));
    }
    let mut message = builder.body(Empty::<bytes::Bytes>::new())?;
    message.headers_mut().extend(request.headers.clone());
    let exchange = async move {
        let response = sender.send_request(message).await?;
        let status = response.status().as_u16();
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // A longer body is no failure: only its beginning is of use.
        let body = Limited::new(response.into_body(), BODY_LIMIT).collect().await;
        let body = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
        Ok((ProbeResponse { status, body, redirected_to: None }, location))
    };
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        // The connection ends by itself only when the peer closes it: then the answer is complete or lost.
        _ = connection => exchange.await,
    }
}
