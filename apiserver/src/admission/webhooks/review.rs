//! AdmissionReview: the question sent to a webhook and what to make of its answer. Answers for upstream's
//! `pkg/admission/plugin/webhook/request` (`CreateAdmissionObjects`, `VerifyAdmissionResponse`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use shared::status::Status;

use super::super::Attributes;
use super::super::views::Views;
use super::hook::Hook;
use crate::machinery::tree;

/// Parsed response of a webhook.
#[derive(Debug, Clone, Default)]
pub(super) struct ReviewResponse {
    pub(super) allowed: bool,
    status: Option<Value>,
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// The `request` of the review.
pub(super) fn request(views: &Views<'_>, a: &Attributes<'_>) -> Value {
    let mut request = views.request(a);
    request["uid"] = json!(uuid::Uuid::new_v4().to_string());
    request
}

/// The body sent.
pub(super) fn envelope(hook: &Hook, request: &Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{}", hook.review_version()), "request": request})
}

/// Reads the body that came back.
pub(super) fn read(hook: &Hook, request: &Value, mutates: bool, body: &[u8]) -> Result<ReviewResponse, String> {
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let review: Value = serde_json::from_slice(body).map_err(|e| invalid(e.to_string()))?;
    let Some(response) = review.get("response").filter(|r| r.is_object()) else {
        return Err(invalid("webhook response was absent".to_owned()));
    };
    let newest = hook.review_version() == "v1";
    if newest {
        check(&review, response, tree::text(request, "/uid"), mutates).map_err(invalid)?;
    }
    let allowed = tree::flag(response, "/allowed");
    let patch = Some(tree::text(response, "/patch")).filter(|p| !p.is_empty() && mutates && allowed);
    let kind = if newest { tree::text(response, "/patchType") } else { "JSONPatch" };
    let patch = patch.map(|encoded| decoded(encoded, kind)).transpose()?.flatten();
    let annotations = tree::map(response, "/auditAnnotations").into_iter().flatten();
    Ok(ReviewResponse {
        allowed,
        status: response.get("status").filter(|s| s.is_object()).cloned(),
        patch,
        warnings: tree::strings(response, "/warnings"),
        annotations: annotations.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect(),
    })
}

/// Validates a `v1` response.
fn check(review: &Value, response: &Value, wanted: &str, mutates: bool) -> Result<(), String> {
    let uid = tree::text(response, "/uid");
    if wanted != uid {
        return Err(format!("expected response.uid={wanted:?}, got {uid:?}"));
    }
    let (version, kind) = (tree::text(review, "/apiVersion"), tree::text(review, "/kind"));
    if (version, kind) != ("admission.k8s.io/v1", "AdmissionReview") {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group}/{version}, Kind={kind}"
        ));
    }
    let patches = !tree::text(response, "/patch").is_empty();
    let kind = response.get("patchType").filter(|kind| !kind.is_null());
    let why = match (mutates, patches, kind) {
        (true, true, None) => "webhook returned response.patch but not response.patchType",
        (true, false, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, true, Some(kind)) if kind == "" => "webhook returned invalid response.patchType of \"\"",
        (false, true, _) => "validating webhook may not return response.patch",
        (false, false, Some(_)) => "validating webhook may not return response.patchType",
        _ => return Ok(()),
    };
    Err(why.to_owned())
}

/// The operations of a patch; nothing where there are none.
fn decoded(encoded: &str, kind: &str) -> Result<Option<Value>, String> {
    let undecodable = |why: String| format!("received undecodable patch in webhook response: {why}");
    let bytes = STANDARD.decode(encoded).map_err(|e| undecodable(e.to_string()))?;
    let operations: Vec<Map<String, Value>> = serde_json::from_slice(&bytes).map_err(|e| undecodable(e.to_string()))?;
    match (operations.is_empty(), kind) {
        (true, _) => Ok(None),
        (_, "JSONPatch") => Ok(Some(json!(operations))),
        _ => Err(format!("unsupported patch type {kind:?}")),
    }
}

impl ReviewResponse {
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
