//! Environment variables and the references they are filled from. Answers for upstream's `ValidateEnv`,
//! `ValidateEnvFrom`.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::rules::names::{NameRule, complain, config_key, dns1123_label, dns1123_subdomain, env_var, qualified_name};
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, get, has, list, text};
use crate::validation::fields::{shaped, shaped_if_said};
use crate::validation::volume::no_backsteps;

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
pub(super) fn env(container: &Value, path: &Path, out: &mut FieldErrors) {
    for (i, variable) in list(container, "env").iter().enumerate() {
        let path = path.index(i);
        shaped(variable, "name", env_var, &path, out);
        source(variable, &path.child("valueFrom"), out);
    }
}

fn source(variable: &Value, path: &Path, out: &mut FieldErrors) {
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
        file_ref(get(from, "fileKeyRef"), &path.child("fileKeyRef"), out);
    }
    if count == 0 {
        let last = if out.allows(ValidationOption::NoEnvFiles) {
            "`configMapKeyRef` or `secretKeyRef`"
        } else {
            "`configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        };
        let message = format!("must specify one of: `fieldRef`, `resourceFieldRef`, {last}");
        out.push(Error::invalid(path, "", &message));
    } else if !text(variable, "value").is_empty() {
        out.push(Error::invalid(path, "", "may not be specified when `value` is not empty"));
    } else if count > 1 {
        out.push(Error::invalid(path, "", "may not have more than one field specified at a time"));
    }
}

fn key_ref(reference: &Value, path: &Path, out: &mut FieldErrors) {
    let name = text(reference, "name");
    complain(out, &path.child("name"), name, dns1123_subdomain(name));
    shaped(reference, "key", config_key, path, out);
}

/// A line of a file in a volume; of which volumes, [`files`] says.
fn file_ref(file: &Value, path: &Path, out: &mut FieldErrors) {
    shaped(file, "key", env_var, path, out);
    shaped(file, "volumeName", dns1123_label, path, out);
    match text(file, "path") {
        "" => out.push(Error::required(path.child("path"), "")),
        target => no_backsteps(target, &path.child("path"), out),
    }
}

/// Files that variables come from are in volumes that live as long as the pod.
pub(super) fn files(spec: &Value, path: &Path, out: &mut FieldErrors) {
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in list(spec, kind).iter().enumerate() {
            for (j, variable) in list(container, "env").iter().enumerate() {
                let file = at(variable, &["valueFrom", "fileKeyRef"]);
                if file.is_null() {
                    continue;
                }
                let name = text(file, "volumeName");
                let path = path.child(kind).index(i).child("env").index(j).child("valueFrom").child("fileKeyRef");
                let path = path.child("volumeName");
                match list(spec, "volumes").iter().rfind(|v| text(v, "name") == name) {
                    None => out.push(Error::not_found(path, name)),
                    Some(v) if !has(v, "emptyDir") => {
                        out.push(Error::invalid(path, name, "referenced volume must be of type emptyDir"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// A reference to a field of the pod.
pub(in crate::validation) fn field_ref(reference: &Value, supported: &[&str], path: &Path, out: &mut FieldErrors) {
    if text(reference, "apiVersion").is_empty() {
        out.push(Error::required(path.child("apiVersion"), ""));
        return;
    }
    let field = text(reference, "fieldPath");
    if field.is_empty() {
        out.push(Error::required(path.child("fieldPath"), ""));
        return;
    }
    let subscripted = field.strip_suffix("']").and_then(|f| f.split_once("['")).filter(|(name, _)| !name.is_empty());
    let mut unknown = |why: String| {
        let why = format!("error converting fieldPath: {why}");
        out.push(Error::invalid(path.child("fieldPath"), field, &why));
    };
    match (text(reference, "apiVersion"), subscripted) {
        ("v1", Some(("metadata.annotations", key))) => {
            let key = key.to_lowercase();
            complain(out, path, &key, qualified_name(&key));
        }
        ("v1", Some(("metadata.labels", key))) => complain(out, path, key, qualified_name(key)),
        ("v1", Some(_)) => unknown(format!("field label does not support subscript: {field}")),
        ("v1", None) => match renamed(field) {
            None => unknown(format!("field label not supported: {field}")),
            Some(field) if supported.contains(&field) => {}
            Some(field) => out.push(Error::not_supported(path.child("fieldPath"), field, supported)),
        },
        (version, _) => unknown(format!("unsupported pod version: {version}")),
    }
}

/// A field that is known at all, under the name it has now.
fn renamed(field: &str) -> Option<&str> {
    const OTHERS: [&str; 5] =
        ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];
    match field {
        "spec.host" => Some("spec.nodeName"),
        field => (OTHERS.contains(&field) || FIELDS.contains(&field)).then_some(field),
    }
}

/// A reference to a container's resources.
pub(in crate::validation) fn resource_ref(reference: &Value, in_volume: bool, path: &Path, out: &mut FieldErrors) {
    let resource = text(reference, "resource");
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|p| resource.starts_with(p));
    if in_volume && text(reference, "containerName").is_empty() {
        out.push(Error::required(path.child("containerName"), ""));
    } else if resource.is_empty() {
        out.push(Error::required(path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge {
        out.push(Error::not_supported(path.child("resource"), resource, RESOURCES));
    }
    divisor(resource, get(reference, "divisor").as_str().unwrap_or("0"), &path.child("divisor"), out);
}

/// The unit a resource is counted in.
fn divisor(resource: &str, shown: &str, path: &Path, out: &mut FieldErrors) {
    const BYTES: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";
    let what = resource.split_once('.').map_or("", |(_, w)| w);
    let (units, name) = match what {
        "cpu" => ("1m and 1", "cpu"),
        "memory" => (BYTES, "memory"),
        "ephemeral-storage" => (BYTES, "local ephemeral storage"),
        other if other.starts_with("hugepages-") => (BYTES, "hugepages"),
        _ => return,
    };
    let known = if what == "cpu" { matches!(shown, "1" | "1m") } else { units.split(", ").any(|u| u == shown) };
    if shown != "0" && !known {
        let why = format!("only divisor's values {units} are supported with the {name} resource");
        out.push(Error::invalid(path, resource, &why));
    }
}

/// `envFrom`.
pub(super) fn env_from(container: &Value, all: &Path, out: &mut FieldErrors) {
    for (i, source) in list(container, "envFrom").iter().enumerate() {
        let path = all.index(i);
        shaped_if_said(source, "prefix", env_var, &path, out);
        let mut count = 0;
        for key in ["configMapRef", "secretRef"].into_iter().filter(|k| has(source, k)) {
            count += 1;
            let (name, path) = (text(get(source, key), "name"), path.child(key).child("name"));
            if name.is_empty() {
                out.push(Error::required(path, ""));
            } else {
                complain(out, &path, name, NameRule::Subdomain.check(name, true));
            }
        }
        if count == 0 {
            out.push(Error::invalid(all, "", "must specify one of: `configMapRef` or `secretRef`"));
        } else if count > 1 {
            out.push(Error::invalid(all, "", "may not have more than one field specified at a time"));
        }
    }
}
