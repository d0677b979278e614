//! Config maps and secrets. Answers for upstream's `ValidateConfigMap`, `ValidateSecret`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::{annotation, immutable};
use super::names::{complain, config_key};
use super::tree::{entries, flag, get, has, same, text};
use crate::rules::options::FieldErrors;

/// Most bytes of data.
const MAX_BYTES: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

/// Bytes behind base64 text.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count().min(text.len() / 4 * 3)
}

/// A config map.
pub(crate) fn config_map(object: &Value, out: &mut FieldErrors) {
    let mut total = 0;
    for (key, value) in entries(object, "data") {
        let path = Path::new("data").key(key);
        complain(out, &path, key, config_key(key));
        if has(get(object, "binaryData"), key) {
            out.push(Error::invalid(&path, key.as_str(), "duplicate of key present in binaryData"));
        }
        total += value.as_str().unwrap_or_default().len();
    }
    for (key, value) in entries(object, "binaryData") {
        let path = Path::new("binaryData").key(key);
        complain(out, &path, key, config_key(key));
        total += decoded_len(value);
    }
    if total > MAX_BYTES {
        // Upstream's empty root path.
        out.push(Error::too_long(Path::from("[]"), MAX_BYTES));
    }
}

fn frozen(new: &Value, old: &Value, keys: &[&str], out: &mut FieldErrors) {
    if !flag(old, "immutable") {
        return;
    }
    if !flag(new, "immutable") {
        out.push(Error::forbidden("immutable", FROZEN));
    }
    for key in keys {
        if !same(get(new, key), get(old, key)) {
            out.push(Error::forbidden(*key, FROZEN));
        }
    }
}

/// A changed config map.
pub(crate) fn config_map_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    frozen(new, old, &["data", "binaryData"], out);
}

/// A secret.
pub(crate) fn secret(object: &Value, out: &mut FieldErrors) {
    let path = Path::new("data");
    let mut total = 0;
    for (key, value) in entries(object, "data") {
        complain(out, &path.key(key), key, config_key(key));
        total += decoded_len(value);
    }
    if total > MAX_BYTES {
        out.push(Error::too_long(&path, MAX_BYTES));
    }
    let data = get(object, "data");
    let mut need = |key: &str| {
        if !has(data, key) {
            out.push(Error::required(path.key(key), ""));
        }
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            if annotation(object, key).is_empty() {
                out.push(Error::required(Path::of(&["metadata", "annotations"]).key(key), ""));
            }
        }
        "kubernetes.io/dockercfg" => {
            need(".dockercfg");
            json(data, ".dockercfg", out);
        }
        "kubernetes.io/dockerconfigjson" => {
            need(".dockerconfigjson");
            json(data, ".dockerconfigjson", out);
        }
        "kubernetes.io/basic-auth" => {
            if !has(data, "username") && !has(data, "password") {
                need("username");
                need("password");
            }
        }
        "kubernetes.io/ssh-auth" => {
            if text(data, "ssh-privatekey").is_empty() {
                out.push(Error::required(path.key("ssh-privatekey"), ""));
            }
        }
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
}

fn json(data: &Value, key: &str, out: &mut FieldErrors) {
    let Some(encoded) = get(data, key).as_str() else { return };
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    let complaint = match proto::json::syntax(&bytes) {
        Err(why) => why.to_string(),
        Ok(()) => match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{' | b'n') => return,
            first => {
                let kind = match first {
                    Some(b'[') => "array",
                    Some(b'"') => "string",
                    Some(b't' | b'f') => "bool",
                    _ => "number",
                };
                format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
            }
        },
    };
    out.push(Error::invalid(Path::new("data").key(key), "<secret contents redacted>", &complaint));
}

/// A changed secret.
pub(crate) fn secret_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "type"), get(old, "type"), &Path::new("type"), out);
    frozen(new, old, &["data"], out);
}
