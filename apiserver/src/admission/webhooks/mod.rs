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
use super::matching::Scene;
use super::{Attributes, Error, Plugin, measure};
use crate::access::tree;
use crate::api::Reader;
use crate::authz::Authorization;
use crate::crd;
use crate::registry::Rows;
pub use caller::Caller;
pub(super) use caller::{Call, Failed};
pub(crate) use caller::{dial_error, tls_error};
use credentials::Credentials;
pub(super) use credentials::{Identity, server as kubeconfig_server};
use hook::Hook;
use review::Answer;
pub(crate) use target::Target;

const GROUP: &str = "admissionregistration.k8s.io";

/// The state both plugins share.
struct Webhooks {
    reader: Arc<dyn Reader>,
    rows: Rows,
    /// Whom match conditions can ask.
    authorization: Arc<Authorization>,
    caller: Arc<Caller>,
    credentials: Credentials,
    plural: &'static str,
    /// `admit` or `validating`: in metrics.
    kind: &'static str,
    /// `mutating` or `validating`: in annotations.
    word: &'static str,
}

/// Webhooks that may change objects.
pub struct MutatingWebhooks(Webhooks);

/// Webhooks that may refuse objects.
pub struct ValidatingWebhooks(Webhooks);

fn credentials(configuration: &Value) -> Result<Credentials, Error> {
    Credentials::read(tree::text(configuration, "/kubeConfigFile")).map_err(Error::Configuration)
}

impl MutatingWebhooks {
    /// Configurations from the cache, calls through `caller` as the users of the plugin's `kubeConfigFile`.
    pub fn new(
        reader: Arc<dyn Reader>,
        rows: Rows,
        authorization: Arc<Authorization>,
        caller: Arc<Caller>,
        configuration: &Value,
    ) -> Result<Self, Error> {
        let credentials = credentials(configuration)?;
        let plural = "mutatingwebhookconfigurations";
        Ok(Self(Webhooks { reader, rows, authorization, caller, credentials, plural, kind: "admit", word: "mutating" }))
    }
}

impl ValidatingWebhooks {
    /// Configurations from the cache, calls through `caller` as the users of the plugin's `kubeConfigFile`.
    pub fn new(
        reader: Arc<dyn Reader>,
        rows: Rows,
        authorization: Arc<Authorization>,
        caller: Arc<Caller>,
        configuration: &Value,
    ) -> Result<Self, Error> {
        let credentials = credentials(configuration)?;
        let plural = "validatingwebhookconfigurations";
        Ok(Self(Webhooks {
            reader,
            rows,
            authorization,
            caller,
            credentials,
            plural,
            kind: "validating",
            word: "validating",
        }))
    }
}

/// Outcome of one webhook.
enum Outcome {
    /// It has nothing to do with the request.
    Unasked,
    /// It let the request through.
    Fine(Box<Answer>),
    /// It could not be asked, and that is to be overlooked.
    Overlooked,
}

impl Webhooks {
    /// The webhooks that want to see the request, in the order they are asked.
    fn wanted(&self, a: &Attributes<'_>) -> Result<Vec<Hook>, Status> {
        if exempt(a) {
            return Ok(Vec::new());
        }
        let mut configurations = self.reader.list(GROUP, self.plural, None);
        if configurations.is_empty() {
            return Ok(Vec::new());
        }
        configurations.sort_by(|x, y| tree::name(x).cmp(tree::name(y)));
        let scene = Scene::of(a, self.reader.as_ref(), &self.rows);
        let mut wanted = Vec::new();
        for configuration in configurations {
            for (at, _) in tree::list(&configuration, "/webhooks").iter().enumerate() {
                if let Some(hook) = Hook::matching(&configuration, at, &scene)? {
                    wanted.push(hook);
                }
            }
        }
        Ok(wanted)
    }

    /// Asks one webhook about the request as it is now.
    async fn ask(&self, hook: &Hook, a: &Attributes<'_>) -> Result<Outcome, Status> {
        let request = review::request(hook, a);
        let name = hook.name();
        match conditions::hold(hook, &request, &Asker::of(&self.authorization, a)) {
            Ok(true) => {}
            Ok(false) => return Ok(Outcome::Unasked),
            Err(_) if hook.ignores_failures() => return Ok(Outcome::Unasked),
            Err(why) => return Err(a.forbidden(why)),
        }
        if a.dry_run && !hook.harmless() {
            return Err(Status::bad_request(&format!("admission webhook {name:?} does not support dry run")));
        }
        let since = Instant::now();
        let body = Bytes::from(review::envelope(hook, &request).to_string());
        let client = hook.spec().get("clientConfig").unwrap_or(super::NOTHING);
        let answered = match self.caller.review(client, &self.credentials, hook.timeout(), body).await {
            Ok(bytes) => review::read(hook, &request, &bytes).map_err(Failed::from),
            Err(Failed { why, code }) => Err(Failed { why: format!("failed to call webhook: {why}"), code }),
        };
        match answered {
            Ok(answer) => {
                let code = answer.code();
                measure::webhook(name, self.kind, a.operation, since, !answer.allowed, code);
                if answer.allowed {
                    return Ok(Outcome::Fine(Box::new(answer)));
                }
                measure::rejection(name, self.kind, a.operation, "no_error", code);
                Err(answer.refusal(name))
            }
            Err(Failed { why, code }) => {
                let ignored = hook.ignores_failures();
                let code = code.unwrap_or(0);
                measure::webhook(name, self.kind, a.operation, since, !ignored, code);
                if ignored {
                    measure::fail_open(name, self.kind);
                    tracing::warn!(webhook = name, kind = self.kind, why, "failed calling webhook, failing open");
                    return Ok(Outcome::Overlooked);
                }
                measure::rejection(name, self.kind, a.operation, "calling_webhook_error", code);
                Err(Status::internal(&format!("failed calling webhook {name:?}: {why}")))
            }
        }
    }

    /// Says in the audit log that a webhook was passed over.
    fn note_open(&self, a: &mut Attributes<'_>, hook: &Hook, order: usize) {
        let round = a.reinvocation.round();
        let key = format!("failed-open.{}.webhook.admission.k8s.io/round_{round}_index_{order}", self.word);
        a.annotations.insert(key, hook.name().to_owned());
    }
}

/// Webhooks may not lock anybody out of repairing webhooks.
fn exempt(a: &Attributes<'_>) -> bool {
    a.resource.group == GROUP
}

fn note(a: &mut Attributes<'_>, hook: &Hook, answer: &Answer) {
    a.warnings.extend(answer.warnings.iter().cloned());
    for (key, value) in &answer.annotations {
        a.annotations.insert(format!("{}/{key}", hook.name()), value.clone());
    }
}

#[async_trait]
impl Plugin for MutatingWebhooks {
    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let hooks = self.0.wanted(a)?;
        let object = a.object.as_deref();
        a.reinvocation.begin(object);
        for (order, hook) in hooks.iter().enumerate() {
            let id = hook.id();
            if !a.reinvocation.asks(&id) {
                continue;
            }
            let changed = self.mutate(hook, order, a).await?;
            a.reinvocation.asked(&id, changed, hook.wants_reinvocation());
        }
        let object = a.object.as_deref();
        a.reinvocation.end(object);
        Ok(())
    }
}

impl MutatingWebhooks {
    /// Asks one webhook and applies its patch; whether that changed the object.
    async fn mutate(&self, hook: &Hook, order: usize, a: &mut Attributes<'_>) -> Result<bool, Status> {
        let place = format!("webhook.admission.k8s.io/round_{}_index_{order}", a.reinvocation.round());
        let by = format!("\"configuration\":{},\"webhook\":{}", json!(hook.configuration_name()), json!(hook.name()));
        let mut changed = false;
        match self.0.ask(hook, a).await? {
            Outcome::Unasked => return Ok(false),
            Outcome::Overlooked => self.0.note_open(a, hook, order),
            Outcome::Fine(answer) => {
                note(a, hook, &answer);
                if let Some(patch) = answer.patch.filter(|p| p.as_array().is_none_or(|p| !p.is_empty())) {
                    changed = patched(hook, a, patch.clone())?;
                    let about = format!("{{{by},\"patch\":{patch},\"patchType\":\"JSONPatch\"}}");
                    a.annotations.insert(format!("patch.{place}"), about);
                }
            }
        }
        a.annotations.insert(format!("mutation.{place}"), format!("{{{by},\"mutated\":{changed}}}"));
        Ok(changed)
    }
}

/// Applies a webhook's patch to the object, in the version the webhook knows.
fn patched(hook: &Hook, a: &mut Attributes<'_>, patch: Value) -> Result<bool, Status> {
    let name = hook.name();
    let fail = |why: String| Status::internal(&format!("failed calling webhook {name:?}: {why}"));
    let patch = Patch::decode(patch).map_err(|e| fail(e.to_string()))?;
    if patch.operations.is_empty() {
        return Ok(false);
    }
    let Some(before) = a.object().cloned() else {
        return Err(Status::internal(&format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    };
    let mut object = before.clone();
    hook.shown.present(&mut object);
    patch.apply(&mut object).map_err(|e| Status::internal(&e.to_string()))?;
    // What a webhook adds is as incomplete as what clients send, and may be as wrong.
    match crd::served(a.resource) {
        Some(served) => {
            hook.shown.restore(&mut object);
            crd::objects::settle(served, &mut object);
        }
        None => {
            let own = proto::schema::kind_of(tree::text(&object, "/apiVersion"), tree::text(&object, "/kind"));
            if let Some(schema) = own.or_else(|| a.resource.schema()) {
                proto::defaulting::apply(schema, &mut object);
            }
            hook.shown.restore(&mut object);
        }
    }
    let changed = object != before;
    if let Some(slot) = a.object.as_deref_mut() {
        *slot = object;
    }
    Ok(changed)
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let hooks = self.0.wanted(a)?;
        let outcomes = {
            let shared: &Attributes<'_> = a;
            futures::future::join_all(hooks.iter().map(|hook| self.0.ask(hook, shared))).await
        };
        let mut refused = None;
        for (order, (hook, outcome)) in hooks.iter().zip(outcomes).enumerate() {
            match outcome {
                Ok(Outcome::Fine(answer)) => note(a, hook, &answer),
                Ok(Outcome::Overlooked) => self.0.note_open(a, hook, order),
                Ok(Outcome::Unasked) => {}
                Err(status) => refused = refused.or(Some(status)),
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
