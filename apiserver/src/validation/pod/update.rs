//! Validation of updates of pods, through the pod itself and its subresource `ephemeralcontainers`. Answers for
//! upstream's `ValidatePodUpdate`, `ValidatePodEphemeralContainersUpdate`.

use proto::Value;
use serde_json::Map;
use shared::status::field::{Error, Path};
use shared::types::MIRROR;

use super::annotations;
use super::{containers, placement};
use crate::rules::names::between;
use crate::rules::options::FieldErrors;
use crate::rules::tree::{at, entries, get, has, int, list, same, text, without};
use crate::validation::internal;

const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A PUT or PATCH of the pod.
pub(crate) fn update(new: &Value, old: &Value, out: &mut FieldErrors) {
    let path = Path::new("spec");
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    revalidated(new, old, out);
    for key in ["containers", "initContainers"] {
        if list(spec, key).len() != list(before, key).len() {
            out.push(Error::forbidden(path.child(key), "pod updates may not add or remove containers"));
            return;
        }
        for (i, container) in list(spec, key).iter().enumerate() {
            let path = path.child(key).index(i);
            if text(container, "image").is_empty() {
                out.push(Error::required(path.child("image"), ""));
            }
            containers::trimmed_image(container, &path, out);
        }
    }
    if !deadline(spec, before, &path, out) {
        return;
    }
    tolerations(spec, before, &path.child("tolerations"), out);
    gates(spec, before, &path.child("schedulingGates"), out);
    if !list(before, "schedulingGates").is_empty() {
        narrowed(spec, before, &path, out);
    }
    if spec == before {
        return;
    }
    let masked = masked(spec, before);
    if !same(&masked, before) {
        out.push(Error::forbidden(&path, &format!("{ONLY}{}", internal::pod_diff(before, &masked))));
    }
}

/// A changed pod is judged like a new one, whatever of it changed.
fn revalidated(new: &Value, old: &Value, out: &mut FieldErrors) {
    super::whole(new, out);
    annotations::update(new, old, &Path::of(&["metadata", "annotations"]), out);
}

/// The deadline may come nearer; false where it makes no sense to go on.
fn deadline(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) -> bool {
    let path = path.child("activeDeadlineSeconds");
    let max = i64::from(i32::MAX);
    match (int(spec, "activeDeadlineSeconds"), int(before, "activeDeadlineSeconds")) {
        (Some(new), old) => {
            if !(0..=max).contains(&new) {
                out.push(Error::invalid(&path, new, &between(0, max)));
                return false;
            }
            if old.is_some_and(|old| new > old) {
                let message = "must be less than or equal to previous value";
                out.push(Error::invalid(&path, new, message));
                return false;
            }
        }
        (None, Some(_)) => {
            out.push(Error::invalid(&path, Value::Null, "must not update from a positive integer to nil value"));
        }
        (None, None) => {}
    }
    true
}

fn tolerations(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
    let bare = |t: &Value| without(t, &["tolerationSeconds"]);
    let kept = |old: &Value| list(spec, "tolerations").iter().any(|new| same(&bare(new), &bare(old)));
    if !list(before, "tolerations").iter().all(kept) {
        out.push(Error::forbidden(path, "existing toleration can not be modified except its tolerationSeconds"));
        return;
    }
    placement::tolerations(spec, path, out);
}

fn gates(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
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
    set(map, "nodeSelector", get(before, "nodeSelector"));
    let mut affinity = match get(spec, "affinity") {
        Value::Null => Value::Object(Map::new()),
        affinity => affinity.clone(),
    };
    if let (Some(copy), node) = (affinity.as_object_mut(), at(before, &["affinity", "nodeAffinity"])) {
        set(copy, "nodeAffinity", node);
    }
    set(map, "affinity", if same(&affinity, get(before, "affinity")) { get(before, "affinity") } else { &affinity });
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Validates that a gated pod's node selection is only narrowed.
fn narrowed(spec: &Value, before: &Value, path: &Path, out: &mut FieldErrors) {
    let selector = get(spec, "nodeSelector");
    if entries(before, "nodeSelector").any(|(k, v)| get(selector, k) != v) {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        out.push(Error::invalid(path.child("nodeSelector"), selector.clone(), why));
    }
    let keys = ["affinity", "nodeAffinity", REQUIRED];
    let (now, was) = (list(at(spec, &keys), TERMS), list(at(before, &keys), TERMS));
    if was.is_empty() {
        return;
    }
    let path = keys.iter().fold(path.clone(), |p, k| p.child(k)).child(TERMS);
    if now.len() != was.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        out.push(Error::invalid(path, Value::from(now.to_vec()), why));
        return;
    }
    for (i, (now, was)) in now.iter().zip(was).enumerate() {
        let kept = |key: &str| {
            let (now, was) = (list(now, key), list(was, key));
            now.len() >= was.len() && now.iter().zip(was).all(|(a, b)| same(a, b))
        };
        // A term that says nothing matches nothing: more of it would be less.
        let nothing = |term: &Value| ["matchExpressions", "matchFields"].iter().all(|k| list(term, k).is_empty());
        if !(kept("matchExpressions") && kept("matchFields")) || (nothing(was) && !nothing(now)) {
            let why = "only additions are allowed (no mutations or deletions)";
            out.push(Error::invalid(path.index(i), now.clone(), why));
        }
    }
}

const TERMS: &str = "nodeSelectorTerms";

/// `ephemeralcontainers`.
pub(in crate::validation) fn ephemeral(new: &Value, old: &Value, out: &mut FieldErrors) {
    if has(at(old, &["metadata", "annotations"]), MIRROR) {
        out.push(Error::forbidden(Path::from("[]"), "static pods do not support ephemeral containers"));
        return;
    }
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let path = Path::of(&["spec", "ephemeralContainers"]);
    revalidated(new, old, out);
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
                let changes = internal::ephemeral_diff(container, now);
                let why = format!("existing ephemeral containers {shown} may not be changed{changes}");
                out.push(Error::forbidden(&path, &why));
            }
            Some(_) => {}
        }
    }
}
