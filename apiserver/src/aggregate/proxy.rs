//! One request for a group version that another server answers.

use std::pin::pin;

use actix_web::body::{BodySize, MessageBody};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http_body_util::BodyExt as _;
use shared::authn::UserInfo;
use shared::traces;
use shared::upgrade::{self, RequestHead};
use shared::url::{Url, escaped_path, sorted_query};

use super::PROXIED;
use super::backend::{Backend, ProxiedResponse};
use super::error::ForwardError;
use super::{Aggregator, Remote};
use crate::connect::{
    BandwidthLimit, HOP_BY_HOP, Links, ask_packed, body, carried, forward, forwarded, forwarded_for, led_back,
};

/// A refusal: HTTP code and plain text.
pub(super) type ProxyError = (u16, String);

/// Result of a proxied request.
enum ProxyOutcome {
    /// The connection is the other server's.
    Switched(HttpResponse),
    /// A response; `true`: compressed because only the proxy asked for it.
    ProxiedResponse(ProxiedResponse, bool),
}

const UNAVAILABLE: &str = "service unavailable";

impl Aggregator {
    /// Sends a request on, as `user`.
    ///
    /// # Errors
    /// The server behind is not available, or cannot be reached.
    pub async fn proxy(
        &self,
        remote: &Remote,
        request: &HttpRequest,
        payload: web::Payload,
        user: &UserInfo,
        audit_id: &str,
    ) -> Result<HttpResponse, ProxyError> {
        if !remote.service.is_available() {
            return Err((503, UNAVAILABLE.to_owned()));
        }
        let backend = remote.backend.as_ref().map_err(|why| (500, why.to_string()))?;
        let address = backend.address(self.reader.as_ref()).map_err(|why| {
            let (service, why) = (&remote.service.name, why.to_string());
            tracing::warn!(service, why, "Failed to resolve the address of an APIService");
            (503, UNAVAILABLE.to_owned())
        })?;
        let failed = |why: ForwardError| (503, format!("error trying to reach service: {why}"));
        let sent =
            self.send_on((backend, &address), request, payload, |headers| self.dress(headers, request, user, audit_id));
        match sent.await.map_err(failed)? {
            ProxyOutcome::Switched(response) => Ok(response),
            ProxyOutcome::ProxiedResponse(sent, _) if self.keeps_redirects && redirects(&sent) => {
                const REFUSED: &str = "the backend attempted to redirect this request, which is not permitted";
                Ok(HttpResponse::BadGateway().body(REFUSED))
            }
            ProxyOutcome::ProxiedResponse(sent, packed) => {
                let response = led_back(passed_on(sent), links(&address), packed).await;
                response.map_err(|status| (503, status.message))
            }
        }
    }

    /// Sends a request on to another server of this kind.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn pass_to_peer(
        &self,
        backend: &Backend,
        address: &str,
        request: &HttpRequest,
        payload: web::Payload,
        user: &UserInfo,
        audit_id: &str,
    ) -> Result<HttpResponse, ForwardError> {
        let sent = self.send_on((backend, address), request, payload, |headers| {
            self.dress(headers, request, user, audit_id)?;
            headers.insert(HeaderName::from_static(PROXIED), HeaderValue::from_static("true"));
            Ok(())
        });
        match sent.await? {
            ProxyOutcome::Switched(response) => Ok(response),
            ProxyOutcome::ProxiedResponse(sent, packed) => {
                let response = led_back(passed_on(sent), links(address), packed).await;
                response.map_err(|status| ForwardError::Answer(status.into()))
            }
        }
    }

    async fn send_on(
        &self,
        (backend, address): (&Backend, &str),
        request: &HttpRequest,
        payload: web::Payload,
        dress: impl FnOnce(&mut HeaderMap) -> Result<(), ForwardError>,
    ) -> Result<ProxyOutcome, ForwardError> {
        let (path, target) = target(request);
        if upgrade::protocol(request).is_some() {
            let mut headers = forwarded(&upgrade::headers(request), true, &self.headers.own);
            dress(&mut headers)?;
            let head = RequestHead { method: request.method().to_string(), path_and_query: target, headers };
            let switched = carried(request, payload, &backend.origin(address), head, BandwidthLimit::default()).await;
            let switched = switched.map_err(ForwardError::Upgrade)?;
            return switched.map(ProxyOutcome::Switched).map_err(|status| ForwardError::Answer(status.into()));
        }
        let mut headers = forwarded(request.headers(), false, &self.headers.own);
        dress(&mut headers)?;
        forward(&mut headers, &links(address), path.as_bytes());
        let packed = ask_packed(request.method().as_str(), &mut headers);
        let url = format!("https://{address}{target}");
        let span = traces::request(request.method().as_str(), address, || url.clone());
        let sending = async {
            let mut head = http::Request::builder().method(request.method().as_str()).uri(&url);
            // What goes on there is part of the same trace, below another span.
            let told = traces::headers();
            for (name, value) in headers.iter().filter(|(name, _)| !told.iter().any(|(own, _)| name == own)) {
                head = head.header(name.as_str(), value.as_bytes());
            }
            for (name, value) in &told {
                head = head.header(*name, value);
            }
            backend.send(head, body(payload), address).await.map(|sent| ProxyOutcome::ProxiedResponse(sent, packed))
        };
        traces::within(span.as_ref(), pin!(sending)).await
    }

    /// # Errors
    /// A part of the user fits into no header.
    fn dress(
        &self,
        headers: &mut HeaderMap,
        request: &HttpRequest,
        user: &UserInfo,
        audit_id: &str,
    ) -> Result<(), ForwardError> {
        self.headers.set(headers, user)?;
        let mut set = |name: &'static str, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        if !audit_id.is_empty() {
            set("audit-id", audit_id);
        }
        if let Some(from) = forwarded_for(request) {
            set("x-forwarded-for", &from);
        }
        Ok(())
    }
}

/// The path of a request, and with its query, as upstream writes both: escapes as they have to be, and the query
/// sorted.
fn target(request: &HttpRequest) -> (String, String) {
    let path = Url::parse_request(request.uri().path().as_bytes()).unwrap_or_default().path;
    let path = String::from_utf8_lossy(&escaped_path(&path)).into_owned();
    let query = sorted_query(request.uri().query().unwrap_or_default().as_bytes());
    let query = String::from_utf8_lossy(&query);
    let target = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
    (path, target)
}

/// The server behind is the one that everybody means: what it says of itself leads there.
fn links(address: &str) -> Links {
    Links {
        scheme: "https".to_owned(),
        host: address.to_owned(),
        prefix: Vec::new(),
        theirs: address.as_bytes().to_vec(),
        asked: address.as_bytes().to_vec(),
    }
}

/// Reports whether a response redirects the client, and its credentials, elsewhere. The proxy never follows.
fn redirects(sent: &ProxiedResponse) -> bool {
    let code = sent.answer.status().as_u16();
    (300..400).contains(&code) && sent.answer.headers().contains_key(LOCATION.as_str())
}

/// The answer for our client.
fn passed_on(sent: ProxiedResponse) -> HttpResponse {
    let ProxiedResponse { answer, mut rest } = sent;
    let code = answer.status().as_u16();
    let mut response = HttpResponse::build(StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY));
    for (name, value) in answer.headers() {
        if HOP_BY_HOP.contains(&name.as_str()) || name == "content-length" {
            continue;
        }
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_str().as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
        {
            response.append_header((name, value));
        }
    }
    let length = answer.headers().get("content-length").and_then(|l| l.to_str().ok()).and_then(|l| l.parse().ok());
    let mut chunks = answer.into_body().into_data_stream().map(|chunk| chunk.map_err(std::io::Error::other));
    let chunks = futures::stream::poll_fn(move |cx| {
        if rest.as_mut().is_some_and(|rest| rest.poll_unpin(cx).is_ready()) {
            rest = None;
        }
        chunks.poll_next_unpin(cx)
    });
    match length {
        Some(length) => response.body(actix_web::body::SizedStream::new(length, chunks)),
        None => response.streaming(chunks),
    }
}

/// A body that keeps something until it has ended.
pub(super) struct BodyWithGuard<T> {
    body: actix_web::body::BoxBody,
    _kept: T,
}

/// Keeps `kept` for as long as the answer is written.
pub fn holding<T: Unpin + 'static>(response: HttpResponse, kept: T) -> HttpResponse {
    response.map_body(|_, body| actix_web::body::BoxBody::new(BodyWithGuard { body, _kept: kept }))
}

impl<T: Unpin> MessageBody for BodyWithGuard<T> {
    type Error = <actix_web::body::BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Bytes, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_next(cx)
    }
}
