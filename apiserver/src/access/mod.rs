//! Filters between a request and its verb: authentication, impersonation, concurrency, authorization. In: a request's
//! head. Out: the user to act as, or the error.
//!
//! Answers for upstream's filter chain (authentication, impersonation, max-in-flight, authorisation) and for the
//! review resources, which ask the same parties. Nothing here reads a body or writes a response.

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

pub use concurrency::{ConcurrencyLimiter, Permit, is_long_running};
use counters::Counters;
pub use inflight::Limits;
pub use reviews::Reviews;

use crate::api::{RequestInfo, TokenIssuer, VirtualResources};
use crate::authz::Authorization;
use crate::flowcontrol::Classified;
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

/// The way is free.
#[derive(Debug)]
pub struct Authorized {
    /// User to act as.
    pub user: UserInfo,
    /// Held until the response is written; none for requests that take as long as the client likes.
    pub permit: Option<Permit>,
}

/// Findings of the filters for the audit log; filled in whether the request gets through or not.
#[derive(Debug, Default)]
pub struct FilterFindings {
    /// Impersonated user.
    pub impersonated: Option<UserInfo>,
    /// The verb of constrained impersonation that he was allowed it by.
    pub constraint: &'static str,
    /// Annotations of the audit event.
    pub annotations: BTreeMap<String, String>,
    /// Flow schema and priority level of the request.
    pub classified: Option<Classified>,
}

/// The way is barred.
#[derive(Debug)]
pub enum AccessError {
    /// With an API object that says why.
    Status(Box<Status>),
    /// The authorisers failed: plain text with code 500, as upstream has it.
    Failure(String),
    /// There is no room: plain text with code 429.
    Throttled(Box<Status>),
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

    /// Takes a request of a known user through the rest of the chain: `400`, `429` or `403` when it does not get
    /// through.
    pub async fn admit(
        &self,
        head: &Head<'_>,
        user: UserInfo,
        notes: &mut FilterFindings,
    ) -> Result<Authorized, AccessError> {
        let filters = &self.counters.filters;
        let mut begun = Instant::now();
        let mut step = || std::mem::replace(&mut begun, Instant::now()).elapsed().as_secs_f64();
        let user = spanned("impersonation", pin!(self.acting(head, user, notes))).await?;
        filters.impersonation.observe(step());
        let permit = match spanned("priorityandfairness", pin!(self.limiter.enter(head, &user))).await {
            Ok(permit) => permit,
            Err(full) => {
                notes.classified = full.classified;
                return Err(AccessError::Throttled(Box::new(full.status)));
            }
        };
        filters.fairness.observe(step());
        notes.classified = permit.as_ref().and_then(Permit::classified);
        let question = attributes(head, &user);
        let started = Instant::now();
        let verdict = spanned("authorization", pin!(self.authorization.verdict(&question))).await;
        self.counters.authorized(&verdict, started);
        filters.authorization.observe(step());
        let mut note = |key: &str, text: &str| notes.annotations.insert(key.to_owned(), text.to_owned());
        if verdict.is_allowed() {
            note(DECISION, "allow");
            note(REASON, &verdict.reason);
            return Ok(Authorized { user, permit });
        }
        if let Some(error) = verdict.error {
            note(REASON, "internal error");
            return Err(AccessError::Failure(error));
        }
        note(DECISION, "forbid");
        note(REASON, &verdict.reason);
        Err(deny::unauthorised_request(&question, &verdict.reason).into())
    }

    /// Resolves impersonation: returns the user that a user acts as.
    async fn acting(&self, head: &Head<'_>, user: UserInfo, notes: &mut FilterFindings) -> Result<UserInfo, Status> {
        let other = match &self.modes {
            Some(modes) => {
                let Some(wish) = constrained::requested(head.headers)? else { return Ok(user) };
                let (other, constraint) = modes.authorize(self, &wish, &attributes(head, &user)).await?;
                notes.constraint = constraint;
                other
            }
            None => {
                let Some(wish) = impersonation::requested(head.headers)? else { return Ok(user) };
                for question in wish.questions(&user) {
                    self.demand(&question).await?;
                }
                wish.user()
            }
        };
        tracing::debug!(user = user.name, as_user = other.name, "User is impersonating another user");
        notes.impersonated = Some(other.clone());
        Ok(other)
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
