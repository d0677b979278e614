//! `resize` of a pod: more or less of cpu and memory.

use proto::Value;
use shared::status::field::{Error, Path};

use super::annotations::MIRROR;
use crate::validation::meta::annotation;
use crate::validation::tree::{at, entries, get, has, list, quantity, same, text};

const ONLY: &str = "only cpu and memory resources are mutable";
const ONLY_SIDECARS: &str = "only cpu and memory resources for sidecar containers are mutable";
const NO_INIT: &str = "resources for non-sidecar init containers are immutable";

/// `resize`.
pub(in crate::validation) fn resize(new: &Value, old: &Value, out: &mut Vec<Error>) {
    let path = Path::new("spec");
    let (spec, before) = (get(new, "spec"), get(old, "spec"));
    let refused = if has(spec, "resources") {
        Some("pods with pod-level resources cannot be resized")
    } else if !annotation(old, MIRROR).is_empty() {
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
    let start = out.len();
    if qos(before) != qos(spec) {
        let class = text(get(new, "status"), "qosClass");
        out.push(Error::invalid(&path, class, "Pod QOS Class may not change as a result of resizing"));
    }
    if !can_resize(old) {
        out.push(Error::forbidden(&path, "Pod running on node without support for resize"));
    }
    if ["containers", "initContainers"].iter().any(|k| list(spec, k).len() != list(before, k).len()) {
        out.push(Error::forbidden(&path, ONLY));
        return;
    }
    for key in ["containers", "initContainers"] {
        for (i, (container, old)) in list(spec, key).iter().zip(list(before, key)).enumerate() {
            let path = path.child(key).index(i).child("resources");
            if key == "containers" || text(old, "restartPolicy") == "Always" {
                kept(get(container, "resources"), get(old, "resources"), &path, out);
            } else if !same(get(container, "resources"), get(old, "resources")) {
                out.push(Error::forbidden(path, NO_INIT));
            }
        }
    }
    if out.len() > start || same(&bare(spec), &bare(before)) {
        return;
    }
    let sidecars = same(get(&bare(spec), "containers"), get(&bare(before), "containers"))
        && !same(get(&bare(spec), "initContainers"), get(&bare(before), "initContainers"));
    out.push(Error::forbidden(&path, if sidecars { ONLY_SIDECARS } else { ONLY }));
}

/// What is asked for and limited stays so.
fn kept(now: &Value, was: &Value, path: &Path, out: &mut Vec<Error>) {
    for key in ["requests", "limits"] {
        if entries(was, key).any(|(name, _)| !has(get(now, key), name)) {
            out.push(Error::forbidden(path.child(key), &format!("resource {key} cannot be removed")));
        }
    }
}

/// Nodes that can resize pods report the resources of running containers.
fn can_resize(pod: &Value) -> bool {
    list(get(pod, "status"), "containerStatuses")
        .iter()
        .all(|s| at(s, &["state", "running"]).is_null() || has(s, "resources"))
}

/// A spec without what may change.
fn bare(spec: &Value) -> Value {
    let mut copy = spec.clone();
    for key in ["containers", "initContainers"] {
        let all = copy.get_mut(key).and_then(Value::as_array_mut);
        for container in all.into_iter().flatten() {
            if key == "initContainers" && text(container, "restartPolicy") != "Always" {
                continue;
            }
            for key in ["requests", "limits"] {
                let list = container.get_mut("resources").and_then(|r| r.get_mut(key)).and_then(Value::as_object_mut);
                if let Some(list) = list {
                    list.retain(|name, _| !matches!(name.as_str(), "cpu" | "memory"));
                }
            }
        }
    }
    copy
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
