//! One connection per request to whatever stands behind the API server, and HTTP over it. Headers are carried by
//! their bytes: the server's and the client's HTTP libraries have header types of their own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use shared::cert;
use shared::host_port;
use shared::upgrade::{Dialed, RequestHead, dial};
use tokio_rustls::TlsConnector;

use crate::authn::{FrontProxyHeaders, TOKEN_PROTOCOL};
use crate::egress::{BoxStream, Egress, NetworkContext, ProxyRefused};

/// Timeout of the TLS handshake with the backend.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Timeout of the backend's answer to an upgrade request.
const SWITCH: Duration = Duration::from_secs(30);
/// Headers that concern one connection only (RFC 9110 section 7.6.1).
pub(crate) const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Headers that are between the client and us.
const OURS: [&str; 3] = ["authorization", "host", "x-ironclad-upgrade"];
/// Prefix of impersonation headers, which are for this server and not forwarded.
const OURS_BEGIN: &str = "impersonate-";

/// A server behind the API server.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// TLS settings; none for plain HTTP.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The name its certificate must have, where that is not the host.
    pub(crate) name: Option<ServerName<'static>>,
    /// The way there.
    pub(crate) egress: Egress,
}

impl Origin {
    /// `host:port`, with brackets where the host is an IPv6 address.
    pub(super) fn authority(&self) -> String {
        host_port::join(&self.host, self.port)
    }

    /// Describes a connection failure in Go's words.
    pub(super) fn why(&self, error: &io::Error) -> String {
        cert::refused(&self.host, error)
    }

    async fn open(&self) -> io::Result<BoxStream> {
        let address = self.authority();
        let socket =
            self.egress.dial(NetworkContext::Cluster, &address).await.map_err(|error| {
                match ProxyRefused::of(&error) {
                    Some(_) => error,
                    None => io::Error::new(error.kind(), crate::admission::dial_error(&address, &error)),
                }
            })?;
        let Some(tls) = &self.tls else { return Ok(socket) };
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(self.host.clone()).map_err(io::Error::other)?,
        };
        let secured = TlsConnector::from(Arc::clone(tls)).connect(name, socket);
        let timeout = |_| io::Error::new(io::ErrorKind::TimedOut, "net/http: TLS handshake timeout");
        Ok(Box::pin(tokio::time::timeout(HANDSHAKE, secured).await.map_err(timeout).flatten()?))
    }

    /// Asks to switch protocols. Who does not say which host he means, means this one.
    pub(super) async fn switch(&self, mut head: RequestHead) -> io::Result<Dialed<BoxStream>> {
        let stream = self.open().await?;
        if !head.headers.contains_key(HOST) {
            head.headers.insert(HOST, HeaderValue::from_str(&self.authority()).map_err(io::Error::other)?);
        }
        let timeout = |_| io::Error::new(io::ErrorKind::TimedOut, "i/o timeout");
        tokio::time::timeout(SWITCH, dial(stream, &head)).await.map_err(timeout).flatten()
    }

    /// Sends a request and returns the answer, its body still flowing. The host is this one unless the headers say so.
    pub(super) async fn send(
        &self,
        method: &str,
        path_and_query: &str,
        headers: &HeaderMap,
        body: Option<Payload>,
    ) -> io::Result<HttpResponse> {
        let stream = self.open().await?;
        let mut request = hyper::Request::builder().method(method).uri(path_and_query);
        if !headers.contains_key(HOST) {
            request = request.header("host", self.authority());
        }
        for (name, value) in headers {
            request = request.header(name.as_str(), value.as_bytes());
        }
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        actix_web::rt::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "Proxied connection failed");
            }
        });
        let chunks = futures::stream::iter(body).flatten();
        let frames = chunks.map(|chunk| chunk.map(Frame::data).map_err(|error| io::Error::other(error.to_string())));
        let request = request.body(StreamBody::new(frames)).map_err(io::Error::other)?;
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let mut response =
            HttpResponse::build(StatusCode::from_u16(answer.status().as_u16()).map_err(io::Error::other)?);
        let named = answer.headers().get_all("connection").iter().filter_map(|value| value.to_str().ok());
        let named: Vec<&str> = named.flat_map(|value| value.split(',')).map(str::trim).collect();
        let between = |name: &str| HOP_BY_HOP.contains(&name) || named.iter().any(|n| n.eq_ignore_ascii_case(name));
        for (name, value) in answer.headers().iter().filter(|(name, _)| !between(name.as_str())) {
            let name = HeaderName::from_bytes(name.as_str().as_bytes()).map_err(io::Error::other)?;
            response.append_header((name, HeaderValue::from_bytes(value.as_bytes()).map_err(io::Error::other)?));
        }
        let data = answer.into_body().into_data_stream();
        // The connection lives as long as somebody reads.
        let body = data.map(move |chunk| {
            let _open = &sender;
            chunk.map_err(|error| io::Error::other(error.to_string()))
        });
        Ok(response.streaming::<_, io::Error>(body))
    }
}

/// The client's headers without those that are not for the other side; who asks is not the client's to say.
pub(crate) fn forwarded(headers: &HeaderMap, upgrade: bool, front_proxy: &FrontProxyHeaders) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for (name, value) in headers {
        let text = name.as_str();
        let ours = OURS.contains(&text) || text.starts_with(OURS_BEGIN) || front_proxy.has(text);
        let hop = HOP_BY_HOP.contains(&text) && !(upgrade && text == "upgrade");
        if ours || hop {
            continue;
        }
        match text {
            "sec-websocket-protocol" => {
                // One of them may be the client's token.
                let offered = value.to_str().unwrap_or_default().split(',').map(str::trim);
                let others: Vec<&str> = offered.filter(|p| !p.is_empty() && !p.starts_with(TOKEN_PROTOCOL)).collect();
                if let (false, Ok(others)) = (others.is_empty(), HeaderValue::from_str(&others.join(", "))) {
                    kept.append(name.clone(), others);
                }
            }
            _ => kept.append(name.clone(), value.clone()),
        }
    }
    if upgrade {
        // Nothing else of it is between us and the other side.
        kept.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    kept
}

/// The host that a client means, which may be one of ours under any name.
pub(super) fn host(request: &HttpRequest) -> &str {
    match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    }
}

/// Headers for a backend that shall know the client: the client's own, its `Host`, and `X-Forwarded-For`.
pub(super) fn sent_on(request: &HttpRequest, upgrade: bool, front_proxy: &FrontProxyHeaders) -> HeaderMap {
    let mut headers = forwarded(&shared::upgrade::headers(request), upgrade, front_proxy);
    let host = Some(host(request)).filter(|host| !host.is_empty()).map(HeaderValue::from_str);
    for (name, value) in
        [(HOST, host), (FORWARDED_FOR, forwarded_for(request).map(|from| HeaderValue::from_str(&from)))]
    {
        if let Some(Ok(value)) = value {
            headers.insert(name, value);
        }
    }
    headers
}

/// Value of `X-Forwarded-For`: the earlier hops and the peer.
pub(crate) fn forwarded_for(request: &HttpRequest) -> Option<String> {
    let peer = request.peer_addr()?.ip().to_string();
    let before = request.headers().get_all(FORWARDED_FOR).filter_map(|value| value.to_str().ok());
    Some(before.chain([peer.as_str()]).collect::<Vec<_>>().join(", "))
}

/// Body of a request, if any. The backend is told of no more bytes than it is sent: it would take the next request for
/// the rest.
pub(crate) fn body(payload: web::Payload) -> Option<Payload> {
    match payload.into_inner() {
        Payload::None => None,
        payload => Some(payload),
    }
}

/// Reads a small answer completely.
pub(super) async fn collect(response: HttpResponse, limit: usize) -> Bytes {
    let mut body = Vec::new();
    let mut stream = std::pin::pin!(response.into_body());
    while let Some(Ok(chunk)) =
        futures::future::poll_fn(|cx| actix_web::body::MessageBody::poll_next(stream.as_mut(), cx)).await
    {
        body.extend_from_slice(&chunk);
        if body.len() >= limit {
            body.truncate(limit);
            break;
        }
    }
    Bytes::from(body)
}

#[cfg(test)]
mod tests {
    use shared::flags::FlagSet;

    use super::*;

    fn sent_on(sent: &[(&'static str, &'static str)], upgrade: bool) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let shown = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap_or("?"));
        let flags = ["--requestheader-client-ca-file=f", "--requestheader-username-headers=X-Who"];
        let own = FrontProxyHeaders::from_flags(&FlagSet::of("kube-apiserver", &flags).expect("flags"));
        let mut shown: Vec<String> = forwarded(&headers, upgrade, &own).iter().map(shown).collect();
        shown.sort();
        shown
    }

    #[test]
    fn hop_by_hop_headers_are_not_forwarded() {
        let ours = [
            ("authorization", "Bearer a"),
            ("impersonate-user", "b"),
            ("impersonate-extra-a", "b"),
            ("x-remote-user", "root"),
            ("x-remote-uid", "0"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-scopes", "all"),
            ("x-who", "root"),
            ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.YQ"),
        ];
        assert_eq!(sent_on(&ours, false), Vec::<String>::new());
        assert_eq!(sent_on(&ours, true), ["connection: Upgrade"]);
    }

    #[test]
    fn a_websocket_is_passed_on_without_its_token() {
        let sent = [
            ("connection", "keep-alive, Upgrade, X-Real-Ip"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", "chat, base64url.bearer.authorization.k8s.io.YQ, v5.channel.k8s.io"),
            ("x-real-ip", "10.0.0.1"),
        ];
        let passed = [
            "connection: Upgrade",
            "sec-websocket-protocol: chat, v5.channel.k8s.io",
            "upgrade: websocket",
            "x-real-ip: 10.0.0.1",
        ];
        assert_eq!(sent_on(&sent, true), passed);
    }
}
