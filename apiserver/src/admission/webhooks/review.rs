//! AdmissionReview: the question sent to a webhook and what to make of its answer.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::{Value, json};
use shared::status::Status;

use super::super::Attributes;
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

fn gvk(api_version: &str, kind: &str) -> Value {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    json!({"group": group, "version": version, "kind": kind})
}

/// The `request` of the review.
pub(super) fn request(hook: &Hook, a: &Attributes<'_>) -> Value {
    let shown = |object: Option<&Value>| {
        let mut object = object.cloned().unwrap_or_default();
        hook.to_shown(&mut object);
        object
    };
    let (object, old) = (shown(a.object()), shown(a.old_object));
    let s = &hook.shown;
    let own = [&object, &old].into_iter().find(|o| !tree::text(o, "/kind").is_empty());
    let kind = match own {
        // A subresource may have a kind of its own.
        Some(o) => gvk(tree::text(o, "/apiVersion"), tree::text(o, "/kind")),
        None => json!({"group": s.group, "version": s.version, "kind": s.kind}),
    };
    let resource = json!({"group": s.group, "version": s.version, "resource": s.plural});
    let mut request_kind = kind.clone();
    if tree::text(&kind, "/kind") == s.kind {
        request_kind = json!({"group": a.resource.group, "version": a.resource.version, "kind": a.resource.kind});
    }
    let name = match (a.name, a.object()) {
        ("", Some(object)) => tree::name(object),
        (name, _) => name,
    };
    let mut request = json!({
        "uid": uuid::Uuid::new_v4().to_string(),
        "kind": kind,
        "resource": resource,
        "requestKind": request_kind,
        "requestResource": {"group": a.resource.group, "version": a.resource.version, "resource": a.resource.plural},
        "operation": a.operation.as_str(),
        "userInfo": a.user,
        "object": object,
        "oldObject": old,
        "dryRun": a.dry_run,
        "options": a.options,
    });
    for (field, value) in [
        ("subResource", a.subresource),
        ("requestSubResource", a.subresource),
        ("name", name),
        ("namespace", a.namespace),
    ] {
        if !value.is_empty() {
            request[field] = json!(value);
        }
    }
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
