//! Certificate signing requests.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use shared::status::field::{Error, Path};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::names::dns1123_subdomain;
use super::tree::{get, int, list, same, text, texts};

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
pub(super) fn request(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let request = text(spec, "request");
    if let Err(e) = check(request) {
        out.push(Error::invalid(path.child("request"), request, &e));
    }
    let usages = texts(spec, "usages");
    if usages.is_empty() {
        out.push(Error::required(path.child("usages"), ""));
    }
    let mut seen = BTreeSet::new();
    for (i, usage) in usages.iter().enumerate() {
        let path = path.child("usages").index(i);
        if !USAGES.contains(usage) {
            out.push(Error::not_supported(&path, *usage, USAGES));
        }
        if !seen.insert(usage) {
            out.push(Error::duplicate(&path, *usage));
        }
    }
    signer_name(text(spec, "signerName"), &path.child("signerName"), out);
    if let Some(seconds) = int(spec, "expirationSeconds").filter(|s| *s < 600) {
        let message = "may not specify a duration less than 600 seconds (10 minutes)";
        out.push(Error::invalid(path.child("expirationSeconds"), seconds, message));
    }
    conditions(object, out);
}

fn check(request: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(request).unwrap_or_default();
    let wrong_type = || "PEM block type must be CERTIFICATE REQUEST".to_owned();
    let text = String::from_utf8_lossy(&bytes);
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE REQUEST-----").ok_or_else(wrong_type)?;
    let (body, _) = rest.split_once("-----END CERTIFICATE REQUEST-----").ok_or_else(wrong_type)?;
    let body: String = body.split_whitespace().collect();
    let der = STANDARD.decode(body).map_err(|_| wrong_type())?;
    X509CertificationRequest::from_der(&der)
        .map(|_| ())
        .map_err(|_| "asn1: structure error: malformed certificate request".to_owned())
}

fn signer_name(name: &str, path: &Path, out: &mut Vec<Error>) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
        return;
    }
    let Some((domain, rest)) = name.split_once('/') else {
        let message = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        out.push(Error::invalid(path, name, message));
        return;
    };
    let qualified = domain.contains('.');
    super::names::complain(out, path, domain, dns1123_subdomain(domain));
    if !qualified {
        out.push(Error::invalid(path, domain, "should be a domain with at least two segments separated by dots"));
    }
    super::names::complain(out, path, rest, dns1123_subdomain(rest));
}

fn conditions(object: &Value, out: &mut Vec<Error>) {
    let path = Path::of(&["status", "conditions"]);
    let all = list(get(object, "status"), "conditions");
    let mut kinds = BTreeSet::new();
    for (i, condition) in all.iter().enumerate() {
        let path = path.index(i);
        let (kind, status) = (text(condition, "type"), text(condition, "status"));
        match kind {
            "" => out.push(Error::required(path.child("type"), "")),
            "Approved" | "Denied" | "Failed" => {
                if status.is_empty() {
                    out.push(Error::required(path.child("status"), ""));
                } else if status != "True" {
                    out.push(Error::not_supported(path.child("status"), status, &["True"]));
                }
            }
            _ => {}
        }
        let other = if kind == "Approved" { "Denied" } else { "Approved" };
        if matches!(kind, "Approved" | "Denied") && kinds.contains(other) {
            let message = "Approved and Denied conditions are mutually exclusive";
            out.push(Error::invalid(path.child("type"), kind, message));
        }
        if !kinds.insert(kind) {
            out.push(Error::duplicate(path.child("type"), kind));
        }
    }
}

/// A changed request: its spec stays, verdicts are not taken back.
pub(super) fn request_update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    if !same(get(new, "spec"), get(old, "spec")) {
        out.push(Error::invalid("spec", get(new, "spec").clone(), "field is immutable"));
    }
    conditions(new, out);
    let kinds =
        |o: &Value, kind: &str| list(get(o, "status"), "conditions").iter().filter(|c| text(c, "type") == kind).count();
    for kind in ["Approved", "Denied", "Failed"] {
        if kinds(new, kind) < kinds(old, kind) {
            let message = format!("updates may not remove a condition of type {}", shared::status::go_quote(kind));
            out.push(Error::forbidden(Path::of(&["status", "conditions"]), &message));
        }
    }
}
