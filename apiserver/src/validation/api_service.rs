//! API services: which server answers a group and version. Answers for upstream's `ValidateAPIService`.

use proto::Value;
use shared::status::field::{Error, Path};

use super::names::{between, complain, dns1035_label, dns1123_subdomain, path_segment};
use super::tree::{flag, get, int, list, text};
use crate::rules::options::FieldErrors;

/// A new API service.
pub(crate) fn service(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let required = format!("{version}.{group}");
    // What cannot be a name at all was told of before.
    for key in ["generateName", "name"] {
        let name = text(get(object, "metadata"), key);
        if !name.is_empty() && name != required && path_segment(name, false).is_empty() {
            let message = format!("must be `spec.version+\".\"+spec.group`: {}", shared::status::go_quote(&required));
            out.push(Error::invalid(Path::of(&["metadata", key]), name, &message));
        }
    }
    if !group.is_empty() {
        complain(out, &path.child("group"), group, dns1123_subdomain(group));
    } else if version != "v1" {
        let message = "only v1 may have an empty group and it better be legacy kube";
        out.push(Error::required(path.child("group"), message));
    }
    complain(out, &path.child("version"), version, dns1035_label(version));
    for (key, most) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let value = int(spec, key).unwrap_or(0);
        if !(1..=most).contains(&value) {
            let message = format!("must be positive and less than {most}");
            out.push(Error::invalid(path.child(key), value, &message));
        }
    }
    let (bundle, insecure) = (text(spec, "caBundle"), flag(spec, "insecureSkipTLSVerify"));
    let server = get(spec, "service");
    if server.is_null() {
        if !bundle.is_empty() {
            let bytes = bundle.trim_end_matches('=').len() * 3 / 4;
            let message = "local APIServices may not have a caBundle";
            out.push(Error::invalid(path.child("caBundle"), format!("{bytes} bytes"), message));
        }
        if insecure {
            let message = "local APIServices may not have insecureSkipTLSVerify";
            out.push(Error::invalid(path.child("insecureSkipTLSVerify"), true, message));
        }
        return;
    }
    let at = path.child("service");
    for key in ["namespace", "name"] {
        if text(server, key).is_empty() {
            out.push(Error::required(at.child(key), ""));
        }
    }
    if let Some(port) = int(server, "port").filter(|p| !(1..=65535).contains(p)) {
        out.push(Error::invalid(at.child("port"), port, &format!("port is not valid: {}", between(1, 65535))));
    }
    if insecure && !bundle.is_empty() {
        let message = "may not be true if caBundle is present";
        out.push(Error::invalid(path.child("insecureSkipTLSVerify"), true, message));
    }
}

/// `status` of an API service.
pub(crate) fn status(new: &Value, _: &Value, out: &mut FieldErrors) {
    let path = Path::of(&["status", "conditions"]);
    for (i, condition) in list(get(new, "status"), "conditions").iter().enumerate() {
        let (path, status) = (path.index(i).child("status"), text(condition, "status"));
        if !matches!(status, "True" | "False" | "Unknown") {
            out.push(Error::not_supported(path, status, &["True", "False", "Unknown"]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services() {
        let check = |name: &str, spec: Value| -> Vec<String> {
            let mut out = FieldErrors::default();
            service(&json!({"metadata": {"name": name}, "spec": spec}), &mut out);
            out.iter().map(ToString::to_string).collect()
        };
        let numbers = |more: Value| {
            let mut spec = json!({"groupPriorityMinimum": 100, "versionPriority": 10, "version": "v1"});
            for (k, v) in more.as_object().into_iter().flatten() {
                spec[k] = v.clone();
            }
            spec
        };
        assert!(check("v1.", numbers(json!({}))).is_empty());
        assert!(
            check("v1.a.b", numbers(json!({"group": "a.b", "service": {"name": "s", "namespace": "n"}}))).is_empty()
        );
        assert_eq!(
            check("x", numbers(json!({"group": "a.b", "versionPriority": 0, "insecureSkipTLSVerify": true}))),
            [
                r#"metadata.name: Invalid value: "x": must be `spec.version+"."+spec.group`: "v1.a.b""#,
                "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
                "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify",
            ]
        );
        let served = json!({"group": "a.b", "service": {"port": 0}, "caBundle": "YWJj", "insecureSkipTLSVerify": true});
        assert_eq!(
            check("v1.a.b", numbers(served)),
            [
                "spec.service.namespace: Required value",
                "spec.service.name: Required value",
                "spec.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive",
                "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
            ]
        );
    }
}
