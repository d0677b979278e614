//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: asking servers outside, over HTTPS, what they think of a
//! write. Configurations come from the watch cache at every request, so a change counts at once. Answers for upstream's
//! `pkg/admission/plugin/webhook/{mutating`,validating} (`Dispatch`).

mod caller;
mod conditions;
mod credentials;
mod error;
mod hook;
mod redirect;
mod review;
mod target;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use proto::merge::json_patch::Patch;
use serde_json::{Value, json};
use shared::status::Status;
use shared::traces::{self, SpanKind};

use super::matching::MatchRequest;
use super::reinvocation::ReinvocationPlugin;
use super::request_authorizer::RequestAuthorizer;
use super::views::Views;
use super::{Attributes, Error, Operation, Plugin, measure, namespaces};
use crate::api::{Api, Reader};
use crate::authz::Authorization;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::registry::admissionregistration::mutating_webhook_configuration::MUTATING_WEBHOOK_CONFIGURATIONS;
use crate::registry::admissionregistration::validating_webhook_configuration::VALIDATING_WEBHOOK_CONFIGURATIONS;
use crate::registry::core::namespace::NAMESPACES;
use crate::rows::Rows;
pub(super) use caller::Call;
pub use caller::Caller;
pub(crate) use caller::{count_outdated, dial_error, outdated};
pub use credentials::CredentialsError;
use credentials::WebhookCredentials;
pub(super) use credentials::{HostIdentity, server as kubeconfig_server};
pub(super) use error::WebhookCallError;
use hook::Hook;
use review::{ReviewError, ReviewResponse};
pub(crate) use target::WebhookAddress;
pub use target::{ServiceAddressError, TargetError};

const GROUP: &str = "admissionregistration.k8s.io";

/// Differences between the mutating and the validating plugin.
struct Phase {
    resource: GroupResource<'static>,
    /// In metrics.
    kind: &'static str,
    /// In metrics of those that were not asked.
    step: &'static str,
    /// In annotations of what failed open.
    word: &'static str,
    /// The webhooks may return a patch.
    mutates: bool,
}

const MUTATING: Phase =
    Phase { resource: MUTATING_WEBHOOK_CONFIGURATIONS, kind: "admit", step: "admit", word: "mutation", mutates: true };
const VALIDATING: Phase = Phase {
    resource: VALIDATING_WEBHOOK_CONFIGURATIONS,
    kind: "validating",
    step: "validate",
    word: "validating",
    mutates: false,
};

/// Prefix of the annotations with the patches of webhooks, which contain request content.
pub(crate) const PATCHES: &str = "patch.webhook.admission.k8s.io/";
/// Codes that are counted where no answer has one.
const OK: u16 = 200;
const UNAVAILABLE: u16 = 503;

/// Dependencies of webhook calls.
pub(crate) struct WebhookDeps {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// Resources that are served.
    pub rows: Rows,
    /// Authorizer for match conditions.
    pub authorization: Arc<Authorization>,
    /// Connections.
    pub caller: Arc<Caller>,
    /// Live reads, for a namespace that the cache has not heard of.
    pub api: Api,
}

impl WebhookDeps {
    /// The namespace of a request for something in one.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) async fn namespace(&self, a: &Attributes<'_>) -> Result<Option<Arc<Value>>, Status> {
        if a.namespace.is_empty() || a.of(NAMESPACES) {
            return Ok(None);
        }
        namespaces::find(self.reader.as_ref(), &self.api, a.namespace).await.map(Some)
    }
}

/// The state both plugins share.
struct Webhooks {
    means: WebhookDeps,
    credentials: WebhookCredentials,
    phase: Phase,
}

/// Webhooks that may change objects.
pub(super) struct MutatingWebhooks(Webhooks);

/// Webhooks that may refuse objects.
pub(super) struct ValidatingWebhooks(Webhooks);

impl MutatingWebhooks {
    /// Configurations from the cache, calls as the users of the plugin's `kubeConfigFile`.
    pub(super) fn new(means: WebhookDeps, configuration: &Value) -> Result<Self, Error> {
        Webhooks::new(means, configuration, MUTATING).map(Self)
    }
}

impl ValidatingWebhooks {
    /// Configurations from the cache, calls as the users of the plugin's `kubeConfigFile`.
    pub(super) fn new(means: WebhookDeps, configuration: &Value) -> Result<Self, Error> {
        Webhooks::new(means, configuration, VALIDATING).map(Self)
    }
}

/// A webhook that says neither yes nor no.
#[derive(Debug, thiserror::Error)]
enum WebhookSilence {
    /// A call that failed.
    #[error("failed to call webhook: {0}")]
    Call(#[from] WebhookCallError),
    /// An invalid response.
    #[error(transparent)]
    Review(#[from] ReviewError),
}

/// Reasons for which a webhook did not let a request through.
enum WebhookFailure {
    /// The webhook could not be called, or its response is invalid.
    Calling(WebhookSilence),
    /// The webhook refused the request.
    Refused(Status),
    /// The server's own.
    Own(Status),
}

impl Webhooks {
    fn new(means: WebhookDeps, configuration: &Value, phase: Phase) -> Result<Self, Error> {
        let path = tree::text(configuration, "/kubeConfigFile");
        let credentials = WebhookCredentials::read(path)?;
        Ok(Self { means, credentials, phase })
    }

    /// All webhooks, in the order they are asked: their configurations and their places in them.
    fn all(&self, a: &Attributes<'_>) -> Vec<(Arc<Value>, usize)> {
        if exempt(a) {
            return Vec::new();
        }
        let mut configurations = self.means.reader.list(self.phase.resource, None);
        configurations.sort_by(|x, y| tree::name(x).cmp(tree::name(y)));
        let places = |c: Arc<Value>| (0..tree::list(&c, "/webhooks").len()).map(move |at| (c.clone(), at));
        configurations.into_iter().flat_map(places).collect()
    }

    /// The webhook at a place, if it wants to see the request as it is now.
    async fn wanted(
        &self,
        (configuration, at): (&Arc<Value>, usize),
        object: Option<&Value>,
        a: &Attributes<'_>,
    ) -> Result<Option<Hook>, Status> {
        let namespace = self.means.namespace(a).await;
        let scene = MatchRequest::of(a, object, namespace, &self.means.rows);
        Hook::matching(configuration, at, &scene)
    }

    fn views(&self) -> Views<'_> {
        Views::new(&self.means.caller)
    }

    /// Builds the review for a webhook; `None` when its match conditions do not hold.
    fn question(&self, hook: &Hook, views: &Views<'_>, a: &Attributes<'_>) -> Result<Option<Value>, Status> {
        let request = review::request(views, a);
        let since = Instant::now();
        let held = conditions::all_hold(hook, &request, &RequestAuthorizer::new(&self.means.authorization, a));
        let of = [hook.name(), "webhook", self.phase.kind, a.operation.as_str()];
        measure::conditions(of, tree::list(hook.spec(), "/matchConditions"), since, &held);
        match held {
            Ok(true) => Ok(Some(request)),
            Err(why) if !hook.ignores_failures() => Err(a.forbidden(why.to_string())),
            Ok(false) | Err(_) => {
                measure::exclusion([hook.name(), "webhook", self.phase.step, a.operation.as_str()]);
                Ok(None)
            }
        }
    }

    /// Asks one webhook.
    async fn call(&self, hook: &Hook, request: &Value, a: &Attributes<'_>) -> Result<ReviewResponse, WebhookFailure> {
        if a.dry_run && !hook.harmless() {
            let why = format!("admission webhook {:?} does not support dry run", hook.name());
            return Err(WebhookFailure::Own(Status::bad_request(&why)));
        }
        let body = Bytes::from(review::envelope(hook, request).to_string());
        let client = hook.spec().get("clientConfig").unwrap_or(super::NOTHING);
        let name = if self.phase.mutates { "Call mutating webhook" } else { "Call validating webhook" };
        let span = traces::child(traces::OWN, name, SpanKind::Internal);
        let asking = pin!(self.means.caller.review(client, &self.credentials, hook.timeout(), body));
        let answered = traces::within(span.as_ref(), asking).await;
        if let Some(span) = span {
            tell(span, answered.is_ok(), hook, request, a);
        }
        let answered = match answered {
            Ok(bytes) => review::read(hook, request, self.phase.mutates, &bytes).map_err(WebhookSilence::Review),
            Err(why) => Err(WebhookSilence::Call(why)),
        };
        answered.map_err(WebhookFailure::Calling)
    }

    /// Counts how it went with a webhook, and says what follows: nothing where a failure is overlooked.
    fn conclude<T>(
        &self,
        hook: &Hook,
        operation: Operation,
        took: Duration,
        outcome: Result<T, WebhookFailure>,
    ) -> Result<Option<T>, Status> {
        let (name, kind) = (hook.name(), self.phase.kind);
        let (fault, code, refused) = match outcome {
            Ok(done) => {
                measure::webhook(name, kind, operation, took, false, OK);
                return Ok(Some(done));
            }
            Err(WebhookFailure::Calling(why)) => {
                let code = match &why {
                    WebhookSilence::Call(why) => why.code(),
                    WebhookSilence::Review(_) => None,
                };
                let code = code.unwrap_or(UNAVAILABLE);
                if hook.ignores_failures() {
                    measure::webhook(name, kind, operation, took, false, code);
                    measure::fail_open(name, kind);
                    tracing::warn!(webhook = name, kind, why = why.to_string(), "Failed calling webhook, failing open");
                    return Ok(None);
                }
                let why = format!("failed calling webhook {name:?}: {why}");
                ("calling_webhook_error", code, Status::internal(&why))
            }
            Err(WebhookFailure::Refused(status)) => ("no_error", status.code, status),
            Err(WebhookFailure::Own(status)) => ("apiserver_internal_error", 0, status),
        };
        measure::webhook(name, kind, operation, took, true, code);
        measure::rejection(name, kind, operation, fault, code);
        Err(refused)
    }

    /// Says in the audit log that a webhook was passed over.
    fn note_open(&self, a: &mut Attributes<'_>, hook: &Hook, order: usize) {
        let round = a.reinvocation.round();
        let key = format!("failed-open.{}.webhook.admission.k8s.io/round_{round}_index_{order}", self.phase.word);
        a.annotations.insert(key, hook.name().to_owned());
    }
}

/// Says in traces who was asked about what, and whether there was an answer.
fn tell(span: traces::Span, answered: bool, hook: &Hook, request: &Value, a: &Attributes<'_>) {
    if answered {
        span.step("Request completed");
    }
    span.end(traces::SLOW, |about| {
        for (key, value) in [
            ("configuration", hook.configuration_name()),
            ("webhook", hook.name()),
            ("resource", &format!("{}/{}, Resource={}", a.resource.group, a.resource.version, a.resource.plural)),
            ("subresource", a.subresource),
            ("operation", a.operation.as_str()),
            ("UID", tree::text(request, "/uid")),
        ] {
            about.text(key, value);
        }
    });
}

/// A webhook cannot be shown what it wants to see.
fn unshown(why: &Status) -> Status {
    Status::internal(&why.message)
}

/// Webhooks may not lock anybody out of repairing webhooks.
fn exempt(a: &Attributes<'_>) -> bool {
    a.resource.group == GROUP
}

/// Passes on what a webhook says, whatever its verdict is. What was noted under a key stays.
fn note(a: &mut Attributes<'_>, hook: &Hook, answer: &ReviewResponse) -> Result<(), WebhookFailure> {
    a.warnings.extend(answer.warnings.iter().cloned());
    for (key, value) in &answer.annotations {
        let key = format!("{}/{key}", hook.name());
        if proto::selector::format::qualified_name(&key).is_empty() {
            a.annotations.entry(key).or_insert_with(|| value.clone());
        }
    }
    if answer.allowed { Ok(()) } else { Err(WebhookFailure::Refused(answer.refusal(hook.name()))) }
}

#[async_trait]
impl Plugin for MutatingWebhooks {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let all = self.0.all(a);
        if all.is_empty() {
            return Ok(());
        }
        let object = a.object.as_deref();
        a.reinvocation.begin(ReinvocationPlugin::Webhooks, object);
        let mut views = self.0.views();
        for (order, (configuration, at)) in all.iter().enumerate() {
            // Each sees what those before it left, and is chosen by that.
            let Some(hook) = self.0.wanted((configuration, *at), views.object(a), a).await? else { continue };
            let id = hook.id();
            let asks = a.reinvocation.is_called(ReinvocationPlugin::Webhooks, &id);
            if !asks && !hook.has_conditions() {
                continue;
            }
            views.show_version(&hook.shown, a).await.map_err(|why| unshown(&unshown(&why)))?;
            let Some(request) = self.0.question(&hook, &views, a)?.filter(|_| asks) else { continue };
            let changed = self.mutate(&hook, &request, order, (&mut views, a)).await?;
            a.reinvocation.record_call(ReinvocationPlugin::Webhooks, &id, changed, hook.wants_reinvocation());
        }
        views.commit_mutation(a).await?;
        let object = a.object.as_deref();
        a.reinvocation.end(ReinvocationPlugin::Webhooks, object);
        Ok(())
    }
}

impl MutatingWebhooks {
    /// Asks one webhook and applies its patch; whether that changed the object. That is noted however it goes.
    async fn mutate(
        &self,
        hook: &Hook,
        request: &Value,
        order: usize,
        (views, a): (&mut Views<'_>, &mut Attributes<'_>),
    ) -> Result<bool, Status> {
        let place = format!("round_{}_index_{order}", a.reinvocation.round());
        let by = format!("\"configuration\":{},\"webhook\":{}", json!(hook.configuration_name()), json!(hook.name()));
        let since = Instant::now();
        let outcome = self.0.call(hook, request, a).await.and_then(|answer| {
            note(a, hook, &answer)?;
            let changed = patched(hook, (views, a), answer.patch.as_ref()).map_err(WebhookFailure::Own)?;
            Ok((changed, answer.patch))
        });
        if let Ok((_, Some(patch))) = &outcome {
            let about = format!("{{{by},\"patch\":{patch},\"patchType\":\"JSONPatch\"}}");
            a.annotations.insert(format!("{PATCHES}{place}"), about);
        }
        let mutated = matches!(outcome, Ok((true, _)));
        a.annotations
            .insert(format!("mutation.webhook.admission.k8s.io/{place}"), format!("{{{by},\"mutated\":{mutated}}}"));
        if self.0.conclude(hook, a.operation, since.elapsed(), outcome)?.is_none() {
            self.0.note_open(a, hook, order);
        }
        Ok(mutated)
    }
}

/// Applies a webhook's patch to the object, in the version the webhook knows.
fn patched(
    hook: &Hook,
    (views, a): (&mut Views<'_>, &mut Attributes<'_>),
    patch: Option<&Value>,
) -> Result<bool, Status> {
    let Some(patch) = patch else { return Ok(false) };
    if a.object().is_none() {
        let name = hook.name();
        return Err(Status::internal(&format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    }
    let patch = Patch::decode(patch.clone()).map_err(|e| Status::internal(&e.to_string()))?;
    views.amend(a, |object| patch.apply(object).map_err(|e| Status::internal(&e.to_string())))
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let mut asked = Vec::new();
        let mut views = self.0.views();
        for (configuration, at) in self.0.all(a) {
            let Some(hook) = self.0.wanted((&configuration, at), a.object(), a).await? else { continue };
            views.show_version(&hook.shown, a).await.map_err(|why| unshown(&why))?;
            if let Some(request) = self.0.question(&hook, &views, a)? {
                asked.push((hook, request));
            }
        }
        let outcomes = {
            let shared: &Attributes<'_> = a;
            let ask = async |(hook, request): &(Hook, Value)| {
                let since = Instant::now();
                let answer = self.0.call(hook, request, shared).await;
                (answer, since.elapsed())
            };
            futures::future::join_all(asked.iter().map(ask)).await
        };
        let mut refused = None;
        for (order, ((hook, _), (answer, took))) in asked.iter().zip(outcomes).enumerate() {
            let outcome = answer.and_then(|answer| note(a, hook, &answer));
            match self.0.conclude(hook, a.operation, took, outcome) {
                Ok(Some(())) => {}
                Ok(None) => self.0.note_open(a, hook, order),
                Err(status) => refused = refused.or(Some(status)),
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
