//! What may change on a pod, through the pod itself and through its subresources.

use std::collections::BTreeSet;

use proto::Value;
use serde_json::Map;
use shared::status::field::{Error, Path};

use super::{containers, placement};
use crate::validation::internal;
use crate::validation::meta::annotation;
use crate::validation::names::{between, complain, qualified_name};
use crate::validation::tree::{at, entries, get, has, int, list, quantity, same, text, without};

const MIRROR: &str = "kubernetes.io/config.mirror";
const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A PUT or PATCH of the pod.
pub(in crate::validation) fn update(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let path = Path::new("spec");
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let start = out.len();
    for key in ["containers", "initContainers"] {
        if list(spec, key).len() != list(before, key).len() {
            out.push(Error::forbidden(path.child(key), "pod updates may not add or remove containers"));
        }
    }
    if names_differ(spec, before, "containers") && out.len() == start {
        out.push(Error::forbidden(path.child("containers"), "pod updates may not add or remove containers"));
    }
    if out.len() > start {
        return;
    }
    for key in ["containers", "initContainers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            let image = text(container, "image");
            let path = path.child(key).index(i).child("image");
            if image.is_empty() {
                out.push(Error::required(path, ""));
            } else if image.trim() != image {
                out.push(Error::invalid(path, image, "must not have leading or trailing whitespace"));
            }
        }
    }
    deadline(spec, before, &path, out);
    tolerations(spec, before, &path.child("tolerations"), out);
    gates(spec, before, &path.child("schedulingGates"), out);
    if out.len() > start {
        return;
    }
    if spec == before {
        return;
    }
    let masked = masked(spec, before);
    if !same(&masked, before) {
        out.push(Error::forbidden(&path, &format!("{ONLY}{}", internal::pod_diff(before, &masked))));
    }
}

fn names_differ(spec: &Value, before: &Value, key: &str) -> bool {
    let names = |s: &Value| -> BTreeSet<String> { list(s, key).iter().map(|c| text(c, "name").to_owned()).collect() };
    names(spec) != names(before)
}

fn deadline(spec: &Value, before: &Value, path: &Path, out: &mut Vec<Error>) {
    let path = path.child("activeDeadlineSeconds");
    let max = i64::from(i32::MAX);
    match (int(spec, "activeDeadlineSeconds"), int(before, "activeDeadlineSeconds")) {
        (Some(new), old) => {
            if !(0..=max).contains(&new) {
                out.push(Error::invalid(&path, new, &between(0, max)));
            } else if old.is_some_and(|old| new > old) {
                let message = "must be less than or equal to previous value";
                out.push(Error::invalid(&path, new, message));
            }
        }
        (None, Some(_)) => {
            out.push(Error::invalid(&path, Value::Null, "must not update from a positive integer to nil value"));
        }
        (None, None) => {}
    }
}

fn tolerations(spec: &Value, before: &Value, path: &Path, out: &mut Vec<Error>) {
    let bare = |t: &Value| without(t, &["tolerationSeconds"]);
    let kept = |old: &Value| list(spec, "tolerations").iter().any(|new| same(&bare(new), &bare(old)));
    if !list(before, "tolerations").iter().all(kept) {
        out.push(Error::forbidden(path, "existing toleration can not be modified except its tolerationSeconds"));
        return;
    }
    placement::tolerations(spec, path, out);
}

fn gates(spec: &Value, before: &Value, path: &Path, out: &mut Vec<Error>) {
    let known: Vec<&str> = list(before, "schedulingGates").iter().map(|g| text(g, "name")).collect();
    for (i, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        if !known.contains(&name) {
            let message = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            out.push(Error::forbidden(path.index(i).child("name"), &message));
        }
    }
}

fn set(map: &mut Map<String, Value>, key: &str, value: &Value) {
    if value.is_null() {
        map.remove(key);
    } else {
        map.insert(key.to_owned(), value.clone());
    }
}

/// The new spec with everything that may change set back to what it was.
fn masked(spec: &Value, before: &Value) -> Value {
    let mut copy = spec.clone();
    let Some(map) = copy.as_object_mut() else { return copy };
    for key in ["containers", "initContainers"] {
        let olds = list(before, key).to_vec();
        let news = map.get_mut(key).and_then(Value::as_array_mut);
        for (container, old) in news.into_iter().flatten().zip(&olds) {
            if let Some(container) = container.as_object_mut() {
                set(container, "image", get(old, "image"));
            }
        }
    }
    for key in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        set(map, key, get(before, key));
    }
    let grace = "terminationGracePeriodSeconds";
    if int(before, grace).is_some_and(|s| s < 0) && int(spec, grace) == Some(1) {
        set(map, grace, get(before, grace));
    }
    if !list(before, "schedulingGates").is_empty() {
        loosen(map, spec, before);
    }
    copy
}

/// Pods that wait at a gate may narrow down where they run.
fn loosen(map: &mut Map<String, Value>, spec: &Value, before: &Value) {
    let narrowed = entries(before, "nodeSelector").all(|(k, v)| get(get(spec, "nodeSelector"), k) == v);
    if narrowed {
        set(map, "nodeSelector", get(before, "nodeSelector"));
    }
    let terms = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    if at(before, &terms).is_null() {
        let others = |s: &Value| without(get(s, "affinity"), &["nodeAffinity"]);
        if same(&others(spec), &others(before)) {
            set(map, "affinity", get(before, "affinity"));
        }
    }
}

/// `status`.
pub(in crate::validation) fn status(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let path = Path::new("status");
    for (i, condition) in list(get(new, "status"), "conditions").iter().enumerate() {
        let kind = text(condition, "type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let path = Path::of(&["metadata", "conditions"]).index(i).child("Type");
            complain(out, &path, kind, qualified_name(kind));
        }
    }
    if text(get(new, "spec"), "nodeName") != text(get(old, "spec"), "nodeName") {
        out.push(Error::forbidden(path.child("nodeName"), "may not be changed directly"));
    }
    let class = |pod: &Value| text(get(pod, "status"), "qosClass").to_owned();
    if !class(old).is_empty() && class(new) != class(old) {
        out.push(Error::invalid(path.child("qosClass"), class(new), "field is immutable"));
    }
    let policy = text(get(old, "spec"), "restartPolicy");
    transitions(new, old, "containerStatuses", policy, &path, out);
    transitions(new, old, "ephemeralContainerStatuses", "Never", &path, out);
}

/// Containers that will not be restarted stay terminated.
fn transitions(new: &Value, old: &Value, key: &str, policy: &str, path: &Path, out: &mut Vec<Error>) {
    if policy == "Always" {
        return;
    }
    for (i, before) in list(get(old, "status"), key).iter().enumerate() {
        let ended = at(before, &["state", "terminated"]);
        if ended.is_null() || (policy == "OnFailure" && int(ended, "exitCode").unwrap_or_default() != 0) {
            continue;
        }
        // Containers with rules of their own may restart whatever the pod says.
        let name = text(before, "name");
        let own = list(get(old, "spec"), "containers").iter().find(|c| text(c, "name") == name);
        if own.is_some_and(|c| has(c, "restartPolicy")) {
            continue;
        }
        for after in list(get(new, "status"), key) {
            if text(after, "name") == name && at(after, &["state", "terminated"]).is_null() {
                let path = path.child(key).index(i).child("state");
                out.push(Error::forbidden(path, "may not be transitioned to non-terminated state"));
            }
        }
    }
}

/// `ephemeralcontainers`.
pub(in crate::validation) fn ephemeral(new: &Value, old: &Value, out: &mut Vec<Error>) {
    if !annotation(old, MIRROR).is_empty() {
        out.push(Error::forbidden(Path::from("[]"), "static pods do not support ephemeral containers"));
        return;
    }
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let path = Path::of(&["spec", "ephemeralContainers"]);
    let around = containers::Surroundings {
        volumes: containers::volume_names(spec),
        claims: containers::claim_names(spec),
        grace: int(spec, "terminationGracePeriodSeconds").unwrap_or(30),
    };
    containers::ephemeral(spec, &around, &path, out);
    for container in list(before, "ephemeralContainers") {
        let name = text(container, "name");
        let shown = shared::status::go_quote(name);
        match list(spec, "ephemeralContainers").iter().find(|c| text(c, "name") == name) {
            None => {
                out.push(Error::forbidden(
                    &path,
                    &format!("existing ephemeral containers {shown} may not be removed\n"),
                ));
            }
            Some(now) if !same(now, container) => {
                out.push(Error::forbidden(
                    &path,
                    &format!("existing ephemeral containers {shown} may not be changed\n"),
                ));
            }
            Some(_) => {}
        }
    }
    if !same(&without(spec, &["ephemeralContainers"]), &without(before, &["ephemeralContainers"])) {
        out.push(Error::forbidden(Path::new("spec"), ONLY));
    }
}

/// `resize`.
pub(in crate::validation) fn resize(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let path = Path::new("spec");
    if !annotation(old, MIRROR).is_empty() {
        out.push(Error::forbidden(Path::from("[]"), "static pods cannot be resized"));
        return;
    }
    super::spec(get(new, "spec"), &path, out);
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let start = out.len();
    if qos(before) != qos(spec) {
        let class = text(get(new, "status"), "qosClass");
        out.push(Error::invalid(&path, class, "Pod QOS Class may not change as a result of resizing"));
    }
    if list(spec, "containers").len() != list(before, "containers").len() {
        out.push(Error::forbidden(&path, "only cpu and memory resources are mutable"));
        return;
    }
    for (i, (container, old)) in list(spec, "containers").iter().zip(list(before, "containers")).enumerate() {
        let path = path.child("containers").index(i).child("resources");
        let (now, was) = (get(container, "resources"), get(old, "resources"));
        for key in ["requests", "limits"] {
            if entries(was, key).any(|(name, _)| !has(get(now, key), name)) {
                out.push(Error::forbidden(path.child(key), &format!("resource {key} cannot be removed")));
            }
        }
    }
    if out.len() > start {
        return;
    }
    let bare = |s: &Value| {
        let mut copy = s.clone();
        let all = copy.get_mut("containers").and_then(Value::as_array_mut);
        for container in all.into_iter().flatten() {
            for key in ["requests", "limits"] {
                let list = container.get_mut("resources").and_then(|r| r.get_mut(key)).and_then(Value::as_object_mut);
                if let Some(list) = list {
                    list.retain(|name, _| !matches!(name.as_str(), "cpu" | "memory"));
                }
            }
        }
        copy
    };
    if !same(&bare(spec), &bare(before)) {
        out.push(Error::forbidden(&path, "only cpu and memory resources are mutable"));
    }
}

/// Quality of service class of a spec.
fn qos(spec: &Value) -> &'static str {
    let all = || list(spec, "containers").iter().chain(list(spec, "initContainers"));
    let amount = |c: &Value, key: &str, name: &str| quantity(at(c, &["resources", key, name]));
    let names = ["cpu", "memory"];
    let set = |c: &Value, key: &str, name: &str| amount(c, key, name).sign() > 0;
    if all().all(|c| names.iter().all(|n| !set(c, "requests", n) && !set(c, "limits", n))) {
        return "BestEffort";
    }
    let guaranteed =
        all().all(|c| names.iter().all(|n| set(c, "limits", n) && amount(c, "requests", n) == amount(c, "limits", n)));
    if guaranteed { "Guaranteed" } else { "Burstable" }
}
