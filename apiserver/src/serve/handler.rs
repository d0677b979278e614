//! One request: who asks, may they, what is it, and the answer.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use actix_web::http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use rustls_pki_types::CertificateDer;
use shared::authn::{ALL_UNAUTHENTICATED, ANONYMOUS, UserInfo};
use shared::authz::Attributes;
use shared::status::Status;
use shared::traces;

use super::answer::{self, Shape};
use super::body::{held, read_body};
use super::info::request_info;
use super::server::Server;
use super::spans::{Spanned, Working};
use super::traced::{Kept, caught, written_down};
use super::{passing, paths};
use crate::access::{Head, Notes, Pass, Refusal, attributes, audit_id, is_long_running};
use crate::aggregate::{Remote, holding};
use crate::api::RequestInfo;
use crate::audit::{Origin, Trail};
use crate::connect::{self, Connect};
use crate::negotiate;
use crate::verbs::query::{Query, is_escaped, unescaped};
use crate::verbs::{self, Body, Request};

/// Path at which the log's verbosity is changed.
const VERBOSITY: &str = "/debug/flags/v";

/// Certificates of a connection's client.
#[derive(Clone, Default)]
pub struct Peer(pub Arc<Vec<CertificateDer<'static>>>);

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
    let _running = (!is_long_running(&info)).then(|| server.ending.request()).flatten();
    let mut shape = Shape {
        media: server.engine.policy.media,
        accept: req.headers().get("accept").and_then(|v| v.to_str().ok()).map(str::to_owned),
        pretty: negotiate::for_people(query.get("pretty"), header("user-agent")),
        gzip: server.conduct.compresses && header("accept-encoding").split(',').any(|e| e.trim().starts_with("gzip")),
        known: Some(header("if-none-match")).filter(|tag| !tag.is_empty()).map(str::to_owned),
        audit_id: audit_id(header("audit-id")),
        stranger: false,
        classified: None,
    };
    let spanned = Spanned::default();
    let asked = Asked {
        req: &req,
        info: &info,
        query: &query,
        since,
        until: server.deadline(&info, &query, since),
        spanned: &spanned,
    };
    if let Some(response) = asked.early(&server, &shape).await {
        return response;
    }
    let origin = Some(header("origin")).filter(|origin| server.conduct.may_read(origin));
    let mut kept = Kept(None);
    let trail = &mut kept.0;
    if origin.is_some() && req.method() == Method::OPTIONS {
        let mut response = answer::empty(204, &shape);
        server.conduct.dress(&mut response, req.version(), origin);
        return response;
    }
    let response = match enter(&server, &asked, &mut shape, trail).await {
        Ok(pass) => {
            let admitted = Admitted { server: &server, asked: &asked, pass, shape: &shape, trail };
            let outcome = {
                let work = pin!(admitted.in_time(payload));
                caught(pin!(spanned.around(work))).await
            };
            match outcome {
                Ok(response) => response,
                Err(panic) => panic.pass(&mut kept).await,
            }
        }
        Err(refused) => refused,
    };
    let mut response = match kept.0.take() {
        None => response,
        Some(trail) => written_down(trail, response).await,
    };
    if shape.stranger {
        server.conduct.part_with_stranger(&mut response, req.version());
    }
    if answer::complete(&mut response, &shape) {
        server.conduct.dress(&mut response, req.version(), origin);
    }
    spanned.answered(response)
}

/// A request and what its first line says.
#[derive(Clone, Copy)]
struct Asked<'a> {
    req: &'a HttpRequest,
    info: &'a RequestInfo,
    query: &'a Query,
    since: Instant,
    /// Deadline of the request; `None` for long-running requests and those that set their own pace.
    until: Option<Instant>,
    spanned: &'a Spanned,
}

impl Asked<'_> {
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
    fn late(&self, server: &Server, shape: &Shape) -> HttpResponse {
        self.terminate(server, 504);
        answer::late(&Status::timeout("request did not complete within the allotted timeout", 0), shape)
    }

    fn header(&self, name: &str) -> &str {
        self.req.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    fn content_type(&self) -> &str {
        self.header("content-type")
    }

    /// Counts an answer.
    fn count(&self, server: &Server, dry_run: bool, code: u16) {
        if server.knows(self.info) {
            server.meters.count(self.info, self.content_type(), dry_run, code, self.since);
            server.meters.field_validation(self.info, self.query, self.since);
        }
    }

    /// Counts a request that the server gives up.
    fn terminate(&self, server: &Server, code: u16) {
        if server.knows(self.info) {
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

    /// The answer to a request that comes too late, or whose time limit is none. Nobody looks at who asks or where the page
    /// comes from that does.
    async fn early(&self, server: &Server, shape: &Shape) -> Option<HttpResponse> {
        let mut response = match server.ending.refusal(self.info, self.header("user-agent"), shape) {
            Some(response) => response,
            None => self.untimely(server, shape).await?,
        };
        // Clients are sent away before anything is said that other answers carry.
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            server.conduct.dress(&mut response, self.req.version(), None);
        }
        Some(response)
    }

    /// The refusal of a time limit that is none: it comes before the question who asks.
    async fn untimely(&self, server: &Server, shape: &Shape) -> Option<HttpResponse> {
        let status = server.conduct.deadline(self.query).err().filter(|_| !is_long_running(self.info))?;
        let peer = Peer::default();
        self.stranger(server, &self.head(&peer), &status, shape).await;
        Some(answer::failure(&status, shape))
    }

    /// Writes down that it was refused before it was known who asks.
    async fn stranger(&self, server: &Server, head: &Head<'_>, status: &Status, shape: &Shape) {
        if let Some(mut trail) = self.trail(server, head, &UserInfo::default(), &shape.audit_id) {
            answer::note(&mut trail, status, shape);
            trail.started().await;
        }
    }

    /// The server could not find out whether it may be.
    fn failed(&self, server: &Server, why: &str, shape: &Shape) -> HttpResponse {
        self.count(server, false, 500);
        answer::text(500, format!("Internal Server Error: {:?}: {why}\n", self.uri()), shape)
    }

    fn refused(&self, server: &Server, refusal: Refusal, shape: &Shape, trail: &mut Option<Trail>) -> HttpResponse {
        match refusal {
            Refusal::Status(status) => {
                self.count(server, false, status.code);
                if let Some(trail) = trail {
                    answer::note(trail, &status, shape);
                }
                let mut response = answer::failure(&status, shape);
                if status.code == 403 {
                    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                }
                response
            }
            Refusal::Throttled(status) => {
                self.terminate(server, status.code);
                answer::throttled(&status, shape)
            }
            Refusal::Failure(why) => self.failed(server, &why, shape),
        }
    }
}

/// Runs the filters before a handler: authentication, audit, impersonation, flow control and authorization.
async fn enter(
    server: &Server,
    asked: &Asked<'_>,
    shape: &mut Shape,
    trail: &mut Option<Trail>,
) -> Result<Pass, HttpResponse> {
    let (access, req) = (&server.access, asked.req);
    let peer = shared::upgrade::connected::<Peer>(req).unwrap_or_default();
    let head = asked.head(&peer);
    let began = SystemTime::now();
    let user = match asked.in_time(pin!(access.authenticate(&head))).await {
        Some(Ok(user)) => user,
        None => {
            shape.stranger = true;
            asked.stranger(server, &head, &Status::unauthorized(), shape).await;
            return Err(asked.late(server, shape));
        }
        Some(Err(status)) => {
            shape.stranger = true;
            asked.count(server, false, status.code);
            asked.stranger(server, &head, &status, shape).await;
            return Err(answer::failure(&status, shape));
        }
    };
    shape.stranger = user.name == ANONYMOUS || user.groups.iter().any(|group| group == ALL_UNAUTHENTICATED);
    if !shape.stranger {
        shared::upgrade::authenticated(req);
    }
    asked.spanned.begin(&server.tracer, req, asked.info, &user, (&shape.audit_id, began));
    *trail = asked.trail(server, &head, &user, &shape.audit_id);
    if let Some(begun) = trail
        && !begun.received().await
    {
        *trail = None;
        return Err(asked.failed(server, "audit backend shutdown", shape));
    }
    let mut notes = Notes::default();
    let passed = {
        let admitted = pin!(access.admit(&head, user, &mut notes));
        asked.in_time(pin!(asked.spanned.around(admitted))).await
    };
    shape.classified = notes.classified.take();
    if let Some(trail) = trail {
        trail.impersonates(notes.impersonated, notes.constraint);
        trail.annotate(notes.annotations);
    }
    match passed {
        Some(passed) => passed.map_err(|refusal| asked.refused(server, refusal, shape, trail)),
        None => {
            if let Some(trail) = trail {
                answer::note(trail, &asked.expired(), shape);
            }
            Err(asked.late(server, shape))
        }
    }
}

/// A request whose sender may ask, on its way to an answer.
struct Admitted<'a> {
    server: &'a web::Data<Server>,
    asked: &'a Asked<'a>,
    pass: Pass,
    shape: &'a Shape,
    trail: &'a mut Option<Trail>,
}

impl Admitted<'_> {
    /// The answer, or that it took too long; what the client may take as long over as it likes is not hurried.
    async fn in_time(mut self, payload: web::Payload) -> HttpResponse {
        let asked = self.asked;
        let _working = (!is_long_running(asked.info)).then(|| self.server.meters.begin(asked.info));
        let answered = asked.in_time(pin!(self.answer(payload))).await;
        match answered {
            Some(response) => response,
            None => {
                drop(self.failed(&asked.expired(), false));
                asked.late(self.server, self.shape)
            }
        }
    }

    /// Counts and writes down a failure, and says it.
    fn failed(&mut self, status: &Status, dry_run: bool) -> HttpResponse {
        self.asked.count(self.server, dry_run, status.code);
        if let Some(trail) = self.trail {
            answer::note(trail, status, self.shape);
        }
        answer::failure(status, self.shape)
    }

    /// The answer of another server of this kind; gives the body back where there is none.
    async fn beside(&mut self, payload: web::Payload) -> Result<HttpResponse, web::Payload> {
        let (Some(peers), Asked { req, info, .. }) = (self.server.peers.clone(), *self.asked) else {
            return Err(payload);
        };
        match peers.answer(info, req, payload, &self.pass.user, &self.shape.audit_id).await? {
            Err(status) => Ok(self.failed(&status, false)),
            Ok(response) => Ok(self.relayed(answer::relayed(response, self.shape))),
        }
    }

    async fn answer(&mut self, payload: web::Payload) -> HttpResponse {
        let Asked { req, info, query, .. } = *self.asked;
        let mut payload = payload;
        if self.server.peers.is_some() {
            // Rarely, and then apart from what every request needs room for.
            payload = match Box::pin(self.beside(payload)).await {
                Ok(response) => return response,
                Err(payload) => payload,
            };
        }
        if !info.api_group.is_empty()
            && let Some(remote) = self.server.aggregator.remote(&info.api_group, &info.api_version)
        {
            return self.elsewhere(payload, &remote).await;
        }
        if info.path == VERBOSITY && self.server.conduct.profiling {
            return match read_body(payload).await {
                Ok(level) => shared::serve::verbosity(req.method(), &String::from_utf8_lossy(&level)),
                Err(status) => self.failed(&status, false),
            };
        }
        if !info.is_resource {
            let response = paths::serve(self.server, info, req.method().as_str(), query, self.shape).await;
            return match self.trail {
                Some(trail) if info.path.starts_with("/api") => trail.told(response),
                _ => response,
            };
        }
        if verbs::is_nobodys(&self.server.engine.rows, info) {
            return answer::not_found(self.shape);
        }
        let user = self.pass.user.clone();
        if Connect::takes(info) { self.connection(payload, &user).await } else { self.object(payload, user).await }
    }

    /// The answer of another server.
    async fn elsewhere(&mut self, payload: web::Payload, remote: &Remote) -> HttpResponse {
        let user = &self.pass.user;
        let asked = self.server.aggregator.proxy(remote, self.asked.req, payload, user, &self.shape.audit_id).await;
        let response = match asked {
            Ok(response) => answer::relayed(response, self.shape),
            Err((code, why)) => answer::text(code, format!("{why}\n"), self.shape),
        };
        self.relayed(response)
    }

    /// An answer of another server, which holds its seat until it is read.
    fn relayed(&mut self, response: HttpResponse) -> HttpResponse {
        self.asked.count(self.server, false, response.status().as_u16());
        let response = self.passed_on(response);
        match self.pass.permit.take() {
            Some(permit) if !is_long_running(self.asked.info) => holding(response, permit),
            _ => response,
        }
    }

    /// An answer from elsewhere. What is a connection by now ends as it likes.
    fn passed_on(&self, response: HttpResponse) -> HttpResponse {
        let Asked { req, info, .. } = *self.asked;
        if req.method() == Method::HEAD || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        passing::counted(response, self.server.meters.aborts(info, self.asked.content_type()))
    }

    /// Logs, exec, port-forward, proxies: bytes from elsewhere.
    async fn connection(&mut self, payload: web::Payload, user: &UserInfo) -> HttpResponse {
        let (server, Asked { req, info, query, .. }) = (self.server, *self.asked);
        let noted = verbs::Noted::default();
        let allowed = async {
            let route = verbs::route(&server.engine.rows, info, req.method().as_str())?;
            if server.conduct.sessions_are_made && opens_by_get(info, shared::upgrade::protocol(req).is_some()) {
                server.access.demand(&as_create(info, user)).await?;
            }
            verbs::connect::admit(&server.engine, &route, (info, query), user, &noted).await
        };
        let allowed = allowed.await;
        if let Some(trail) = self.trail {
            trail.annotate(noted.annotations());
        }
        let response = match allowed {
            Ok(()) => server.connect.handle(req, payload, info).await,
            Err(status) => Err(status),
        };
        match response {
            Ok(response) => {
                self.asked.count(server, false, response.status().as_u16());
                match info.subresource.as_str() {
                    "proxy" => self.passed_on(answer::relayed(response, self.shape)),
                    _ if response.status() == StatusCode::SWITCHING_PROTOCOLS => response,
                    _ => holding(response, server.ending.stream()),
                }
            }
            Err(status) => answer::warned(self.failed(&status, false), &noted.take()),
        }
    }

    /// Builds the request as the verbs take it.
    fn request(&self, user: UserInfo, messages: bool, noted: &verbs::Noted) -> Request {
        let Asked { req, info, query, .. } = *self.asked;
        Request {
            info: info.clone(),
            method: req.method().as_str().to_owned(),
            query: query.clone(),
            media: self.shape.media,
            content_type: self.asked.content_type().to_owned(),
            accept: self.shape.accept.clone(),
            user_agent: self.asked.header("user-agent").to_owned(),
            gzip: self.shape.gzip,
            messages,
            body: Bytes::new(),
            user,
            noted: noted.clone(),
        }
    }

    /// Objects: the verbs' answer.
    async fn object(&mut self, payload: web::Payload, user: UserInfo) -> HttpResponse {
        let (server, Asked { req, info, query, .. }) = (self.server, *self.asked);
        let wanted = self.trail.as_ref().map(Trail::wanted).unwrap_or_default();
        let noted = verbs::Noted::wanting(wanted);
        if let Some(trail) = self.trail {
            trail.follows(&noted);
        }
        let messages = connect::wants_messages(req, info);
        let mut payload = Some(payload);
        let shape = self.shape;
        let mut working = Working::begin(req, info, &shape.audit_id);
        let outcome = {
            let payload = &mut payload;
            let body = async move {
                let writes = matches!(req.method().as_str(), "POST" | "PUT" | "PATCH" | "DELETE");
                let body = match payload.take_if(|_| writes && !shared::upgrade::is_bare(req)) {
                    Some(payload) => read_body(payload).await?,
                    None => Bytes::new(),
                };
                if writes && server.knows(info) {
                    server.meters.body(info, body.len());
                }
                if writes && !(body.is_empty() && info.verb.starts_with("delete")) {
                    traces::step_of("limitedReadBody succeeded", "len", body.len());
                }
                Ok(body)
            };
            let work = pin!(async {
                let request = self.request(user, messages, &noted);
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
            Err(status) => return answer::warned(self.failed(&status, dry_run), &noted.take()),
        };
        working.answered();
        self.asked.count(server, dry_run, reply.code);
        if let (Some(trail), Body::Full(body)) = (self.trail.as_mut(), &reply.body) {
            trail.response(&reply.content_type, body);
        }
        let watching = server.access.gate().watching(info);
        let sending = server.meters.sending(info, &server.ending);
        let reply = held(answer::packed(reply, self.shape), self.pass.permit.take(), watching, sending);
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

/// Reports whether a GET opens a session in a pod, as WebSocket clients do: that needs the right to `create` as well.
fn opens_by_get(info: &RequestInfo, upgrades: bool) -> bool {
    upgrades
        && info.verb == "get"
        && info.resource == "pods"
        && matches!(info.subresource.as_str(), "exec" | "attach" | "portforward")
}

fn as_create(info: &RequestInfo, user: &UserInfo) -> Attributes {
    Attributes {
        user: user.clone(),
        verb: "create".to_owned(),
        namespace: info.namespace.clone(),
        api_group: info.api_group.clone(),
        api_version: info.api_version.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        name: info.name.clone(),
        path: info.path.clone(),
        resource_request: true,
        ..Attributes::default()
    }
}
