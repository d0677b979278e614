//! Annotations of pods that mean something, some of them the older form of fields.

use proto::Value;
use shared::status::field::{Error, Path};
use shared::types::MIRROR;

use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{entries, get, has, list, same, text};
use crate::validation::volume::descending_path;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The seccomp profile of a pod, before there was a field.
pub(crate) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// Prefix of the annotation of a container, whose name follows.
pub(crate) const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The AppArmor profile of a container, whose name follows, before there was a field.
pub(crate) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const KINDS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The annotations of a pod or template.
pub(super) fn check(metadata: &Value, spec: &Value, path: &Path, out: &mut FieldErrors) {
    let annotations = get(metadata, "annotations");
    if has(annotations, MIRROR) && text(spec, "nodeName").is_empty() {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        out.push(Error::invalid(path.key(MIRROR), text(annotations, MIRROR), why));
    }
    crate::validation::old_annotations::of_pod(metadata, path, out);
    if !costs_a_number(metadata) && !out.allows(ValidationOption::InvalidPodDeletionCost) {
        let path = path.key(DELETION_COST);
        out.push(Error::invalid(path, text(annotations, DELETION_COST), "must be a 32bit integer"));
    }
    let with = |prefix: &'static str| entries(metadata, "annotations").filter(move |(key, _)| key.starts_with(prefix));
    for (key, value) in with(SECCOMP_POD).filter(|(key, _)| *key == SECCOMP_POD).chain(with(SECCOMP)) {
        seccomp(value.as_str().unwrap_or_default(), &path.child(key), out);
    }
    for (key, value) in with(APP_ARMOR) {
        app_armor(key, value.as_str().unwrap_or_default(), spec, &path.key(key), out);
    }
}

/// Reports whether `controller.kubernetes.io/pod-deletion-cost` is absent or a canonical 32-bit number.
pub(super) fn costs_a_number(metadata: &Value) -> bool {
    let cost = get(get(metadata, "annotations"), DELETION_COST).as_str();
    cost.is_none_or(|cost| {
        cost.parse::<i32>().is_ok() && (cost == "0" || cost.starts_with(|c| matches!(c, '-' | '1'..='9')))
    })
}

/// The profile of a container that the key names.
fn app_armor(key: &str, value: &str, spec: &Value, path: &Path, out: &mut FieldErrors) {
    let name = key.strip_prefix(APP_ARMOR).unwrap_or_default();
    if !KINDS.iter().any(|k| list(spec, k).iter().any(|c| text(c, "name") == name)) {
        out.push(Error::invalid(path, name, "container not found"));
    }
    if !matches!(value, "" | "runtime/default" | "unconfined") && !value.starts_with("localhost/") {
        let why = format!("invalid AppArmor profile name: {}", shared::status::go_quote(value));
        out.push(Error::invalid(path, value, &why));
    }
}

fn seccomp(value: &str, path: &Path, out: &mut FieldErrors) {
    match value.strip_prefix("localhost/") {
        _ if matches!(value, "runtime/default" | "docker/default" | "unconfined") => {}
        Some(profile) => descending_path(profile, path, out),
        None => out.push(Error::invalid(path, value, "must be a valid seccomp profile")),
    }
}

/// The copy of a node's own pod claims no devices.
pub(super) fn no_claims(metadata: &Value, spec: &Value, out: &mut FieldErrors) {
    if has(get(metadata, "annotations"), MIRROR) {
        for _ in list(spec, "resourceClaims") {
            out.push(Error::forbidden(Path::from("[]"), "static pods do not support resource claims"));
        }
    }
}

/// Validates that annotations and fields of a new pod or template agree.
pub(super) fn fields_match(metadata: &Value, spec: &Value, path: &Path, out: &mut FieldErrors) {
    const APPARMOR_FIELD: &str = "appArmorProfile";
    const SECCOMP_FIELD: &str = "seccompProfile";
    let annotations = get(metadata, "annotations");
    let profile = |holder: &'_ Value, field: &str| get(get(holder, "securityContext"), field).clone();
    let mut compare = |key: &str, field: &str, profile: &Value, path: &Path| {
        let word = if field == SECCOMP_FIELD { "seccomp" } else { "apparmor" };
        if let (false, Some(value)) = (profile.is_null(), get(annotations, key).as_str())
            && let Some(part) = disagreement(profile, value, field == SECCOMP_FIELD)
        {
            let what = if part == "type" { "type" } else { "profile" };
            let why = format!("{word} {what} in annotation and field must match");
            out.push(Error::forbidden(path.child("securityContext").child(field).child(part), &why));
        }
    };
    compare(SECCOMP_POD, SECCOMP_FIELD, &profile(spec, SECCOMP_FIELD), path);
    let each = || KINDS.iter().flat_map(|k| list(spec, k).iter().enumerate().map(move |(i, c)| (*k, i, c)));
    for (kind, i, container) in each() {
        let key = format!("{SECCOMP}{}", text(container, "name"));
        compare(&key, SECCOMP_FIELD, &profile(container, SECCOMP_FIELD), &path.child(kind).index(i));
    }
    if text(get(spec, "os"), "name") == "windows" {
        return;
    }
    for (kind, i, container) in each() {
        let key = format!("{APP_ARMOR}{}", text(container, "name"));
        // What a container does not say is said by its pod.
        let own = profile(container, APPARMOR_FIELD);
        let own = if own.is_null() { profile(spec, APPARMOR_FIELD) } else { own };
        compare(&key, APPARMOR_FIELD, &own, &path.child(kind).index(i));
    }
}

/// The part of a profile that an annotation's value is at odds with. Seccomp's default has an older name, too.
fn disagreement(profile: &Value, value: &str, older: bool) -> Option<&'static str> {
    let agrees = match text(profile, "type") {
        "Unconfined" => value == "unconfined",
        "RuntimeDefault" => value == "runtime/default" || (older && value == "docker/default"),
        "Localhost" => match value.strip_prefix("localhost/") {
            Some(local) if has(profile, "localhostProfile") && text(profile, "localhostProfile") == local => true,
            Some(_) => return Some("localhostProfile"),
            None => false,
        },
        _ => true,
    };
    (!agrees).then_some("type")
}

/// Some annotations stay; what is in the others has to be right, once more.
pub(super) fn update(new: &Value, old: &Value, path: &Path, out: &mut FieldErrors) {
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
    check(get(new, "metadata"), get(new, "spec"), path, out);
}
