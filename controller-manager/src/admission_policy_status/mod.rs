//! Says in the status of admission policies which expressions cannot work. Answers for
//! `validatingadmissionpolicy-status`.
//!
//! Types come from the OpenAPI documents of the server, as they do upstream: those of built-in kinds and of custom
//! resources alike.

pub mod plan;
pub mod types;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::{ParamKind, ValidatingAdmissionPolicy};
use serde_json::{Value, json};
use shared::cel::Type;
use shared::client::path;
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::KnownKind;
use self::types::Document;
use crate::engine::action::Action;
use crate::engine::context::Context;
use crate::engine::discovery::{Served, discover};
use crate::engine::executor::Executor;
use crate::engine::object::Key;
use crate::engine::registry::Started;
use crate::engine::rest::{Rest, RestError};
use crate::engine::worker::{self, Synced};

const OWNER: &str = "validatingadmissionpolicy-status";

struct Policies {
    /// Reads what the server says of its kinds.
    reads: Rest,
    executor: Executor,
    policies: Store<ValidatingAdmissionPolicy>,
}

/// Wire the status of admission policies.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let Some(policies) = cx.served::<ValidatingAdmissionPolicy>().await? else { return Ok(Started::Skipped) };
        let queue: Queue<Key> = Queue::new(OWNER);
        let this = Arc::new(Policies {
            reads: cx.own_rest(),
            executor: cx.executor("validatingadmissionpolicy-status-controller", OWNER),
            policies: policies.store(),
        });
        let wake = queue.clone();
        policies.add_handler(move |event: &Event<ValidatingAdmissionPolicy>| {
            let policy = event.object();
            if !matches!(event, Event::Deleted(_)) && outdated(policy) {
                wake.add(Key::of(&policy.metadata));
            }
        });
        let workers = cx.settings().workers.admission_policy_status;
        worker::run(cx, OWNER, workers, &queue, &this, |s, key| async move { s.sync(&key).await });
        Ok(Started::Yes)
    })
}

fn outdated(policy: &ValidatingAdmissionPolicy) -> bool {
    let seen = policy.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0);
    policy.metadata.generation.unwrap_or(0) > seen
}

impl Policies {
    async fn sync(&self, key: &Key) -> Synced {
        let Some(policy) = self.policies.get("", &key.name).filter(|p| outdated(p)) else { return Ok(None) };
        let spec = policy.spec.clone().unwrap_or_default();
        let catalogue = discover(&self.reads).await?;
        let mut kinds = Vec::new();
        for served in plan::matched(&spec, &catalogue.all) {
            let Served { group, version, kind, .. } = served;
            if let Some(object) = self.of_kind(group, version, kind).await? {
                kinds.push(KnownKind { name: named(group, version, kind), object });
            }
        }
        let params = match &spec.param_kind {
            Some(kind) => self.params(kind).await?,
            None => None,
        };
        let warnings = plan::warnings(&spec, &kinds, params.as_ref());
        let checking = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
        let status = json!({"observedGeneration": policy.metadata.generation, "typeChecking": checking});
        let action = Action::apply_status::<ValidatingAdmissionPolicy>(&policy.metadata, OWNER, status);
        match self.executor.one(action).await {
            Err(e) if e.not_found() => Ok(None),
            other => other.map(|()| None),
        }
    }

    /// The type of the parameters, if it is known.
    async fn params(&self, kind: &ParamKind) -> Result<Option<Type>, RestError> {
        let api_version = kind.api_version.as_deref().unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.of_kind(group, version, kind.kind.as_deref().unwrap_or_default()).await
    }

    async fn of_kind(&self, group: &str, version: &str, kind: &str) -> Result<Option<Type>, RestError> {
        let document = self.read(&format!("/openapi/v3{}", place(group, version))).await?;
        Ok(document.and_then(|document| Document::new(document).kind(group, version, kind)))
    }

    async fn read(&self, path: &str) -> Result<Option<Value>, RestError> {
        match self.reads.get(path).await {
            Err(e) if e.missing() => Ok(None),
            other => other.map(Some),
        }
    }
}

/// Path at which a group and version is served.
fn place(group: &str, version: &str) -> String {
    path::group_version(&proto::schema::group_version(group, version))
}

/// `apps/v1, Kind=Deployment`
fn named(group: &str, version: &str, kind: &str) -> String {
    if group.is_empty() { format!("/{version}, Kind={kind}") } else { format!("{group}/{version}, Kind={kind}") }
}
