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

/// An answer that is no valid review.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    /// Another form than that of a review.
    #[error("received invalid webhook response: {0}")]
    Invalid(#[from] InvalidReview),
    /// A patch that is no base64.
    #[error("received undecodable patch in webhook response: {0}")]
    PatchEncoding(#[from] base64::DecodeError),
    /// A patch that is no list of operations.
    #[error("received undecodable patch in webhook response: {0}")]
    PatchSyntax(#[source] serde_json::Error),
    /// A patch of this type.
    #[error("unsupported patch type {0:?}")]
    PatchType(String),
}

/// Faults of an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidReview {
    /// No JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// No response.
    #[error("webhook response was absent")]
    Absent,
    /// A response to another request.
    #[error("expected response.uid={wanted:?}, got {got:?}")]
    Uid {
        /// UID of the request.
        wanted: String,
        /// UID of the response.
        got: String,
    },
    /// Another kind.
    #[error(
        "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group}/{version}, Kind={kind}"
    )]
    Kind {
        /// Group.
        group: String,
        /// Version.
        version: String,
        /// Kind.
        kind: String,
    },
    /// A patch without its type.
    #[error("webhook returned response.patch but not response.patchType")]
    NoPatchType,
    /// The type of a patch without a patch.
    #[error("webhook returned response.patchType but not response.patch")]
    NoPatch,
    /// A patch whose type is empty.
    #[error("webhook returned invalid response.patchType of \"\"")]
    EmptyPatchType,
    /// A patch of a webhook that may change nothing.
    #[error("validating webhook may not return response.patch")]
    ForbiddenPatch,
    /// The type of a patch, of a webhook that may change nothing.
    #[error("validating webhook may not return response.patchType")]
    ForbiddenPatchType,
}

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
pub(super) fn read(hook: &Hook, request: &Value, mutates: bool, body: &[u8]) -> Result<ReviewResponse, ReviewError> {
    let review: Value = serde_json::from_slice(body).map_err(InvalidReview::Json)?;
    let response = review.get("response").filter(|r| r.is_object()).ok_or(InvalidReview::Absent)?;
    let newest = hook.review_version() == "v1";
    if newest {
        check(&review, response, tree::text(request, "/uid"), mutates)?;
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
fn check(review: &Value, response: &Value, wanted: &str, mutates: bool) -> Result<(), InvalidReview> {
    let uid = tree::text(response, "/uid");
    if wanted != uid {
        return Err(InvalidReview::Uid { wanted: wanted.to_owned(), got: uid.to_owned() });
    }
    let (version, kind) = (tree::text(review, "/apiVersion"), tree::text(review, "/kind"));
    if (version, kind) != ("admission.k8s.io/v1", "AdmissionReview") {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let [group, version, kind] = [group, version, kind].map(str::to_owned);
        return Err(InvalidReview::Kind { group, version, kind });
    }
    let patches = !tree::text(response, "/patch").is_empty();
    let kind = response.get("patchType").filter(|kind| !kind.is_null());
    Err(match (mutates, patches, kind) {
        (true, true, None) => InvalidReview::NoPatchType,
        (true, false, Some(_)) => InvalidReview::NoPatch,
        (true, true, Some(kind)) if kind == "" => InvalidReview::EmptyPatchType,
        (false, true, _) => InvalidReview::ForbiddenPatch,
        (false, false, Some(_)) => InvalidReview::ForbiddenPatchType,
        _ => return Ok(()),
    })
}

/// The operations of a patch; nothing where there are none.
fn decoded(encoded: &str, kind: &str) -> Result<Option<Value>, ReviewError> {
    let bytes = STANDARD.decode(encoded)?;
    let operations: Vec<Map<String, Value>> = serde_json::from_slice(&bytes).map_err(ReviewError::PatchSyntax)?;
    match (operations.is_empty(), kind) {
        (true, _) => Ok(None),
        (_, "JSONPatch") => Ok(Some(json!(operations))),
        _ => Err(ReviewError::PatchType(kind.to_owned())),
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
