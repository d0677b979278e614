//! Access reviews: judged, answered, never stored.

use proto::Value;
use serde_json::json;
use shared::status::field::{Error, Path};

use super::tree::{at, get, has, list, text};

/// `SubjectAccessReview`.
pub(super) fn subject(object: &Value, out: &mut Vec<Error>) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    attributes(spec, &path, out);
    if text(spec, "user").is_empty() && list(spec, "groups").is_empty() {
        out.push(Error::invalid(path.child("user"), "", "at least one of user or group must be specified"));
    }
}

/// `SelfSubjectAccessReview`.
pub(super) fn own(object: &Value, out: &mut Vec<Error>) {
    attributes(get(object, "spec"), &Path::new("spec"), out);
}

/// `LocalSubjectAccessReview`.
pub(super) fn local(object: &Value, out: &mut Vec<Error>) {
    subject(object, out);
    let spec = get(object, "spec");
    let namespace = text(get(spec, "resourceAttributes"), "namespace");
    if namespace != text(at(object, &["metadata"]), "namespace") {
        let path = Path::of(&["spec", "resourceAttributes", "namespace"]);
        out.push(Error::invalid(path, namespace, "must match metadata.namespace"));
    }
    if has(spec, "nonResourceAttributes") {
        let path = Path::of(&["spec", "nonResourceAttributes"]);
        out.push(Error::invalid(path, shown(get(spec, "nonResourceAttributes")), "disallowed on this kind of request"));
    }
}

fn shown(attributes: &Value) -> Value {
    json!({"Path": text(attributes, "path"), "Verb": text(attributes, "verb")})
}

fn attributes(spec: &Value, path: &Path, out: &mut Vec<Error>) {
    match (has(spec, "resourceAttributes"), has(spec, "nonResourceAttributes")) {
        (true, true) => {
            let value = shown(get(spec, "nonResourceAttributes"));
            let message = "cannot be specified in combination with resourceAttributes";
            out.push(Error::invalid(path.child("nonResourceAttributes"), value, message));
        }
        (false, false) => {
            let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            out.push(Error::invalid(path.child("resourceAttributes"), Value::Null, message));
        }
        _ => {}
    }
}
