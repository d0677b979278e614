//! Filters between a request and its verb: authentication, impersonation, concurrency, authorization. In: a request's
//! head. Out: the user to act as, or the error.
//!
//! Answers for upstream's filters (`WithAuthentication`, `WithImpersonation`, `WithPriorityAndFairness`,
//! `WithAuthorization`), which `serve::chain` runs in their order, and for the review resources, which ask the same
//! parties. Nothing here reads a body or writes a response.

mod concurrency;
mod constrained;
mod counters;
pub mod deny;
mod impersonation;
mod inflight;
mod reviews;
mod reviews_sar;

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Instant;

use rustls_pki_types::CertificateDer;
use shared::authn::{Authenticator, Credentials, Headers, UserInfo};
use shared::authz::Attributes;
use shared::status::Status;
use shared::traces::{self, SpanKind};

pub use concurrency::{ConcurrencyLimiter, Permit, TooManyRequests, is_long_running};
use counters::Counters;
pub use inflight::Limits;
pub use reviews::Reviews;

use crate::api::{RequestInfo, TokenIssuer, VirtualResources};
use crate::authz::Authorization;
use crate::machinery::query::Query;
use crate::tokens::ServiceAccounts;

/// Instrumentation scope of the spans of filters.
pub(crate) const FILTERS: &str = "k8s.op/apiserver/pkg/endpoints/filterlatency";

/// Head of a request, as the filters see it.
pub struct Head<'a> {
    /// HTTP method.
    pub method: &'a str,
    /// The query as sent, without `?`.
    pub query: &'a str,
    /// Headers.
    pub headers: &'a dyn Headers,
    /// The client's certificate chain, leaf first, unverified.
    pub certificates: &'a [CertificateDer<'static>],
    /// Request info.
    pub info: &'a RequestInfo,
}

/// Impersonation of a user by another who may.
#[derive(Debug)]
pub struct Impersonated {
    /// User to act as.
    pub user: UserInfo,
    /// Verb of constrained impersonation that allowed it; empty for others.
    pub constraint: &'static str,
}

/// Decision of the authorizers.
#[derive(Debug)]
pub struct AuthorizationOutcome {
    /// Annotations of the audit event.
    pub annotations: BTreeMap<String, String>,
    /// Refusal of the request, when it is refused.
    pub refusal: Option<AccessError>,
}

/// Refusal by the authorizers.
#[derive(Debug)]
pub enum AccessError {
    /// With an API object that says why.
    Status(Box<Status>),
    /// The authorisers failed: plain text with code 500, as upstream has it.
    Failure(String),
}

impl From<Status> for AccessError {
    fn from(status: Status) -> Self {
        AccessError::Status(Box::new(status))
    }
}

/// A step of the chain, in a span where the request has one.
async fn spanned<F: Future>(step: &'static str, work: Pin<&mut F>) -> F::Output {
    let span = traces::child(FILTERS, step, SpanKind::Internal);
    traces::within(span.as_ref(), work).await
}

/// Parties that the filters ask, as the process has set them up.
pub struct Parties {
    /// Authenticators.
    pub authenticator: Arc<dyn Authenticator>,
    /// Authorizers.
    pub authorization: Arc<Authorization>,
    /// Concurrency limits.
    pub limiter: ConcurrencyLimiter,
    /// Service accounts.
    pub accounts: Arc<ServiceAccounts>,
    /// Issuer of `serviceaccounts/token`.
    pub issuer: Arc<dyn TokenIssuer>,
    /// Review resources.
    pub reviews: Arc<dyn VirtualResources>,
    /// RBAC is among the authorizers.
    pub rbac: bool,
    /// `ConstrainedImpersonation`
    pub constrained: bool,
}

/// Filters between a request and its verb.
pub struct Access {
    authenticator: Arc<dyn Authenticator>,
    authorization: Arc<Authorization>,
    limiter: ConcurrencyLimiter,
    accounts: Arc<ServiceAccounts>,
    issuer: Arc<dyn TokenIssuer>,
    reviews: Arc<dyn VirtualResources>,
    counters: Counters,
    rbac: bool,
    /// `ConstrainedImpersonation`
    modes: Option<constrained::Modes>,
}

const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

impl Access {
    /// Puts the filters together.
    pub fn new(parties: Parties) -> Self {
        let Parties { authenticator, authorization, limiter, accounts, issuer, reviews, rbac, constrained } = parties;
        let modes = constrained.then(constrained::Modes::default);
        Self {
            authenticator,
            authorization,
            limiter,
            accounts,
            issuer,
            reviews,
            counters: Counters::new(),
            rbac,
            modes,
        }
    }

    /// Finds out who asks; `401` when that cannot be told.
    pub async fn authenticate(&self, head: &Head<'_>) -> Result<UserInfo, Status> {
        let started = Instant::now();
        let credentials = Credentials { headers: head.headers, certificates: head.certificates, path: &head.info.path };
        let outcome = self.authenticator.authenticate(&credentials).await;
        self.counters.authenticated(&outcome, started);
        self.counters.filters.authentication.observe(started.elapsed().as_secs_f64());
        match outcome {
            Ok(Some(identity)) => Ok(identity.user),
            Ok(None) => Err(Status::unauthorized()),
            Err(error) => {
                tracing::warn!(%error, "Unable to authenticate the request");
                Err(Status::unauthorized())
            }
        }
    }

    /// Resolves impersonation: `None` where none is asked for. `400` for a malformed request, `403` when the user may not
    /// act as the other.
    pub async fn impersonate(&self, head: &Head<'_>, user: &UserInfo) -> Result<Option<Impersonated>, Status> {
        let started = Instant::now();
        let impersonated = spanned("impersonation", pin!(self.resolve_impersonation(head, user))).await?;
        self.counters.filters.impersonation.observe(started.elapsed().as_secs_f64());
        if let Some(Impersonated { user: other, .. }) = &impersonated {
            tracing::debug!(user = user.name, as_user = other.name, "User is impersonating another user");
        }
        Ok(impersonated)
    }

    async fn resolve_impersonation(&self, head: &Head<'_>, user: &UserInfo) -> Result<Option<Impersonated>, Status> {
        let Some(modes) = &self.modes else {
            let Some(wish) = impersonation::requested(head.headers)? else { return Ok(None) };
            for question in wish.questions(user) {
                self.demand(&question).await?;
            }
            return Ok(Some(Impersonated { user: wish.user(), constraint: "" }));
        };
        let Some(wish) = constrained::requested(head.headers)? else { return Ok(None) };
        let (user, constraint) = modes.authorize(self, &wish, &attributes(head, user)).await?;
        Ok(Some(Impersonated { user, constraint }))
    }

    /// Waits for a seat of priority and fairness, or takes a place in flight; none for requests that are exempt.
    pub async fn enter(&self, head: &Head<'_>, user: &UserInfo) -> Result<Option<Permit>, TooManyRequests> {
        let started = Instant::now();
        let permit = spanned("priorityandfairness", pin!(self.limiter.enter(head, user))).await?;
        self.counters.filters.fairness.observe(started.elapsed().as_secs_f64());
        Ok(permit)
    }

    /// Asks the authorizers.
    pub async fn authorize(&self, head: &Head<'_>, user: &UserInfo) -> AuthorizationOutcome {
        let question = attributes(head, user);
        let started = Instant::now();
        let verdict = spanned("authorization", pin!(self.authorization.verdict(&question))).await;
        self.counters.authorized(&verdict, started);
        self.counters.filters.authorization.observe(started.elapsed().as_secs_f64());
        let allowed = verdict.is_allowed();
        let (word, refusal) = match verdict.error {
            Some(error) if !allowed => (None, Some(AccessError::Failure(error))),
            _ if allowed => (Some("allow"), None),
            _ => (Some("forbid"), Some(deny::unauthorised_request(&question, &verdict.reason).into())),
        };
        let reason = if word.is_some() { verdict.reason } else { "internal error".to_owned() };
        let mut annotations = BTreeMap::from([(REASON.to_owned(), reason)]);
        if let Some(word) = word {
            annotations.insert(DECISION.to_owned(), word.to_owned());
        }
        AuthorizationOutcome { annotations, refusal }
    }

    /// Reports whether the authorizers allow a request.
    pub async fn allows(&self, question: &Attributes) -> bool {
        self.authorization.allows(question).await
    }

    /// `403` with the authorisers' reason unless they allow it.
    pub async fn demand(&self, question: &Attributes) -> Result<(), Status> {
        let verdict = self.authorization.verdict(question).await;
        if verdict.is_allowed() { Ok(()) } else { Err(deny::unauthorised_request(question, &verdict.reason)) }
    }

    /// The refusal of a question.
    pub fn forbid(&self, question: &Attributes, reason: &str) -> Status {
        deny::unauthorised_request(question, reason)
    }

    /// Concurrency limits of requests.
    pub fn limiter(&self) -> &ConcurrencyLimiter {
        &self.limiter
    }

    /// The authorisers.
    pub fn authorization(&self) -> &Arc<Authorization> {
        &self.authorization
    }

    /// Reports whether RBAC is among the authorizers.
    pub fn rbac_enabled(&self) -> bool {
        self.rbac
    }

    /// Answers `serviceaccounts/token`.
    pub fn token_issuer(&self) -> Arc<dyn TokenIssuer> {
        self.issuer.clone()
    }

    /// Answers the review resources.
    pub fn virtuals(&self) -> Arc<dyn VirtualResources> {
        self.reviews.clone()
    }

    /// `/.well-known/openid-configuration`, when the issuer is one that can have it.
    pub fn openid_configuration(&self) -> Option<Vec<u8>> {
        self.accounts.openid_configuration()
    }

    /// `/openid/v1/jwks`
    pub fn jwks(&self) -> Vec<u8> {
        self.accounts.jwks()
    }
}

/// The `Audit-Id` of a request: the client's own, or a new one.
pub fn audit_id(said: &str) -> String {
    if said.is_empty() { uuid::Uuid::new_v4().to_string() } else { said.to_owned() }
}

/// The authorisers' view of a request.
pub fn attributes(head: &Head<'_>, user: &UserInfo) -> Attributes {
    let info = head.info;
    let mut question = Attributes {
        user: user.clone(),
        verb: info.verb.clone(),
        path: info.path.clone(),
        resource_request: info.is_resource,
        ..Attributes::default()
    };
    if !info.is_resource {
        return question;
    }
    question.namespace.clone_from(&info.namespace);
    question.api_group.clone_from(&info.api_group);
    question.api_version.clone_from(&info.api_version);
    question.resource.clone_from(&info.resource);
    question.subresource.clone_from(&info.subresource);
    question.name.clone_from(&info.name);
    if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
        let query = Query::parse(head.query);
        question.field_selector = query.get("fieldSelector").unwrap_or("").to_owned();
        question.label_selector = query.get("labelSelector").unwrap_or("").to_owned();
    }
    question
}

#[cfg(test)]
mod tests;
