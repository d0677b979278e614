//! Certificate signing requests. Answers for upstream's `ValidateCertificateSigningRequestCreate`.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use shared::status::field::{Error, Path};
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

use super::fields::choice;
use super::names::{dns1123_label, dns1123_subdomain};
use super::pem::blocks;
use super::signature::SignatureFault;
use super::tree::{get, int, list, same, text, texts};
use crate::rules::options::FieldErrors;

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// A request.
pub(crate) fn request(object: &Value, out: &mut FieldErrors) {
    spec(object, &Value::Null, out);
    conditions(object, &Value::Null, out);
}

/// Validates the spec of a request. On update unknown and duplicate usages may stay, and so may the signer of v1beta1.
fn spec(object: &Value, before: &Value, out: &mut FieldErrors) {
    const LEGACY: &str = "kubernetes.io/legacy-unknown";
    let (spec, before, path) = (get(object, "spec"), get(before, "spec"), Path::new("spec"));
    let request = text(spec, "request");
    if let Err(e) = check(request) {
        out.push(Error::invalid(path.child("request"), request, &e.to_string()));
    }
    let usages = texts(spec, "usages");
    if usages.is_empty() {
        out.push(Error::required(path.child("usages"), ""));
    }
    let unknown = |usages: &[&str]| usages.iter().any(|usage| !USAGES.contains(usage));
    let twice = |usages: &[&str]| usages.iter().enumerate().any(|(i, usage)| usages[..i].contains(usage));
    let (path_of, were) = (path.child("usages"), texts(before, "usages"));
    for (i, usage) in usages.iter().enumerate().filter(|(_, usage)| !unknown(&were) && !USAGES.contains(usage)) {
        out.push(Error::not_supported(path_of.index(i), *usage, USAGES));
    }
    for (i, usage) in usages.iter().enumerate().filter(|(i, usage)| !twice(&were) && usages[..*i].contains(usage)) {
        out.push(Error::duplicate(path_of.index(i), *usage));
    }
    let (signer, signer_path) = (text(spec, "signerName"), path.child("signerName"));
    if signer == LEGACY && text(before, "signerName") != LEGACY {
        out.push(Error::invalid(signer_path, signer, "the legacy signerName is not allowed via this API version"));
    } else {
        signer_name(signer, &signer_path, out);
    }
    if let Some(seconds) = int(spec, "expirationSeconds").filter(|s| *s < 600) {
        let message = "may not specify a duration less than 600 seconds (10 minutes)";
        out.push(Error::invalid(path.child("expirationSeconds"), seconds, message));
    }
}

/// Fault of a request in PKCS#10, in Go's words.
#[derive(Debug, thiserror::Error)]
enum RequestFault {
    /// No such request in PEM.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    /// A request that cannot be read.
    #[error("asn1: structure error: malformed certificate request")]
    Malformed,
    /// Something follows it.
    #[error("asn1: syntax error: trailing data")]
    TrailingData,
    /// A request that is not signed as it has to be.
    #[error(transparent)]
    Signature(#[from] SignatureFault),
}

fn check(request: &str) -> Result<(), RequestFault> {
    let bytes = STANDARD.decode(request).unwrap_or_default();
    let block = blocks(&String::from_utf8_lossy(&bytes)).next().filter(|block| block.label == "CERTIFICATE REQUEST");
    let der = block.ok_or(RequestFault::Pem)?.contents;
    match X509CertificationRequest::from_der(&der) {
        Err(_) => Err(RequestFault::Malformed),
        Ok(([], request)) => Ok(super::signature::check(&request)?),
        Ok(_) => Err(RequestFault::TrailingData),
    }
}

/// The name of a signer: a domain and what it signs.
pub(super) fn signer_name(name: &str, path: &Path, out: &mut FieldErrors) {
    /// Longest domain; and longest name, which ends with a namespace and the name of something in it.
    const MAX_DOMAIN: usize = 253;
    const MAX: usize = MAX_DOMAIN + 1 + 63 + 1 + 253;
    if name.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    let [domain, rest] = *name.split('/').collect::<Vec<_>>() else {
        let message = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        out.push(Error::invalid(path, name, message));
        return;
    };
    if domain.len() > MAX_DOMAIN {
        out.push(Error::too_long(path, MAX_DOMAIN));
    }
    parts_are(dns1123_label, domain, path, out);
    if !domain.contains('.') {
        out.push(Error::invalid(path, domain, "should be a domain with at least two segments separated by dots"));
    }
    parts_are(dns1123_subdomain, rest, path, out);
    if name.len() > MAX {
        out.push(Error::too_long(path, MAX));
    }
}

/// Reports the first label between dots that is malformed.
fn parts_are(shape: fn(&str) -> Vec<String>, text: &str, path: &Path, out: &mut FieldErrors) {
    let wrong = text.split('.').map(|part| (part, shape(part))).find(|(_, wrong)| !wrong.is_empty());
    for (part, why) in wrong.into_iter().flat_map(|(part, wrong)| wrong.into_iter().map(move |why| (part, why))) {
        let part = shared::status::go_quote(part);
        out.push(Error::invalid(path, text, &format!("validating label {part}: {why}")));
    }
}

/// Conditions; what those before did wrong these may do.
fn conditions(object: &Value, before: &Value, out: &mut FieldErrors) {
    let all_path = Path::of(&["status", "conditions"]);
    let all = list(get(object, "status"), "conditions");
    let mut kinds = BTreeSet::new();
    let were: Vec<&str> = list(get(before, "status"), "conditions").iter().map(|c| text(c, "type")).collect();
    let nameless = were.contains(&"");
    let torn = were.contains(&"Approved") && were.contains(&"Denied");
    let twice = were.iter().enumerate().any(|(i, kind)| were[..i].contains(kind));
    for (i, condition) in all.iter().enumerate() {
        let path = all_path.index(i);
        let kind = text(condition, "type");
        if kind.is_empty() && !nameless {
            out.push(Error::required(path.child("type"), ""));
        }
        let allowed: &[&str] =
            if matches!(kind, "Approved" | "Denied" | "Failed") { &["True"] } else { &["False", "True", "Unknown"] };
        choice(condition, "status", allowed, &path, out);
        let other = if kind == "Approved" { "Denied" } else { "Approved" };
        if matches!(kind, "Approved" | "Denied") && kinds.contains(other) && !torn {
            let message = "Approved and Denied conditions are mutually exclusive";
            out.push(Error::invalid(&all_path, kind, message));
        }
        if !kinds.insert(kind) && !twice {
            out.push(Error::duplicate(path.child("type"), kind));
        }
    }
}

/// Explains why an issued certificate is refused: the PEM data must hold certificates only.
fn unissuable(object: &Value) -> Option<String> {
    const KIND: &str = "CERTIFICATE";
    let encoded = certificate(object);
    if encoded.is_empty() {
        return None;
    }
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    let mut found = false;
    for block in blocks(&String::from_utf8_lossy(&bytes)) {
        if block.label != KIND {
            let label = shared::status::go_quote(&block.label);
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {label}"));
        }
        if block.headers {
            return Some("no PEM block headers are permitted".to_owned());
        }
        found = true;
        // A block may hold several, one after the other.
        let mut rest = &block.contents[..];
        if rest.is_empty() {
            return Some("found CERTIFICATE PEM block containing 0 certificates".to_owned());
        }
        while !rest.is_empty() {
            match X509Certificate::from_der(rest) {
                Ok((after, _)) => rest = after,
                Err(_) => return Some("x509: malformed certificate".to_owned()),
            }
        }
    }
    (!found).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

fn certificate(object: &Value) -> &str {
    text(get(object, "status"), "certificate")
}

/// A changed request: verdicts and certificates come through sub-resources.
pub(crate) fn request_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    changed(new, old, out);
    verdicts_stay(new, old, out);
    certificate_stays(new, old, out);
}

/// `status` of a request: a certificate may be issued, once.
pub(crate) fn request_status(new: &Value, old: &Value, out: &mut FieldErrors) {
    changed(new, old, out);
    verdicts_stay(new, old, out);
    if certificate(new) != certificate(old) && !certificate(old).is_empty() {
        out.push(Error::forbidden(certificate_path(), "updates may not modify existing certificate content"));
    }
}

/// `approval` of a request.
pub(super) fn request_approval(new: &Value, old: &Value, out: &mut FieldErrors) {
    changed(new, old, out);
    certificate_stays(new, old, out);
}

fn certificate_path() -> Path {
    Path::of(&["status", "certificate"])
}

fn certificate_stays(new: &Value, old: &Value, out: &mut FieldErrors) {
    if certificate(new) != certificate(old) {
        out.push(Error::forbidden(certificate_path(), "updates may not set certificate content"));
    }
}

fn of_kind<'a>(object: &'a Value, kind: &str) -> Vec<&'a Value> {
    list(get(object, "status"), "conditions").iter().filter(|c| text(c, "type") == kind).collect()
}

/// Only approvers approve and deny.
fn verdicts_stay(new: &Value, old: &Value, out: &mut FieldErrors) {
    let path = Path::of(&["status", "conditions"]);
    for kind in ["Approved", "Denied"] {
        let (now, was) = (of_kind(new, kind), of_kind(old, kind));
        let shown = shared::status::go_quote(kind);
        if now.len() > was.len() {
            out.push(Error::forbidden(&path, &format!("updates may not add a condition of type {shown}")));
        } else if now.len() == was.len() && now.iter().zip(&was).any(|(a, b)| !same(a, b)) {
            let all = |of: &[&Value]| Value::Array(of.iter().map(|c| (*c).clone()).collect());
            let changes = super::internal::request_conditions_diff(all(&was), all(&now));
            let why = format!("updates may not modify a condition of type {shown}{changes}");
            out.push(Error::forbidden(&path, &why));
        }
    }
}

/// Validates every update: the spec again, approval and denial are not taken back, and a changed certificate is valid
/// unless the old one was invalid too.
fn changed(new: &Value, old: &Value, out: &mut FieldErrors) {
    spec(new, old, out);
    conditions(new, old, out);
    if certificate(new) != certificate(old)
        && unissuable(old).is_none()
        && let Some(why) = unissuable(new)
    {
        out.push(Error::invalid(certificate_path(), "<certificate data>", &why));
    }
    for kind in ["Approved", "Denied", "Failed"] {
        if of_kind(new, kind).len() < of_kind(old, kind).len() {
            let shown = shared::status::go_quote(kind);
            let why = format!("updates may not remove a condition of type {shown}");
            out.push(Error::forbidden(Path::of(&["status", "conditions"]), &why));
        }
    }
}
