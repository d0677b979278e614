//! Annotations of pods that mean something, some of them the older form of fields.

use proto::Value;
use shared::status::field::{Error, Path};

use crate::validation::tree::{entries, get, has, list, same, text};
use crate::validation::volume::descending_path;

/// Marks the API's copy of a pod that a node runs by itself.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const KINDS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The annotations of a pod or template.
pub(super) fn check(metadata: &Value, spec: &Value, path: &Path, out: &mut Vec<Error>) {
    let annotations = get(metadata, "annotations");
    if has(annotations, MIRROR) && text(spec, "nodeName").is_empty() {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        out.push(Error::invalid(path.key(MIRROR), text(annotations, MIRROR), why));
    }
    for (key, value) in entries(metadata, "annotations") {
        let value = value.as_str().unwrap_or_default();
        if key == SECCOMP_POD || key.starts_with(SECCOMP) {
            seccomp(value, &path.child(key), out);
        } else if let Some(name) = key.strip_prefix(APP_ARMOR) {
            if !KINDS.iter().any(|k| list(spec, k).iter().any(|c| text(c, "name") == name)) {
                out.push(Error::invalid(path.key(key), name, "container not found"));
            }
            if !matches!(value, "" | "runtime/default" | "unconfined") && !value.starts_with("localhost/") {
                let why = format!("invalid AppArmor profile name: {}", shared::status::go_quote(value));
                out.push(Error::invalid(path.key(key), value, &why));
            }
        } else if key == DELETION_COST && !is_cost(value) {
            out.push(Error::invalid(path.key(key), value, "must be a 32bit integer"));
        }
    }
}

/// A number as it would be written.
fn is_cost(value: &str) -> bool {
    value.parse::<i32>().is_ok_and(|n| n.to_string() == value)
}

fn seccomp(value: &str, path: &Path, out: &mut Vec<Error>) {
    match value.strip_prefix("localhost/") {
        _ if matches!(value, "runtime/default" | "docker/default" | "unconfined") => {}
        Some(profile) => descending_path(profile, path, out),
        None => out.push(Error::invalid(path, value, "must be a valid seccomp profile")),
    }
}

/// Where a new pod has annotation and field, they agree.
pub(super) fn fields_match(pod: &Value, path: &Path, out: &mut Vec<Error>) {
    let (spec, annotations) = (get(pod, "spec"), get(get(pod, "metadata"), "annotations"));
    let mut compare = |key: &str, field: &str, word: &str, holder: &Value, path: &Path| {
        let profile = get(get(holder, "securityContext"), field);
        if profile.is_null() || !has(annotations, key) {
            return;
        }
        let (kind, local) = annotated(text(annotations, key));
        let path = path.child("securityContext").child(field);
        if text(profile, "type") != kind {
            let why = format!("{word} type in annotation and field must match");
            out.push(Error::forbidden(path.child("type"), &why));
        } else if kind == "Localhost" && text(profile, "localhostProfile") != local {
            let why = format!("{word} profile in annotation and field must match");
            out.push(Error::forbidden(path.child("localhostProfile"), &why));
        }
    };
    compare(SECCOMP_POD, "seccompProfile", "seccomp", spec, path);
    for kind in KINDS {
        for (i, container) in list(spec, kind).iter().enumerate() {
            let (name, path) = (text(container, "name"), path.child(kind).index(i));
            compare(&format!("{SECCOMP}{name}"), "seccompProfile", "seccomp", container, &path);
            if text(get(spec, "os"), "name") != "windows" {
                compare(&format!("{APP_ARMOR}{name}"), "appArmorProfile", "apparmor", container, &path);
            }
        }
    }
}

/// The field's type and profile for an annotation's value.
fn annotated(value: &str) -> (&str, &str) {
    match value.strip_prefix("localhost/") {
        Some(profile) => ("Localhost", profile),
        None if value == "unconfined" => ("Unconfined", ""),
        None if matches!(value, "runtime/default" | "docker/default" | "") => ("RuntimeDefault", ""),
        None => ("", ""),
    }
}

/// Some annotations stay.
pub(super) fn update(new: &Value, old: &Value, path: &Path, out: &mut Vec<Error>) {
    let all = |o: &'_ Value| get(get(o, "metadata"), "annotations").clone();
    let (now, was) = (all(new), all(old));
    let kind = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        key if key.starts_with(APP_ARMOR) => Some("AppArmor annotations"),
        _ => None,
    };
    for (key, value) in was.as_object().into_iter().flatten() {
        if let Some(kind) = kind(key)
            && !same(get(&now, key), value)
        {
            out.push(Error::forbidden(path.key(key), &format!("may not remove or update {kind}")));
        }
    }
    for key in now.as_object().into_iter().flatten().map(|(k, _)| k).filter(|k| !has(&was, k)) {
        if let Some(kind) = kind(key) {
            out.push(Error::forbidden(path.key(key), &format!("may not add {kind}")));
        }
    }
}
