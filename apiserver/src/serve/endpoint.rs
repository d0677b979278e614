//! The endpoint of a request that passed the filters: peers, aggregated servers, paths, connections and objects. Answers
//! for upstream's `director` and the handlers that it installs.

use std::pin::pin;

use actix_web::http::{Method, StatusCode};
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use shared::authn::UserInfo;
use shared::traces;

use super::answer;
use super::body::{read_body, streamed_with_seat};
use super::context::{RequestContext, until};
use super::spans::VerbTrace;
use super::{passing, paths, sessions};
use crate::access::is_long_running;
use crate::aggregate::{Remote, holding};
use crate::audit::{RequestRecorder, Trail};
use crate::connect::{self, Connect};
use crate::verbs::{self, Body, VerbRequest};

/// Path at which the log's verbosity is changed.
const VERBOSITY: &str = "/debug/flags/v";

/// Serves a request until its deadline; what the client may take as long over as it likes has none.
pub(super) async fn serve(cx: &mut RequestContext<'_>, payload: web::Payload) -> HttpResponse {
    let _working = (!is_long_running(cx.info)).then(|| cx.server.meters.begin(cx.info));
    let deadline = cx.deadline;
    let response = {
        let work = pin!(cx.dispatch(payload));
        until(deadline, work).await
    };
    response.unwrap_or_else(|| {
        let status = cx.expired();
        drop(cx.fail(&status, false));
        cx.timed_out()
    })
}

impl RequestContext<'_> {
    /// The answer of a peer; gives the body back where there is none.
    async fn proxy_to_peer(&mut self, payload: web::Payload) -> Result<HttpResponse, web::Payload> {
        let Some(peers) = self.server.peers.clone() else { return Err(payload) };
        match peers.answer(self.info, self.req, payload, &self.user, &self.shape.audit_id).await? {
            Err(status) => Ok(self.fail(&status, false)),
            Ok(response) => Ok(self.relayed(answer::relayed(response, &self.shape))),
        }
    }

    async fn dispatch(&mut self, payload: web::Payload) -> HttpResponse {
        let (server, req, info) = (self.server, self.req, self.info);
        let mut payload = payload;
        if server.peers.is_some() {
            // Rarely, and then apart from what every request needs room for.
            payload = match Box::pin(self.proxy_to_peer(payload)).await {
                Ok(response) => return response,
                Err(payload) => payload,
            };
        }
        if !info.api_group.is_empty()
            && let Some(remote) = server.aggregator.remote(&info.api_group, &info.api_version)
        {
            return self.proxy_to_api_service(payload, &remote).await;
        }
        if info.path == VERBOSITY && server.response_policy.profiling {
            return match read_body(payload).await {
                Ok(level) => shared::serve::verbosity(req.method(), &String::from_utf8_lossy(&level)),
                Err(status) => self.fail(&status, false),
            };
        }
        if !info.is_resource {
            let response = paths::serve(server, info, req.method().as_str(), self.query, &self.shape).await;
            return match &mut self.audit.0 {
                Some(trail) if info.path.starts_with("/api") => trail.record_discovery(response),
                _ => response,
            };
        }
        if verbs::is_unserved(&server.engine.rows, info) {
            return answer::not_found(&self.shape);
        }
        let user = self.user.clone();
        if Connect::takes(info) { self.connection(payload, &user).await } else { self.object(payload, user).await }
    }

    /// The answer of another server.
    async fn proxy_to_api_service(&mut self, payload: web::Payload, remote: &Remote) -> HttpResponse {
        let (aggregator, audit_id) = (&self.server.aggregator, &self.shape.audit_id);
        let response = match aggregator.proxy(remote, self.req, payload, &self.user, audit_id).await {
            Ok(response) => answer::relayed(response, &self.shape),
            Err((code, why)) => answer::text(code, format!("{why}\n"), &self.shape),
        };
        self.relayed(response)
    }

    /// An answer of another server, which holds its seat until it is read.
    fn relayed(&mut self, response: HttpResponse) -> HttpResponse {
        self.count(false, response.status().as_u16());
        let response = self.passed_on(response);
        match self.permit.take() {
            Some(permit) if !is_long_running(self.info) => holding(response, permit),
            _ => response,
        }
    }

    /// An answer from elsewhere. What is a connection by now ends as it likes.
    fn passed_on(&self, response: HttpResponse) -> HttpResponse {
        if self.req.method() == Method::HEAD || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        passing::counted(response, self.server.meters.aborts(self.info, self.content_type()))
    }

    /// Logs, exec, port-forward, proxies: bytes from elsewhere.
    async fn connection(&mut self, payload: web::Payload, user: &UserInfo) -> HttpResponse {
        let (server, req, info, query) = (self.server, self.req, self.info, self.query);
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
        if let Some(trail) = &mut self.audit.0 {
            trail.annotate(recorder.annotations());
        }
        let response = match allowed {
            Ok(()) => server.connect.handle(req, payload, info).await,
            Err(status) => Err(status),
        };
        match response {
            Ok(response) => {
                self.count(false, response.status().as_u16());
                match info.subresource.as_str() {
                    "proxy" => self.passed_on(answer::relayed(response, &self.shape)),
                    _ if response.status() == StatusCode::SWITCHING_PROTOCOLS => response,
                    _ => holding(response, server.graceful_shutdown.begin_stream()),
                }
            }
            Err(status) => answer::warned(self.fail(&status, false), &recorder.take_warnings()),
        }
    }

    /// Builds the request as the verbs take it.
    fn request(&self, user: UserInfo, messages: bool, recorder: &RequestRecorder) -> VerbRequest {
        VerbRequest {
            info: self.info.clone(),
            method: self.req.method().as_str().to_owned(),
            query: self.query.clone(),
            media: self.shape.media,
            content_type: self.content_type().to_owned(),
            accept: self.shape.accept.clone(),
            user_agent: self.header("user-agent").to_owned(),
            gzip: self.shape.gzip,
            messages,
            body: Bytes::new(),
            user,
            recorder: recorder.clone(),
        }
    }

    /// Objects: the verbs' answer.
    async fn object(&mut self, payload: web::Payload, user: UserInfo) -> HttpResponse {
        let (server, req, info) = (self.server, self.req, self.info);
        let wanted = self.audit.0.as_ref().map(Trail::capture_level).unwrap_or_default();
        let recorder = RequestRecorder::recording(wanted);
        if let Some(trail) = &mut self.audit.0 {
            trail.follows(&recorder);
        }
        let messages = connect::wants_messages(req, info);
        let mut payload = Some(payload);
        let mut working = VerbTrace::begin(req, info, &self.shape.audit_id);
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
        let dry_run = self.query.get("dryRun").is_some();
        let reply = match outcome {
            Ok(reply) => reply,
            Err(status) => {
                drop(working);
                return answer::warned(self.fail(&status, dry_run), &recorder.take_warnings());
            }
        };
        working.answered();
        self.count(dry_run, reply.code);
        if let (Some(trail), Body::Full(body)) = (self.audit.0.as_mut(), &reply.body) {
            trail.response(&reply.content_type, body);
        }
        let watching = server.access.limiter().watching(info);
        let sending = server.meters.sending(info, &server.graceful_shutdown);
        let reply = streamed_with_seat(answer::packed(reply, &self.shape), self.permit.take(), watching, sending);
        let response = match payload {
            Some(payload) if messages => connect::watch(req, payload, reply),
            _ => {
                let media_type = working.span().map(|_| reply.content_type.to_string());
                let size = if let Body::Full(body) = &reply.body { Some(body.len()) } else { None };
                let shape = &self.shape;
                working.serialize(media_type.as_deref(), size, || answer::reply(reply, shape))
            }
        };
        working.sent();
        response
    }
}
