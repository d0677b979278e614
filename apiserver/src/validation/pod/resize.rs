//! `resize` of a pod: more or less of cpu and memory. Answers for upstream's `ValidatePodResize`.

use proto::Value;
use shared::status::field::{Error, Path};
use shared::types::MIRROR;

use super::qos::qos_class;
use crate::rules::options::{FieldErrors, ValidationOption};
use crate::rules::tree::{at, entries, get, has, has_entries, list, same, text, without};

const ONLY: &str = "only cpu and memory resources are mutable";
const ONLY_SIDECARS: &str = "only cpu and memory resources for sidecar containers are mutable";
const NO_WHOLE: &str = "resize of pods with pod-level resources is forbidden when \
                        InPlacePodLevelResourcesVerticalScalingEnabled feature gate is disabled";
const NO_INIT: &str = "resources for non-sidecar init containers are immutable";

/// `resize`.
pub(in crate::validation) fn resize(new: &Value, old: &Value, out: &mut FieldErrors) {
    let path = Path::new("spec");
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let refused = if has(at(old, &["metadata", "annotations"]), MIRROR) {
        Some("static pods cannot be resized")
    } else if text(get(before, "os"), "name") == "windows" {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(why) = refused {
        out.push(Error::forbidden(Path::from("[]"), why));
        return;
    }
    super::whole(new, out);
    let was = text(get(old, "status"), "qosClass");
    if (if was.is_empty() { qos_class(before) } else { was }) != qos_class(spec) {
        let class = text(get(new, "status"), "qosClass");
        out.push(Error::invalid(&path, class, "Pod QOS Class may not change as a result of resizing"));
    }
    if !can_resize(old) {
        out.push(Error::forbidden(&path, "Pod running on node without support for resize"));
    }
    let whole = |s: &Value| ["requests", "limits"].iter().any(|k| has_entries(get(s, "resources"), k));
    if whole(spec) || whole(before) {
        if !out.allows(ValidationOption::PodLevelResourcesResize) {
            out.push(Error::forbidden(Path::from("[]"), NO_WHOLE));
            return;
        }
        as_a_whole(spec, before, &path, out);
    }
    if !in_order(spec, before, &path, out) {
        return;
    }
    let always = |c: &Value| text(c, "restartPolicy") == "Always";
    let pairs = |key: &str| -> Vec<_> { list(spec, key).iter().zip(list(before, key)).enumerate().collect() };
    for (i, (now, was)) in pairs("initContainers").into_iter().filter(|(_, (_, was))| always(was)) {
        kept(now, was, &path.child("initContainers").index(i).child("resources"), out);
    }
    for (i, (now, was)) in pairs("containers") {
        kept(now, was, &path.child("containers").index(i).child("resources"), out);
    }
    for _ in pairs("containers").iter().filter(|(_, (now, was))| !only_resized(now, was)) {
        out.push(Error::forbidden(&path, ONLY));
    }
    for (_, (now, was)) in pairs("initContainers") {
        match always(now) {
            true if !only_resized(now, was) => out.push(Error::forbidden(&path, ONLY_SIDECARS)),
            false if !same(now, was) => out.push(Error::forbidden(&path, NO_INIT)),
            _ => {}
        }
    }
}

/// Validates a resize of pod-level resources: cpu and memory only, and none may be removed.
fn as_a_whole(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
    let (now, was) = (get(spec, "resources"), get(before, "resources"));
    let at = path.child("resources");
    if !was.is_null() && now.is_null() {
        out.push(Error::forbidden(at, "pod-level resources cannot be removed"));
        return;
    }
    for key in ["requests", "limits"] {
        if entries(was, key).any(|(name, _)| !has(get(now, key), name)) {
            out.push(Error::forbidden(at.child(key), &format!("pod-level resource {key} cannot be removed")));
        }
    }
    let rest = |r: &Value, key: &str| without(get(r, key), &["cpu", "memory"]);
    if !["requests", "limits"].iter().all(|key| same(&rest(now, key), &rest(was, key))) {
        out.push(Error::forbidden(path, "only cpu and memory resources are mutable at pod-level"));
    }
}

/// The containers are those that were there, in their order.
fn in_order(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) -> bool {
    let start = out.len();
    for key in ["containers", "initContainers"] {
        let (now, was, path) = (list(spec, key), list(before, key), path.child(key));
        if now.len() != was.len() {
            out.push(Error::forbidden(path, &format!("{key} may not be added or removed on resize")));
            continue;
        }
        for (i, _) in now.iter().zip(was).enumerate().filter(|(_, (a, b))| text(a, "name") != text(b, "name")) {
            let why = format!("{key} may not be renamed or reordered on resize");
            out.push(Error::forbidden(path.index(i).child("name"), &why));
        }
    }
    out.len() == start
}

/// Validates that no request or limit is removed.
fn kept(now: &Value, was: &Value, path: &Path, out: &mut FieldErrors) {
    let (now, was) = (get(now, "resources"), get(was, "resources"));
    for key in ["requests", "limits"] {
        if entries(was, key).any(|(name, _)| !has(get(now, key), name)) {
            out.push(Error::forbidden(path.child(key), &format!("resource {key} cannot be removed")));
        }
    }
}

/// Nodes that can resize pods report the resources of running containers; the first of them tells.
fn can_resize(pod: &Value) -> bool {
    let mut statuses = list(get(pod, "status"), "containerStatuses").iter();
    statuses.find(|s| !at(s, &["state", "running"]).is_null()).is_none_or(|s| has(s, "resources"))
}

/// Reports whether a container changed in cpu and memory only. A list of resources may be added where there was none,
/// except claims.
fn only_resized(now: &Value, was: &Value) -> bool {
    let resources = |c: &Value, key: &str| without(at(c, &["resources", key]), &["cpu", "memory"]);
    let listed = |key: &str| !has(get(was, "resources"), key) || same(&resources(now, key), &resources(was, key));
    listed("limits")
        && listed("requests")
        && list(get(was, "resources"), "claims").is_empty()
        && same(&without(now, &["resources"]), &without(was, &["resources"]))
}
