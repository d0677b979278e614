//! The filters of every request, in upstream's order. Answers for `DefaultBuildHandlerChain`
//! (`k8s.io/apiserver/pkg/server/config.go`).
//!
//! | upstream, outermost first | here |
//! |---|---|
//! | `WithAuditInit`, `WithRequestReceivedTimestamp` | [`RequestContext::new`] |
//! | `WithPanicRecovery` | [`catch_panic`], around the endpoint |
//! | `WithRequestInfo` | [`request_info`] |
//! | `WithTracing` | [`RequestSpan`], begun when the user is known |
//! | `WithRetryAfter` | [`with_retry_after`] |
//! | `WithHSTS`, `WithCacheControl`, `WithProbabilisticGoaway` | [`finish`]: headers are set on the way out |
//! | `WithWatchTerminationDuringShutdown` | `verbs::closing` |
//! | `WithWaitGroup` | [`handle`], until the response is there |
//! | `WithRequestDeadline` | [`with_request_deadline`] |
//! | `WithTimeoutForNonLongRunningRequests` | [`until`], around each filter below and the endpoint |
//! | `WithWarningRecorder` | `audit::RequestRecorder` |
//! | `WithCORS` | [`with_cors`] |
//! | `WithAuthentication`, `WithFailedAuthenticationAudit` | [`with_authentication`] |
//! | `WithAudit` | [`with_audit`]; the event is completed in [`finish`] |
//! | `WithImpersonation`, `WithConstrainedImpersonation` | [`with_impersonation`] |
//! | `WithPriorityAndFairness`, `WithMaxInFlightLimit` | [`with_priority_and_fairness`] |
//! | `WithAuthorization` | [`with_authorization`] |
//!
//! A filter passes a request on (`Ok`) or answers it. Below the last one is `endpoint`.

use std::pin::{Pin, pin};

use actix_web::http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, web};
use shared::authn::{ALL_UNAUTHENTICATED, ANONYMOUS};
use shared::status::Status;

use super::answer;
use super::context::{RequestContext, until};
use super::endpoint;
use super::info::request_info;
use super::server::Server;
use super::spans::RequestSpan;
use super::traced::{catch_panic, complete_audit};
use crate::access::{AccessError, AuthorizationOutcome, Permit, TooManyRequests, is_long_running};
use crate::machinery::query::{Query, is_escaped, unescaped};

/// Result of a filter: an error is the response.
type Passed = Result<(), HttpResponse>;

/// The handler of all paths: the filters in upstream's order, the endpoint, and the way out.
pub(super) async fn handle(req: HttpRequest, payload: web::Payload, server: web::Data<Server>) -> HttpResponse {
    if let Some(refused) = shared::upgrade::refusal(&req) {
        return refused;
    }
    if !is_escaped(req.uri().path()) {
        return answer::unread();
    }
    let query = Query::parse(req.query_string());
    let path = unescaped(req.uri().path(), false);
    let info = request_info(req.method().as_str(), &path, &query);
    let span = RequestSpan::default();
    let mut cx = RequestContext::new(&req, &server, (&info, &query), &span);
    let _waited_for = (!is_long_running(cx.info)).then(|| server.graceful_shutdown.begin_request()).flatten();
    if let Err(rejected) = with_retry_after(&cx) {
        return rejected;
    }
    let response = match filter(&mut cx).await {
        Ok(()) => serve(&mut cx, payload).await,
        Err(response) => response,
    };
    let response = finish(&mut cx, response).await;
    drop(cx);
    span.answered(response)
}

/// Runs the filters below `WithRetryAfter`, outermost first.
async fn filter(cx: &mut RequestContext<'_>) -> Passed {
    with_request_deadline(cx).await?;
    with_cors(cx)?;
    with_authentication(cx).await?;
    with_audit(cx).await?;
    with_impersonation(cx).await?;
    with_priority_and_fairness(cx).await?;
    with_authorization(cx).await
}

/// Runs the endpoint. A panic of it is audited and ends the connection.
async fn serve(cx: &mut RequestContext<'_>, payload: web::Payload) -> HttpResponse {
    let span = cx.span;
    let outcome = {
        let work = pin!(endpoint::serve(cx, payload));
        catch_panic(pin!(span.around(work))).await
    };
    match outcome {
        Ok(response) => response,
        Err(panic) => panic.pass(&mut cx.audit).await,
    }
}

/// Completes a response: its audit event, and the headers that every response carries.
async fn finish(cx: &mut RequestContext<'_>, response: HttpResponse) -> HttpResponse {
    let mut response = match cx.audit.0.take() {
        None => response,
        Some(trail) => complete_audit(trail, response).await,
    };
    let (policy, version) = (&cx.server.response_policy, cx.req.version());
    if cx.shape.unauthenticated {
        policy.close_unauthenticated_http2(&mut response, version);
    }
    if answer::complete(&mut response, &cx.shape) {
        policy.add_headers(&mut response, version, cx.origin.as_deref());
    }
    response
}

/// Rejects requests while the server drains; nobody is asked who sends them.
fn with_retry_after(cx: &RequestContext<'_>) -> Passed {
    let (agent, policy) = (cx.header("user-agent"), &cx.server.response_policy);
    let Some(mut response) = cx.server.graceful_shutdown.reject_late(cx.info, agent, &cx.shape) else { return Ok(()) };
    // Clients are sent away before anything is said that other answers carry.
    if response.status() != StatusCode::TOO_MANY_REQUESTS {
        policy.add_headers(&mut response, cx.req.version(), None);
    }
    Err(response)
}

/// Rejects an invalid `timeout`; comes before authentication.
async fn with_request_deadline(cx: &RequestContext<'_>) -> Passed {
    let deadline = cx.server.response_policy.deadline(cx.query);
    let Some(status) = deadline.err().filter(|_| !is_long_running(cx.info)) else { return Ok(()) };
    cx.audit_unauthenticated(&status).await;
    Err(answer::failure(&status, &cx.shape))
}

/// Notes an allowed origin and answers preflight requests.
fn with_cors(cx: &mut RequestContext<'_>) -> Passed {
    let origin = Some(cx.header("origin")).filter(|origin| cx.server.response_policy.allows_origin(origin));
    cx.origin = origin.map(str::to_owned);
    match cx.origin.is_some() && cx.req.method() == Method::OPTIONS {
        true => Err(answer::empty(204, &cx.shape)),
        false => Ok(()),
    }
}

/// Finds out the user. Failures are audited here, because the filter for that comes later.
async fn with_authentication(cx: &mut RequestContext<'_>) -> Passed {
    let outcome = until(cx.deadline, pin!(cx.server.access.authenticate(&cx.head()))).await;
    let refusal = match outcome {
        Some(Ok(user)) => {
            cx.user = user;
            None
        }
        Some(Err(status)) => Some((status, false)),
        None => Some((Status::unauthorized(), true)),
    };
    if let Some((status, late)) = refusal {
        cx.shape.unauthenticated = true;
        if !late {
            cx.count(false, status.code);
        }
        cx.audit_unauthenticated(&status).await;
        return Err(if late { cx.timed_out() } else { answer::failure(&status, &cx.shape) });
    }
    let groups = &cx.user.groups;
    cx.shape.unauthenticated = cx.user.name == ANONYMOUS || groups.iter().any(|group| group == ALL_UNAUTHENTICATED);
    if !cx.shape.unauthenticated {
        shared::upgrade::authenticated(cx.req);
    }
    let began = (cx.shape.audit_id.as_str(), cx.received_at);
    cx.span.begin(&cx.server.tracer, cx.req, cx.info, &cx.user, began);
    Ok(())
}

/// Begins the audit event; a request that cannot be audited is not served.
async fn with_audit(cx: &mut RequestContext<'_>) -> Passed {
    cx.audit.0 = cx.trail();
    if let Some(begun) = &mut cx.audit.0
        && !begun.received().await
    {
        cx.audit.0 = None;
        return Err(cx.internal_error("audit backend shutdown"));
    }
    Ok(())
}

/// Replaces the user by the one that it acts as.
async fn with_impersonation(cx: &mut RequestContext<'_>) -> Passed {
    let outcome = in_time(cx, pin!(cx.server.access.impersonate(&cx.head(), &cx.user))).await;
    match outcome {
        None => Err(expired(cx)),
        Some(Err(status)) => Err(refused(cx, &status)),
        Some(Ok(None)) => Ok(()),
        Some(Ok(Some(impersonated))) => {
            if let Some(trail) = &mut cx.audit.0 {
                trail.impersonates(Some(impersonated.user.clone()), impersonated.constraint);
            }
            cx.user = impersonated.user;
            Ok(())
        }
    }
}

/// Waits for a seat of the request's priority level, or takes a place in flight.
async fn with_priority_and_fairness(cx: &mut RequestContext<'_>) -> Passed {
    let outcome = in_time(cx, pin!(cx.server.access.enter(&cx.head(), &cx.user))).await;
    match outcome {
        None => Err(expired(cx)),
        Some(Err(TooManyRequests { status, classified })) => {
            cx.shape.classified = classified;
            cx.terminate(status.code);
            Err(answer::throttled(&status, &cx.shape))
        }
        Some(Ok(permit)) => {
            cx.shape.classified = permit.as_ref().and_then(Permit::classified);
            cx.permit = permit;
            Ok(())
        }
    }
}

/// Asks the authorizers.
async fn with_authorization(cx: &mut RequestContext<'_>) -> Passed {
    let outcome = in_time(cx, pin!(cx.server.access.authorize(&cx.head(), &cx.user))).await;
    let Some(AuthorizationOutcome { annotations, refusal }) = outcome else { return Err(expired(cx)) };
    if let Some(trail) = &mut cx.audit.0 {
        trail.annotate(annotations);
    }
    match refusal {
        None => Ok(()),
        Some(AccessError::Status(status)) => Err(refused(cx, &status)),
        Some(AccessError::Failure(why)) => Err(cx.internal_error(&why)),
    }
}

/// Awaits a filter until the deadline of the request, as part of its span.
async fn in_time<T>(cx: &RequestContext<'_>, filter: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    until(cx.deadline, pin!(cx.span.around(filter))).await
}

/// Audits a request whose deadline passed in a filter, and returns its response.
fn expired(cx: &mut RequestContext<'_>) -> HttpResponse {
    let status = cx.expired();
    if let Some(trail) = &mut cx.audit.0 {
        answer::audit_error(trail, &status, &cx.shape);
    }
    cx.timed_out()
}

/// Counts and audits the refusal of a known user's request, and returns its response.
fn refused(cx: &mut RequestContext<'_>, status: &Status) -> HttpResponse {
    let mut response = cx.fail(status, false);
    if status.code == 403 {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}
