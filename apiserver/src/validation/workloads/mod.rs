//! Replication controllers, replica sets, deployments, daemon sets, stateful sets, controller revisions. Answers for
//! upstream's `ValidateDeployment`, `ValidateReplicaSet`, `ValidateDaemonSet`.

pub(crate) mod stateful;
pub(crate) mod status;

use proto::Value;
use shared::status::field::{Error, Path};

use super::meta::immutable;
use super::names::{not_negative, percent, percent_complaint};
use super::pod;
use super::selectors::{is_empty, label_selector, own_selector, picks, template_labels};
use super::tree::{entries, get, has, has_entries, int, same, text};
use crate::rules::options::FieldErrors;

const MISMATCH: &str = "`selector` does not match template `labels`";

fn spec_path() -> Path {
    Path::new("spec")
}

/// Non-negative numbers of a spec.
pub(super) fn counts(spec: &Value, keys: &[&str], path: &Path, out: &mut FieldErrors) {
    for key in keys {
        not_negative(out, path.child(key), int(spec, key));
    }
}

/// Validates the template of a workload: restart policy `Always`, no active deadline.
fn lasting_template(template: &Value, kind: &str, path: &Path, out: &mut FieldErrors) {
    pod::template(template, path, out);
    only_lasting(template, kind, path, out);
}

fn only_lasting(template: &Value, kind: &str, path: &Path, out: &mut FieldErrors) {
    let (spec, path) = (get(template, "spec"), path.child("spec"));
    let policy = text(spec, "restartPolicy");
    if policy != "Always" {
        out.push(Error::not_supported(path.child("restartPolicy"), policy, &["Always"]));
    }
    if has(spec, "activeDeadlineSeconds") {
        let message = format!("activeDeadlineSeconds in {kind} is not Supported");
        out.push(Error::forbidden(path.child("activeDeadlineSeconds"), &message));
    }
}

fn mismatch(template: &Value, path: &Path, out: &mut FieldErrors) {
    let labels = template_labels(template).clone();
    out.push(Error::invalid(path.child("metadata").child("labels"), labels, MISMATCH));
}

/// A required selector that is not empty.
fn selector(spec: &Value, kind: &str, path: &Path, out: &mut FieldErrors) {
    let (selector, path) = (get(spec, "selector"), path.child("selector"));
    if selector.is_null() {
        out.push(Error::required(path, ""));
        return;
    }
    label_selector(selector, &path, out);
    if is_empty(selector) {
        out.push(Error::invalid(&path, selector.clone(), &format!("empty selector is invalid for {kind}")));
    }
}

/// A replication controller.
pub(crate) fn replication_controller(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), spec_path());
    counts(spec, &["minReadySeconds"], &path, out);
    if !has_entries(spec, "selector") {
        out.push(Error::required(path.child("selector"), ""));
    }
    counts(spec, &["replicas"], &path, out);
    let (template, path) = (get(spec, "template"), path.child("template"));
    if template.is_null() {
        out.push(Error::required(path, ""));
        return;
    }
    let labels = template_labels(template);
    if get(spec, "selector").as_object().into_iter().flatten().any(|(k, v)| get(labels, k) != v) {
        mismatch(template, &path, out);
    }
    lasting_template(template, "ReplicationController", &path, out);
}

/// Validates that annotations with selectors that a version of the API cannot express do not change.
pub(crate) fn convertible(new: &Value, old: &Value, out: &mut FieldErrors) {
    const UNSAID: &str = "non-convertible.kubernetes.io";
    for (key, value) in entries(get(old, "metadata"), "annotations") {
        let Some((_, field)) = key.split_once('/').filter(|_| key.starts_with(UNSAID)) else { continue };
        if !field.contains("selector") {
            let mut error = Error::not_found(field, value.clone());
            error.detail = "unknown non-convertible field".to_owned();
            out.push(error);
            continue;
        }
        let selector = |o| get(get(o, "spec"), "selector");
        if !same(selector(new), selector(old)) {
            let path = spec_path().child("selector");
            out.push(Error::invalid(path, selector(new).clone(), "cannot update non-convertible selector"));
        }
    }
}

/// A replica set.
pub(crate) fn replica_set(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), spec_path());
    counts(spec, &["replicas", "minReadySeconds"], &path, out);
    selector(spec, "deployment", &path, out);
    matching_template(spec, &path, out);
}

/// The template of a replica set, or of a deployment's. With a selector that is none it is not looked at.
fn matching_template(spec: &Value, path: &Path, out: &mut FieldErrors) {
    let (template, wanted) = (get(spec, "template"), get(spec, "selector"));
    let Some(picked) = picks(wanted, template_labels(template)) else {
        out.push(Error::invalid(path.child("selector"), wanted.clone(), "invalid label selector"));
        return;
    };
    let path = path.child("template");
    if !picked {
        mismatch(template, &path, out);
    }
    lasting_template(template, "ReplicaSet", &path, out);
}

/// The selector of a replica set or deployment may not change.
pub(crate) fn selector_stays(new: &Value, old: &Value, out: &mut FieldErrors) {
    let selector = |o| get(get(o, "spec"), "selector");
    immutable(selector(new), selector(old), &Path::of(&["spec", "selector"]), out);
}

/// A deployment.
pub(crate) fn deployment(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), spec_path());
    counts(spec, &["replicas"], &path, out);
    selector(spec, "deployment", &path, out);
    matching_template(spec, &path, out);
    deployment_strategy(get(spec, "strategy"), &path.child("strategy"), out);
    counts(spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"], &path, out);
    if let Some(deadline) = int(spec, "progressDeadlineSeconds")
        && deadline <= int(spec, "minReadySeconds").unwrap_or_default()
    {
        let path = path.child("progressDeadlineSeconds");
        out.push(Error::invalid(path, deadline, "must be greater than minReadySeconds"));
    }
}

fn deployment_strategy(strategy: &Value, path: &Path, out: &mut FieldErrors) {
    let rolling = get(strategy, "rollingUpdate");
    match text(strategy, "type") {
        "Recreate" => {
            if !rolling.is_null() {
                let message = "may not be specified when strategy `type` is 'Recreate'";
                out.push(Error::forbidden(path.child("rollingUpdate"), message));
            }
        }
        "RollingUpdate" if rolling.is_null() => {
            out.push(Error::required(path.child("rollingUpdate"), "this should be defaulted and never be nil"));
        }
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            amount(get(rolling, "maxUnavailable"), &path.child("maxUnavailable"), out);
            amount(get(rolling, "maxSurge"), &path.child("maxSurge"), out);
            if size(get(rolling, "maxUnavailable")) == 0 && size(get(rolling, "maxSurge")) == 0 {
                let value = get(rolling, "maxUnavailable").clone();
                out.push(Error::invalid(path.child("maxUnavailable"), value, "may not be 0 when `maxSurge` is 0"));
            }
            at_most_all(get(rolling, "maxUnavailable"), &path.child("maxUnavailable"), out);
        }
        _ => out.push(Error::not_supported(path, strategy.clone(), &["Recreate", "RollingUpdate"])),
    }
}

/// A number or percentage that is not negative; null is fine.
pub(super) fn amount(value: &Value, path: &Path, out: &mut FieldErrors) {
    match value {
        Value::String(text) if percent(text).is_none() => {
            out.push(Error::invalid(path, text.as_str(), &percent_complaint()));
        }
        Value::Number(n) => not_negative(out, path.clone(), n.as_i64()),
        _ => {}
    }
}

/// The number, or the number before `%`; one in a text, which is wrong, counts as well.
fn size(value: &Value) -> i64 {
    match value {
        Value::String(text) => percent(text).or_else(|| text.parse().ok()).unwrap_or_default(),
        other => other.as_i64().unwrap_or_default(),
    }
}

/// Not more than `100%`.
pub(super) fn at_most_all(value: &Value, path: &Path, out: &mut FieldErrors) {
    if value.as_str().and_then(percent).is_some_and(|p| p > 100) {
        out.push(Error::invalid(path, value.clone(), "must not be greater than 100%"));
    }
}

/// A daemon set.
pub(crate) fn daemon_set(object: &Value, out: &mut FieldErrors) {
    let (spec, path) = (get(object, "spec"), spec_path());
    let wanted = get(spec, "selector");
    let (template, template_path) = (get(spec, "template"), path.child("template"));
    own_selector(wanted, &path.child("selector"), out);
    if picks(wanted, template_labels(template)) == Some(false) {
        mismatch(template, &template_path, out);
    }
    if !wanted.is_null() && is_empty(wanted) {
        let message = "empty selector is invalid for daemonset";
        out.push(Error::invalid(path.child("selector"), wanted.clone(), message));
    }
    lasting_template(template, "DaemonSet", &template_path, out);
    counts(spec, &["minReadySeconds"], &path, out);
    daemon_strategy(get(spec, "updateStrategy"), &path.child("updateStrategy"), out);
    counts(spec, &["revisionHistoryLimit"], &path, out);
}

fn daemon_strategy(strategy: &Value, path: &Path, out: &mut FieldErrors) {
    let rolling = get(strategy, "rollingUpdate");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if rolling.is_null() => out.push(Error::required(path.child("rollingUpdate"), "")),
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            for key in ["maxUnavailable", "maxSurge"] {
                amount(get(rolling, key), &path.child(key), out);
                at_most_all(get(rolling, key), &path.child(key), out);
            }
            match (size(get(rolling, "maxUnavailable")) != 0, size(get(rolling, "maxSurge")) != 0) {
                (true, true) => {
                    let value = get(rolling, "maxSurge").clone();
                    let message = "may not be set when maxUnavailable is non-zero";
                    out.push(Error::invalid(path.child("maxSurge"), value, message));
                }
                (false, false) => {
                    out.push(Error::required(path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0"));
                }
                _ => {}
            }
        }
        _ => out.push(Error::not_supported(path, strategy.clone(), &["RollingUpdate", "OnDelete"])),
    }
}

/// A controller revision.
pub(crate) fn revision(object: &Value, out: &mut FieldErrors) {
    match get(object, "data") {
        Value::Null => out.push(Error::required("data", "data is mandatory")),
        Value::Object(_) => {}
        _ => out.push(Error::required("data", "data must be a valid JSON object")),
    }
    not_negative(out, Path::new("revision"), int(object, "revision"));
}

/// A controller revision's data may not change.
pub(crate) fn revision_update(new: &Value, old: &Value, out: &mut FieldErrors) {
    immutable(get(new, "data"), get(old, "data"), &Path::new("data"), out);
}
