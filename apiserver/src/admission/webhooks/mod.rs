//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: asking servers outside, over HTTPS, what they think of a
//! write. Configurations come from the watch cache at every request, so a change counts at once.

mod caller;
mod conditions;
mod hook;
mod review;

use std::sync::Arc;

use async_trait::async_trait;
use proto::merge::json_patch::Patch;
use serde_json::Value;
use shared::status::Status;

use super::matching::Scene;
use super::{Attributes, Operation, Plugin};
use crate::access::tree;
use crate::api::Reader;
use crate::authz::Authorization;
pub use caller::Caller;
use hook::Hook;
use review::Answer;

const GROUP: &str = "admissionregistration.k8s.io";

/// The state both plugins share.
struct Webhooks {
    reader: Arc<dyn Reader>,
    caller: Arc<Caller>,
    plural: &'static str,
    kind: &'static str,
}

/// Webhooks that may change objects.
pub struct MutatingWebhooks(Webhooks);

/// Webhooks that may refuse objects.
pub struct ValidatingWebhooks(Webhooks);

impl MutatingWebhooks {
    /// Configurations from the cache, calls through `caller`.
    pub fn new(reader: Arc<dyn Reader>, caller: Arc<Caller>, _: Arc<Authorization>) -> Self {
        Self(Webhooks { reader, caller, plural: "mutatingwebhookconfigurations", kind: "admit" })
    }
}

impl ValidatingWebhooks {
    /// Configurations from the cache, calls through `caller`.
    pub fn new(reader: Arc<dyn Reader>, caller: Arc<Caller>, _: Arc<Authorization>) -> Self {
        Self(Webhooks { reader, caller, plural: "validatingwebhookconfigurations", kind: "validating" })
    }
}

/// Outcome of one webhook.
enum Outcome {
    /// It was not asked, or let the request through.
    Fine(Answer),
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
        configurations.sort_by(|x, y| tree::name(x).cmp(tree::name(y)));
        let scene = Scene::of(a, self.reader.as_ref());
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
        match conditions::hold(hook, &request) {
            Ok(true) => {}
            Ok(false) => return Ok(Outcome::Fine(Answer::default())),
            Err(_) if hook.ignores_failures() => return Ok(Outcome::Overlooked),
            Err(why) => return Err(a.forbidden(why)),
        }
        if a.dry_run && !hook.harmless() {
            return Err(Status::bad_request(&format!("admission webhook {:?} does not support dry run", hook.name())));
        }
        let body = review::envelope(hook, &request);
        let answered = match self.caller.call(hook, &body).await {
            Ok(bytes) => review::read(hook, &request, &bytes),
            Err(why) => Err(format!("failed to call webhook: {why}")),
        };
        match answered {
            Ok(answer) if answer.allowed => Ok(Outcome::Fine(answer)),
            Ok(answer) => Err(answer.refusal(hook.name())),
            Err(why) if hook.ignores_failures() => {
                tracing::warn!(webhook = hook.name(), kind = self.kind, why, "failed calling webhook, failing open");
                Ok(Outcome::Overlooked)
            }
            Err(why) => Err(Status::internal(&format!("failed calling webhook {:?}: {why}", hook.name()))),
        }
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
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn mutates(&self) -> bool {
        true
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let hooks = self.0.wanted(a)?;
        // What each webhook has seen last: one that asked for it is asked again when others changed the object since.
        let mut seen: Vec<Option<Value>> = Vec::new();
        for hook in &hooks {
            self.mutate(hook, a).await?;
            seen.push(a.object().cloned().filter(|_| hook.wants_reinvocation()));
        }
        for (hook, seen) in hooks.iter().zip(seen) {
            if seen.is_some_and(|seen| Some(&seen) != a.object()) {
                self.mutate(hook, a).await?;
            }
        }
        Ok(())
    }
}

impl MutatingWebhooks {
    async fn mutate(&self, hook: &Hook, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Outcome::Fine(answer) = self.0.ask(hook, a).await? else { return Ok(()) };
        note(a, hook, &answer);
        let Some(patch) = answer.patch.clone() else { return Ok(()) };
        let name = hook.name().to_owned();
        let fail = |why: String| Status::internal(&format!("failed calling webhook {name:?}: {why}"));
        let patch = Patch::decode(patch).map_err(|e| fail(e.to_string()))?;
        if patch.operations.is_empty() {
            return Ok(());
        }
        let Some(mut object) = a.object().cloned() else {
            return Err(Status::internal(&format!(
                "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
            )));
        };
        hook.shown.present(&mut object);
        patch.apply(&mut object).map_err(|e| Status::internal(&e.to_string()))?;
        hook.shown.restore(&mut object);
        if let Some(slot) = a.object.as_deref_mut() {
            *slot = object;
        }
        Ok(())
    }
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn validates(&self) -> bool {
        true
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let hooks = self.0.wanted(a)?;
        let outcomes = {
            let shared: &Attributes<'_> = a;
            futures::future::join_all(hooks.iter().map(|hook| self.0.ask(hook, shared))).await
        };
        for (hook, outcome) in hooks.iter().zip(outcomes) {
            if let Outcome::Fine(answer) = outcome? {
                note(a, hook, &answer);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
