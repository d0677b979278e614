//! Says in the status of admission policies which expressions cannot work. Answers for
//! `validatingadmissionpolicy-status`.
//!
//! Types of built-in kinds come from the schema tables, those of custom resources from their definitions.

pub mod check;
pub mod plan;
pub mod types;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::{ParamKind, ValidatingAdmissionPolicy};
use serde_json::{Value, json};
use shared::informer::{Event, Store};
use shared::workqueue::Queue;

use self::plan::{KINDS_MAX, Kind, Matched};
use self::types::Type;
use crate::engine::action::object_path;
use crate::engine::context::Context;
use crate::engine::object::Key;
use crate::engine::registry::Started;
use crate::engine::rest::{Rest, RestError};
use crate::engine::worker::{self, Synced};

const OWNER: &str = "validatingadmissionpolicy-status";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

struct Policies {
    /// Reads definitions of custom resources.
    reads: Rest,
    rest: Rest,
    policies: Store<ValidatingAdmissionPolicy>,
}

/// Wire the status of admission policies.
pub fn start(cx: &Context) -> BoxFuture<'_, Result<Started, RestError>> {
    Box::pin(async move {
        let Some(policies) = cx.served::<ValidatingAdmissionPolicy>().await? else { return Ok(Started::Skipped) };
        let queue: Queue<Key> = Queue::new(OWNER);
        let this = Arc::new(Policies {
            reads: cx.own_rest(),
            rest: cx.rest("validatingadmissionpolicy-status-controller"),
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
        let mut kinds = Vec::new();
        for resource in plan::matched(&spec) {
            if kinds.len() < KINDS_MAX
                && let Some(kind) = self.kind(&resource).await?
            {
                kinds.push(kind);
            }
        }
        let params = match &spec.param_kind {
            Some(kind) => self.params(kind).await?,
            None => None,
        };
        let warnings = plan::warnings(&spec, &kinds, params.as_ref());
        let checking = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
        let apply = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": key.name},
            "status": {"observedGeneration": policy.metadata.generation, "typeChecking": checking}});
        let path = object_path::<ValidatingAdmissionPolicy>(&policy.metadata);
        let path = format!("{path}/status?fieldManager={OWNER}&force=true");
        match self.rest.send("PATCH", &path, "application/apply-patch+yaml", Some(&apply)).await {
            Err(e) if e.not_found() => Ok(None),
            other => other.map(|_| None),
        }
    }

    /// The kind of a resource, if it is known.
    async fn kind(&self, resource: &Matched) -> Result<Option<Kind>, RestError> {
        let Matched { group, version, resource: plural } = resource;
        if let Some(row) = proto::resources::find(group, version, plural) {
            let found = proto::schema::kind(&row.group, &row.version, &row.kind);
            return Ok(found.map(|m| Kind { name: named(group, version, &row.kind), object: Type::of_message(m) }));
        }
        let path = format!("{DEFINITIONS}?fieldSelector=metadata.name%3D{plural}.{group}");
        let list = match self.reads.get(&path).await {
            Err(e) if e.missing() => return Ok(None),
            other => other?,
        };
        Ok(of_definition(&list["items"][0], version)
            .map(|(kind, object)| Kind { name: named(group, version, &kind), object }))
    }

    /// The type of the parameters, if it is known.
    async fn params(&self, kind: &ParamKind) -> Result<Option<Type>, RestError> {
        let api_version = kind.api_version.as_deref().unwrap_or_default();
        let name = kind.kind.as_deref().unwrap_or_default();
        if let Some(message) = proto::schema::kind_of(api_version, name) {
            return Ok(Some(Type::of_message(message)));
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let list = match self.reads.get(DEFINITIONS).await {
            Err(e) if e.missing() => return Ok(None),
            other => other?,
        };
        let mut all = list["items"].as_array().into_iter().flatten();
        let found = all.find(|d| d["spec"]["group"] == group && d["spec"]["names"]["kind"] == name);
        Ok(found.and_then(|d| of_definition(d, version)).map(|(_, of)| of))
    }
}

/// `apps/v1, Kind=Deployment`
fn named(group: &str, version: &str, kind: &str) -> String {
    if group.is_empty() { format!("/{version}, Kind={kind}") } else { format!("{group}/{version}, Kind={kind}") }
}

/// Kind and type of a version that a definition defines.
fn of_definition(definition: &Value, version: &str) -> Option<(String, Type)> {
    let spec = &definition["spec"];
    let kind = spec["names"]["kind"].as_str()?;
    let version = spec["versions"].as_array()?.iter().find(|v| v["name"] == version)?;
    let schema = &version["schema"]["openAPIV3Schema"];
    schema.is_object().then(|| (kind.to_owned(), Type::of_schema(kind, schema)))
}
