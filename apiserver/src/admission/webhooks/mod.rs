//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: asking servers outside, over HTTPS, what they think of a
//! write. Configurations come from the watch cache at every request, so a change counts at once.

mod caller;
mod conditions;
mod credentials;
mod hook;
mod review;
mod target;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use proto::merge::json_patch::Patch;
use serde_json::{Value, json};
use shared::status::Status;

use super::asker::Asker;
use super::matching::{self, Scene};
use super::reinvocation::Who;
use super::{Attributes, Error, Plugin, measure};
use crate::access::tree;
use crate::api::Reader;
use crate::authz::Authorization;
use crate::registry::Rows;
pub use caller::Caller;
pub(super) use caller::{Call, Failed};
pub(crate) use caller::{count_outdated, dial_error, outdated, tls_error};
use credentials::Credentials;
pub(super) use credentials::{Identity, server as kubeconfig_server};
use hook::Hook;
use review::Answer;
pub(crate) use target::Target;

const GROUP: &str = "admissionregistration.k8s.io";

/// What sets the two plugins apart.
struct Phase {
    plural: &'static str,
    /// In metrics.
    kind: &'static str,
    /// In annotations.
    word: &'static str,
    /// They may answer with a patch.
    mutates: bool,
}

const MUTATING: Phase =
    Phase { plural: "mutatingwebhookconfigurations", kind: "admit", word: "mutating", mutates: true };
const VALIDATING: Phase =
    Phase { plural: "validatingwebhookconfigurations", kind: "validating", word: "validating", mutates: false };

/// What webhooks are asked with.
pub struct Means {
    /// Watch cache.
    pub reader: Arc<dyn Reader>,
    /// What is served.
    pub rows: Rows,
    /// Whom match conditions can ask.
    pub authorization: Arc<Authorization>,
    /// Connections.
    pub caller: Arc<Caller>,
}

/// The state both plugins share.
struct Webhooks {
    means: Means,
    credentials: Credentials,
    phase: Phase,
}

/// Webhooks that may change objects.
pub struct MutatingWebhooks(Webhooks);

/// Webhooks that may refuse objects.
pub struct ValidatingWebhooks(Webhooks);

impl MutatingWebhooks {
    /// Configurations from the cache, calls as the users of the plugin's `kubeConfigFile`.
    pub fn new(means: Means, configuration: &Value) -> Result<Self, Error> {
        Webhooks::new(means, configuration, MUTATING).map(Self)
    }
}

impl ValidatingWebhooks {
    /// Configurations from the cache, calls as the users of the plugin's `kubeConfigFile`.
    pub fn new(means: Means, configuration: &Value) -> Result<Self, Error> {
        Webhooks::new(means, configuration, VALIDATING).map(Self)
    }
}

/// Outcome of one webhook.
enum Outcome {
    /// It let the request through, or did not.
    Answered(Box<Answer>),
    /// It could not be asked, and that is to be overlooked.
    Overlooked,
}

impl Webhooks {
    fn new(means: Means, configuration: &Value, phase: Phase) -> Result<Self, Error> {
        let path = tree::text(configuration, "/kubeConfigFile");
        let credentials = Credentials::read(path).map_err(Error::Configuration)?;
        Ok(Self { means, credentials, phase })
    }

    /// All webhooks, in the order they are asked: their configurations and their places in them.
    fn all(&self, a: &Attributes<'_>) -> Vec<(Arc<Value>, usize)> {
        if exempt(a) {
            return Vec::new();
        }
        let mut configurations = self.means.reader.list(GROUP, self.phase.plural, None);
        configurations.sort_by(|x, y| tree::name(x).cmp(tree::name(y)));
        let places = |c: Arc<Value>| (0..tree::list(&c, "/webhooks").len()).map(move |at| (c.clone(), at));
        configurations.into_iter().flat_map(places).collect()
    }

    /// The webhook at a place, if it wants to see the request as it is now.
    fn wanted(&self, configuration: &Arc<Value>, at: usize, a: &Attributes<'_>) -> Result<Option<Hook>, Status> {
        let scene = Scene::of(a, self.means.reader.as_ref(), &self.means.rows);
        Hook::matching(configuration, at, &scene)
    }

    /// What a webhook is asked, if its conditions let it be asked at all.
    fn question(&self, hook: &Hook, a: &Attributes<'_>) -> Result<Option<Value>, Status> {
        let request = review::request(hook, a);
        let since = Instant::now();
        let held = conditions::hold(hook, &request, &Asker::of(&self.means.authorization, a));
        let of = [hook.name(), "webhook", self.phase.kind, a.operation.as_str()];
        measure::conditions(of, tree::list(hook.spec(), "/matchConditions"), since, &held);
        match held {
            Ok(true) => Ok(Some(request)),
            Ok(false) => Ok(None),
            Err(_) if hook.ignores_failures() => Ok(None),
            Err(why) => Err(a.forbidden(why)),
        }
    }

    /// Asks one webhook.
    async fn ask(&self, hook: &Hook, request: &Value, a: &Attributes<'_>) -> Result<Outcome, Status> {
        let name = hook.name();
        if a.dry_run && !hook.harmless() {
            return Err(Status::bad_request(&format!("admission webhook {name:?} does not support dry run")));
        }
        let since = Instant::now();
        let body = Bytes::from(review::envelope(hook, request).to_string());
        let client = hook.spec().get("clientConfig").unwrap_or(super::NOTHING);
        let answered = match self.means.caller.review(client, &self.credentials, hook.timeout(), body).await {
            Ok(bytes) => review::read(hook, request, self.phase.mutates, &bytes).map_err(Failed::from),
            Err(Failed { why, code }) => Err(Failed { why: format!("failed to call webhook: {why}"), code }),
        };
        match answered {
            Ok(answer) => {
                let code = answer.code();
                measure::webhook(name, self.phase.kind, a.operation, since, !answer.allowed, code);
                if !answer.allowed {
                    measure::rejection(name, self.phase.kind, a.operation, "no_error", code);
                }
                Ok(Outcome::Answered(Box::new(answer)))
            }
            Err(Failed { why, code }) => {
                let ignored = hook.ignores_failures();
                let code = code.unwrap_or(0);
                measure::webhook(name, self.phase.kind, a.operation, since, !ignored, code);
                if ignored {
                    measure::fail_open(name, self.phase.kind);
                    tracing::warn!(webhook = name, kind = self.phase.kind, why, "failed calling webhook, failing open");
                    return Ok(Outcome::Overlooked);
                }
                measure::rejection(name, self.phase.kind, a.operation, "calling_webhook_error", code);
                Err(Status::internal(&format!("failed calling webhook {name:?}: {why}")))
            }
        }
    }

    /// Says in the audit log that a webhook was passed over.
    fn note_open(&self, a: &mut Attributes<'_>, hook: &Hook, order: usize) {
        let round = a.reinvocation.round();
        let key = format!("failed-open.{}.webhook.admission.k8s.io/round_{round}_index_{order}", self.phase.word);
        a.annotations.insert(key, hook.name().to_owned());
    }
}

/// Webhooks may not lock anybody out of repairing webhooks.
fn exempt(a: &Attributes<'_>) -> bool {
    a.resource.group == GROUP
}

/// Passes on what a webhook says, whatever its verdict is. What was noted under a key stays.
fn note(a: &mut Attributes<'_>, hook: &Hook, answer: &Answer) -> Result<(), Status> {
    a.warnings.extend(answer.warnings.iter().cloned());
    for (key, value) in &answer.annotations {
        let key = format!("{}/{key}", hook.name());
        if proto::selector::format::qualified_name(&key).is_empty() {
            a.annotations.entry(key).or_insert_with(|| value.clone());
        }
    }
    if answer.allowed { Ok(()) } else { Err(answer.refusal(hook.name())) }
}

#[async_trait]
impl Plugin for MutatingWebhooks {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let all = self.0.all(a);
        if all.is_empty() {
            return Ok(());
        }
        let object = a.object.as_deref();
        a.reinvocation.begin(Who::Webhooks, object);
        for (order, (configuration, at)) in all.iter().enumerate() {
            // Each sees what those before it left, and is chosen by that.
            let Some(hook) = self.0.wanted(configuration, *at, a)? else { continue };
            let id = hook.id();
            if !a.reinvocation.asks(Who::Webhooks, &id) {
                continue;
            }
            let Some(request) = self.0.question(&hook, a)? else { continue };
            let changed = self.mutate(&hook, &request, order, a).await?;
            a.reinvocation.asked(Who::Webhooks, &id, changed, hook.wants_reinvocation());
        }
        let object = a.object.as_deref();
        a.reinvocation.end(Who::Webhooks, object);
        Ok(())
    }
}

impl MutatingWebhooks {
    /// Asks one webhook and applies its patch; whether that changed the object. That is noted however it goes.
    async fn mutate(&self, hook: &Hook, request: &Value, order: usize, a: &mut Attributes<'_>) -> Result<bool, Status> {
        let place = format!("webhook.admission.k8s.io/round_{}_index_{order}", a.reinvocation.round());
        let by = format!("\"configuration\":{},\"webhook\":{}", json!(hook.configuration_name()), json!(hook.name()));
        let outcome = match self.0.ask(hook, request, a).await {
            Ok(Outcome::Answered(answer)) => match note(a, hook, &answer) {
                Ok(()) => patched(hook, a, answer.patch.as_ref()).map(|changed| (changed, answer.patch)),
                Err(refused) => Err(refused),
            },
            Ok(Outcome::Overlooked) => {
                self.0.note_open(a, hook, order);
                Ok((false, None))
            }
            Err(failed) => Err(failed),
        };
        if let Ok((_, Some(patch))) = &outcome {
            let about = format!("{{{by},\"patch\":{patch},\"patchType\":\"JSONPatch\"}}");
            a.annotations.insert(format!("patch.{place}"), about);
        }
        let changed = outcome.map(|(changed, _)| changed);
        let mutated = matches!(changed, Ok(true));
        a.annotations.insert(format!("mutation.{place}"), format!("{{{by},\"mutated\":{mutated}}}"));
        changed
    }
}

/// Applies a webhook's patch to the object, in the version the webhook knows.
fn patched(hook: &Hook, a: &mut Attributes<'_>, patch: Option<&Value>) -> Result<bool, Status> {
    let Some(patch) = patch else { return Ok(false) };
    if a.object().is_none() {
        let name = hook.name();
        return Err(Status::internal(&format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    }
    let patch = Patch::decode(patch.clone()).map_err(|e| Status::internal(&e.to_string()))?;
    matching::amend(&hook.shown, a, |object| patch.apply(object).map_err(|e| Status::internal(&e.to_string())))
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let mut asked = Vec::new();
        for (configuration, at) in self.0.all(a) {
            let Some(hook) = self.0.wanted(&configuration, at, a)? else { continue };
            if let Some(request) = self.0.question(&hook, a)? {
                asked.push((hook, request));
            }
        }
        let outcomes = {
            let shared: &Attributes<'_> = a;
            futures::future::join_all(asked.iter().map(|(hook, request)| self.0.ask(hook, request, shared))).await
        };
        let mut refused = None;
        for (order, ((hook, _), outcome)) in asked.iter().zip(outcomes).enumerate() {
            match outcome {
                Ok(Outcome::Answered(answer)) => refused = refused.or(note(a, hook, &answer).err()),
                Ok(Outcome::Overlooked) => self.0.note_open(a, hook, order),
                Err(status) => refused = refused.or(Some(status)),
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
