//! Between the versions of a custom resource: nothing but `apiVersion` changes, or a webhook does it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::Value;
use proto::resources::Row;
use serde_json::json;
use shared::status::Status;

use super::definition::served;
use super::{meters, objects};
use crate::access::tree;
use crate::admission::Caller;

/// Time a webhook has to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How objects change versions.
#[derive(Debug)]
pub enum Conversion {
    /// Only the name of the version changes.
    None,
    /// Somebody outside does it.
    Webhook(Box<Webhook>),
}

/// A conversion webhook.
#[derive(Debug)]
pub struct Webhook {
    client: Value,
    /// Review versions it understands, best first.
    versions: Vec<String>,
}

impl Conversion {
    /// The conversion of a definition.
    pub fn of(definition: &Value) -> Self {
        if tree::text(definition, "/spec/conversion/strategy") != "Webhook" {
            return Self::None;
        }
        let webhook = &definition["spec"]["conversion"]["webhook"];
        Self::Webhook(Box::new(Webhook {
            client: webhook["clientConfig"].clone(),
            versions: tree::strings(webhook, "/conversionReviewVersions"),
        }))
    }
}

/// Brings objects of a custom resource into a row's version. Those that are in it already are left alone.
pub async fn to(caller: Option<&Arc<Caller>>, row: &Row, mut objects: Vec<Value>) -> Result<Vec<Value>, Status> {
    let Some(served) = served(row) else { return Ok(objects) };
    let wanted = row.api_version();
    let other: Vec<usize> = (0..objects.len()).filter(|i| objects[*i]["apiVersion"] != wanted).collect();
    if other.is_empty() {
        return Ok(objects);
    }
    if let Conversion::Webhook(webhook) = &*served.conversion {
        let sent: Vec<Value> = other.iter().map(|i| std::mem::take(&mut objects[*i])).collect();
        let kind = sent.first().map(shown_kind).unwrap_or_default();
        let caller = caller.ok_or_else(|| Status::unknown("conversion webhooks are not available"))?;
        let since = Instant::now();
        let converted = webhook.convert(caller, &wanted, &sent).await;
        meters::called(converted.as_ref().err().map_or("", |failed| failed.kind), since);
        meters::converted(row, &sent[0], since, converted.is_ok());
        let converted = converted
            .map_err(|failed| Status::unknown(&format!("conversion webhook for {kind} failed: {}", failed.why)))?;
        for ((i, new), old) in other.iter().zip(converted).zip(&sent) {
            objects[*i] = keep_metadata(new, old)
                .map_err(|why| Status::unknown(&format!("conversion webhook for {kind} failed: {why}")))?;
        }
    }
    for i in other {
        objects::normalize(row, served, &mut objects[i]);
    }
    Ok(objects)
}

/// `ex.com/v1, Kind=Foo`.
fn shown_kind(object: &Value) -> String {
    format!("{}, Kind={}", tree::text(object, "/apiVersion"), tree::text(object, "/kind"))
}

/// Webhooks may change labels and annotations, nothing else of the metadata.
fn keep_metadata(mut new: Value, old: &Value) -> Result<Value, String> {
    for field in ["name", "namespace", "uid"] {
        let of = |o: &Value| o["metadata"][field].clone();
        if of(&new) != of(old) {
            return Err(format!(
                "invalid metadata of converted object: metadata.{field}: Invalid value: {}: field is immutable",
                of(&new)
            ));
        }
    }
    let mut metadata = old["metadata"].clone();
    for field in ["labels", "annotations"] {
        match new["metadata"].get(field) {
            Some(v) if !v.is_null() => metadata[field] = v.clone(),
            _ => {
                if let Some(map) = metadata.as_object_mut() {
                    map.remove(field);
                }
            }
        }
    }
    new["metadata"] = metadata;
    Ok(new)
}

/// Why a webhook brought nothing.
struct Failed {
    /// Upstream's word for it.
    kind: &'static str,
    why: String,
}

const CALL: &str = "conversion_webhook_call_failure";
const MALFORMED: &str = "conversion_webhook_malformed_response_failure";
const PARTIAL: &str = "conversion_webhook_partial_response_failure";
const INVALID: &str = "conversion_webhook_invalid_converted_object_failure";

impl Webhook {
    async fn convert(&self, caller: &Caller, wanted: &str, objects: &[Value]) -> Result<Vec<Value>, Failed> {
        let failed = |kind: &'static str| move |why: String| Failed { kind, why };
        let version = self
            .versions
            .iter()
            .find(|v| matches!(v.as_str(), "v1" | "v1beta1"))
            .ok_or_else(|| failed(CALL)("no supported conversion review versions".to_owned()))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({"kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects}});
        let answer = caller.ask(&self.client, TIMEOUT, &review).await.map_err(failed(CALL))?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|e| failed(CALL)(e.to_string()))?;
        let response = &answer["response"];
        if response.is_null() {
            return Err(failed(MALFORMED)("no response provided".to_owned()));
        }
        if version == "v1" && response["uid"] != uid.as_str() {
            return Err(failed(MALFORMED)(format!("expected response.uid {uid:?}, got {}", response["uid"])));
        }
        if tree::text(response, "/result/status") != "Success" {
            let message = tree::text(response, "/result/message");
            return Err(failed(MALFORMED)(if message.is_empty() {
                "response.result.status was '', expected 'Success'"
                    .replace("''", &format!("'{}'", tree::text(response, "/result/status")))
            } else {
                message.to_owned()
            }));
        }
        let converted = tree::list(response, "/convertedObjects");
        if converted.len() != objects.len() {
            let why = format!("expected {} converted objects, got {}", objects.len(), converted.len());
            return Err(failed(PARTIAL)(why));
        }
        for (i, object) in converted.iter().enumerate() {
            if object["apiVersion"] != wanted {
                return Err(failed(INVALID)(format!(
                    "invalid converted object at index {i}: invalid groupVersion (expected {wanted}, received {})",
                    tree::text(object, "/apiVersion")
                )));
            }
            if object["kind"] != objects[i]["kind"] {
                return Err(failed(INVALID)(format!(
                    "invalid converted object at index {i}: invalid kind (expected {}, received {})",
                    tree::text(&objects[i], "/kind"),
                    tree::text(object, "/kind")
                )));
            }
        }
        Ok(converted.to_vec())
    }
}
