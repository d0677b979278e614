//! Between the versions of a custom resource: nothing but `apiVersion` changes, or a webhook does it. Answers for
//! upstream's `apiextensions-apiserver/pkg/apiserver/conversion` (`webhookConverter`, `nopConverter`).

use std::time::{Duration, Instant};

use async_trait::async_trait;
use proto::Value;
use proto::merge::go_type;
use proto::resources::Resource;
use serde_json::json;
use shared::status::Status;
use shared::status::field::{self, aggregate};

use super::conversion::{Conversion, Webhook};
use super::version::version_of;
use super::{meters, objects};
use crate::machinery::tree;

/// Time a webhook has to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Error of a call of a webhook, whose kinds only its caller tells apart.
pub type ConversionCallError = Box<dyn std::error::Error + Send + Sync>;

/// Calls conversion webhooks; implemented by `admission`, whose webhooks are reached in the same way.
#[async_trait]
pub trait WebhookClient: Send + Sync {
    /// Posts a review to whom a `clientConfig` names; the body of the answer.
    async fn post_json(&self, client: &Value, timeout: Duration, body: &Value) -> Result<Vec<u8>, ConversionCallError>;
}

/// Brings objects of a custom resource into a row's version, as they are stored and read: what its schema does not know
/// goes. Those that are in it already are left alone.
pub async fn to(caller: &dyn WebhookClient, row: &Resource, objects: Vec<Value>) -> Result<Vec<Value>, Status> {
    let Some(served) = version_of(row) else { return Ok(objects) };
    let other = foreign(&row.api_version(), &objects);
    let mut objects = between(caller, row, objects).await?;
    for i in other {
        objects::present(row, served, &mut objects[i]);
    }
    Ok(objects)
}

/// The places of the objects that are of another version.
fn foreign(wanted: &str, objects: &[Value]) -> Vec<usize> {
    (0..objects.len()).filter(|i| objects[*i]["apiVersion"] != wanted).collect()
}

/// Brings objects of a custom resource into a row's version, and does no more to them.
pub async fn between(
    caller: &dyn WebhookClient,
    row: &Resource,
    mut objects: Vec<Value>,
) -> Result<Vec<Value>, Status> {
    let Some(served) = version_of(row) else { return Ok(objects) };
    let wanted = row.api_version();
    let other = foreign(&wanted, &objects);
    if other.is_empty() {
        return Ok(objects);
    }
    if let Conversion::Webhook(webhook) = &*served.conversion {
        let sent: Vec<Value> = other.iter().map(|i| std::mem::take(&mut objects[*i])).collect();
        let since = Instant::now();
        let converted = webhook.convert(caller, &wanted, &sent).await;
        meters::called(converted.as_ref().err().map_or("", ConversionError::kind), since);
        meters::converted(row, &sent[0], since, converted.is_ok());
        let converted = converted.map_err(|failed| Status::unknown(&failed.to_string()))?;
        for (i, new) in other.iter().zip(converted) {
            objects[*i] = new;
        }
    }
    for i in other {
        if let Some(map) = objects[i].as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::from(wanted.as_str()));
        }
    }
    Ok(objects)
}

/// Error of a conversion by a webhook, which converts from `from`.
#[derive(Debug, thiserror::Error)]
enum ConversionError {
    /// The webhook knows no version of reviews that this server does.
    #[error("no supported conversion review versions")]
    NoVersion,
    /// The webhook cannot be called.
    #[error("conversion webhook for {from} failed: {source}")]
    Call { from: String, source: ConversionCallError },
    /// The answer is no JSON.
    #[error("conversion webhook for {from} failed: {source}")]
    Json { from: String, source: serde_json::Error },
    /// The answer is no review that succeeded.
    #[error("conversion webhook for {from} failed: {source}")]
    Malformed { from: String, source: MalformedReview },
    /// The answer has more or fewer objects.
    #[error("conversion webhook for {from} returned {got} objects, expected {expected}")]
    Partial { from: String, got: usize, expected: usize },
    /// An object of the answer is not what was asked for.
    #[error("conversion webhook for {from} returned {source}")]
    Invalid { from: String, source: InvalidObject },
}

impl ConversionError {
    /// Upstream's word for the kind of the error in metrics.
    fn kind(&self) -> &'static str {
        match self {
            Self::NoVersion | Self::Call { .. } | Self::Json { .. } => "conversion_webhook_call_failure",
            Self::Malformed { .. } => "conversion_webhook_malformed_response_failure",
            Self::Partial { .. } => "conversion_webhook_partial_response_failure",
            Self::Invalid { .. } => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// Faults of a conversion review's response.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum MalformedReview {
    /// Another kind.
    #[error(
        "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {api_version}, Kind={kind}"
    )]
    Kind { api_version: String, kind: String },
    /// No response.
    #[error("no response provided")]
    NoResponse,
    /// A response to another request.
    #[error("expected response.uid={wanted:?}, got {got:?}")]
    Uid { wanted: String, got: String },
    /// The webhook did not succeed and does not say why; this is the status.
    #[error("response.result.status was '{0}', not 'Success'")]
    Status(String),
    /// The webhook did not succeed; this is its message.
    #[error("{0}")]
    Message(String),
}

/// Faults of a converted object.
#[derive(Debug, thiserror::Error)]
enum InvalidObject {
    /// Another version or kind.
    #[error("invalid object at index 0: invalid {what} (expected {expected}, received {received})")]
    Type { what: &'static str, expected: String, received: String },
    /// Another name, namespace or UID.
    #[error("invalid object: must have the same {what}: {before} != {after}")]
    Identity { what: &'static str, before: String, after: String },
    /// Labels or annotations that are no map.
    #[error("invalid metadata: invalid metadata.{field} of type {found} in converted object")]
    NoMap { field: &'static str, found: &'static str },
    /// A label or annotation is no text.
    #[error("invalid metadata: metadata.{field}[{key}] must be a string, but is {found} in converted object")]
    NotText { field: &'static str, key: String, found: &'static str },
    /// Labels or annotations that are not valid.
    #[error("invalid metadata: {}", aggregate(.0))]
    Metadata(Vec<field::Error>),
}

impl Webhook {
    async fn convert(
        &self,
        caller: &dyn WebhookClient,
        wanted: &str,
        objects: &[Value],
    ) -> Result<Vec<Value>, ConversionError> {
        let from = || objects.first().map(shown_kind).unwrap_or_default();
        let version = self.versions.iter().find(|v| matches!(v.as_str(), "v1" | "v1beta1"));
        let version = version.ok_or(ConversionError::NoVersion)?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({"kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects}});
        let answer = caller.post_json(&self.client, TIMEOUT, &review).await;
        let answer = answer.map_err(|source| ConversionError::Call { from: from(), source })?;
        let mut answer: Value =
            serde_json::from_slice(&answer).map_err(|source| ConversionError::Json { from: from(), source })?;
        check_answer(&answer, version, &uid).map_err(|source| ConversionError::Malformed { from: from(), source })?;
        let converted = tree::list_mut(&mut answer, &["response", "convertedObjects"]).map(std::mem::take);
        let converted = converted.unwrap_or_default();
        if converted.len() != objects.len() {
            return Err(ConversionError::Partial { from: from(), got: converted.len(), expected: objects.len() });
        }
        let pairs = converted.into_iter().zip(objects).map(|(new, old)| accept(new, old, wanted));
        pairs.map(|pair| pair.map_err(|source| ConversionError::Invalid { from: from(), source })).collect()
    }
}

/// Validates a conversion review's response: its type, its uid and its result.
fn check_answer(answer: &Value, version: &str, uid: &str) -> Result<(), MalformedReview> {
    let (api_version, kind) = (tree::text(answer, "/apiVersion"), tree::text(answer, "/kind"));
    if version == "v1" && (api_version, kind) != ("apiextensions.k8s.io/v1", "ConversionReview") {
        return Err(MalformedReview::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() });
    }
    let response = &answer["response"];
    if response.is_null() {
        return Err(MalformedReview::NoResponse);
    }
    let got = tree::text(response, "/uid");
    if version == "v1" && got != uid {
        return Err(MalformedReview::Uid { wanted: uid.to_owned(), got: got.to_owned() });
    }
    match (tree::text(response, "/result/status"), tree::text(response, "/result/message")) {
        ("Success", _) => Ok(()),
        (status, "") => Err(MalformedReview::Status(status.to_owned())),
        (_, message) => Err(MalformedReview::Message(message.to_owned())),
    }
}

/// `ex.com/v1, Kind=Foo`.
fn shown_kind(object: &Value) -> String {
    format!("{}, Kind={}", tree::text(object, "/apiVersion"), tree::text(object, "/kind"))
}

/// A converted object, where it is what was asked for. Of the metadata webhooks may change labels and annotations.
fn accept(mut new: Value, old: &Value, wanted: &str) -> Result<Value, InvalidObject> {
    let text = |object: &Value, path: &str| tree::text(object, path).to_owned();
    let version = text(&new, "/apiVersion");
    if version != wanted {
        let expected = wanted.to_owned();
        return Err(InvalidObject::Type { what: "groupVersion", expected, received: version });
    }
    let (kind, own) = (text(&new, "/kind"), text(old, "/kind"));
    if kind != own {
        return Err(InvalidObject::Type { what: "kind", expected: own, received: kind });
    }
    for (field, what) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let path = format!("/metadata/{field}");
        let (before, after) = (text(old, &path), text(&new, &path));
        if before != after {
            return Err(InvalidObject::Identity { what, before, after });
        }
    }
    let mut metadata = old["metadata"].clone();
    for field in ["labels", "annotations"] {
        check_texts(field, &new["metadata"], &metadata)?;
        let Some(map) = metadata.as_object_mut() else { continue };
        match new["metadata"][field].take() {
            Value::Null => map.remove(field),
            changed => map.insert(field.to_owned(), changed),
        };
    }
    new["metadata"] = metadata;
    Ok(new)
}

/// Labels or annotations as a webhook left them; those it did not touch are not judged.
fn check_texts(field: &'static str, new: &Value, old: &Value) -> Result<(), InvalidObject> {
    let map = match &new[field] {
        Value::Null => return Ok(()),
        Value::Object(map) => map,
        other => return Err(InvalidObject::NoMap { field, found: go_type(other) }),
    };
    if let Some((key, value)) = map.iter().find(|(_, value)| !value.is_string()) {
        return Err(InvalidObject::NotText { field, key: key.clone(), found: go_type(value) });
    }
    if new[field] == old[field] {
        return Ok(());
    }
    let found = crate::rules::converted_texts(field, new);
    if found.is_empty() { Ok(()) } else { Err(InvalidObject::Metadata(found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_may_change_labels_and_annotations_only() {
        let old = json!({"apiVersion": "ex.com/v1", "kind": "Foo", "spec": {"a": 1},
            "metadata": {"name": "n", "namespace": "s", "uid": "u", "generation": 3, "labels": {"a": "b"}, "annotations": {"c": "d"}}});
        let accepted = |change: Value| {
            let mut new = old.clone();
            new["apiVersion"] = json!("ex.com/v2");
            proto::merge::merge_patch::apply(&mut new, change);
            accept(new, &old, "ex.com/v2").map_err(|e| e.to_string())
        };
        let good = accepted(json!({"spec": {"b": 2}, "metadata": {"generation": 42, "garbage": 1, "finalizers": ["x"],
            "labels": {"new": "one"}, "annotations": null}}))
        .expect("good");
        assert_eq!(
            good["metadata"],
            json!({"name": "n", "namespace": "s", "uid": "u", "generation": 3, "labels": {"a": "b", "new": "one"}})
        );
        assert_eq!(good["spec"], json!({"a": 1, "b": 2}));
        for (change, why) in [
            (json!({"metadata": {"uid": "v"}}), "invalid object: must have the same UID: u != v"),
            (json!({"metadata": {"name": null}}), "invalid object: must have the same name: n != "),
            (
                json!({"apiVersion": "ex.com/v1"}),
                "invalid object at index 0: invalid groupVersion (expected ex.com/v2, received ex.com/v1)",
            ),
            (json!({"kind": "Bar"}), "invalid object at index 0: invalid kind (expected Foo, received Bar)"),
            (
                json!({"metadata": {"labels": [1]}}),
                "invalid metadata: invalid metadata.labels of type []interface {} in converted object",
            ),
            (
                json!({"metadata": {"annotations": {"c": 1.5}}}),
                "invalid metadata: metadata.annotations[c] must be a string, but is float64 in converted object",
            ),
        ] {
            assert_eq!(accepted(change).err().as_deref(), Some(why));
        }
        let bad = accepted(json!({"metadata": {"annotations": {"a/b/c": ""}}})).expect_err("bad key");
        assert!(bad.starts_with("invalid metadata: metadata.annotation: Invalid value: \"a/b/c\""), "{bad}");
    }

    #[test]
    fn invalid_conversion_reviews_are_refused() {
        let answer = |version: &str, response: Value| {
            let version = format!("apiextensions.k8s.io/{version}");
            json!({"apiVersion": version, "kind": "ConversionReview", "response": response})
        };
        for (answer, why) in [
            (
                json!({"response": {"uid": "u"}}),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got , Kind=",
            ),
            (answer("v1", Value::Null), "no response provided"),
            (answer("v1", json!({"uid": "x"})), r#"expected response.uid="u", got "x""#),
            (answer("v1", json!({"uid": "u"})), "response.result.status was '', not 'Success'"),
            (answer("v1", json!({"uid": "u", "result": {"status": "Failure", "message": "no"}})), "no"),
        ] {
            assert_eq!(check_answer(&answer, "v1", "u").err().map(|e| e.to_string()).as_deref(), Some(why));
        }
        assert_eq!(check_answer(&answer("v1beta1", json!({"result": {"status": "Success"}})), "v1beta1", "u"), Ok(()));
    }
}
