//! Environment variables and the references they are filled from.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::validation::names::{complain, config_key, env_var, qualified_name};
use crate::validation::tree::{get, has, list, text};

const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// `env`.
pub(super) fn env(container: &Value, path: &Path, out: &mut Vec<Error>) {
    for (i, variable) in list(container, "env").iter().enumerate() {
        let path = path.index(i);
        let name = text(variable, "name");
        if name.is_empty() {
            out.push(Error::required(path.child("name"), ""));
        } else {
            complain(out, &path.child("name"), name, env_var(name));
        }
        source(variable, &path.child("valueFrom"), out);
    }
}

fn source(variable: &Value, path: &Path, out: &mut Vec<Error>) {
    if !has(variable, "valueFrom") {
        return;
    }
    let from = get(variable, "valueFrom");
    let kinds = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let count = kinds.iter().filter(|k| has(from, k)).count();
    if has(from, "fieldRef") {
        field_ref(get(from, "fieldRef"), FIELDS, &path.child("fieldRef"), out);
    }
    if has(from, "resourceFieldRef") {
        resource_ref(get(from, "resourceFieldRef"), false, &path.child("resourceFieldRef"), out);
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        if has(from, key) {
            key_ref(get(from, key), &path.child(key), out);
        }
    }
    if has(from, "fileKeyRef") {
        let (file, path) = (get(from, "fileKeyRef"), path.child("fileKeyRef"));
        for key in ["key", "volumeName", "path"] {
            if text(file, key).is_empty() {
                out.push(Error::required(path.child(key), ""));
            }
        }
    }
    if count == 0 {
        let message =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        out.push(Error::invalid(path, "", message));
    } else if !text(variable, "value").is_empty() {
        out.push(Error::invalid(path, "", "may not be specified when `value` is not empty"));
    } else if count > 1 {
        out.push(Error::invalid(path, "", "may not have more than one field specified at a time"));
    }
}

fn key_ref(reference: &Value, path: &Path, out: &mut Vec<Error>) {
    if text(reference, "name").is_empty() {
        out.push(Error::required(path.child("name"), ""));
    }
    match text(reference, "key") {
        "" => out.push(Error::required(path.child("key"), "")),
        key => complain(out, &path.child("key"), key, config_key(key)),
    }
}

/// A reference to a field of the pod.
pub(in crate::validation) fn field_ref(reference: &Value, supported: &[&str], path: &Path, out: &mut Vec<Error>) {
    if text(reference, "apiVersion").is_empty() {
        out.push(Error::required(path.child("apiVersion"), ""));
        return;
    }
    let field = text(reference, "fieldPath");
    if field.is_empty() {
        out.push(Error::required(path.child("fieldPath"), ""));
        return;
    }
    if let Some((name, key)) = field.strip_suffix("']").and_then(|f| f.split_once("['")) {
        match name {
            "metadata.annotations" => complain(out, path, key, qualified_name(&key.to_lowercase())),
            "metadata.labels" => complain(out, path, key, qualified_name(key)),
            other => out.push(Error::invalid(path, other, "does not support subscript")),
        }
        return;
    }
    let known = ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];
    if !known.contains(&field) && !FIELDS.contains(&field) {
        let message = format!("error converting fieldPath: field label not supported: {field}");
        out.push(Error::invalid(path.child("fieldPath"), field, &message));
    } else if !supported.contains(&field) {
        out.push(Error::not_supported(path.child("fieldPath"), field, supported));
    }
}

/// A reference to a container's resources.
pub(in crate::validation) fn resource_ref(reference: &Value, in_volume: bool, path: &Path, out: &mut Vec<Error>) {
    if in_volume && text(reference, "containerName").is_empty() {
        out.push(Error::required(path.child("containerName"), ""));
    }
    let resource = text(reference, "resource");
    if resource.is_empty() {
        out.push(Error::required(path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource)
        && !resource.starts_with("limits.hugepages-")
        && !resource.starts_with("requests.hugepages-")
    {
        out.push(Error::not_supported(path.child("resource"), resource, RESOURCES));
    }
    let divisor = get(reference, "divisor");
    let shown = divisor.as_str().unwrap_or("0");
    let what = resource.split_once('.').map_or("", |(_, w)| w);
    let bytes = ["0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    match what {
        "cpu" if !["0", "1", "1m"].contains(&shown) => {
            let message = "only divisor's values 1m and 1 are supported with the cpu resource";
            out.push(Error::invalid(path.child("divisor"), what, message));
        }
        "memory" if !bytes.contains(&shown) => {
            let message = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource";
            out.push(Error::invalid(path.child("divisor"), what, message));
        }
        "ephemeral-storage" if !bytes.contains(&shown) => {
            let message = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the local ephemeral storage resource";
            out.push(Error::invalid(path.child("divisor"), what, message));
        }
        _ => {}
    }
}

/// `envFrom`.
pub(super) fn env_from(container: &Value, path: &Path, out: &mut Vec<Error>) {
    for (i, source) in list(container, "envFrom").iter().enumerate() {
        let path = path.index(i);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            complain(out, &path.child("prefix"), prefix, env_var(prefix));
        }
        let mut count = 0;
        for key in ["configMapRef", "secretRef"] {
            if has(source, key) {
                count += 1;
                if text(get(source, key), "name").is_empty() {
                    out.push(Error::required(path.child(key).child("name"), ""));
                }
            }
        }
        if count == 0 {
            out.push(Error::invalid(&path, "", "must specify one of: `configMapRef` or `secretRef`"));
        } else if count > 1 {
            out.push(Error::invalid(&path, "", "may not have more than one field specified at a time"));
        }
    }
}
