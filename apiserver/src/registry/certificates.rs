//! Certificate signing requests record who asked; approval is a subresource of its own. Answers for upstream's
//! `pkg/registry/certificates` (`csrStrategy`).

pub(crate) mod certificate_signing_request;
pub(crate) mod cluster_trust_bundle;
pub(crate) mod pod_certificate_request;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use serde_json::{Map, json};
use shared::metrics;

use super::strategy::{Count, StrategyCx, restore};
use crate::machinery::meta::now;

/// Requester fields come from the authenticated user, never from the body.
pub(super) fn prepare_create(object: &mut Value, cx: &mut StrategyCx<'_>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("username".to_owned(), Value::from(cx.user.name.clone()));
        for key in ["uid", "groups", "extra"] {
            spec.remove(key);
        }
        if !cx.user.uid.is_empty() {
            spec.insert("uid".to_owned(), Value::from(cx.user.uid.clone()));
        }
        if !cx.user.groups.is_empty() {
            spec.insert("groups".to_owned(), Value::from(cx.user.groups.clone()));
        }
        let extra: Map<String, Value> =
            cx.user.extra.iter().map(|(k, v)| (k.clone(), Value::from(v.clone()))).collect();
        if !extra.is_empty() {
            spec.insert("extra".to_owned(), Value::Object(extra));
        }
    }
}

/// The request itself never changes.
pub(super) fn prepare_update(new: &mut Value, old: &Value) {
    restore(new, old, "spec");
}

/// A write of `status`: a decision stays as it was made. To add one or to take one back is refused by validation.
pub(super) fn prepare_status(new: &mut Value, old: &Value) {
    keep(new, old, &["Approved", "Denied"]);
    date(new, old);
}

/// A write of `approval`: only conditions change.
pub fn approval(new: &mut Value, old: &Value) {
    let asked = std::mem::take(&mut new["status"]);
    restore(new, old, "spec");
    new["status"] = old.get("status").cloned().unwrap_or_else(|| json!({}));
    restore(&mut new["status"], &asked, "conditions");
    date(new, old);
}

/// Count for an update that issues a certificate with a requested duration.
pub(super) fn issued(new: &Value, old: &Value) -> Option<Count> {
    let certificate = |object: &Value| object.pointer("/status/certificate").and_then(Value::as_str).map(str::to_owned);
    let wanted = old.pointer("/spec/expirationSeconds").and_then(Value::as_i64)?;
    if certificate(old).is_some_and(|c| !c.is_empty()) {
        return None;
    }
    let issued = certificate(new).filter(|c| !c.is_empty())?;
    let signer = old.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default();
    let signer = if signer.starts_with("kubernetes.io/") { signer } else { "other" }.to_owned();
    let honored = lifetime(&issued).is_some_and(|found| is_honored(wanted, found));
    Some(Box::new(move || {
        let counter = |name: &str, help: &str| {
            metrics::counter(&format!("apiserver_certificates_registry_csr_{name}"), help, &["signerName"])
        };
        let help = "[ALPHA] Number of issued CSRs with a requested duration, by signer.";
        counter("requested_duration_total", help).with_label_values(&[&signer]).inc();
        let help = "[ALPHA] Number of issued CSRs whose requested duration was honored, by signer.";
        let counter = counter("honored_duration_total", help);
        if honored {
            counter.with_label_values(&[&signer]).inc();
        }
    }))
}

/// Seconds from the first to the last moment of a certificate.
fn lifetime(encoded: &str) -> Option<i64> {
    let pem = STANDARD.decode(encoded).ok()?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let validity = block.parse_x509().ok()?.validity().clone();
    Some(validity.not_after.timestamp() - validity.not_before.timestamp())
}

/// Signers may begin a little before now, and err by a twentieth.
fn is_honored(wanted: i64, found: i64) -> bool {
    (wanted - found).abs() < 300 + wanted / 20
}

/// A write of a pod certificate request's `status`: the outcome stays as it was.
pub(super) fn prepare_pod_status(new: &mut Value, old: &Value) {
    keep(new, old, &["Issued", "Denied", "Failed"]);
    date_transitions(new, old);
}

fn conditions(object: &Value) -> &[Value] {
    object.pointer("/status/conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn conditions_mut(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Puts back the stored conditions of some types, where there are as many of a type as before.
fn keep(new: &mut Value, old: &Value, types: &[&str]) {
    for kind in types {
        let stored: Vec<&Value> = conditions(old).iter().filter(|c| c["type"] == *kind).collect();
        if conditions(new).iter().filter(|c| c["type"] == *kind).count() == stored.len() {
            let found = conditions_mut(new).filter(|c| c["type"] == *kind);
            found.zip(stored).for_each(|(condition, stored)| *condition = stored.clone());
        }
    }
}

/// Fills in the times that a client left out.
fn date(new: &mut Value, old: &Value) {
    for condition in conditions_mut(new).filter(|c| c["lastUpdateTime"].is_null()) {
        condition["lastUpdateTime"] = json!(now());
    }
    date_transitions(new, old);
}

/// A condition changed when it first had its status, if nobody says when.
fn date_transitions(new: &mut Value, old: &Value) {
    for condition in conditions_mut(new).filter(|c| c["lastTransitionTime"].is_null()) {
        let same = |c: &&Value| c["type"] == condition["type"] && c["status"] == condition["status"];
        let since = conditions(old).iter().find(same).map(|c| &c["lastTransitionTime"]).filter(|time| !time.is_null());
        condition["lastTransitionTime"] = since.cloned().unwrap_or_else(|| json!(now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issued_certificates_are_counted_once() {
        let pem = shared::cert::self_signed("a", &[], &[]).expect("a pair").certificate;
        let issued_one = json!({"certificate": STANDARD.encode(&pem)});
        let seconds = lifetime(issued_one["certificate"].as_str().expect("text")).expect("a certificate");
        let request = |status: &Value, wanted: Value| json!({"spec": {"signerName": "kubernetes.io/kubelet-serving", "expirationSeconds": wanted}, "status": status});
        let none = json!({});
        for (before, after, wanted, counted) in [
            (&none, &issued_one, json!(seconds), true),
            (&none, &issued_one, Value::Null, false),
            (&none, &none, json!(seconds), false),
            (&issued_one, &issued_one, json!(seconds), false),
        ] {
            let (new, old) = (request(after, wanted.clone()), request(before, wanted));
            assert_eq!(issued(&new, &old).is_some(), counted, "{new}");
        }
        for (wanted, found, honored) in
            [(3600, 3600, true), (3600, 3900, true), (3600, 4080, false), (3600, 600, false)]
        {
            assert_eq!(is_honored(wanted, found), honored, "{wanted} {found}");
        }
    }
}
