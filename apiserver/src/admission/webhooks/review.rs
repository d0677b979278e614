//! AdmissionReview: the question sent to a webhook and what to make of its answer.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::{Value, json};
use shared::status::Status;

use super::super::{Attributes, matching};
use super::hook::Hook;
use crate::access::tree;

/// What a webhook said.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) allowed: bool,
    status: Option<Value>,
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// The `request` of the review.
pub(super) fn request(hook: &Hook, a: &Attributes<'_>) -> Value {
    let mut request = matching::request(&hook.shown, a);
    request["uid"] = json!(uuid::Uuid::new_v4().to_string());
    request
}

/// The body sent.
pub(super) fn envelope(hook: &Hook, request: &Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{}", hook.review_version()), "request": request})
}

/// Reads the body that came back.
pub(super) fn read(hook: &Hook, request: &Value, body: &[u8]) -> Result<Answer, String> {
    let review: Value = serde_json::from_slice(body).map_err(|e| format!("received invalid webhook response: {e}"))?;
    let version = format!("admission.k8s.io/{}", hook.review_version());
    let Some(response) = review.get("response").filter(|r| r.is_object()) else {
        return Err("webhook response was absent".to_owned());
    };
    if hook.review_version() == "v1" {
        let (got_version, got_kind) = (tree::text(&review, "/apiVersion"), tree::text(&review, "/kind"));
        if (got_version, got_kind) != (version.as_str(), "AdmissionReview") {
            return Err(format!(
                "received invalid webhook response: expected webhook response of {version}, Kind=AdmissionReview, got {got_version}, Kind={got_kind}"
            ));
        }
        let (wanted, got) = (tree::text(request, "/uid"), tree::text(response, "/uid"));
        if wanted != got {
            return Err(format!("received invalid webhook response: expected response.uid={wanted:?}, got {got:?}"));
        }
    }
    let patch = match tree::text(response, "/patch") {
        "" => None,
        encoded => {
            let kind = tree::text(response, "/patchType");
            if kind != "JSONPatch" && hook.review_version() == "v1" {
                return Err(format!(
                    "received invalid webhook response: unexpected response.patchType={kind:?}, expected \"JSONPatch\""
                ));
            }
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).map_err(|e| e.to_string())?;
            Some(serde_json::from_slice(&bytes).map_err(|e| e.to_string())?)
        }
    };
    let annotations = tree::map(response, "/auditAnnotations").into_iter().flatten();
    Ok(Answer {
        allowed: tree::flag(response, "/allowed"),
        status: response.get("status").filter(|s| s.is_object()).cloned(),
        patch,
        warnings: tree::strings(response, "/warnings"),
        annotations: annotations.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect(),
    })
}

impl Answer {
    /// The code of a refusal, 200 for a yes.
    pub(super) fn code(&self) -> u16 {
        let own = self.status.as_ref().and_then(|s| tree::int(s, "/code")).and_then(|c| u16::try_from(c).ok());
        match (self.allowed, own) {
            (true, code) => code.filter(|c| *c > 0).unwrap_or(200),
            (false, code) => code.unwrap_or(0).max(400),
        }
    }

    /// The refusal a client sees.
    pub(super) fn refusal(&self, webhook: &str) -> Status {
        let given = self.status.clone().unwrap_or_default();
        let mut status: Status = serde_json::from_value(given).unwrap_or_else(|_| Status::failure(400, "", ""));
        status.code = status.code.max(400);
        status.status = "Failure".to_owned();
        let denied = format!("admission webhook {webhook:?} denied the request");
        status.message = match (status.message.as_str(), status.reason.as_str()) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        status
    }
}
