//! ImagePolicyWebhook: a server outside decides which images pods may run. Answers for upstream's
//! `plugin/pkg/admission/imagepolicy`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::status::Status;

use super::webhooks::{Call, Caller, WebhookAddress, WebhookCallError, kubeconfig_server};
use super::{Attributes, Error, NOTHING, Operation, Plugin};
use crate::backoff::Backoff;
use crate::machinery::tree;

/// Annotations that are shown to the server match `*.image-policy.k8s.io/*`.
const SHOWN: &str = ".image-policy.k8s.io/";
const FAILED_OPEN: &str = "alpha.image-policy.k8s.io/failed-open";
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";
/// Timeout of a review, attempts, and answers kept.
const PATIENCE: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;
const REMEMBERED: usize = 1024;

/// The plugin.
pub(super) struct ImagePolicyWebhook {
    caller: Arc<Caller>,
    target: WebhookAddress,
    bundle: Vec<u8>,
    identity: super::webhooks::HostIdentity,
    allow_for: Duration,
    deny_for: Duration,
    pause: Duration,
    fails_open: bool,
    known: Mutex<HashMap<String, (Instant, Value)>>,
}

/// Error of asking the server about images.
#[derive(Debug, thiserror::Error)]
enum ImageReviewError {
    /// The server does not answer.
    #[error(transparent)]
    Call(#[from] WebhookCallError),
    /// The answer is no JSON.
    #[error(transparent)]
    Answer(#[from] serde_json::Error),
}

/// A setting in seconds or milliseconds: its default when absent, zero when negative.
fn bounded(policy: &Value, field: &str, least: i64, most: i64, default: i64) -> Result<u64, Error> {
    let value = tree::int(policy, &format!("/{field}")).unwrap_or(0);
    match value {
        0 => Ok(default.unsigned_abs()),
        n if n < 0 => Ok(0),
        n if (least..=most).contains(&n) => Ok(n.unsigned_abs()),
        n => Err(Error::Configuration(format!("valid value is between {least} and {most} for {field}, got {n}"))),
    }
}

impl ImagePolicyWebhook {
    /// From its configuration, which it cannot be without.
    pub(super) fn new(configuration: &Value, caller: Arc<Caller>) -> Result<Self, Error> {
        let policy = configuration.get("imagePolicy").unwrap_or(NOTHING);
        let file = tree::text(policy, "/kubeConfigFile");
        if file.is_empty() {
            let why = "couldn't init admission plugin \"ImagePolicyWebhook\": no config specified";
            return Err(Error::Configuration(why.to_owned()));
        }
        let (url, bundle, identity) = kubeconfig_server(file)?;
        let target = WebhookAddress::at(&url)?;
        Ok(Self {
            caller,
            target,
            bundle: bundle.unwrap_or_default(),
            identity,
            allow_for: Duration::from_secs(bounded(policy, "allowTTL", 1, 1800, 300)?),
            deny_for: Duration::from_secs(bounded(policy, "denyTTL", 1, 1800, 30)?),
            pause: Duration::from_millis(bounded(policy, "retryBackoff", 1, 300_000, 500)?),
            fails_open: tree::flag(policy, "/defaultAllow"),
            known: Mutex::default(),
        })
    }

    async fn review(&self, spec: &Value) -> Result<Value, ImageReviewError> {
        let key = spec.to_string();
        if let Some((until, status)) = self.known.lock().get(&key)
            && *until > Instant::now()
        {
            return Ok(status.clone());
        }
        let review = json!({"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "spec": spec});
        let answer = self.post(Bytes::from(review.to_string())).await?;
        let review: Value = serde_json::from_slice(&answer)?;
        let status = review.get("status").cloned().unwrap_or_default();
        let keep = if tree::flag(&status, "/allowed") { self.allow_for } else { self.deny_for };
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            let now = Instant::now();
            known.retain(|_, (until, _)| *until > now);
            if known.len() >= REMEMBERED {
                known.clear();
            }
        }
        known.insert(key, (Instant::now() + keep, status.clone()));
        Ok(status)
    }

    /// Asks until there is an answer or a refusal to give one.
    async fn post(&self, body: Bytes) -> Result<Vec<u8>, WebhookCallError> {
        let (mut backoff, mut attempt) = (Backoff::of_webhook(self.pause), 1);
        loop {
            let call = Call {
                target: &self.target,
                bundle: &self.bundle,
                identity: self.identity.clone(),
                path: self.target.path.clone(),
                body: body.clone(),
                timeout: PATIENCE,
            };
            match self.caller.post(call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) if attempt >= ATTEMPTS || failed.code().is_some_and(|c| c < 500 && c != 429) => {
                    return Err(failed);
                }
                Err(_) => backoff.wait().await,
            }
            attempt += 1;
        }
    }
}

/// Spec of the image review for a pod.
fn spec(pod: &Value, namespace: &str) -> Value {
    let lists = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];
    let containers: Vec<Value> =
        lists.iter().flat_map(|l| tree::list(pod, l)).map(|c| json!({"image": tree::text(c, "/image")})).collect();
    let mut spec = json!({"containers": containers, "namespace": namespace});
    let annotations = tree::map(pod, "/metadata/annotations").into_iter().flatten();
    let shown: serde_json::Map<String, Value> =
        annotations.filter(|(k, _)| k.contains(SHOWN)).map(|(k, v)| (k.clone(), v.clone())).collect();
    if !shown.is_empty() {
        spec["annotations"] = Value::Object(shown);
    }
    spec
}

fn images(pod: &Value) -> Vec<&str> {
    let lists = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];
    lists.iter().flat_map(|l| tree::list(pod, l)).map(|c| tree::text(c, "/image")).collect()
}

#[async_trait]
impl Plugin for ImagePolicyWebhook {
    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let Some(pod) = a.object() else { return Ok(()) };
        // An update that changes no image has nothing to ask about.
        if a.operation == Operation::Update && a.old_object.is_some_and(|old| images(old) == images(pod)) {
            return Ok(());
        }
        let asked = self.review(&spec(pod, a.namespace)).await;
        let status = match asked {
            Ok(status) => status,
            Err(why) if self.fails_open => {
                tracing::warn!(why = why.to_string(), "Failed calling image policy webhook, failing open");
                a.annotations.insert(FAILED_OPEN.to_owned(), "true".to_owned());
                return Ok(());
            }
            Err(why) => return Err(a.forbidden(why.to_string())),
        };
        for (key, value) in tree::map(&status, "/auditAnnotations").into_iter().flatten() {
            if let Some(value) = value.as_str() {
                a.annotations.insert(format!("{AUDIT}{key}"), value.to_owned());
            }
        }
        if tree::flag(&status, "/allowed") {
            return Ok(());
        }
        Err(a.forbidden(match tree::text(&status, "/reason") {
            "" => "one or more images rejected by webhook backend".to_owned(),
            reason => format!("image policy webhook backend denied one or more images: {reason}"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn review_contains_images_and_annotations() {
        let pod = json!({"metadata": {"annotations": {"x.image-policy.k8s.io/y": "1", "other": "2"}},
            "spec": {"initContainers": [{"image": "a"}], "containers": [{"image": "b"}]}});
        assert_eq!(
            spec(&pod, "e"),
            json!({"containers": [{"image": "a"}, {"image": "b"}], "namespace": "e", "annotations": {"x.image-policy.k8s.io/y": "1"}})
        );
    }

    #[test]
    fn settings_have_bounds() {
        for (policy, want) in [
            (json!({}), Some(300)),
            (json!({"allowTTL": 50}), Some(50)),
            (json!({"allowTTL": -1}), Some(0)),
            (json!({"allowTTL": 5000}), None),
        ] {
            assert_eq!(bounded(&policy, "allowTTL", 1, 1800, 300).ok(), want, "{policy}");
        }
    }
}
