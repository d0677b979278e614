//! Validation of `configSource`. Dynamic kubelet configuration is gone, but stored values must be valid.

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{complain, config_key, dns1123_label, dns1123_subdomain};
use super::tree::{get, has, text};
use crate::rules::options::FieldErrors;

/// Validates the config source of a node: desired and in use.
pub(super) fn check(node: &Value, out: &mut FieldErrors) {
    let (wished, used) = (get(get(node, "spec"), "configSource"), get(get(node, "status"), "config"));
    source(wished, true, &Path::of(&["spec", "configSource"]), out);
    for key in ["assigned", "active", "lastKnownGood"] {
        source(get(used, key), false, &Path::of(&["status", "config", key]), out);
    }
}

/// A source; which version of it there was is said only where it is in use.
fn source(source: &Value, wished: bool, path: &Path, out: &mut FieldErrors) {
    if source.is_null() {
        return;
    }
    if !has(source, "configMap") {
        out.push(Error::invalid(path, source.clone(), "exactly one reference subfield must be non-nil"));
        return;
    }
    let (map, path) = (get(source, "configMap"), path.child("configMap"));
    for key in ["uid", "resourceVersion"] {
        match (wished, text(map, key).is_empty()) {
            (true, false) => out.push(Error::forbidden(path.child(key), &format!("{key} must not be set in spec"))),
            (false, true) => out.push(Error::required(path.child(key), "")),
            _ => {}
        }
    }
    for key in ["namespace", "name", "kubeletConfigKey"] {
        let (value, path) = (text(map, key), path.child(key));
        match key {
            _ if value.is_empty() => out.push(Error::required(path, "")),
            "namespace" => complain(out, &path, value, dns1123_label(value)),
            "name" => complain(out, &path, value, dns1123_subdomain(value)),
            _ => complain(out, &path, value, config_key(value)),
        }
    }
}
