//! Requests of pods for certificates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use shared::status::field::{Error, Path};

use super::certificates::signer_name;
use super::meta::immutable;
use super::names::{complain, dns1123_subdomain, qualified_name};
use super::possession::{KeyError, proven};
use super::tree::{entries, get, int, text};
use crate::rules::options::FieldErrors;

const MAX_UID: usize = 128;
const MAX_KEY: usize = 10 * 1024;
const MAX_PROOF: usize = 10 * 1024;
const MAX_USER_DATA: usize = 256 * 1024;
const HOUR: i64 = 60 * 60;
/// Longest time a certificate may be asked for, of others and of Kubernetes' own signers.
const MAX_SECONDS: i64 = 91 * 24 * HOUR;
const MAX_KUBERNETES_SECONDS: i64 = 24 * HOUR;

/// Kinds of keys that kubelets make.
const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

/// A new request.
pub(crate) fn request(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    signer_name(text(spec, "signerName"), &path.child("signerName"), out);
    user_data(spec, "unverifiedUserAnnotations", &path, out);
    for (name, uid) in [("podName", "podUID"), ("serviceAccountName", "serviceAccountUID"), ("nodeName", "nodeUID")] {
        complain(out, &path.child(name), text(spec, name), dns1123_subdomain(text(spec, name)));
        let (value, path) = (text(spec, uid), path.child(uid));
        if value.is_empty() {
            out.push(Error::invalid(&path, "", "must not be empty"));
        }
        if value.len() > MAX_UID {
            out.push(Error::too_long(path, MAX_UID));
        }
    }
    let Some(seconds) = int(spec, "maxExpirationSeconds") else {
        out.push(Error::required(path.child("maxExpirationSeconds"), "must be set"));
        return;
    };
    let most = longest(text(spec, "signerName"));
    if !(HOUR..=most).contains(&seconds) {
        let why = format!("must be in the range [{HOUR}, {most}]");
        out.push(Error::invalid(path.child("maxExpirationSeconds"), seconds, &why));
    }
    out.extend(possession(spec, &path).err());
}

/// Seconds a certificate of a signer may be asked for.
fn longest(signer: &str) -> i64 {
    let domain = signer.split('/').next().unwrap_or_default();
    let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    if own { MAX_KUBERNETES_SECONDS } else { MAX_SECONDS }
}

/// The part of a volume that requests are made for.
pub(super) fn projection(value: &Value, path: &Path, out: &mut FieldErrors) {
    let signer = text(value, "signerName");
    signer_name(signer, &path.child("signerName"), out);
    let kind = text(value, "keyType");
    if !KEY_TYPES.contains(&kind) {
        out.push(Error::not_supported(path.child("keyType"), kind, &KEY_TYPES));
    }
    if let Some(seconds) = int(value, "maxExpirationSeconds") {
        let path = path.child("maxExpirationSeconds");
        let most = longest(signer);
        if seconds < HOUR {
            let why = format!("if provided, maxExpirationSeconds must be >= {HOUR}");
            out.push(Error::invalid(&path, seconds, &why));
        }
        if seconds > most {
            let why = format!("if provided, maxExpirationSeconds must be <= {most}");
            out.push(Error::invalid(&path, seconds, &why));
        }
    }
    user_data(value, "userAnnotations", path, out);
}

/// Validates the user data for the signer: keys are domain-prefixed.
fn user_data(of: &Value, field: &str, path: &Path, out: &mut FieldErrors) {
    let path = &path.child(field);
    let mut total = 0;
    for (key, value) in entries(of, field) {
        total += key.len() + value.as_str().unwrap_or_default().len();
        let key = key.to_lowercase();
        let wrong = qualified_name(&key);
        if key.is_empty() {
            out.push(Error::required(path, ""));
        } else if wrong.is_empty() && !key.contains('/') {
            out.push(Error::invalid(path, key, r#"must be a domain-prefixed key (such as "acme.io/foo")"#));
        } else {
            complain(out, path, &key, wrong);
        }
    }
    if total > MAX_USER_DATA {
        out.push(Error::too_long(path, MAX_USER_DATA));
    }
}

/// Validates the public key and the proof of possession.
fn possession(spec: &Value, path: &Path) -> Result<(), Error> {
    let bytes = |field: &str, most: usize| {
        let bytes = STANDARD.decode(text(spec, field)).unwrap_or_default();
        if bytes.len() > most { Err(Error::too_long(path.child(field), most)) } else { Ok(bytes) }
    };
    let (key, proof) = (bytes("pkixPublicKey", MAX_KEY)?, bytes("proofOfPossession", MAX_PROOF)?);
    let path_of_key = path.child("pkixPublicKey");
    proven(&key, text(spec, "podUID").as_bytes(), &proof).map_err(|unfit| match unfit {
        KeyError::NoKey => no_key(text(spec, "pkixPublicKey")),
        KeyError::Type => {
            let why = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";
            Error::invalid(path_of_key, text(spec, "pkixPublicKey"), why)
        }
        KeyError::Curve(name) => {
            let why = "elliptic public keys must use curve P256 or P384";
            Error::invalid(path_of_key, format!("curve {name}"), why)
        }
        KeyError::Modulus(bits) => {
            let why = "RSA keys must have modulus size 3072 or 4096";
            Error::invalid(path_of_key, format!("{bits}-bit modulus"), why)
        }
        KeyError::Unproven => {
            Error::unfit(path.child("proofOfPossession"), "could not verify proof-of-possession signature")
        }
    })
}

/// A key that is none.
pub(super) fn no_key(encoded: &str) -> Error {
    Error::invalid(Path::of(&["spec", "pkixPublicKey"]), encoded, "must be a valid PKIX-serialized public key")
}

/// A request stays what it was.
pub(crate) fn request_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "spec"), get(old, "spec"), &Path::new("spec"), out);
}
