//! The context of one request, from its head to its response. Answers for what upstream's filters put into the context
//! of a request: request info, times, user, audit event.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use actix_web::{HttpRequest, HttpResponse, web};
use rustls_pki_types::CertificateDer;
use shared::authn::UserInfo;
use shared::status::Status;

use super::answer::{self, Shape};
use super::server::Server;
use super::spans::RequestSpan;
use super::traced::AuditGuard;
use crate::access::{Head, Permit, attributes, audit_id, is_long_running};
use crate::api::RequestInfo;
use crate::audit::{Origin, Trail};
use crate::machinery::query::Query;
use crate::negotiate;

/// Certificates of a connection's client.
#[derive(Clone, Default)]
pub(super) struct Peer(pub Arc<Vec<CertificateDer<'static>>>);

/// A request: its head, and what the filters that it passed found out.
pub(super) struct RequestContext<'a> {
    pub(super) server: &'a web::Data<Server>,
    pub(super) req: &'a HttpRequest,
    pub(super) span: &'a RequestSpan,
    pub(super) info: &'a RequestInfo,
    pub(super) query: &'a Query,
    pub(super) received: Instant,
    pub(super) received_at: SystemTime,
    /// Deadline of the request; `None` for long-running requests and those that set their own pace.
    pub(super) deadline: Option<Instant>,
    peer: Peer,
    /// Form of the response.
    pub(super) shape: Shape,
    /// Origin whose pages may read the response (`WithCORS`).
    pub(super) origin: Option<String>,
    /// User that the request acts as (`WithAuthentication`, `WithImpersonation`).
    pub(super) user: UserInfo,
    /// Audit event, where the policy selects the request (`WithAudit`).
    pub(super) audit: AuditGuard,
    /// Concurrency that is held until the response is written (`WithPriorityAndFairness`).
    pub(super) permit: Option<Permit>,
}

/// Awaits work until a deadline; `None` when it passes first. The future stays in place, because moving it would take its
/// size in stack again.
pub(super) async fn until<T>(deadline: Option<Instant>, work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.ok(),
        None => Some(work.await),
    }
}

impl<'a> RequestContext<'a> {
    /// Begins the context of a request. Answers for upstream's `WithAuditInit` and `WithRequestReceivedTimestamp`.
    pub(super) fn new(
        req: &'a HttpRequest,
        server: &'a web::Data<Server>,
        (info, query): (&'a RequestInfo, &'a Query),
        span: &'a RequestSpan,
    ) -> Self {
        let (received, received_at) = (Instant::now(), SystemTime::now());
        let deadline = server.deadline(info, query, received);
        Self {
            server,
            req,
            span,
            shape: shape(req, server, query),
            info,
            query,
            received,
            received_at,
            deadline,
            peer: shared::upgrade::connected::<Peer>(req).unwrap_or_default(),
            origin: None,
            user: UserInfo::default(),
            audit: AuditGuard(None),
            permit: None,
        }
    }

    pub(super) fn header(&self, name: &str) -> &str {
        header(self.req, name)
    }

    pub(super) fn content_type(&self) -> &str {
        self.header("content-type")
    }

    fn uri(&self) -> &str {
        self.req.uri().path_and_query().map_or("/", |p| p.as_str())
    }

    /// The head as the filters in `access` see it.
    pub(super) fn head(&self) -> Head<'_> {
        Head {
            method: self.req.method().as_str(),
            query: self.req.query_string(),
            headers: self.req.headers(),
            certificates: &self.peer.0,
            info: self.info,
        }
    }

    /// Begins the audit trail of the request, when audit is enabled and the policy selects it.
    pub(super) fn trail(&self) -> Option<Trail> {
        let audit = self.server.audit.as_ref()?;
        let (headers, peer, long_running) = (self.req.headers(), self.req.peer_addr(), is_long_running(self.info));
        let origin = Origin { audit_id: &self.shape.audit_id, uri: self.uri(), headers, peer, long_running };
        audit.begin(&attributes(&self.head(), &self.user), &origin)
    }

    /// Audits a request that is refused before its user is known. Answers for upstream's
    /// `WithFailedAuthenticationAudit`.
    pub(super) async fn audit_unauthenticated(&self, status: &Status) {
        if let Some(mut trail) = self.trail() {
            answer::audit_error(&mut trail, status, &self.shape);
            trail.started().await;
        }
    }

    /// Counts a response.
    pub(super) fn count(&self, dry_run: bool, code: u16) {
        let (server, info) = (self.server, self.info);
        if server.is_served(info) {
            server.meters.count(info, self.content_type(), dry_run, code, self.received);
            server.meters.field_validation(info, self.query, self.received);
        }
    }

    /// Counts a request that the server gives up.
    pub(super) fn terminate(&self, code: u16) {
        if self.server.is_served(self.info) {
            self.server.meters.terminate(self.info, self.content_type(), code);
        }
    }

    /// Counts and audits a failure, and returns its response.
    pub(super) fn fail(&mut self, status: &Status, dry_run: bool) -> HttpResponse {
        self.count(dry_run, status.code);
        if let Some(trail) = &mut self.audit.0 {
            answer::audit_error(trail, status, &self.shape);
        }
        answer::failure(status, &self.shape)
    }

    /// Returns the response to a request that the server could not judge.
    pub(super) fn internal_error(&self, why: &str) -> HttpResponse {
        self.count(false, 500);
        answer::text(500, format!("Internal Server Error: {:?}: {why}\n", self.uri()), &self.shape)
    }

    /// Returns the response to a request whose deadline has passed.
    pub(super) fn timed_out(&self) -> HttpResponse {
        self.terminate(504);
        answer::timed_out(&Status::timeout("request did not complete within the allotted timeout", 0), &self.shape)
    }

    /// Status under which an expired request is audited: the verb itself answers a write with a timeout, and a read
    /// breaks off.
    pub(super) fn expired(&self) -> Status {
        let writes = matches!(self.info.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        match self.info.is_resource && writes {
            true => Status::timeout("request did not complete within requested timeout - context deadline exceeded", 0),
            false => Status::unknown("context deadline exceeded"),
        }
    }
}

fn header<'r>(req: &'r HttpRequest, name: &str) -> &'r str {
    req.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
}

/// Form of the response that a request asks for.
fn shape(req: &HttpRequest, server: &Server, query: &Query) -> Shape {
    let header = |name: &str| header(req, name);
    let takes_gzip = || header("accept-encoding").split(',').any(|e| e.trim().starts_with("gzip"));
    Shape {
        media: server.engine.policy.media,
        accept: req.headers().get("accept").and_then(|v| v.to_str().ok()).map(str::to_owned),
        pretty: negotiate::for_people(query.get("pretty"), header("user-agent")),
        gzip: server.response_policy.compresses && takes_gzip(),
        known: Some(header("if-none-match")).filter(|tag| !tag.is_empty()).map(str::to_owned),
        audit_id: audit_id(header("audit-id")),
        unauthenticated: false,
        classified: None,
    }
}
