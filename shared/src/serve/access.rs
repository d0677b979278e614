//! The gate before every page: who asks, and whether they may.

use std::sync::Arc;
use std::time::Instant;

use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{Method, StatusCode, header};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpResponse};

use super::ClientCertificates;
use crate::authn::{ANONYMOUS, Authenticator, AuthnError, Credentials, Identity, UserInfo};
use crate::authz::{Attributes, Authorizer, AuthzError, Decision};
use crate::metrics::{CounterVec, HistogramVec};
use crate::status::{Status, go_quote};
use crate::upgrade;

/// Request as an attributes hook sees it.
pub struct Requested<'a> {
    /// Method.
    pub method: &'a Method,
    /// Path, without query.
    pub path: &'a str,
    /// User of the request.
    pub user: &'a UserInfo,
}

/// Alternatives, asked in order; the last one's refusal is the one reported.
pub type AttributesOf = Vec<Attributes>;

/// Form of refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Denials {
    /// A Status, as the API server's library answers.
    #[default]
    Status,
    /// Plain text, as the kubelet answers.
    Text,
}

#[derive(Clone)]
pub(super) struct Access {
    authenticator: Arc<dyn Authenticator>,
    authorizer: Arc<dyn Authorizer>,
    pub(super) attributes: Arc<dyn Fn(&Requested<'_>) -> AttributesOf + Send + Sync>,
    pub(super) denials: Denials,
    counts: AccessCounters,
}

/// The library's own metrics of authentication and authorisation.
#[derive(Clone)]
struct AccessCounters {
    attempts: CounterVec,
    attempt_seconds: HistogramVec,
    users: CounterVec,
    decisions: CounterVec,
    decision_seconds: HistogramVec,
}

impl AccessCounters {
    fn new() -> Self {
        use crate::metrics::{counter, exponential, histogram};
        let seconds = || exponential(0.001, 2.0, 15);
        let result = &["result"];
        Self {
            attempts: counter(
                "authentication_attempts",
                "[ALPHA] Number of authentication attempts, by result.",
                result,
            ),
            attempt_seconds: histogram(
                "authentication_duration_seconds",
                "[ALPHA] Authentication duration in seconds, by result.",
                result,
                seconds(),
            ),
            users: counter(
                "authenticated_user_requests",
                "[ALPHA] Number of authenticated requests, by username.",
                &["username"],
            ),
            decisions: counter(
                "authorization_attempts_total",
                "[ALPHA] Number of authorization attempts, by result.",
                result,
            ),
            decision_seconds: histogram(
                "authorization_duration_seconds",
                "[ALPHA] Authorization duration in seconds, by result.",
                result,
                seconds(),
            ),
        }
    }

    fn authenticated(&self, known: &Result<Option<Identity>, AuthnError>, began: Instant) {
        let result = match known {
            Ok(Some(identity)) => {
                // Names are not labels: there may be any number of them.
                let label = match identity.user.name.as_str() {
                    known @ ("admin" | "client" | "kube_proxy" | "kubelet") => known,
                    known @ "system:serviceaccount:kube-system:default" => known,
                    address if address.contains('@') => "email_id",
                    _ => "other",
                };
                self.users.with_label_values(&[label]).inc();
                "success"
            }
            Ok(None) => "failure",
            Err(_) => "error",
        };
        self.attempts.with_label_values(&[result]).inc();
        self.attempt_seconds.with_label_values(&[result]).observe(began.elapsed().as_secs_f64());
    }

    fn authorized(&self, decided: &Result<(Decision, String), AuthzError>, began: Instant) {
        let result = match decided {
            Ok((Decision::Allow, _)) => "allowed",
            Ok((Decision::Deny, _)) => "denied",
            Ok((Decision::NoOpinion, _)) => "no-opinion",
            Err(_) => "error",
        };
        self.decisions.with_label_values(&[result]).inc();
        self.decision_seconds.with_label_values(&[result]).observe(began.elapsed().as_secs_f64());
    }
}

impl Access {
    pub(super) fn new(authenticator: Arc<dyn Authenticator>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self {
            authenticator,
            authorizer,
            attributes: Arc::new(path_attributes),
            denials: Denials::default(),
            counts: AccessCounters::new(),
        }
    }

    async fn check(&self, request: &ServiceRequest) -> Result<UserInfo, HttpResponse> {
        let none: Arc<[_]> = Arc::new([]);
        let chain = upgrade::connected::<ClientCertificates>(request.request()).map_or(none, |c| c.0);
        let credentials = Credentials { headers: request.headers(), certificates: &chain, path: request.path() };
        let began = Instant::now();
        let known = self.authenticator.authenticate(&credentials).await;
        self.counts.authenticated(&known, began);
        let user = match known {
            Ok(Some(identity)) => identity.user,
            Ok(None) => return Err(self.unauthorized()),
            Err(e) => {
                tracing::debug!(err = %e, path = request.path(), "Unable to authenticate the request");
                return Err(self.unauthorized());
            }
        };
        if user.name != ANONYMOUS {
            upgrade::authenticated(request.request());
        }
        let asked = Requested { method: request.method(), path: request.path(), user: &user };
        let mut refusal = self.forbidden(&path_attributes(&asked).remove(0), "");
        for attributes in (self.attributes)(&asked) {
            let began = Instant::now();
            let decided = self.authorizer.authorize(&attributes).await;
            self.counts.authorized(&decided, began);
            match decided {
                Ok((Decision::Allow, _)) => return Ok(user),
                Ok((_, reason)) => refusal = self.forbidden(&attributes, &reason),
                Err(e) => {
                    tracing::warn!(err = %e, path = request.path(), "Authorization failed");
                    refusal = self.broken(&attributes, &e.to_string());
                }
            }
        }
        Err(refusal)
    }

    fn unauthorized(&self) -> HttpResponse {
        match self.denials {
            Denials::Text => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Denials::Status => status(&Status::failure(401, "Unauthorized", "Unauthorized")),
        }
    }

    fn broken(&self, attributes: &Attributes, why: &str) -> HttpResponse {
        match self.denials {
            Denials::Text => {
                let a = attributes;
                let line = format!(
                    "Authorization error (user={}, verb={}, resource={}, subresource={})",
                    a.user.name, a.verb, a.resource, a.subresource
                );
                text(StatusCode::INTERNAL_SERVER_ERROR, &line)
            }
            Denials::Status => status(&Status::failure(
                500,
                "InternalError",
                format!("Internal Server Error: {}: {why}", go_quote(&attributes.path)),
            )),
        }
    }

    fn forbidden(&self, attributes: &Attributes, reason: &str) -> HttpResponse {
        let a = attributes;
        match self.denials {
            Denials::Text => {
                let line = format!(
                    "Forbidden (user={}, verb={}, resource={}, subresource(s)=[{}])",
                    a.user.name, a.verb, a.resource, a.subresource
                );
                text(StatusCode::FORBIDDEN, &line)
            }
            Denials::Status => {
                let user = go_quote(&a.user.name);
                let mut message = format!("forbidden: User {user} cannot {} path {}", a.verb, go_quote(&a.path));
                if !reason.is_empty() {
                    message = format!("{message}: {reason}");
                }
                let mut refusal = Status::failure(403, "Forbidden", message);
                refusal.details = Some(crate::status::Details::default());
                status(&refusal)
            }
        }
    }
}

/// The verb of a request that is not for a resource.
fn path_verb(method: &Method) -> String {
    method.as_str().to_ascii_lowercase()
}

/// A request for its path, and nothing else: what components other than the API server and the kubelet authorise.
pub fn path_attributes(asked: &Requested<'_>) -> AttributesOf {
    vec![Attributes {
        user: asked.user.clone(),
        verb: path_verb(asked.method),
        path: asked.path.to_owned(),
        ..Attributes::default()
    }]
}

fn text(code: StatusCode, body: &str) -> HttpResponse {
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, "text/plain; charset=utf-8"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(format!("{body}\n"))
}

fn status(status: &Status) -> HttpResponse {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_string(status).unwrap_or_default();
    HttpResponse::build(code)
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .insert_header((header::CACHE_CONTROL, "no-cache, private"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(format!("{body}\n"))
}

/// Lets a request through, with its user in its extensions, or answers why not.
pub(super) async fn guard<B: MessageBody + 'static>(
    access: Option<Access>,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, Error> {
    if let Some(access) = access {
        match access.check(&request).await {
            Ok(user) => {
                request.extensions_mut().insert(user);
            }
            Err(refusal) => return Ok(request.into_response(refusal).map_into_right_body()),
        }
    }
    Ok(next.call(request).await?.map_into_left_body())
}
