//! One request: who asks, may they, what is it, and the answer. Answers for upstream's `DefaultBuildHandlerChain`.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use actix_web::http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use shared::authn::{ALL_UNAUTHENTICATED, ANONYMOUS, UserInfo};
use shared::status::Status;
use shared::traces;

use super::answer::{self, Shape};
use super::body::{read_body, streamed_with_seat};
use super::info::request_info;
use super::server::Server;
use super::spans::{RequestSpan, VerbTrace};
use super::traced::{AuditGuard, catch_panic, complete_audit};
use super::{passing, paths, sessions};
use crate::access::{AccessError, Authorized, FilterFindings, Head, attributes, audit_id, is_long_running};
use crate::aggregate::{Remote, holding};
use crate::api::RequestInfo;
use crate::audit::{Origin, RequestRecorder, Trail};
use crate::connect::{self, Connect};
use crate::machinery::query::{Query, is_escaped, unescaped};
use crate::negotiate;
use crate::verbs::{self, Body, VerbRequest};

/// Path at which the log's verbosity is changed.
const VERBOSITY: &str = "/debug/flags/v";

/// Certificates of a connection's client.
#[derive(Clone, Default)]
pub(super) struct Peer(pub Arc<Vec<CertificateDer<'static>>>);

/// The handler of all paths.
pub(super) async fn handle(req: HttpRequest, payload: web::Payload, server: web::Data<Server>) -> HttpResponse {
    let since = Instant::now();
    if let Some(refused) = shared::upgrade::refusal(&req) {
        return refused;
    }
    if !is_escaped(req.uri().path()) {
        return answer::unread();
    }
    let header = |name: &str| req.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let query = Query::parse(req.query_string());
    let path = unescaped(req.uri().path(), false);
    let info = request_info(req.method().as_str(), &path, &query);
    let _running = (!is_long_running(&info)).then(|| server.graceful_shutdown.begin_request()).flatten();
    let mut shape = Shape {
        media: server.engine.policy.media,
        accept: req.headers().get("accept").and_then(|v| v.to_str().ok()).map(str::to_owned),
        pretty: negotiate::for_people(query.get("pretty"), header("user-agent")),
        gzip: server.response_policy.compresses
            && header("accept-encoding").split(',').any(|e| e.trim().starts_with("gzip")),
        known: Some(header("if-none-match")).filter(|tag| !tag.is_empty()).map(str::to_owned),
        audit_id: audit_id(header("audit-id")),
        unauthenticated: false,
        classified: None,
    };
    let request_span = RequestSpan::default();
    let cx = RequestContext {
        req: &req,
        info: &info,
        query: &query,
        since,
        until: server.deadline(&info, &query, since),
        request_span: &request_span,
    };
    if let Some(response) = cx.reject_early(&server, &shape).await {
        return response;
    }
    let origin = Some(header("origin")).filter(|origin| server.response_policy.allows_origin(origin));
    let mut audit_guard = AuditGuard(None);
    let trail = &mut audit_guard.0;
    if origin.is_some() && req.method() == Method::OPTIONS {
        let mut response = answer::empty(204, &shape);
        server.response_policy.add_headers(&mut response, req.version(), origin);
        return response;
    }
    let response = match run_filters(&server, &cx, &mut shape, trail).await {
        Ok(pass) => {
            let admitted = AuthorizedRequest { server: &server, cx: &cx, pass, shape: &shape, trail };
            let outcome = {
                let work = pin!(admitted.in_time(payload));
                catch_panic(pin!(request_span.around(work))).await
            };
            match outcome {
                Ok(response) => response,
                Err(panic) => panic.pass(&mut audit_guard).await,
            }
        }
        Err(refused) => refused,
    };
    let mut response = match audit_guard.0.take() {
        None => response,
        Some(trail) => complete_audit(trail, response).await,
    };
    if shape.unauthenticated {
        server.response_policy.close_unauthenticated_http2(&mut response, req.version());
    }
    if answer::complete(&mut response, &shape) {
        server.response_policy.add_headers(&mut response, req.version(), origin);
    }
    request_span.answered(response)
}

/// A request and what its first line says.
#[derive(Clone, Copy)]
struct RequestContext<'a> {
    req: &'a HttpRequest,
    info: &'a RequestInfo,
    query: &'a Query,
    since: Instant,
    /// Deadline of the request; `None` for long-running requests and those that set their own pace.
    until: Option<Instant>,
    request_span: &'a RequestSpan,
}

impl RequestContext<'_> {
    /// Awaits work until the deadline; `None` when it passes first. The future stays in place, because moving it would
    /// take its size in stack again.
    async fn in_time<T>(&self, work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match self.until {
            Some(until) => tokio::time::timeout_at(until.into(), work).await.ok(),
            None => Some(work.await),
        }
    }

    /// Status under which an expired request is audited: the verb itself answers a write with a timeout, and a read
    /// breaks off.
    fn expired(&self) -> Status {
        let writes = matches!(self.info.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        match self.info.is_resource && writes {
            true => Status::timeout("request did not complete within requested timeout - context deadline exceeded", 0),
            false => Status::unknown("context deadline exceeded"),
        }
    }

    /// The answer to a request whose time is up.
    fn timed_out(&self, server: &Server, shape: &Shape) -> HttpResponse {
        self.terminate(server, 504);
        answer::timed_out(&Status::timeout("request did not complete within the allotted timeout", 0), shape)
    }

    fn header(&self, name: &str) -> &str {
        self.req.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    fn content_type(&self) -> &str {
        self.header("content-type")
    }

    /// Counts an answer.
    fn count(&self, server: &Server, dry_run: bool, code: u16) {
        if server.is_served(self.info) {
            server.meters.count(self.info, self.content_type(), dry_run, code, self.since);
            server.meters.field_validation(self.info, self.query, self.since);
        }
    }

    /// Counts a request that the server gives up.
    fn terminate(&self, server: &Server, code: u16) {
        if server.is_served(self.info) {
            server.meters.terminate(self.info, self.content_type(), code);
        }
    }

    fn uri(&self) -> &str {
        self.req.uri().path_and_query().map_or("/", |p| p.as_str())
    }

    /// Begins the audit trail of the request, when audit is enabled and the policy selects it.
    fn trail(&self, server: &Server, head: &Head<'_>, user: &UserInfo, audit_id: &str) -> Option<Trail> {
        let audit = server.audit.as_ref()?;
        let (headers, peer) = (self.req.headers(), self.req.peer_addr());
        let origin = Origin { audit_id, uri: self.uri(), headers, peer, long_running: is_long_running(self.info) };
        audit.begin(&attributes(head, user), &origin)
    }

    /// The head as those see it who decide whether it may be.
    fn head<'h>(&'h self, peer: &'h Peer) -> Head<'h> {
        Head {
            method: self.req.method().as_str(),
            query: self.req.query_string(),
            headers: self.req.headers(),
            certificates: &peer.0,
            info: self.info,
        }
    }

    /// The answer to a request that comes too late, or whose time limit is none. Nobody looks at who asks or where the
    /// page comes from that does.
    async fn reject_early(&self, server: &Server, shape: &Shape) -> Option<HttpResponse> {
        let mut response = match server.graceful_shutdown.reject_late(self.info, self.header("user-agent"), shape) {
            Some(response) => response,
            None => self.reject_invalid_timeout(server, shape).await?,
        };
        // Clients are sent away before anything is said that other answers carry.
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            server.response_policy.add_headers(&mut response, self.req.version(), None);
        }
        Some(response)
    }

    /// The refusal of a time limit that is none: it comes before the question who asks.
    async fn reject_invalid_timeout(&self, server: &Server, shape: &Shape) -> Option<HttpResponse> {
        let status = server.response_policy.deadline(self.query).err().filter(|_| !is_long_running(self.info))?;
        let peer = Peer::default();
        self.audit_unauthenticated(server, &self.head(&peer), &status, shape).await;
        Some(answer::failure(&status, shape))
    }

    /// Writes down that it was refused before it was known who asks.
    async fn audit_unauthenticated(&self, server: &Server, head: &Head<'_>, status: &Status, shape: &Shape) {
        if let Some(mut trail) = self.trail(server, head, &UserInfo::default(), &shape.audit_id) {
            answer::audit_error(&mut trail, status, shape);
            trail.started().await;
        }
    }

    /// The server could not find out whether it may be.
    fn fail(&self, server: &Server, why: &str, shape: &Shape) -> HttpResponse {
        self.count(server, false, 500);
        answer::text(500, format!("Internal Server Error: {:?}: {why}\n", self.uri()), shape)
    }

    fn refused(&self, server: &Server, refusal: AccessError, shape: &Shape, trail: &mut Option<Trail>) -> HttpResponse {
        match refusal {
            AccessError::Status(status) => {
                self.count(server, false, status.code);
                if let Some(trail) = trail {
                    answer::audit_error(trail, &status, shape);
                }
                let mut response = answer::failure(&status, shape);
                if status.code == 403 {
                    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                }
                response
            }
            AccessError::Throttled(status) => {
                self.terminate(server, status.code);
                answer::throttled(&status, shape)
            }
            AccessError::Failure(why) => self.fail(server, &why, shape),
        }
    }
}

/// Runs the filters before a handler: authentication, audit, impersonation, flow control and authorization.
async fn run_filters(
    server: &Server,
    cx: &RequestContext<'_>,
    shape: &mut Shape,
    trail: &mut Option<Trail>,
) -> Result<Authorized, HttpResponse> {
    let (access, req) = (&server.access, cx.req);
    let peer = shared::upgrade::connected::<Peer>(req).unwrap_or_default();
    let head = cx.head(&peer);
    let began = SystemTime::now();
    let user = match cx.in_time(pin!(access.authenticate(&head))).await {
        Some(Ok(user)) => user,
        None => {
            shape.unauthenticated = true;
            cx.audit_unauthenticated(server, &head, &Status::unauthorized(), shape).await;
            return Err(cx.timed_out(server, shape));
        }
        Some(Err(status)) => {
            shape.unauthenticated = true;
            cx.count(server, false, status.code);
            cx.audit_unauthenticated(server, &head, &status, shape).await;
            return Err(answer::failure(&status, shape));
        }
    };
    shape.unauthenticated = user.name == ANONYMOUS || user.groups.iter().any(|group| group == ALL_UNAUTHENTICATED);
    if !shape.unauthenticated {
        shared::upgrade::authenticated(req);
    }
    cx.request_span.begin(&server.tracer, req, cx.info, &user, (&shape.audit_id, began));
    *trail = cx.trail(server, &head, &user, &shape.audit_id);
    if let Some(begun) = trail
        && !begun.received().await
    {
        *trail = None;
        return Err(cx.fail(server, "audit backend shutdown", shape));
    }
    let mut notes = FilterFindings::default();
    let passed = {
        let admitted = pin!(access.admit(&head, user, &mut notes));
        cx.in_time(pin!(cx.request_span.around(admitted))).await
    };
    shape.classified = notes.classified.take();
    if let Some(trail) = trail {
        trail.impersonates(notes.impersonated, notes.constraint);
        trail.annotate(notes.annotations);
    }
    match passed {
        Some(passed) => passed.map_err(|refusal| cx.refused(server, refusal, shape, trail)),
        None => {
            if let Some(trail) = trail {
                answer::audit_error(trail, &cx.expired(), shape);
            }
            Err(cx.timed_out(server, shape))
        }
    }
}

/// A request whose sender may ask, on its way to an answer.
struct AuthorizedRequest<'a> {
    server: &'a web::Data<Server>,
    cx: &'a RequestContext<'a>,
    pass: Authorized,
    shape: &'a Shape,
    trail: &'a mut Option<Trail>,
}

impl AuthorizedRequest<'_> {
    /// The answer, or that it took too long; what the client may take as long over as it likes is not hurried.
    async fn in_time(mut self, payload: web::Payload) -> HttpResponse {
        let cx = self.cx;
        let _working = (!is_long_running(cx.info)).then(|| self.server.meters.begin(cx.info));
        let answered = cx.in_time(pin!(self.answer(payload))).await;
        match answered {
            Some(response) => response,
            None => {
                drop(self.fail(&cx.expired(), false));
                cx.timed_out(self.server, self.shape)
            }
        }
    }

    /// Counts and writes down a failure, and says it.
    fn fail(&mut self, status: &Status, dry_run: bool) -> HttpResponse {
        self.cx.count(self.server, dry_run, status.code);
        if let Some(trail) = self.trail {
            answer::audit_error(trail, status, self.shape);
        }
        answer::failure(status, self.shape)
    }

    /// The answer of another server of this kind; gives the body back where there is none.
    async fn proxy_to_peer(&mut self, payload: web::Payload) -> Result<HttpResponse, web::Payload> {
        let (Some(peers), RequestContext { req, info, .. }) = (self.server.peers.clone(), *self.cx) else {
            return Err(payload);
        };
        match peers.answer(info, req, payload, &self.pass.user, &self.shape.audit_id).await? {
            Err(status) => Ok(self.fail(&status, false)),
            Ok(response) => Ok(self.relayed(answer::relayed(response, self.shape))),
        }
    }

    async fn answer(&mut self, payload: web::Payload) -> HttpResponse {
        let RequestContext { req, info, query, .. } = *self.cx;
        let mut payload = payload;
        if self.server.peers.is_some() {
            // Rarely, and then apart from what every request needs room for.
            payload = match Box::pin(self.proxy_to_peer(payload)).await {
                Ok(response) => return response,
                Err(payload) => payload,
            };
        }
        if !info.api_group.is_empty()
            && let Some(remote) = self.server.aggregator.remote(&info.api_group, &info.api_version)
        {
            return self.proxy_to_api_service(payload, &remote).await;
        }
        if info.path == VERBOSITY && self.server.response_policy.profiling {
            return match read_body(payload).await {
                Ok(level) => shared::serve::verbosity(req.method(), &String::from_utf8_lossy(&level)),
                Err(status) => self.fail(&status, false),
            };
        }
        if !info.is_resource {
            let response = paths::serve(self.server, info, req.method().as_str(), query, self.shape).await;
            return match self.trail {
                Some(trail) if info.path.starts_with("/api") => trail.record_discovery(response),
                _ => response,
            };
        }
        if verbs::is_unserved(&self.server.engine.rows, info) {
            return answer::not_found(self.shape);
        }
        let user = self.pass.user.clone();
        if Connect::takes(info) { self.connection(payload, &user).await } else { self.object(payload, user).await }
    }

    /// The answer of another server.
    async fn proxy_to_api_service(&mut self, payload: web::Payload, remote: &Remote) -> HttpResponse {
        let user = &self.pass.user;
        let cx = self.server.aggregator.proxy(remote, self.cx.req, payload, user, &self.shape.audit_id).await;
        let response = match cx {
            Ok(response) => answer::relayed(response, self.shape),
            Err((code, why)) => answer::text(code, format!("{why}\n"), self.shape),
        };
        self.relayed(response)
    }

    /// An answer of another server, which holds its seat until it is read.
    fn relayed(&mut self, response: HttpResponse) -> HttpResponse {
        self.cx.count(self.server, false, response.status().as_u16());
        let response = self.passed_on(response);
        match self.pass.permit.take() {
            Some(permit) if !is_long_running(self.cx.info) => holding(response, permit),
            _ => response,
        }
    }

    /// An answer from elsewhere. What is a connection by now ends as it likes.
    fn passed_on(&self, response: HttpResponse) -> HttpResponse {
        let RequestContext { req, info, .. } = *self.cx;
        if req.method() == Method::HEAD || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        passing::counted(response, self.server.meters.aborts(info, self.cx.content_type()))
    }

    /// Logs, exec, port-forward, proxies: bytes from elsewhere.
    async fn connection(&mut self, payload: web::Payload, user: &UserInfo) -> HttpResponse {
        let (server, RequestContext { req, info, query, .. }) = (self.server, *self.cx);
        let recorder = RequestRecorder::default();
        let allowed = async {
            let route = verbs::route(&server.engine.rows, info, req.method().as_str())?;
            if server.response_policy.checks_session_create
                && sessions::opens_by_get(info, shared::upgrade::protocol(req).is_some())
            {
                server.access.demand(&sessions::as_create(info, user)).await?;
            }
            verbs::connect::admit(&server.engine, &route, (info, query), user, &recorder).await
        };
        let allowed = allowed.await;
        if let Some(trail) = self.trail {
            trail.annotate(recorder.annotations());
        }
        let response = match allowed {
            Ok(()) => server.connect.handle(req, payload, info).await,
            Err(status) => Err(status),
        };
        match response {
            Ok(response) => {
                self.cx.count(server, false, response.status().as_u16());
                match info.subresource.as_str() {
                    "proxy" => self.passed_on(answer::relayed(response, self.shape)),
                    _ if response.status() == StatusCode::SWITCHING_PROTOCOLS => response,
                    _ => holding(response, server.graceful_shutdown.begin_stream()),
                }
            }
            Err(status) => answer::warned(self.fail(&status, false), &recorder.take_warnings()),
        }
    }

    /// Builds the request as the verbs take it.
    fn request(&self, user: UserInfo, messages: bool, recorder: &RequestRecorder) -> VerbRequest {
        let RequestContext { req, info, query, .. } = *self.cx;
        VerbRequest {
            info: info.clone(),
            method: req.method().as_str().to_owned(),
            query: query.clone(),
            media: self.shape.media,
            content_type: self.cx.content_type().to_owned(),
            accept: self.shape.accept.clone(),
            user_agent: self.cx.header("user-agent").to_owned(),
            gzip: self.shape.gzip,
            messages,
            body: Bytes::new(),
            user,
            recorder: recorder.clone(),
        }
    }

    /// Objects: the verbs' answer.
    async fn object(&mut self, payload: web::Payload, user: UserInfo) -> HttpResponse {
        let (server, RequestContext { req, info, query, .. }) = (self.server, *self.cx);
        let wanted = self.trail.as_ref().map(Trail::capture_level).unwrap_or_default();
        let recorder = RequestRecorder::recording(wanted);
        if let Some(trail) = self.trail {
            trail.follows(&recorder);
        }
        let messages = connect::wants_messages(req, info);
        let mut payload = Some(payload);
        let shape = self.shape;
        let mut working = VerbTrace::begin(req, info, &shape.audit_id);
        let outcome = {
            let payload = &mut payload;
            let body = async move {
                let writes = matches!(req.method().as_str(), "POST" | "PUT" | "PATCH" | "DELETE");
                let body = match payload.take_if(|_| writes && !shared::upgrade::is_bare(req)) {
                    Some(payload) => read_body(payload).await?,
                    None => Bytes::new(),
                };
                if writes && server.is_served(info) {
                    server.meters.body(info, body.len());
                }
                if writes && !(body.is_empty() && info.verb.starts_with("delete")) {
                    traces::step_of("limitedReadBody succeeded", "len", body.len());
                }
                Ok(body)
            };
            let work = pin!(async {
                let request = self.request(user, messages, &recorder);
                if let Some(refused) = server.engine.versions.as_ref().and_then(|v| v.refusal(info, &request.user)) {
                    return Err(refused);
                }
                verbs::dispatch(&server.engine, request, body).await
            });
            traces::within(working.span(), work).await
        };
        let dry_run = query.get("dryRun").is_some();
        let reply = match outcome {
            Ok(reply) => reply,
            Err(status) => return answer::warned(self.fail(&status, dry_run), &recorder.take_warnings()),
        };
        working.answered();
        self.cx.count(server, dry_run, reply.code);
        if let (Some(trail), Body::Full(body)) = (self.trail.as_mut(), &reply.body) {
            trail.response(&reply.content_type, body);
        }
        let watching = server.access.limiter().watching(info);
        let sending = server.meters.sending(info, &server.graceful_shutdown);
        let reply = streamed_with_seat(answer::packed(reply, self.shape), self.pass.permit.take(), watching, sending);
        let response = match payload {
            Some(payload) if messages => connect::watch(req, payload, reply),
            _ => {
                let media_type = working.span().map(|_| reply.content_type.to_string());
                let size = if let Body::Full(body) = &reply.body { Some(body.len()) } else { None };
                let shape = self.shape;
                working.serialize(media_type.as_deref(), size, || answer::reply(reply, shape))
            }
        };
        working.sent();
        response
    }
}
