//! The span of a request, under upstream's names, for `--tracing-config-file`.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use shared::authn::UserInfo;
use shared::traces::{self, About, HTTP, OWN, Span, SpanKind, Tracer};

use super::meters;
use crate::access::FILTERS;
use crate::api::RequestInfo;
use crate::audit;
use crate::registry::core::namespace::NAMESPACES;

/// Groups whose traces are continued; traces of other clients are only linked.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

/// Name of a request's span: of bounded cardinality, hence without the object's name.
fn name(method: &str, info: &RequestInfo) -> String {
    if !info.is_resource {
        return method.to_owned();
    }
    let mut name = format!("{method} /{}", info.api_prefix);
    let mut add = |part: &str| {
        name.push('/');
        name.push_str(part);
    };
    if !info.api_group.is_empty() {
        add(&info.api_group);
    }
    add(&info.api_version);
    if !info.namespace.is_empty() {
        add(NAMESPACES.plural);
        add("{:namespace}");
    }
    add(&info.resource);
    if !info.name.is_empty() {
        add("{:name}");
    }
    if !info.subresource.is_empty() {
        add(&info.subresource);
    }
    name
}

/// The span of one request, once it is known who asks.
#[derive(Default)]
pub(super) struct RequestSpan(OnceCell<Span>);

impl RequestSpan {
    /// Begins it. To find out who asks took since `since`: that is told of below it.
    pub(super) fn begin(
        &self,
        tracer: &Tracer,
        request: &HttpRequest,
        info: &RequestInfo,
        user: &UserInfo,
        (audit_id, since): (&str, SystemTime),
    ) {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let remote = traces::Context::read(header);
        if !tracer.is_on() && remote.is_none() {
            return;
        }
        let trusted = user.groups.iter().any(|group| TRUSTED.contains(&group.as_str()));
        let Some(mut span) = tracer.begin(HTTP, name(request.method().as_str(), info), remote, trusted) else { return };
        if span.is_written() {
            describe(&mut span, request, audit_id);
            drop(span.child(FILTERS, "authentication", SpanKind::Internal).map(|span| span.since(since)));
        }
        drop(self.0.set(span));
    }

    pub(super) fn span(&self) -> Option<&Span> {
        self.0.get()
    }

    /// Work that is part of the request.
    pub(super) fn around<F: Future>(&self, work: Pin<&mut F>) -> impl Future<Output = F::Output> {
        traces::within(self.span(), work)
    }

    /// The request is answered; that of one that goes on ends with it.
    pub(super) fn answered(self, response: HttpResponse) -> HttpResponse {
        let Some(mut span) = self.0.into_inner().filter(Span::is_written) else { return response };
        let code = response.status().as_u16();
        span.number("http.response.status_code", i64::from(code));
        if code >= 500 {
            span.fail("");
        }
        response.map_body(|_, body| BoxBody::new(BodyWithSpan { body, _span: span }))
    }
}

fn describe(span: &mut Span, request: &HttpRequest, audit_id: &str) {
    let uri = request.uri();
    let (host, peer) = (request.connection_info().host().to_owned(), request.peer_addr());
    let version = format!("{:?}", request.version());
    let version = version.trim_start_matches("HTTP/").trim_end_matches(".0");
    let agent = request.headers().get("user-agent").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let peer_address = peer.map(|peer: SocketAddr| peer.ip().to_string()).unwrap_or_default();
    for (key, value) in [
        ("http.request.method", request.method().as_str()),
        ("url.scheme", "https"),
        ("url.path", uri.path()),
        ("server.address", &host),
        ("network.protocol.version", version),
        ("network.peer.address", &peer_address),
        ("client.address", &peer_address),
        ("user_agent.original", agent),
        ("http.target", uri.path_and_query().map_or("/", |p| p.as_str())),
        ("audit-id", audit_id),
    ] {
        if !value.is_empty() {
            span.text(key, value);
        }
    }
    if let Some(peer) = peer {
        span.number("network.peer.port", i64::from(peer.port()));
    }
}

/// Verbs as upstream's traces name them: verb, span name, first step, and the step once there is an answer.
const VERBS: &[(&str, &str, Option<&str>, &str)] = &[
    ("get", "Get", Some("About to Get from storage"), WRITING),
    ("list", "List", Some("About to List from storage"), "Listing from storage done"),
    ("create", "Create", None, WRITING),
    ("update", "Update", None, WRITING),
    ("patch", "Patch", None, WRITING),
    ("delete", "Delete", None, WRITING),
    ("deletecollection", "Delete", None, WRITING),
];
const WRITING: &str = "About to write a response";
const WRITTEN: &str = "Writing http response done";
/// Duration from which sending a response is logged.
const SERIALIZED: Duration = Duration::from_secs(5);
/// User agent of clients that send none.
const UNKNOWN: &str = "unknown";

/// A verb at work. When it ends, also when its client goes away, it is written down: as the span of a request that has
/// one, and in the log if it was slow. Of reads, which are many, nothing is noted before that but when they began.
pub(super) struct VerbTrace<'a> {
    request: &'a HttpRequest,
    info: &'a RequestInfo,
    audit_id: &'a str,
    verb: Option<&'static (&'static str, &'static str, Option<&'static str>, &'static str)>,
    span: Option<Span>,
    begun: Option<Instant>,
    answered: Option<Instant>,
}

impl<'a> VerbTrace<'a> {
    /// Begins the span of a request.
    pub(super) fn begin(request: &'a HttpRequest, info: &'a RequestInfo, audit_id: &'a str) -> Self {
        let verb = VERBS.iter().find(|(verb, ..)| *verb == info.verb);
        let (mut span, mut begun) = (None, None);
        if let Some((_, name, first, _)) = verb {
            let logged = traces::logged();
            span = traces::verb(name, logged && first.is_none(), audit_id);
            if let (Some(span), Some(first)) = (&span, first) {
                span.step(first);
            }
            begun = (logged && span.is_none()).then(Instant::now);
        }
        Self { request, info, audit_id, verb, span, begun, answered: None }
    }

    /// Span that the work of the request is part of.
    pub(super) fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// There is an answer, which is being sent.
    pub(super) fn answered(&mut self) {
        if let (Some(span), Some((.., then))) = (&self.span, self.verb) {
            span.step(then);
        }
        self.answered = self.begun.map(|_| Instant::now());
    }

    /// An answer of so many bytes, if that is known, is being sent in a media type by `send`.
    pub(super) fn serialize<T>(&self, media_type: Option<&str>, size: Option<usize>, send: impl FnOnce() -> T) -> T {
        let span = self.span.as_ref().and_then(|span| span.child(OWN, "SerializeObject", SpanKind::Internal));
        let Some(span) = span else { return send() };
        span.step_of("About to start writing response", "size", size.unwrap_or_default());
        let sent = send();
        span.step_of("Write call succeeded", "size", size.unwrap_or_default());
        let request = self.request;
        span.end(SERIALIZED, |about| {
            about.text("audit-id", self.audit_id);
            about.text("method", request.method().as_str());
            about.text("url", request.uri().path());
            about.text("protocol", &format!("{:?}", request.version()));
            about.text("mediaType", media_type.unwrap_or_default());
        });
        sent
    }

    /// The answer is out of our hands.
    pub(super) fn sent(&self) {
        if let Some(span) = &self.span {
            span.step(WRITTEN);
        }
    }
}

impl Drop for VerbTrace<'_> {
    fn drop(&mut self) {
        let (request, info, audit_id) = (self.request, self.info, self.audit_id);
        let about = |about: &mut About<'_>| describe_verb(about, request, info, audit_id);
        if let Some(span) = self.span.take() {
            return span.end(traces::SLOW, about);
        }
        let Some(begun) = self.begun.filter(|begun| begun.elapsed() >= traces::SLOW) else { return };
        let Some((_, name, Some(first), then)) = self.verb else { return };
        let mut steps = vec![(begun, *first, None)];
        if let Some(answered) = self.answered {
            steps.extend([(answered, *then, None), (Instant::now(), WRITTEN, None)]);
        }
        traces::late(name, begun, &steps, about);
    }
}

fn describe_verb(about: &mut About<'_>, request: &HttpRequest, info: &RequestInfo, audit_id: &str) {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let protocol = format!("{:?}", request.version());
    let agent = Some(audit::user_agent(header("user-agent"))).filter(|agent| !agent.is_empty());
    let peer = request.peer_addr().map(|peer| peer.ip());
    let sources = audit::source_ips(header("x-forwarded-for"), header("x-real-ip"), peer);
    for (key, value) in [
        ("accept", header("accept")),
        ("audit-id", audit_id),
        ("client", sources.first().map_or(UNKNOWN, String::as_str)),
        ("api-group", &info.api_group),
        ("api-version", &info.api_version),
        ("name", &info.name),
        ("subresource", &info.subresource),
        ("namespace", &info.namespace),
        ("protocol", &protocol),
        ("resource", &info.resource),
        ("scope", meters::scope(info)),
        ("url", request.uri().path()),
        ("user-agent", agent.as_deref().unwrap_or(UNKNOWN)),
        ("verb", meters::verb(info, header("content-type"))),
    ] {
        about.text(key, value);
    }
}

/// A body whose end is that of a span.
struct BodyWithSpan {
    body: BoxBody,
    _span: Span,
}

impl MessageBody for BodyWithSpan {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machinery::query::Query;
    use crate::serve::info::request_info;

    #[test]
    fn span_names_have_no_object_names() {
        for (method, path, want) in [
            ("POST", "/api/v1/nodes", "POST /api/v1/nodes"),
            ("GET", "/api/v1/nodes/n1", "GET /api/v1/nodes/{:name}"),
            (
                "PUT",
                "/apis/apps/v1/namespaces/a/deployments/b/status",
                "PUT /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}/status",
            ),
            ("GET", "/readyz", "GET"),
        ] {
            let info = request_info(method, path, &Query::parse(""));
            assert_eq!(name(method, &info), want);
        }
    }
}
